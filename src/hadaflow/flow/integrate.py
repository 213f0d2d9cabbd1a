"""Adaptive stepping of a flow in log time, resumable and interruptible: the loop around compiled steps.

The loop is our own, because it must do what diffrax's `diffeqsolve` does not: return to Python every
fraction of a second (so that progress shows and Ctrl-C leaves the finished part), land exactly on the
saved points instead of interpolating, and locate events by stepping again from the last state before
them.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hadaflow.base.compiling import Compiled
from hadaflow.base.progress import Pace
from hadaflow.flow.kinds.flow import Course
from hadaflow.flow.march import (
    CHUNK,
    March,
    Status,
    chunk_of_few_numbers,
    chunk_of_steps,
    first_march,
    locate_one,
    numbers_of,
    side_steps,
    side_steps_of_few_numbers,
    taken_apart,
)
from hadaflow.runs.outcomes import Ending, Outcome, Stop

# So few points are marched to one after the other; more are stepped to from the records, the usual number
# of them at once, since code is compiled for it.
_FEW_GOALS, _SIDE_STEPS, _SIDE_NUMBERS = 8, 199, 2**20
# Numbers of a state up to which what is compiled sooner runs as fast, or nearly.
_FEW_IMPLICIT, _FEW_EXPLICIT = 32, 8
_SHORT_IMPLICIT, _SHORT_EXPLICIT = 32, 2**14  # numbers of a state whose steps take little time
_RECORD_LIMIT = 2**23  # numbers kept of the way to an event before a second pass is cheaper


@dataclasses.dataclass(frozen=True)
class Integration:
    """One integration from u = 0 on. Must be used in float64.

    `report(u)` is called after every chunk of steps; `give_up(u, y, steps)` may end the run.
    """

    course: Course
    method: Any  # a method with the `solver` of its steps
    tolerance: float
    report: Callable[[float], None]
    give_up: Callable[[float, Any, int], Stop | None]

    @functools.cached_property
    def y0(self) -> Any:
        return self.course.flow.begin()

    @functools.cached_property
    def _compiled_for(self) -> tuple[Any, Any, Any]:
        """Structure and method, for which code is compiled, and the numbers it is run with."""
        structure, numbers = taken_apart(self.course)
        return structure, self.method, numbers

    @functools.cached_property
    def _compiled_for_any_target(self) -> tuple[Any, Any, Any]:
        """The same of what does not ask how far it is."""
        structure, numbers = taken_apart(self.course.flow)
        return structure, self.method, numbers

    @property
    def is_compiled(self) -> bool:
        """Is the code of its steps at hand? What else is called was compiled with them."""
        begin = *self._compiled_for_any_target, self.y0
        if not first_march.knows(*begin):
            return False
        march = first_march(*begin)
        locates = self.course.kind is not None
        if locates and not locate_one.knows(*self._compiled_for, march):
            return False
        return self._steps.knows(*self._compiled_for, march, *self._numbers(np.inf, CHUNK))

    def to_goals(self, goals: np.ndarray) -> Outcome:
        """States at the increasing `goals`."""
        march, status, stop = None, Status.begin(), None
        ys, found = jax.tree.map(lambda x: np.zeros((len(goals), *x.shape)), self.y0), 0
        few = len(goals) <= _FEW_GOALS
        try:
            while stop is None:
                end = goals[found] if few else goals[-1]
                after = self._chunk(march, end)
                march, records, status = after[0], after[1], Status.read(after[2])
                inside = int(np.searchsorted(goals, status.u, side="right"))
                arrived = status.u >= end
                self._fill(ys, found, goals[found : inside - arrived], [records])
                if arrived:
                    _put(ys, inside - 1, march.y)
                found = inside  # after the states themselves: an interruption leaves no gap
                stop = self._judge(march, status, goals[-1])
        except KeyboardInterrupt:
            stop = Stop(Ending.INTERRUPTED)
        us, ys = goals[:found], jax.tree.map(lambda y: y[:found], ys)
        assert stop is not None
        if (
            stop.ending is not Ending.DONE
            and march is not None
            and status.u > (us[-1] if found else 0.0)
        ):
            us = np.append(us, status.u)
            ys = jax.tree.map(lambda a, b: np.concatenate([a, np.asarray(b)[None]]), ys, march.y)
        return Outcome(stop.ending, us, ys, status.accepted, status.rejected, stop.reason)

    def to_end(self, end: float, keep: Callable[[np.ndarray, Any], np.ndarray]) -> Outcome:
        """States up to the event, or to u = `end`, at the u that `keep` picks from those on the way."""
        march, status, stop = None, Status.begin(), None
        records = _Records()
        try:
            while stop is None:
                after = self._chunk(march, end)
                records.add(after[1])
                # Last, so that an interruption never leaves a gap in the records.
                march, status = after[0], Status.read(after[2])
                stop = self._judge(march, status, end)
        except KeyboardInterrupt:
            stop = Stop(Ending.INTERRUPTED)
        assert stop is not None
        ending, reason = stop
        if march is None or (ending is not Ending.EVENT and status.u == 0):  # not a step was taken
            nothing = jax.tree.map(lambda x: np.zeros((0, *x.shape)), self.y0)
            return Outcome(ending, np.zeros(0), nothing, 0, status.rejected, reason)
        try:
            last, y_last, sensitivity = status.u, march.y, 0.0
            if ending is Ending.EVENT:
                last, y_last, sensitivity = locate_one(*self._compiled_for, march)
            place = float(last), jax.tree.map(np.asarray, y_last)
            ending, us, ys = self._states_up_to(place, ending, records, keep)
        except KeyboardInterrupt:
            ending, us, sensitivity = Ending.INTERRUPTED, np.array([status.u]), 0.0
            ys = jax.tree.map(lambda y: np.asarray(y)[None], march.y)
        return Outcome(ending, us, ys, status.accepted, status.rejected, reason, float(sensitivity))

    def _states_up_to(self, place, ending, records: "_Records", keep):
        us, ys = records.up_to(*place)
        goals = keep(us, ys)
        end, y_end = place
        before = goals[goals < end]
        if ending is Ending.INTERRUPTED and not (records.complete and self._pace is None):
            goals, ys = _recorded(us, ys, goals)
        elif records.complete or not len(before):
            ys = jax.tree.map(lambda x: np.zeros((len(goals), *x.shape)), self.y0)
            self._fill(ys, 0, before, records.rows)
        else:  # too many to keep: go the known way once more
            endless = Course(self.course.flow, np.float64(1.0), None)
            again = dataclasses.replace(self, course=endless, give_up=lambda *_: None)
            again = again.to_goals(goals)
            goals, ys = again.us, again.ys
            ending = ending if again.ending is Ending.DONE else again.ending
        if len(goals) and goals[-1] == end:
            # The located state itself ends the run: there the target is met to the last digit.
            _put(ys, -1, y_end)
        return ending, goals, ys

    @functools.cached_property
    def _few_numbers(self) -> bool:
        return numbers_of(self.y0) <= (_FEW_IMPLICIT if self.method.dense else _FEW_EXPLICIT)

    @functools.cached_property
    def _pace(self) -> Pace | None:
        """Steps that may take long each are taken a few at a time, so that Ctrl-C is heard soon."""
        short = _SHORT_IMPLICIT if self.method.dense else _SHORT_EXPLICIT
        return Pace(CHUNK) if numbers_of(self.y0) > short else None

    @property
    def _steps(self) -> Compiled:
        return chunk_of_few_numbers if self._few_numbers else chunk_of_steps

    def _numbers(self, end: float, most: int) -> tuple[Any, ...]:
        return np.float64(self.tolerance), np.float64(end), np.int64(most)

    def _chunk(self, march: March | None, end: float) -> Any:
        """Steps towards the event or `end`, as many as the pace allows, and their records."""
        most = CHUNK if self._pace is None else self._pace.steps
        if march is None:
            march = first_march(*self._compiled_for_any_target, self.y0)
        numbers, steps = self._numbers(end, most), self._steps
        if self._pace is None:
            return steps(*self._compiled_for, march, *numbers)
        assert march is not None
        before, began = int(march.accepted) + int(march.rejected), time.perf_counter()
        march, records, packed = jax.block_until_ready(steps(*self._compiled_for, march, *numbers))
        status = Status.read(packed)
        taken = status.accepted + status.rejected - before
        self._pace.took(taken, time.perf_counter() - began)
        return march, _rows(records, np.isfinite(np.asarray(records[0]))), packed

    def _fill(self, ys: Any, first: int, goals: np.ndarray, records: list[Any]) -> None:
        """Write the states at `goals` into rows of `ys`: one more step, from the record before each.

        So many at a time that they take little memory, and always as many, which compiles once.
        """
        if not len(goals):
            return
        us, before = jax.tree.map(lambda *x: np.concatenate(x), *records)
        used = np.flatnonzero(np.isfinite(us))
        index = used[np.searchsorted(us[used], goals, side="right") - 1]
        size = numbers_of(self.y0)
        block = _side_block(size**2 if self.method.dense else size)
        for start in range(0, len(goals), block):
            wanted = np.minimum(np.arange(start, start + block), len(goals) - 1)
            rows = index[wanted]
            begin = us[rows], jax.tree.map(lambda y, rows=rows: y[rows], before)
            steps = side_steps_of_few_numbers if self._few_numbers else side_steps
            stepped = steps(*self._compiled_for_any_target, *begin, goals[wanted])
            count = min(block, len(goals) - start)
            for kept, new in zip(jax.tree.leaves(ys), jax.tree.leaves(stepped), strict=True):
                kept[first + start : first + start + count] = np.asarray(new)[:count]
            if start:
                self.report(float(goals[start]))

    def _judge(self, march: March, status: "Status", end: float) -> Stop | None:
        self.report(status.u)
        if status.reached:
            return Stop(Ending.EVENT)
        if status.u >= end:
            return Stop(Ending.DONE)
        if status.stuck:
            return Stop(Ending.STUCK, "the step size fell below the resolution of log time")
        steps = status.accepted + status.rejected
        return self.give_up(status.u, jax.tree.map(np.asarray, march.y), steps)


def _side_block(numbers: int) -> int:
    """How many saved points, whose steps work on so many numbers, are stepped to at once."""
    return max(1, min(_SIDE_NUMBERS // numbers, _SIDE_STEPS))


def _put(rows: Any, index: int, y: Any) -> None:
    """Write a state into a row of many."""
    for kept, new in zip(jax.tree.leaves(rows), jax.tree.leaves(y), strict=True):
        kept[index] = new


def _rows(tree, index):
    """Rows of every array, as NumPy arrays that may be written to."""
    return jax.tree.map(lambda x: np.array(np.asarray(x)[index]), tree)


def _recorded(us: np.ndarray, ys: Any, goals: np.ndarray):
    """Times and states of the records next after each of the goals."""
    index = np.unique(np.minimum(np.searchsorted(us, goals), len(us) - 1))
    index = index[us[index] > 0]
    return us[index], jax.tree.map(lambda y: np.array(y[index]), ys)


class _Records:
    """States on the way: all of them or, where they are too many to keep, some."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._every, self._numbers = 1, 0

    @property
    def complete(self) -> bool:
        return self._every == 1

    def add(self, record: Any) -> None:
        """The record of a chunk; unused rows lie at infinity."""
        if not self.complete:
            record = self._thinned(record, self._every)
        self.rows.append(record)
        self._numbers += _size(record)
        while self._numbers > _RECORD_LIMIT:
            self._every *= 2
            self.rows = [self._thinned(rows, 2) for rows in self.rows]
            self._numbers = sum(map(_size, self.rows))

    @staticmethod
    def _thinned(record: Any, every: int) -> Any:
        """The first used row, and each so manyth after it."""
        return _rows(record, np.flatnonzero(np.isfinite(np.asarray(record[0])))[::every])

    def up_to(self, end: float, y_end: Any) -> tuple[np.ndarray, Any]:
        """Times and states, which increase, the first and the last of all among them."""
        last = jax.tree.map(lambda x: np.asarray(x)[None], (np.float64(end), y_end))
        us, ys = jax.tree.map(lambda *x: np.concatenate(x), *self.rows, last)
        ordered = np.argsort(us, kind="stable")
        ordered = ordered[np.isfinite(us[ordered]) & (us[ordered] <= end)]
        ordered = ordered[np.append(np.diff(us[ordered]) > 0, True)]
        return us[ordered], jax.tree.map(lambda y: y[ordered], ys)


def _size(record: Any) -> int:
    return sum(np.size(x) for x in jax.tree.leaves(record))
