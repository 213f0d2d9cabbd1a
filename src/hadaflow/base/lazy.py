"""JAX on first use: what describes a model is at hand without waiting for what computes it."""

import importlib
from typing import TYPE_CHECKING, Any


class _Lazy:
    """A module that is imported when one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
else:
    jax, jnp, lax = map(_Lazy, ("jax", "jax.numpy", "jax.lax"))
