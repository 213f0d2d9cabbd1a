"""How code is compiled: well where it runs often, soon where it runs rarely, and never too much of it."""

import functools
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hadaflow.base.lazy import jax

# One part of a program after the other, in the order that needs least memory. Left to itself XLA hands
# parts that do not depend on each other to several threads, which costs dual steps of a thousand classes
# a tenth.
_IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
# Vectors as wide as the processor has them: XLA asks for half of what AVX-512 offers, which costs the
# same steps a quarter. With a handful of numbers it is the wide ones that cost, a few hundredths.
WELL = _IN_ORDER | {"xla_cpu_prefer_vector_width": 512}
# Without the newer emitters a program of small arrays is compiled in two thirds of the time and runs as
# fast; one of large arrays, or of many lanes, takes up to half as long again.
SMALL = _IN_ORDER | {"xla_cpu_use_fusion_emitters": False}
# Not optimized at all: in a third of the time, but several times slower.
SOON = SMALL | {"xla_backend_optimization_level": 0}

# A program holds some hundred memory maps, of which Linux gives a process 65530: XLA ends the process
# where there are no more. Half are left to others; they are counted after every few new programs.
_MOST_MAPS, _COUNTED_EVERY = 32_000, 16
_MOST_PROGRAMS = 400  # where maps cannot be counted


class Compiled:
    """`jax.jit(function, **more)` with options of XLA for processors, as far as it knows them.

    Programs of all of them together are bounded: what was compiled is let go when it becomes too much.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], **more: Any) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options, self._more = function, options, more
        self._lock = threading.Lock()
        self._call: Any = None
        self._programs = 0

    def __call__(self, *args: Any) -> Any:
        if self._call is None:
            with self._lock:  # threads that come at once compile once
                if self._call is None:
                    return self._first_call(*args)
        found = self._call(*args)
        programs = self._call._cache_size()
        if programs != self._programs:
            self._programs = programs
            _store.grown(self)
        return found

    def _first_call(self, *args: Any) -> Any:
        call = jax.jit(self._function, **self._more)
        if self._options and jax.default_backend() == "cpu":
            chosen = jax.jit(self._function, **self._more, compiler_options=self._options)
            try:
                found = chosen(*args)
            except Exception as error:  # another version of XLA may have other options
                if "compile option" not in str(error).lower():
                    raise
                found = call(*args)
            else:
                call = chosen
        else:
            found = call(*args)
        self._call, self._programs = call, 1
        _store.grown(self)
        return found

    def let_go(self) -> None:
        self._call.clear_cache()
        self._programs = 0


class _Store:
    """What all functions have compiled."""

    def __init__(self) -> None:
        self._members: weakref.WeakSet[Compiled] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._new = 0

    def grown(self, member: Compiled) -> None:
        """One program more: nothing is let go unless there are too many."""
        with self._lock:
            self._members.add(member)
            self._new += 1
            if self._new % _COUNTED_EVERY == 0 and self._too_much():
                self._new = 0
                for each in list(self._members):
                    each.let_go()

    def _too_much(self) -> bool:
        try:
            return Path("/proc/self/maps").read_bytes().count(b"\n") > _MOST_MAPS
        except OSError:  # not Linux
            return self._new > _MOST_PROGRAMS


_store = _Store()


def compiled(
    options: dict[str, Any] = WELL, /, **more: Any
) -> Callable[[Callable[..., Any]], Compiled]:
    """As a decorator."""
    return lambda function: Compiled(function, options, **more)
