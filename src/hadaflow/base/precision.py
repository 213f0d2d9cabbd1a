"""float64 at the public boundary, whatever JAX's global settings are.

JAX computes in float32 unless told otherwise, and the switch is global. Flipping it on import would
change the arithmetic of every other JAX program in the process, so hadaflow turns it on only while
one of its own functions runs, and hands back NumPy arrays, which keep their precision outside.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.base.lazy import jax, jnp


def double_precision() -> Any:
    """Context in which JAX computes in float64."""
    return jax.enable_x64(True)


def is_traced(*values: Any) -> bool:
    """Is any of them inside a JAX transformation?"""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def to_numpy(tree: Any) -> Any:
    """JAX arrays in `tree` as NumPy arrays; a scalar array becomes a NumPy scalar."""
    return jax.tree.map(lambda x: np.asarray(x)[()] if isinstance(x, jax.Array) else x, tree)


def _to_jax(argument: Any) -> Any:
    numbers = isinstance(argument, tuple) and all(isinstance(x, int | float) for x in argument)
    if numbers or isinstance(argument, np.ndarray | np.generic | jax.Array | list):
        return jnp.asarray(argument, dtype=jnp.float64)
    return argument


def float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run `function` in float64 on NumPy-compatible arrays; return NumPy arrays.

    Inside a JAX transformation (`jit`, `grad`, `vmap`) the call passes straight through, so the
    same function serves users with NumPy arrays and our own compiled code.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_traced(args, kwargs):
            return function(*args, **kwargs)
        with double_precision():
            converted = [_to_jax(arg) for arg in args]
            named = {name: _to_jax(arg) for name, arg in kwargs.items()}
            return to_numpy(function(*converted, **named))

    return wrapper
