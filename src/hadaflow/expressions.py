r"""Helpers for a metric of your own that can be searched in JAX and certified in ball arithmetic.

Write it with arithmetic, indexing and these functions, and it works on both kinds of numbers:

```python
from hadaflow import expressions as ex

def spread(a):
    share = a / ex.sum(a)
    return ex.largest(share) - ex.smallest(share)
```

Where entries tie, `largest` and `smallest` have the derivative to the right along the flow.
"""

import builtins
import functools
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np

from hadaflow.metrics import distances

_NAMES = ("absolute", "exp", "largest", "log", "mean", "norm", "smallest", "sqrt", "sum", "tanh")
_MEANT = {"max": "largest", "min": "smallest", "abs": "absolute"}


def __dir__() -> list[str]:
    return list(_NAMES)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    near = f": use `{_MEANT[name]}`" if name in _MEANT else f", but {', '.join(_NAMES)}"
    raise AttributeError(f"hadaflow.expressions has no `{name}`{near}")


def _is_exact(x: Any) -> bool:
    """Is it an array of exact numbers, or one of them?"""
    return getattr(getattr(x, "dtype", None), "kind", "") == "O" or hasattr(x, "rate")


def _entries(x: Any) -> Any:
    return x.flat if isinstance(x, np.ndarray) else [x]


def _elementwise(name: str, x: Any) -> Any:
    if not _is_exact(x):
        return getattr(jnp, name)(x)
    if isinstance(x, np.ndarray):
        return np.array([getattr(v, name)() for v in x.flat], dtype=object).reshape(x.shape)
    return getattr(x, name)()


def log(x: Any) -> Any:
    return _elementwise("log", x)


def exp(x: Any) -> Any:
    return _elementwise("exp", x)


def sqrt(x: Any) -> Any:
    return _elementwise("sqrt", x)


def tanh(x: Any) -> Any:
    return _elementwise("tanh", x)


def sum(x: Any) -> Any:
    """Sum of all entries."""
    return functools.reduce(operator.add, _entries(x)) if _is_exact(x) else jnp.sum(x)


def mean(x: Any) -> Any:
    return sum(x) / np.size(x)


def largest(x: Any) -> Any:
    """The largest entry."""
    if _is_exact(x):
        return functools.reduce(lambda p, q: p.max(q), _entries(x))
    return distances.largest(x)


def smallest(x: Any) -> Any:
    return -largest(-x)


def absolute(x: Any) -> Any:
    if not _is_exact(x):
        return jnp.abs(x)
    if isinstance(x, np.ndarray):
        return np.array([builtins.abs(v) for v in x.flat], dtype=object).reshape(x.shape)
    return builtins.abs(x)


def norm(x: Any) -> Any:
    """Euclidean norm."""
    return sqrt(sum(x * x)) if _is_exact(x) else distances.norm(x)
