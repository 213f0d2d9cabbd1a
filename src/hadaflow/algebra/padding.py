"""Arrays with one entry in front for the trivial mode, so that transforms need no copies."""

from hadaflow.base.lazy import jnp, lax


def pad(v):
    """`v` with a zero put in front for the trivial mode."""
    return jnp.concatenate([jnp.zeros_like(v[..., :1]), v], axis=-1)


def with_front(v, value):
    """`v` with its front entry replaced; a selection fuses with what is around it, a write does not."""
    index = lax.broadcasted_iota(int, v.shape, v.ndim - 1)
    return jnp.where(index == 0, value, v)
