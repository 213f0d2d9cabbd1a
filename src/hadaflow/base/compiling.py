"""How code is compiled: well where it runs often, soon where it runs rarely, and never too much of it."""

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hadaflow.base.lazy import jax
from hadaflow.base.programs import Recipe, is_known, program, setting

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
    """`function`, compiled once for every structure and kind of its arguments.

    With options of XLA for processors, as far as it knows them. Arguments are given by their places.
    Programs of all of them together are bounded: what was compiled is let go when it becomes too much.
    """

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], *,
        static_argnames: Sequence[str] = (), donate_argnames: Sequence[str] = (),
    ) -> None:  # fmt: skip
        functools.update_wrapper(self, function)
        names = list(inspect.signature(function).parameters)
        self._function, self._options = function, options
        self._static = tuple(names.index(name) for name in static_argnames)
        self._donated = tuple(names.index(name) for name in donate_argnames)
        self._lock = threading.RLock()
        self._programs: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Any:
        leaves, tree = jax.tree_util.tree_flatten(self._traced(args))
        place = self._place(args, leaves, tree)
        found = self._programs.get(place)
        if found is None:
            found = self._new(place, self._recipe(args, leaves, tree))
        return found(*leaves)

    def knows(self, *args: Any) -> bool:
        """Is there a program for such arguments, here or in the cache, as far as that is told at once?"""
        leaves, tree = jax.tree_util.tree_flatten(self._traced(args))
        known = self._place(args, leaves, tree) in self._programs
        return known or is_known(self._recipe(args, leaves, tree))

    def let_go(self) -> None:
        self._programs = {}

    def _traced(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._static:
            return args
        return tuple([x for i, x in enumerate(args) if i not in self._static])

    def _place(self, args: tuple[Any, ...], leaves: list[Any], tree: Any) -> Any:
        """What the program is known by in this process."""
        return tree, *[args[i] for i in self._static], *map(_kind, leaves), _context()()

    def _recipe(self, args: tuple[Any, ...], leaves: list[Any], tree: Any) -> Recipe:
        structure = {i: args[i] for i in self._static}
        return Recipe(self._function, self._options, structure, self._donated, leaves, tree)

    def _new(self, place: Any, recipe: Recipe) -> Any:
        if setting("disable_jit"):  # somebody looks for an error: nothing is compiled
            return lambda *leaves: self._function(*recipe.arguments(leaves))
        with self._lock:  # threads that come at once compile once
            if (found := self._programs.get(place)) is None:
                found = self._programs[place] = program(recipe)
                _store.grown(self)
        return found


def _kind(x: Any) -> Any:
    """What a program is made for, of one leaf of its arguments."""
    shape = getattr(x, "shape", None)
    if shape is None:
        return type(x)
    place = getattr(x, "committed", False) and x.sharding
    return shape, x.dtype, getattr(x, "weak_type", False), place


@functools.cache
def _context() -> Callable[[], Any]:
    """The settings of JAX that tracing depends on."""
    try:
        from jax._src.config import trace_context
    except ImportError:
        return lambda: setting("enable_x64")
    return trace_context


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
                self.let_go()

    def let_go(self) -> None:
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


def let_go() -> None:
    """Let go of all that was compiled in this process."""
    _store.let_go()
