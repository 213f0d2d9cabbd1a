"""Dual steps: when they are the ones to take, how a run by them ends, and what it returns."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import numpy as np

from hadaflow.algebra.bases import Basis
from hadaflow.base.errors import InputError
from hadaflow.base.interruption import held_back
from hadaflow.base.memory import require_memory
from hadaflow.base.precision import double_precision
from hadaflow.base.progress import Progress
from hadaflow.flow.dual import MANY_CLASSES, Clock, DualEuler, DualFlow, OrbitReading, euler_step
from hadaflow.flow.kinds.flow import Course
from hadaflow.flow.orbits import OrbitMarch, make_course, read_all
from hadaflow.flow.predictions import (
    ANCHOR,
    collapse_log_norms,
    filled_weights,
    joining_log_norms,
    log10_log10_time_at_collapse,
)
from hadaflow.flow.stages import Weights
from hadaflow.model.clock import LN10, u_from_log10
from hadaflow.model.states import Parameters, Spectrum
from hadaflow.model.ufm import UFM
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.methods import Method
from hadaflow.runs.outcomes import Ending, Outcome, Stop
from hadaflow.runs.recording import Clocks, record, spectra, status_of
from hadaflow.runs.requests import Request
from hadaflow.runs.targets import Collapse, Norm, Target, Time

# An explicit method takes of the order of ‖a‖₁ steps; dual ones are fewer from about here on.
LONG_WAY = math.log(2e4)
# Where explicit steps have led further than was foreseen, dual ones take over.
PATIENCE = 5e4
EXPLICIT_CLASSES = 64
FINEST = 1e-9  # rtol; extrapolation magnifies rounding too much for less
_LOOSEST = 5e-5  # larger local errors would not keep their promise
_JUMP_PARTS = 4  # points of a jump at which its condition is checked
_JUMP_TOLERANCE = 1e-5
# Below this share of ‖a‖₁ a margin is rounding, where sums cancel.
_LOST_MARGIN = 1e-12
# Measured on two cores of a server; other machines differ by a factor of a few.
_CALL = 2e-6  # seconds of a transform of a dual step beside what grows with K
_PER_NUMBER = 9e-10  # seconds, times K log2 K
_FORETOLD = 0.25  # of the transforms to collapse that a prediction takes
_ARRAYS = 60  # working copies of a state


def knows(model: UFM, start: Any) -> bool:
    """Is it the flow that dual steps know: the balanced orbit of cross-entropy of depth 2?"""
    if isinstance(start, Parameters) or model.depth != 2:
        return False
    known = model.has_orbit_of_cross_entropy
    return known and start.angles is None and start.balanced and bool(np.any(start.a))


def log_norm_ahead(request: Request, a: np.ndarray) -> np.ndarray:
    """Roughly, log‖a‖₁ (scaled) at the end of runs from `a`; leading axes batched."""
    model, event, end = request.model, request.event, request.end
    if event is None:
        shift = math.log(model.temperature) - math.log(_steepness(model))
        last = math.log(end) + shift if end else -math.inf
        return np.full(a.shape[:-1], last)
    last = event.log_norm_ahead(model.classes, request.target_value)
    if not event.uniform:
        return np.full(a.shape[:-1], last)
    with np.errstate(divide="ignore"):
        log_a = np.where(np.any(a == 0, axis=-1, keepdims=True), 0.0, np.log(a))
    joined = joining_log_norms(model.basis, log_a).max(axis=-1)
    return np.maximum(joined, last + math.log(model.temperature))


def _steepness(model: UFM) -> float:
    """How many times the smallest margin log t is, late."""
    return float(model.loss_kind.steepness) if model.loss_kind.of_probability else 1.0


class Dual(Method):
    """Steps along the orbit, matrix-free, of any length: see `flow.dual`."""

    name: ClassVar[str] = "dual"
    compilation: ClassVar[float] = 4.0

    def check(self, request: Request, start: Any) -> None:
        if isinstance(start, Parameters):
            raise InputError(
                'Argument `method` cannot be "dual" for matrices: dual steps are those of singular '
                'values. Use "auto", or the reduced view of a Hadamard start (`project`).'
            )
        self._check_known(request, start, "method", 'method "dual"')
        self._check_digits(request)

    def _check_known(self, request: Request, start: Any, argument: str, what: str) -> None:
        if not knows(request.model, start):
            raise InputError(
                f"Argument `{argument}`: {what} needs cross-entropy, or another function of "
                "the probability, balanced, of depth 2 with hard labels, without penalties or phases."
            )

    def _check_digits(self, request: Request) -> None:
        if request.rtol < FINEST:
            raise InputError(
                f'Argument `rtol` must be at least {FINEST:g} for this run, which needs method "dual", '
                f"but is {request.rtol:g}."
            )

    def suits(self, request: Request, start: Any) -> str | None:
        event = request.event
        if event is not None and event.foretold:
            self._check_known(request, start, "until", "PredictedCollapse")
        if not knows(request.model, start):
            return None
        far = float(log_norm_ahead(request, start.a))
        if event is not None and event.foretold:
            reason = "matrix-free: to foretell collapse"
        elif event is not None and event.uniform and request.model.classes > EXPLICIT_CLASSES:
            reason = "matrix-free: many classes, to collapse"
        elif far > LONG_WAY:
            reason = (
                "matrix-free: explicit steps grow in number like ‖a‖₁, which is to reach about "
                f"e^{far:.3g}"
            )
        else:
            return None
        self._check_digits(request)
        return reason

    def takes_over(self, request: Request, start: Any, run: Trajectory) -> str | None:
        """Why, where explicit steps were our choice and the way was longer than foreseen."""
        if run.status != "failed" or request.forced or request.rtol < FINEST:
            return None
        if not knows(request.model, start):
            return None
        far = run.log_norm[-1] - math.log(request.value_scale)
        return f"matrix-free: explicit steps had become too many at ‖a‖₁ = e^{far:.3g}"

    def solver(self, flow: Any) -> DualEuler:
        return DualEuler(flow)

    def local_tolerance(self, request: Request) -> float:
        """States, log time and the norm of collapse are right to rtol.

        Errors do not add up, as the flow contracts them; with few classes the event amplifies them a
        little.
        """
        safety = 2.0 if request.model.classes >= MANY_CLASSES else 4.0
        return min(request.rtol / safety, _LOOSEST)

    def run(self, request: Request, start: Spectrum) -> Trajectory:
        model, event = request.model, request.event
        log_tau = math.log(model.temperature)
        tolerance = self.local_tolerance(request)
        with double_precision(), Progress(request.progress, "solve") as progress:
            course, y0 = self._course(request, start)

            def give_up(now: OrbitReading, steps: int) -> Stop | None:
                norm = now.log_norm + log_tau
                where = f"log‖a‖₁ = {norm:.6g}, max|(K−1)â − 1| = {now.deviation:.3g}"
                progress.report(f"{where}, {steps} steps", None)
                return _lost_digits(model.basis, now)

            march = OrbitMarch(self, course, y0, min(0.02 * tolerance, 1e-6), give_up)
            ended, extra = request, {}
            if event is not None and event.foretold:
                outcome, ended, extra = _foretell(request, march, log_tau)
            else:
                outcome = _through(request, march, float(course.number), log_tau)
            with held_back():
                return _recorded(ended, start, outcome, march, log_tau, extra)

    def _course(self, request: Request, start: Spectrum) -> tuple[Course, Any]:
        """Where to; a/τ follows the flow of temperature one, τ times faster."""
        model, tolerance = request.model, self.local_tolerance(request)
        kind, number = _aim(request, math.log(model.temperature))
        clock = Clock.of(model.loss_kind)
        a = start.a / model.temperature
        return make_course(model.basis, clock, a, kind, tolerance, number)

    def is_compiled(self, request: Request, start: Any) -> bool:
        with double_precision():
            course, y0 = self._course(request, start)
            return OrbitMarch(self, course, y0, math.inf, lambda *_: None).is_compiled

    def memory(self, request: Request, start: Any) -> float:
        model, points = request.model, request.saved_points
        return require_memory(
            4.0 * start.a.size * points + _ARRAYS * model.modes + 2**22,
            f"A run with {model.classes} classes and {points} saved points",
            "ask for fewer `points`",
        )

    def seconds(self, request: Request, start: Any) -> float:
        K = request.model.classes
        transforms = 5000 * (5e-5 / self.local_tolerance(request)) ** 0.44
        if request.event is not None and request.event.foretold:
            transforms *= _FORETOLD
        return transforms * (_CALL + _PER_NUMBER * K * math.log2(K))


def _aim(request: Request, log_tau: float) -> tuple[type[Target], float]:
    """The kind of target and its number, as `DualFlow` counts it: a divided by the temperature."""
    event = request.event
    if event is None:
        goals = _in_own_time(request, _asked(request), log_tau)
        return Time, goals[0] if goals else 1.0
    if event.foretold:
        return Norm, ANCHOR * math.sqrt(request.model.classes)
    return type(event), event.scaled_number(request.value_scale * request.model.temperature, False)


def _asked(request: Request) -> np.ndarray:
    """log10 of the times asked for, without what lies behind the end of a run to a time."""
    asked = np.zeros(0) if request.log10_times is None else request.log10_times
    if not isinstance(request.until, Time):
        return asked
    last = request.until.log10_time
    return np.append(asked[asked < last], last)


def _in_own_time(request: Request, log10_times: np.ndarray, log_tau: float) -> list[float]:
    """Times as log(1 + t), t in units of the flow of temperature one."""
    return u_from_log10(log10_times + request.time_shift - log_tau / LN10).tolist()


def _through(request: Request, march: OrbitMarch, number: float, log_tau: float) -> Outcome:
    """To the end of the run, with states at the times asked for or, without any, on the way."""
    own = request.log10_times is not None
    if request.event is None:
        values = _in_own_time(request, _asked(request), log_tau)
        return march.through(values, 0 if own else request.points - 2)
    outcome = march.through([number], 0 if own else request.points - 2)
    if not own or not len(outcome.us):
        return outcome
    # The way once more, by time, up to where it has led.
    last = read_all(march.flow, jax.tree.map(lambda y: y[-1:], outcome.ys)).log_time[0] / LN10
    asked = _asked(request)
    before = asked[asked < last + log_tau / LN10 - request.time_shift]
    if not len(before):
        return outcome
    values = _in_own_time(request, before, log_tau)
    course = Course(march.course.flow, np.float64(values[0]), Time)
    again = dataclasses.replace(march, course=course, give_up=lambda *_: None)
    way = again.through(values, 0)
    march.transforms = again.transforms
    if way.ending is not Ending.EVENT:
        return way
    ys = jax.tree.map(lambda *y: np.concatenate(y), way.ys, outcome.ys)
    return dataclasses.replace(outcome, us=np.concatenate([way.us, outcome.us]), ys=ys)


def _lost_digits(basis: Basis, now: OrbitReading) -> Stop | None:
    """The honest stop of a basis whose transform cancels, once the smallest margin is rounding."""
    if basis.exact_psi or now.log_margin - now.log_norm > math.log(_LOST_MARGIN):
        return None
    reason = (
        "the smallest margin has become less than the rounding of the Fourier transform of "
        f"{basis.classes} classes, {_LOST_MARGIN:.1g} of ‖a‖₁"
    )
    return Stop(Ending.GIVEN_UP, reason)


def _foretell(
    request: Request, march: OrbitMarch, log_tau: float
) -> tuple[Outcome, Request, dict[str, Any]]:
    """To the anchor, then one jump to where water filling puts collapse; step by step if that fails.

    Returns also what was carried out in the end: the request, or one for `Collapse`.
    """
    tolerance, flow, anchor_norm = request.target_value, march.flow, float(march.course.number)
    outcome = Outcome(
        Ending.EVENT, np.zeros(0), jax.tree.map(lambda x: np.zeros((0, *np.shape(x))), march.y0)
    )
    y = march.y0
    if float(_read_one(flow, y).log_norm) < math.log(anchor_norm):
        near = dataclasses.replace(march, slack=math.inf)  # wherever the step ends will do
        outcome = near.through([anchor_norm], max(request.points - _JUMP_PARTS - 2, 0))
        march.transforms = near.transforms
        if outcome.ending is not Ending.EVENT:
            return outcome, request, {}
        y = jax.tree.map(lambda x: x[-1], outcome.ys)
    now = _read_one(flow, y)
    anchor = float(now.log_norm)
    level, uniform = collapse_log_norms(flow.basis, now.log_a, tolerance)
    joins = joining_log_norms(flow.basis, now.log_a)
    jumped, why = _jump(flow, y, joins, (anchor, level), tolerance, march)
    shift = log_tau + math.log(request.value_scale)
    extra = {
        "anchor_log_norm": anchor + shift,
        "predicted_log_norm": level + shift,
        "predicted_log_norm_uniform": uniform + shift,
        "predicted_log10_log10_time": log10_log10_time_at_collapse(
            flow.basis.classes, level, _steepness(request.model)
        ),
        "jump": why or "its condition holds",
    }
    if jumped is not None:
        us = np.concatenate([outcome.us, np.full(len(jumped.lag), np.nan)])[1 - request.points :]
        ys = jax.tree.map(
            lambda a, b: np.concatenate([a, b])[1 - request.points :], outcome.ys, jumped
        )
        return dataclasses.replace(outcome, us=us, ys=ys), request, extra
    closer = dataclasses.replace(flow, collapse=np.float64(tolerance))
    stepping = dataclasses.replace(
        march, course=Course(closer, np.float64(tolerance), Collapse), transforms=0
    )
    outcome = stepping.through([tolerance], request.points - 2)
    march.transforms += stepping.transforms
    return outcome, dataclasses.replace(request, until=Collapse(tolerance)), extra


def _read_one(flow: DualFlow, y: Any) -> OrbitReading:
    many = read_all(flow, jax.tree.map(lambda x: np.asarray(x)[None], y))
    return jax.tree.map(lambda x: x[0], many)


def _jump(
    flow: DualFlow, y: Any, joins: np.ndarray, way: tuple[float, float],
    tolerance: float, march: OrbitMarch,
) -> tuple[Any, str]:  # fmt: skip
    """States along the hard-margin path, the way in log‖a‖₁, each by one step from the anchor.

    Or None and the reason why the path is not that of the flow.
    """
    op, K, (anchor, level) = flow.operator, flow.basis.classes, way
    if level <= anchor:
        return None, "collapse is nearer than the anchor"
    states, before, new, solved, spent = [], np.zeros(len(y.P)), y, True, 0
    for part in range(1, _JUMP_PARTS + 1):
        goal = anchor + (level - anchor) * part / _JUMP_PARTS
        length = (goal - anchor) * (K - 1) / K
        guess = Weights(*filled_weights(flow.basis, joins, goal))
        for _ in range(4):  # log‖a‖₁ is very nearly linear in σ
            new, guess, solved, work = euler_step(
                op, flow.clock, y, flow.log_a0, guess, np.float64(length), _JUMP_TOLERANCE
            )
            spent += int(work)
            short = goal - float(_read_one(flow, new).log_norm)
            if abs(short) < _JUMP_TOLERANCE:
                break
            length += short * (K - 1) / K
        gained = np.asarray(new.P) - np.asarray(y.P)
        if not bool(solved) or np.any(gained < before - 1e-3 / K):
            march.transforms += spent
            return None, "a weight returns to zero on the hard-margin path"
        before = gained
        states.append(jax.tree.map(np.asarray, new))
    march.transforms += spent
    found = float(_read_one(flow, new).deviation)
    if not 0.5 < found / tolerance < 2:
        return None, f"the margins are not hard yet: max|(K−1)â − 1| is {found:.3g} after the jump"
    return jax.tree.map(lambda *x: np.stack(x), *states), ""


def _recorded(
    request: Request, start: Spectrum, outcome: Outcome, march: OrbitMarch, log_tau: float,
    extra: dict[str, Any],
) -> Trajectory:  # fmt: skip
    log_a = np.zeros((0, len(start.a)))
    log_time = log_path = log_log_time = log_norm = np.zeros(0)
    shift = log_tau + math.log(request.value_scale)
    if len(outcome.us):
        found = read_all(march.flow, outcome.ys)
        log_a, log_norm, log_path = found.log_a, found.log_norm + shift, found.log_path + shift
        log_time = found.log_time + (log_tau - request.time_shift * LN10)
        with np.errstate(invalid="ignore"):
            logs = np.log(np.where(log_time > 0, log_time, np.nan))
        # Where log t overflows, it is the smallest margin.
        late = found.log_margin + math.log(_steepness(request.model))
        log_log_time = np.where(np.isfinite(log_time), logs, late)
    log10_time = np.concatenate([[-np.inf], log_time / LN10])
    if outcome.ending is Ending.EVENT and (asked := _asked(request)).size:
        count = min(len(asked), len(log10_time) - 1 - (request.event is not None))
        if request.log10_times is not None:
            log10_time[1 : count + 1] = asked[:count]
        else:
            log10_time[-1] = asked[-1]
    log10_log10_time = np.concatenate([[np.nan], (log_log_time - math.log(LN10)) / LN10])
    with np.errstate(over="ignore"):
        path = np.concatenate([[0.0], np.exp(log_path)])
    clocks = Clocks(log10_time, path, log10_log10_time, np.concatenate([[-np.inf], log_path]))
    where = "the start"
    if len(log_norm):
        where = f"log10 t = {log10_time[-1]:.8g}"
        if not np.isfinite(log10_time[-1]):
            where = f"log‖a‖₁ = {log_norm[-1]:.8g}, log10 log10 t = {log10_log10_time[-1]:.8g}"
    timed = request.event is None and outcome.ending is Ending.EVENT
    ending = Ending.DONE if timed else outcome.ending
    status, message = status_of(request, ending, where, outcome.reason)
    if "jump" in extra and status == "collapsed":
        message += f" Integrated, not foretold: {extra['jump']}."
    return record(
        request, spectra(request, start, log_a + log_tau), clocks, status, message, outcome,
        transforms=march.transforms, order=march.flow.rank, **extra,
    )  # fmt: skip
