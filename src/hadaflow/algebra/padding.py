"""How compiled code lays out its arrays: modes first, and the runs of a batch, if any, last.

With runs on the last axis a processor works on several at once. One entry in front of the modes stands
for the trivial one, so that transforms need no copies.
"""

from typing import Any

from hadaflow.base.lazy import jnp, lax


def pad(v: Any) -> Any:
    """`v` with a zero put in front for the trivial mode."""
    return jnp.concatenate([jnp.zeros_like(v[:1]), v])


def with_front(v: Any, value: Any) -> Any:
    """`v` with its front entry replaced; a selection fuses with what is around it, a write does not."""
    index = lax.broadcasted_iota(int, v.shape, 0)
    return jnp.where(index == 0, value, v)


def column(v: Any, like: Any) -> Any:
    """Numbers of every mode beside an array that may have runs on its last axis."""
    return v.reshape(*v.shape, *(1,) * (like.ndim - v.ndim))


def row(v: Any) -> Any:
    """One number, or one of every run, beside an array with the modes first."""
    return v if jnp.ndim(v) == 0 else v[None]


def modes_first(a: Any) -> Any:
    """An array with the modes last, batched or not, as compiled code wants it."""
    return a if a.ndim == 1 else jnp.moveaxis(a.reshape(-1, a.shape[-1]), -1, 0)


def modes_last(v: Any, batch: tuple[int, ...]) -> Any:
    """Back again, with the axes of the batch before the modes."""
    return v if v.ndim == 1 and not batch else jnp.moveaxis(v, 0, -1).reshape(*batch, -1)
