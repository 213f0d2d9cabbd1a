"""Optax transformations that optax lacks: rules of whole matrices, and the same on singular values.

Those on singular values see each layer as the vector of them, all of one matrix.
"""

from typing import Any, NamedTuple

from hadaflow.base.lazy import jax, jnp, optax

_POWER = -0.25  # of the statistics of rows and columns: together an inverse square root


def polar() -> Any:
    """Every matrix replaced by the product of its singular vectors: all singular values 1.

    Those that are rounding, or zero, stay zero.
    """
    return optax.stateless(lambda updates, _: jax.tree.map(_polar_factor, updates))


def _polar_factor(G: Any) -> Any:
    U, sizes, Vt = jnp.linalg.svd(G, full_matrices=False)
    return (U * jnp.where(_counts(sizes, G), 1.0, 0.0)) @ Vt


def _counts(sizes: Any, matrix: Any) -> Any:
    """Which singular values, or eigenvalues, of a matrix are more than rounding."""
    rounding = max(matrix.shape) * float(jnp.finfo(matrix.dtype).eps)
    return sizes > rounding * jnp.max(sizes)


class _Statistics(NamedTuple):
    left: Any
    right: Any


def scale_by_shampoo(eps: Any) -> Any:
    r"""$L^{-1/4}GR^{-1/4}$ with $L = \varepsilon I + \sum GG^\top$, $R = \varepsilon I + \sum G^\top G$.

    Directions in which they are zero have no gradient, and stay.
    """

    def init(params: Any) -> _Statistics:
        left = jax.tree.map(lambda p: eps * jnp.eye(p.shape[0], dtype=p.dtype), params)
        right = jax.tree.map(lambda p: eps * jnp.eye(p.shape[1], dtype=p.dtype), params)
        return _Statistics(left, right)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, _Statistics]:
        left = jax.tree.map(lambda L, G: L + G @ G.T, state.left, updates)
        right = jax.tree.map(lambda R, G: R + G.T @ G, state.right, updates)
        moved = jax.tree.map(
            lambda L, G, R: _inverse_root(L) @ G @ _inverse_root(R), left, updates, right
        )
        return moved, _Statistics(left, right)

    return optax.GradientTransformation(init, update)


def _inverse_root(matrix: Any) -> Any:
    sizes, vectors = jnp.linalg.eigh(matrix)
    counts = _counts(sizes, matrix)
    roots = jnp.where(counts, jnp.where(counts, sizes, 1.0) ** _POWER, 0.0)
    return (vectors * roots) @ vectors.T


class _Momentum(NamedTuple):
    count: Any
    mu: Any


def scale_values_by_muon(
    beta: Any, eps: Any, shapes: Any, *, coefficients: Any, ns_steps: int, nesterov: bool, norm: str
) -> Any:
    """Muon on the singular values of each layer; `shapes` are the factors of their shapes."""

    def init(params: Any) -> _Momentum:
        return _Momentum(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, _Momentum]:
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: (1 - beta) * g + beta * m, state.mu, updates)
        if nesterov:
            later, now = 1 - beta ** (count + 1), 1 - beta**count
            h = jax.tree.map(lambda m, g: beta * (m / later) + (1 - beta) * (g / now), mu, updates)
        else:
            h = jax.tree.map(lambda m: m / (1 - beta**count), mu)
        moved = tuple(
            shape * _odd_powers(_NORMS[norm](values, eps), coefficients, ns_steps)
            for shape, values in zip(shapes, h, strict=True)
        )
        return moved, _Momentum(count, mu)

    return optax.GradientTransformation(init, update)


def _odd_powers(s: Any, coefficients: Any, ns_steps: int) -> Any:
    """The Newton–Schulz polynomials, one after the other."""
    for first, third, fifth in [coefficients] * ns_steps:
        square = s * s
        s = s * (first + square * (third + square * fifth))
    return s


def _frobenius(s: Any, eps: Any) -> Any:
    return s / (jnp.linalg.norm(s) + eps)


def _largest(s: Any, eps: Any) -> Any:
    return s / (jnp.max(jnp.abs(s)) + eps)


def _schatten(s: Any, eps: Any) -> Any:
    return s / jnp.sqrt(jnp.clip(jnp.sqrt(jnp.sum(s**4)), min=1e-8))  # optax's own number


# What the values are divided by before the polynomials, by the names that optax has for it.
_NORMS = {"frobenius": _frobenius, "spectral": _largest, "schatten": _schatten}
PRECONDITIONINGS = tuple(_NORMS)


def values_by_shampoo(eps: Any) -> Any:
    r"""Shampoo on singular values: Adagrad with initial accumulator $\varepsilon$."""
    return optax.scale_by_rss(initial_accumulator_value=eps, eps=0.0)
