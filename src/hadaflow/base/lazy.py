"""Heavy libraries on first use.

What describes a model is at hand without waiting for what computes it, and a run without waiting for what
labels it.
"""

import importlib
from typing import TYPE_CHECKING, Any


class _Lazy:
    """A module that is imported when one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, found)  # not asked for again
        return found


if TYPE_CHECKING:
    import diffrax
    import jax
    import jax.core
    import jax.numpy as jnp
    import optax
    import optimistix
    import xarray as xr
    from jax import lax
    from scipy import optimize
else:
    jax, jnp, lax = map(_Lazy, ("jax", "jax.numpy", "jax.lax"))
    diffrax, optax, optimistix = map(_Lazy, ("diffrax", "optax", "optimistix"))
    optimize, xr = map(_Lazy, ("scipy.optimize", "xarray"))
