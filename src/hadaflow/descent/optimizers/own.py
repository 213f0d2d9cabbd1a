"""Optax transformations of one's own: tried on small matrices before they are believed to reduce."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, failures_told
from hadaflow.base.lazy import jax, jnp, optax
from hadaflow.base.precision import double_precision
from hadaflow.descent.optimizers.optimizer import ELEMENTWISE, SPECTRAL, Own

_STEPS = 12
_AGREES = 1e-9  # relative; what does not reduce is off by far more
_SHAPES = ((4, 6), (6, 12))  # of a W and an H: neither is square
_SIZES = (1.0, 1e-3, 30.0)  # of gradients, one after the other


def wrapped(transformation: Any, reduces: str) -> Own:
    """`transformation` as an optimizer that reduces in this way, if it does."""
    with failures_told(lambda reason: f"Argument `transformation` cannot be used: {reason}."):
        with double_precision(), relaxed():
            if reduces == ELEMENTWISE:
                _check_entries(transformation)
                return Own(transformation, ELEMENTWISE)
            return Own(transformation, SPECTRAL, on_diagonals=_needs_diagonals(transformation))


def relaxed() -> Any:
    """Optax mixes kinds of numbers and axes as NumPy does, whatever JAX has been told to refuse."""
    import contextlib

    stack = contextlib.ExitStack()
    stack.enter_context(jax.numpy_dtype_promotion("standard"))
    stack.enter_context(jax.numpy_rank_promotion("allow"))
    return stack


def _needs_diagonals(transformation: Any) -> bool:
    """Does it act on singular values as diagonals of matrices, and not on vectors of them?"""
    rng = np.random.default_rng(0)
    turns = [[_rotation(rng, size) for size in shape] for shape in _SHAPES]
    values = [rng.uniform(0.5, 1.5, (1 + _STEPS, min(shape))) for shape in _SHAPES]
    for v in values:
        v[1:] *= rng.choice([-1.0, 1.0], v[1:].shape)

    def matrices(step: int) -> tuple[np.ndarray, ...]:
        return tuple(
            (A[:, : v.shape[1]] * v[step]) @ B[:, : v.shape[1]].T
            for (A, B), v in zip(turns, values, strict=True)
        )

    def diagonals(step: int) -> tuple[np.ndarray, ...]:
        found = tuple(np.zeros(shape) for shape in _SHAPES)
        for matrix, v in zip(found, values, strict=True):
            np.fill_diagonal(matrix, v[step])
        return found

    moved = _run(transformation, matrices)
    turned_back = [
        tuple(A.T @ M @ B for (A, B), M in zip(turns, step, strict=True)) for step in moved
    ]
    vectors = _tried(transformation, lambda step: tuple(v[step] for v in values))
    if vectors is not None and _agree(turned_back, [_diagonal(step) for step in vectors]):
        return False
    if _agree(turned_back, _tried(transformation, diagonals)):
        return True
    raise InputError(
        "Argument `transformation` cannot be taken as spectral: on small matrices its steps do not "
        "commute with rotations from both sides; use it in the full view."
    )


def _diagonal(step: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    found = tuple(np.zeros(shape) for shape in _SHAPES)
    for matrix, values in zip(found, step, strict=True):
        np.fill_diagonal(matrix, values)
    return found


def _check_entries(transformation: Any) -> None:
    """Refuse one whose steps on a row are not those on all rows, signs apart."""
    rng = np.random.default_rng(1)
    signs = [rng.choice([-1.0, 1.0], shape) for shape in _SHAPES]
    # Entries of a column of W have one size, and so have those of a row of H.
    lengths = [shape[i] for shape, i in zip(_SHAPES, (1, 0), strict=True)]
    rows = [rng.uniform(0.5, 1.5, (1 + _STEPS, n)) for n in lengths]
    for row in rows:
        row[1:] *= rng.choice([-1.0, 1.0], row[1:].shape)

    def spread(step: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return signs[0] * step[0][None, :], signs[1] * step[1][:, None]

    on_rows = _run(transformation, lambda step: tuple(row[step] for row in rows))
    on_matrices = _run(transformation, lambda step: spread(tuple(row[step] for row in rows)))
    if not _agree(on_matrices, [spread(step) for step in on_rows]):
        raise InputError(
            "Argument `transformation` cannot be taken as elementwise: on small matrices its steps are "
            "not odd functions of each entry's own history; use it in the full view."
        )


def _run(
    transformation: Any, numbers: Callable[[int], tuple[np.ndarray, ...]]
) -> list[tuple[np.ndarray, ...]]:
    """Parameters after each step, from `numbers(0)` on; the others are gradients, in their order."""
    x = tuple(map(jnp.asarray, numbers(0)))
    state, found = transformation.init(x), []
    step = jax.jit(lambda g, state, x: transformation.update(g, state, x))
    for t in range(1, 1 + _STEPS):
        size = _SIZES[t % len(_SIZES)]
        updates, state = step(tuple(jnp.asarray(g) * size for g in numbers(t)), state, x)
        x = optax.apply_updates(x, updates)
        found.append(tuple(np.asarray(v) for v in x))  # pyright: ignore
    return found


def _tried(transformation: Any, numbers: Callable[[int], tuple[np.ndarray, ...]]) -> Any:
    """The same, or None where it takes no arrays of these shapes."""
    try:
        return _run(transformation, numbers)
    except Exception:
        return None


def _agree(found: Any, other: Any) -> bool:
    if other is None:
        return False
    pairs = [(a, b) for s, t in zip(found, other, strict=True) for a, b in zip(s, t, strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        return False
    return all(np.max(np.abs(a - b)) <= _AGREES * np.max(np.abs(a)) for a, b in pairs)


def _rotation(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]
