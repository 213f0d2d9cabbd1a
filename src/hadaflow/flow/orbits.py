"""The orbit by dual steps: to any norm, for any number of classes. See `dual` for the mathematics."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.algebra.bases import Basis
from hadaflow.base.compiling import compiled
from hadaflow.base.lazy import optimize
from hadaflow.flow.dual import Clock, DualFlow, OrbitReading, OrbitState
from hadaflow.flow.kinds.flow import Course
from hadaflow.flow.march import Status, chunk_of_steps, first_march, probe, taken_apart
from hadaflow.runs.outcomes import Ending, Outcome, Stop
from hadaflow.runs.spacing import Profile, changes, evenly, story
from hadaflow.runs.targets import Collapse, PathLength, Target, Time

# Entries further apart than this lose digits in a plain transform: sums without cancellation, then.
_WIDE = 1e8
_TINY_NORM = 1e-12  # below it all weights are equal to this accuracy, so that all modes grow alike
_READ_ROWS, _READ_NUMBERS = 32, 2**22  # states that are read at once, at most
_LAST_ERROR = 0.1  # of the last partial step, over the tolerance
_ROUGHLY = 0.02  # of the step in which an event lies
_MOST_STEPS = 2**16  # of a chunk; the flow itself asks for fewer
# Steps cost most where weights come in one after the other; a start with many saddles has thousands.
_STEP_LIMIT = 20_000
_KEPT_OVER = 4  # times as many steps are kept on the way as in the end


def rank_for(tolerance: float) -> int:
    """Order of the extrapolation that reaches a tolerance with least work, as measured."""
    return int(np.clip(round(1 - math.log10(tolerance) / 1.6), 3, 7))


def make_course(
    basis: Basis, clock: Clock, a: np.ndarray, kind: type[Target], tolerance: float, number: float
) -> tuple[Course, OrbitState]:
    """The orbit from scaled singular values (for temperature one), and its first state.

    `number` is the target's, the first one where there are several.
    """
    positive = a[a > 0]
    wide = bool(positive.max() > _WIDE * positive.min()) if len(positive) else False
    with np.errstate(divide="ignore"):
        log_a0 = np.concatenate([[0.0], np.log(a)])
    collapse = np.float64(number) if kind is Collapse else None
    flow = DualFlow(
        basis, rank_for(tolerance), wide, log_a0, np.float64(tolerance), collapse, clock
    )
    course = Course(flow, np.float64(number), kind)
    later = _skip_tiny(basis, clock, a)
    if later is not None and float(_left(course, later)) > 0:
        return course, later
    return course, OrbitState(np.zeros(len(log_a0)), np.float64(0.0), np.float64(0.0))


def _skip_tiny(basis: Basis, clock: Clock, a: np.ndarray) -> OrbitState | None:
    """The state of a start so small that all weights are equal, at the end of that phase.

    There M = −log(K − 1), every mode grows like e^{gσ} with g = K/(K−1), t = σ·dt/dσ, and the path length
    is the growth of the Euclidean norm.
    """
    P, count = np.zeros(len(a) + 1), basis.classes - 1
    weights = 1.0 if basis.weights is None else basis.weights[1:]
    norm = np.sum(a * weights)
    if norm == 0 or norm >= _TINY_NORM:
        return None
    growth = (count + 1) / count
    skipped = (math.log(_TINY_NORM) - math.log(norm)) / growth
    euclid = math.sqrt(np.sum((a / norm) ** 2 * weights))
    P[1:] = skipped / count
    reach = -euclid * math.expm1(-growth * skipped)
    lag = skipped * math.exp(float(clock.offset(-math.log(count))))
    return OrbitState(P, np.float64(lag), np.float64(reach))


@compiled()
def _read_block(flow: DualFlow, ys: OrbitState, count) -> OrbitReading:
    """Readings of the first `count` of these states; those behind are left zero."""
    blank = jax.eval_shape(flow.read, jax.tree.map(lambda y: y[0], ys))
    blank = jax.tree.map(lambda x: jnp.zeros((len(ys.lag), *x.shape), x.dtype), blank)

    def one(i, found):
        now = flow.read(jax.tree.map(lambda y: y[i], ys))
        return jax.tree.map(lambda rows, x: rows.at[i].set(x), found, now)

    return lax.fori_loop(0, count, one, blank)


@compiled()
def _left(course: Course, y: OrbitState):
    return jnp.maximum(course.left(0.0, y), -1.0)  # the states tell the time themselves


@compiled()
def _read_numbers(flow: DualFlow, y: OrbitState) -> OrbitReading:
    """A reading without its long vector, which would have to leave the device."""
    return flow.read(y)._replace(log_a=jnp.zeros(0))


def read_all(flow: DualFlow, ys: OrbitState) -> OrbitReading:
    """Readings of many states, as NumPy arrays; log a without the front entry."""
    count = len(ys.lag)
    block = int(np.clip(_READ_NUMBERS // flow.basis.classes, 1, _READ_ROWS))
    found = []
    for first in range(0, count, block):  # always as many, which compiles once
        rows = np.minimum(np.arange(first, first + block), count - 1)
        here = min(block, count - first)
        read = _read_block(flow, jax.tree.map(lambda y, rows=rows: y[rows], ys), np.int64(here))
        found.append(jax.tree.map(lambda x, n=here: np.asarray(x)[:n], read))
    whole: OrbitReading = jax.tree.map(lambda *x: np.concatenate(x), *found)
    return whole._replace(log_a=whole.log_a[:, 1:])


@dataclasses.dataclass
class OrbitMarch:
    """One integration of the orbit. Must be used in float64.

    `give_up(reading, steps)` is called after every few steps with where the orbit is, and may end it.
    """

    method: Any  # with the `solver` of its steps
    course: Course
    y0: OrbitState
    slack: float  # σ is located to this
    give_up: Callable[[OrbitReading, int], Stop | None]
    transforms: int = 0

    @functools.cached_property
    def _on_device(self) -> Course:
        """With its long vector where it is worked on."""
        return jax.device_put(self.course)

    @property
    def flow(self) -> DualFlow:
        flow = self._on_device.flow
        assert isinstance(flow, DualFlow)
        return flow

    @property
    def is_compiled(self) -> bool:
        """Is the code of its steps at hand? What else is called was compiled with them."""
        begin = *self._of_flow(self._on_device), jax.device_put(self.y0)
        if not first_march.knows(*begin):
            return False
        return chunk_of_steps.knows(*self._steps(self._on_device, first_march(*begin)))

    def _of_flow(self, course: Course) -> tuple[Any, Any, Any]:
        structure, numbers = taken_apart(course.flow)
        return structure, self.method, numbers

    def _steps(self, course: Course, march: Any) -> tuple[Any, ...]:
        """What a chunk of steps is called with."""
        structure, numbers = taken_apart(course)
        compiled_for = structure, self.method, numbers, march
        return *compiled_for, self.flow.tolerance, np.float64(np.inf), np.int64(_MOST_STEPS)

    def through(self, values: Sequence[float], keep: int) -> Outcome:
        """States where the target's number has each of the `values`, in their order.

        Also up to `keep` of the steps on the way, as evenly spaced as they are.
        """
        kept = _Kept(keep, self._told)
        y0 = jax.device_put(self.y0)
        march, status, stop = None, Status.begin(), Stop(Ending.EVENT)
        try:
            for value in values:
                course = dataclasses.replace(self._on_device, number=np.float64(value))
                stop, place = None, None
                while place is None and (stop is None or stop.ending is Ending.EVENT):
                    if march is None:
                        begun = first_march(*self._of_flow(course), y0)
                    else:
                        begun = march._replace(reached=np.asarray(False))
                    after = chunk_of_steps(*self._steps(course, begun))
                    kept.add(*after[1])
                    march, status = after[0], Status.read(after[2])
                    stop = self._judge(march, status)
                    if stop is not None and stop.ending is Ending.EVENT:
                        march, place = self._locate(march, course)
                if place is None:
                    break
                kept.mark(*jax.tree.map(np.asarray, place))
        except KeyboardInterrupt:
            stop = Stop(Ending.INTERRUPTED)
        assert stop is not None
        if march is not None:
            self.transforms += int(march.work)
            if stop.ending is not Ending.EVENT:
                kept.mark(status.u, jax.tree.map(np.asarray, march.y))
        us, ys = kept.states(self.y0)
        return Outcome(stop.ending, us, ys, status.accepted, status.rejected, stop.reason)

    def _told(self, ys: OrbitState) -> np.ndarray:
        """How much of the run is told by each of the states."""
        found = read_all(self.flow, ys)
        with np.errstate(invalid="ignore"):
            profile = Profile.of_logs(self.flow.basis.expand(found.log_a))
        late = not np.all(np.isfinite(found.log_time))
        return story(changes(profile), np.zeros(len(ys.lag)) if late else found.log_time)

    def _locate(self, march, course: Course):
        """The place of the event, or None and a march that is to come nearer to it first.

        By stepping again from the state before the event. The whole of the last step was accurate; a part
        of it, which ends before collapse, need not be.
        """
        start, end = float(march.u), float(march.next_u)
        structure, numbers = taken_apart(course)
        probes: dict[float, Any] = {start: (march.y, float(_left(course, march.y)), 0.0)}

        def left(u: float) -> float:
            if u not in probes:
                y, ahead, error, work = probe(
                    structure, self.method, numbers, march, self.flow.tolerance, np.float64(u)
                )
                self.transforms += int(work)
                # Beyond −1 only the sign matters.
                probes[u] = y, max(float(ahead), -1.0), float(error)
            return probes[u][1]

        def located(slack: float) -> float:
            """Where the event is, at most `slack` beyond it; what has been probed is not probed again."""
            if left(start) <= 0:
                return start
            if left(end) < 0 and end - start > slack:
                optimize.brentq(left, start, end, xtol=slack, maxiter=200, disp=False)
            return min((u for u in probes if left(u) <= 0), default=end)

        def rough(u: float) -> bool:
            """Is a step to there too inaccurate to end with?"""
            return probes[u][2] > _LAST_ERROR and u - start >= 1e-9 * max(1.0, start)

        slack = self._slack(march, course)
        high = located(math.inf)
        if rough(high):  # and probably up to the event: not worth many probes
            high = located(max(slack, _ROUGHLY * (end - start)))
        if not rough(high):
            high = located(slack)
        if rough(high):
            return march._replace(next_u=np.float64(start + (high - start) / 2)), None
        return march, (high, probes[high][0])

    def _slack(self, march, course: Course) -> float:
        """How well σ is located: better where the time or the path asked for is small itself."""
        if course.kind not in (Time, PathLength) or not math.isfinite(self.slack):
            return self.slack
        now, number = _read_numbers(self.flow, march.y), float(course.number)
        if course.kind is Time:  # t = σ·dt/dσ, to begin with
            time = math.expm1(min(number, 1.0))
            rate = float(self.flow.clock.log_rate(now.soft_minimum))
            log_sigma = math.log(time) - max(rate, 0.0) if time < 0.1 else 0.0
        else:
            log_sigma = math.log(number) - float(now.log_norm)
        if log_sigma < -600:  # less than anything moves by
            return self.slack
        return self.slack * math.exp(min(log_sigma, 0.0))

    def _judge(self, march, status: Status) -> Stop | None:
        if status.reached:
            return Stop(Ending.EVENT)
        steps = status.accepted + status.rejected
        reading = _read_numbers(self.flow, march.y)
        given_up = self.give_up(jax.tree.map(np.asarray, reading), steps)
        if given_up is not None:
            return given_up
        if status.stuck:
            return Stop(Ending.STUCK, "the step size fell below the resolution of the orbit")
        if steps > _STEP_LIMIT:
            return Stop(Ending.GIVEN_UP, f"more than {_STEP_LIMIT} steps were taken")
        return None


class _Kept:
    """Marked states, and a bounded number of the steps between them: even in what they tell."""

    def __init__(self, most: int, told: Callable[[Any], np.ndarray]) -> None:
        self._most, self._told = most, told
        self._steps: list[tuple[float, Any]] = []
        self._marks: list[tuple[float, Any]] = []

    def add(self, us: Any, ys: Any) -> None:
        """Records of steps; the first row is where they began, unused rows lie at infinity."""
        if self._most == 0:
            return
        us, ys = jax.tree.map(np.asarray, (us, ys))
        for i in np.flatnonzero(np.isfinite(us) & (us > 0)):
            if not self._steps or us[i] > self._steps[-1][0]:
                self._steps.append((float(us[i]), jax.tree.map(lambda y, i=i: y[i].copy(), ys)))
        if len(self._steps) > _KEPT_OVER * self._most:
            self._steps = self._thinned(2 * self._most)

    def mark(self, u: Any, y: Any) -> None:
        self._marks.append((float(u), y))

    def _thinned(self, most: int) -> list[tuple[float, Any]]:
        """At most so many steps."""
        if len(self._steps) <= most:
            return self._steps
        told = self._told(jax.tree.map(lambda *x: np.stack(x), *(y for _, y in self._steps)))
        return [self._steps[i] for i in evenly(told, most)]

    def states(self, like: Any) -> tuple[np.ndarray, Any]:
        marked = {u for u, _ in self._marks}
        end = max(marked, default=np.inf)
        self._steps = [s for s in self._steps if s[0] < end and s[0] not in marked]
        steps = self._thinned(self._most)
        rows = sorted([*steps, *self._marks], key=lambda s: s[0])
        if not rows:
            return np.zeros(0), jax.tree.map(lambda x: np.zeros((0, *np.shape(x))), like)
        stacked = jax.tree.map(lambda *x: np.stack(x), *(y for _, y in rows))
        return np.array([u for u, _ in rows]), stacked
