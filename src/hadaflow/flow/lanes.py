"""Many small runs side by side, each with its own steps, numbers and end.

The steps that `integrate` takes for one run, with the runs along the last axis, where a processor works
on several at once. A lane whose run has ended takes the next one from the queue after a few steps, so
that a slow run holds nobody up; a few threads share the queue.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from hadaflow.base.compiling import compiled
from hadaflow.base.precision import double_precision
from hadaflow.flow.kinds.flow import Course
from hadaflow.flow.march import (
    March,
    first_march,
    locate,
    put_together,
    step,
    taken_apart,
)

_LANES = 128
_STEPS = 64  # between two looks at which lanes have ended


def cores() -> int:
    """Threads that a batch runs on."""
    return min(os.cpu_count() or 1, 8)


def beside(numbers: Any) -> Any:
    """What all runs share, for the flow of many: every array gets a last axis of length one."""
    return jax.tree.map(lambda x: np.asarray(x)[..., None], numbers)


def each(numbers: Sequence[Any]) -> Any:
    """What every run has of its own, one after the other along the last axis."""
    return jax.tree.map(lambda *x: np.stack(x, axis=-1), *numbers)


@compiled(static_argnames=("structure", "method"), donate_argnames=("lanes",))
def _march(structure, method, numbers, lanes: March, tolerance, end) -> March:
    """A few steps of all lanes that are not done."""
    course: Course = put_together(structure, numbers)

    def one(_, m: March) -> March:
        going = ~(m.reached | m.stuck | (m.u >= end))
        return step(course, method, tolerance, m, end, going)

    return lax.fori_loop(0, _STEPS, one, lanes)


class Ends(NamedTuple):
    """How the runs ended, which are the last axis of their states.

    `ok` is False where one has not reached its target, `ended` is False after an interruption.
    """

    ended: np.ndarray
    ok: np.ndarray
    u: np.ndarray
    y: np.ndarray
    steps: np.ndarray
    sensitivity: np.ndarray  # of the ends that are events


class Fleet:
    """Runs of one structure, side by side. The flow's arrays have the runs last, or an axis of one;
    what is one number for all needs none.

    `end` is the u at which runs end that no event does; `lost(flow, march)` says which lanes are not
    worth going on with.
    """

    def __init__(
        self, course: Course, runs: int, method: Any, tolerance: float, end: float,
        lost: Callable[[Any, March], np.ndarray],
    ) -> None:  # fmt: skip
        self._structure, self._numbers = taken_apart(course)
        self._own = [np.ndim(x) > 0 and x.shape[-1] == runs for x in self._numbers]
        self._runs, self._method, self._lost = runs, method, lost
        self._y0 = course.flow.begin()
        self._tolerance, self._end = np.float64(tolerance), np.float64(end)

    def is_compiled(self, threads: int) -> bool:
        """Is the code of the lanes at hand? What else is called was compiled with them."""
        owner = np.arange(self._width(threads))
        if not first_march.knows(*self._begin(owner)):
            return False
        lanes, numbers = self._started(owner), self._taken(owner)
        return _march.knows(*self._steps(numbers, lanes))

    def _width(self, threads: int) -> int:
        return min(_LANES, -(-self._runs // threads))

    def _steps(self, numbers: list[Any], lanes: March) -> tuple[Any, ...]:
        """What a few steps of all lanes are called with."""
        return self._structure, self._method, numbers, lanes, self._tolerance, self._end

    def run(self, report: Callable[[int], None], threads: int = 2) -> Ends:
        """All runs to their ends; after Ctrl-C, those that have ended by then."""
        runs = self._runs
        ends = Ends(
            np.zeros(runs, dtype=bool), np.zeros(runs, dtype=bool), np.zeros(runs),
            np.zeros_like(self._y0), np.zeros(runs, dtype=int), np.zeros(runs),
        )  # fmt: skip
        queue = _Queue(runs)
        width = self._width(threads)

        def work() -> None:
            with double_precision():
                self._drive(queue, width, ends)

        with ThreadPoolExecutor(threads) as pool:
            jobs: list[Future[None]] = []
            try:
                for _ in range(threads):
                    jobs.append(pool.submit(work))
                while not all(job.done() for job in jobs):
                    report(int(ends.ended.sum()))
                    wait(jobs, timeout=0.2)
            except KeyboardInterrupt:
                queue.stopped = True
            for job in jobs:
                job.result()
        return ends

    def _taken(self, owner: np.ndarray) -> list[Any]:
        """The numbers of the runs that own the lanes."""
        index = np.maximum(owner, 0)
        return [
            x[..., index] if own else x for x, own in zip(self._numbers, self._own, strict=True)
        ]

    def _begin(self, owner: np.ndarray) -> tuple[Any, ...]:
        structure, numbers = taken_apart(put_together(self._structure, self._taken(owner)).flow)
        return structure, self._method, numbers, self._y0[..., np.maximum(owner, 0)]

    def _started(self, owner: np.ndarray) -> March:
        return jax.tree.map(np.array, first_march(*self._begin(owner)))

    def _drive(self, queue: "_Queue", width: int, ends: Ends) -> None:
        """One thread: lanes are filled from the queue until it is empty and all have ended."""
        owner = queue.take(width)
        if not len(owner):
            return
        owner = np.concatenate([owner, np.full(width - len(owner), -1)])
        lanes, numbers = self._started(owner), self._taken(owner)
        lanes.reached[owner < 0] = True
        while not queue.stopped:
            lanes = _march(*self._steps(numbers, lanes))
            lanes = jax.tree.map(np.asarray, lanes)
            arrived = lanes.reached | (lanes.u >= self._end)
            flow = put_together(self._structure, numbers).flow
            lost = ~arrived & (lanes.stuck | self._lost(flow, lanes))
            done = np.flatnonzero((owner >= 0) & (arrived | lost))
            if len(done) < len(owner) // 8 and np.any((owner >= 0) & ~arrived & ~lost):
                continue  # wait for a few more to end: refilling costs as much as some steps
            self._finish(numbers, lanes, arrived, done, owner, ends)
            fresh = queue.take(len(done))
            owner[done] = -1
            owner[done[: len(fresh)]] = fresh
            if not np.any(owner >= 0):
                return
            lanes = self._refilled(lanes, owner, done[: len(fresh)], done[len(fresh) :])
            if len(fresh) < len(done) and np.sum(owner >= 0) <= len(owner) // 4 and len(owner) > 8:
                # Nothing is left to fill up with: the few that still run need fewer lanes.
                order = np.argsort(owner < 0, kind="stable")[: len(owner) // 4]
                owner, lanes = owner[order], jax.tree.map(lambda x, i=order: x[..., i], lanes)
            numbers = self._taken(owner)

    def _finish(self, numbers, lanes: March, arrived, done, owner, ends: Ends) -> None:
        """Ends of the lanes that are done, events located."""
        runs = owner[done]
        ends.u[runs], ends.y[..., runs] = lanes.u[done], lanes.y[..., done]
        if np.any(lanes.reached[done]):
            # All lanes, whether done or not: always as many, which compiles once.
            safe = lanes._replace(next_u=np.where(lanes.reached, lanes.next_u, lanes.u))
            u, y, sensitivity = map(
                np.asarray, locate(self._structure, self._method, numbers, safe)
            )
            ends.u[runs], ends.y[..., runs] = u[done], y[..., done]
            ends.sensitivity[runs] = np.where(lanes.reached, sensitivity, 0.0)[done]
        ends.ended[runs], ends.ok[runs] = True, arrived[done]
        ends.steps[runs] = lanes.accepted[done] + lanes.rejected[done]

    def _refilled(self, lanes: March, owner, fresh, idle) -> March:
        """Lanes with new runs in `fresh`; `idle` ones rest."""
        lanes = jax.tree.map(np.array, lanes)
        if len(fresh):
            started = self._started(owner)
            for old, new in zip(jax.tree.leaves(lanes), jax.tree.leaves(started), strict=True):
                old[..., fresh] = new[..., fresh]
        lanes.reached[idle] = True
        return lanes


class _Queue:
    """Numbers of the runs that no lane has taken yet."""

    def __init__(self, count: int) -> None:
        self._lock, self._next, self._count = threading.Lock(), 0, count
        self.stopped = False

    def take(self, wanted: int) -> np.ndarray:
        with self._lock:
            first = self._count if self.stopped else self._next
            self._next = min(self._count, first + wanted)
            return np.arange(first, self._next)
