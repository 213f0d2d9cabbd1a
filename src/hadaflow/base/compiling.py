"""How code is compiled: well where it runs often, soon where it runs a few times."""

import functools
from collections.abc import Callable
from typing import Any

from hadaflow.base.lazy import jax

# Without the newer emitters a program of small arrays is compiled in two thirds of the time and runs as
# fast; one of large arrays, or of many lanes, takes up to half as long again.
SMALL = {"xla_cpu_use_fusion_emitters": False}
# Not optimized at all: in a third of the time, but several times slower.
SOON = SMALL | {"xla_backend_optimization_level": 0}


class Compiled:
    """`jax.jit(function, **more)` with options of XLA for processors, as far as it knows them."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], **more: Any) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options, self._more = function, options, more
        self._call: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self._call is not None:
            return self._call(*args)
        plain = jax.jit(self._function, **self._more)
        if jax.default_backend() != "cpu":
            self._call = plain
            return plain(*args)
        chosen = jax.jit(self._function, **self._more, compiler_options=self._options)
        try:
            found = chosen(*args)
        except Exception as error:
            if "compile option" not in str(error).lower():
                raise
            self._call = plain  # another version of XLA, with other options
            return plain(*args)
        self._call = chosen
        return found


def compiled(options: dict[str, Any], **more: Any) -> Callable[[Callable[..., Any]], Compiled]:
    """As a decorator."""
    return lambda function: Compiled(function, options, **more)
