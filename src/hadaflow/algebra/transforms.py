r"""Fast Walsh–Hadamard transforms, $x \mapsto \Phi x$."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.base.checks import as_numbers
from hadaflow.base.errors import InputError
from hadaflow.base.lazy import jax, jnp
from hadaflow.base.precision import double_precision, is_traced, to_numpy

LARGEST = 2**24

# Which form is fastest depends on the size, the batch and the machine. Inside the vector field on one
# CPU core: radix 4 up to about 2^7 and for most batches, constant geometry for single vectors of 2^8
# to 2^20, radix 4 again above. `make bench` compares them alone, where the smallest sizes differ by
# hundredths of a microsecond either way.
_CONSTANT_GEOMETRY = range(2**8, 2**20 + 1)
_KRONECKER_BITS = 6


def walsh_hadamard(x: Any) -> Any:
    r"""Walsh–Hadamard transform of the last axis, in Sylvester (natural) order, not normalized.

    $$(\Phi x)_i = \sum_j (-1)^{\langle i, j \rangle} x_j,$$

    where $\langle i, j\rangle$ counts the binary digits that $i$ and $j$ share. Twice the transform
    is `n` times the identity. float32 stays float32, everything else is computed in float64; leading
    axes are batched. Differentiable.

    Examples:
        >>> walsh_hadamard([1.0, 2.0, 3.0, 4.0])
        array([10., -2., -4.,  0.])
    """
    if is_traced(x):
        return transform(x)
    dtype = np.float32 if getattr(x, "dtype", None) == np.float32 else np.float64
    with double_precision():
        # A NumPy array goes to compiled code as it is: `jnp.asarray` takes longer than a small transform.
        plain = isinstance(x, jax.Array) or (type(x) is np.ndarray and x.dtype == dtype)
        values = x if plain else as_numbers("x", x).astype(dtype)
        if jnp.issubdtype(values.dtype, jnp.complexfloating):
            raise InputError(f"Argument `x` must hold real numbers, but is of type {values.dtype}.")
        return to_numpy(_compiled()(values if values.dtype == dtype else values.astype(dtype)))


def transform(x: jax.Array) -> jax.Array:
    """`walsh_hadamard` of a JAX array as it is: for compiled code, no conversion of types."""
    if x.ndim == 0:
        raise InputError("Argument `x` must have at least one axis to transform, but is a number.")
    n = x.shape[-1]
    check_power_of_two("x.shape[-1]", n, largest=LARGEST)
    return _choose_form(n, x.size // n)(x)


@functools.cache
def _compiled() -> Any:
    return jax.jit(transform)


def check_power_of_two(name: str, value: int, *, largest: int) -> None:
    """Refuse `value` unless it is 1, 2, 4, … up to `largest`."""
    if value < 1 or value & (value - 1) or value > largest:
        raise InputError(
            f"Argument `{name}` must be a power of two from 1 to {largest}, but is {value}."
        )


def sylvester_matrix(n: int) -> np.ndarray:
    r"""The dense Sylvester–Hadamard matrix $\Phi_n$ (Definition 2), for tests and small `n`."""
    check_power_of_two("n", n, largest=2**13)
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _choose_form(n: int, batch: int) -> Callable[[jax.Array], jax.Array]:
    if jax.default_backend() != "cpu":
        return _kronecker
    if batch == 1 and n in _CONSTANT_GEOMETRY:
        return _constant_geometry
    return _radix4


def _radix4(x: jax.Array) -> jax.Array:
    """Butterflies of four: half the passes over memory of the textbook radix 2."""
    shape, n, span = x.shape, x.shape[-1], 1
    if n.bit_length() % 2 == 0:  # an odd power of two: one radix-2 pass first
        a, b = jnp.moveaxis(x.reshape(*shape[:-1], n // 2, 2), -1, 0)
        x, span = jnp.stack([a + b, a - b], axis=-1).reshape(shape), 2
    while span < n:
        a, b, c, d = jnp.moveaxis(x.reshape(*shape[:-1], n // (4 * span), 4, span), -2, 0)
        p, q, r, s = a + b, a - b, c + d, c - d
        x = jnp.stack([p + r, q + s, p - r, q - s], axis=-2).reshape(shape)
        span *= 4
    return x


def _constant_geometry(x: jax.Array) -> jax.Array:
    """Every pass reads neighbours and writes halves, so each compiles to the same simple loop."""
    shape, n = x.shape, x.shape[-1]
    for _ in range(n.bit_length() - 1):
        a, b = jnp.moveaxis(x.reshape(*shape[:-1], n // 2, 2), -1, 0)
        x = jnp.concatenate([a + b, a - b], axis=-1)
    return x


def _kronecker(x: jax.Array) -> jax.Array:
    """Small dense factors of Φ as matrix products: what accelerators are good at.

    Each product takes the leading digits of the index and puts them last, so that all are plain
    products of a tall matrix, and the digits are in their places again at the end.
    """
    shape, bits = x.shape, x.shape[-1].bit_length() - 1
    passes = -(-bits // _KRONECKER_BITS)
    for step in (bits * (i + 1) // passes - bits * i // passes for i in range(passes)):
        factor = jnp.asarray(sylvester_matrix(2**step), dtype=x.dtype)
        blocks = x.reshape(*shape[:-1], 2**step, -1)
        # HIGHEST: accelerators would otherwise round the float32 products to fewer bits.
        x = jnp.einsum("...jc,ij->...ci", blocks, factor, precision=jax.lax.Precision.HIGHEST)
    return x.reshape(shape)


def odd_sums(x: jax.Array) -> jax.Array:
    r"""$\sum_{j:\,\langle i,j\rangle\ \mathrm{odd}} x_j$ for every $i$, along the last axis.

    Half the difference of two Walsh–Hadamard sums, but made of additions only: for $x \ge 0$ every
    sum has full relative accuracy, however far the entries are apart. Twice the work of a transform.
    """
    even, odd, n = x, jnp.zeros_like(x), x.shape[-1]

    def pair(v):
        return jnp.moveaxis(v.reshape(*v.shape[:-1], n // 2, 2), -1, 0)

    for _ in range(n.bit_length() - 1):
        (e0, e1), (o0, o1) = pair(even), pair(odd)
        even = jnp.concatenate([e0 + e1, e0 + o1], axis=-1)
        odd = jnp.concatenate([o0 + o1, o0 + e1], axis=-1)
    return odd
