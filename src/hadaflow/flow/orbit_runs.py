"""Runs by dual steps: when to choose them, how they end, what they return."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.bases import Basis
from hadaflow.base.errors import InputError, shown
from hadaflow.base.interruption import held_back
from hadaflow.base.precision import double_precision
from hadaflow.base.progress import Progress
from hadaflow.flow.dual import MANY_CLASSES, DualFlow, Reading, euler_step
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
from hadaflow.model.fitting import fitted, result_units
from hadaflow.model.states import RAW, Spectrum
from hadaflow.model.ufm import CROSS_ENTROPY, UFM, check_model
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.methods import AUTO_METHOD, DUAL, Choice
from hadaflow.runs.outcomes import Ending, Outcome, Stop
from hadaflow.runs.recording import status_of
from hadaflow.runs.requests import LN10, Request, u_from_log10
from hadaflow.runs.targets import Collapse, Norm, PathLength, PredictedCollapse, Target, Time

# An explicit method takes of the order of ‖a‖₁ steps; dual ones are fewer from about here on.
LONG_WAY = math.log(2e4)
EXPLICIT_CLASSES = 64
FINEST = 1e-9  # rtol; extrapolation magnifies rounding too much for less
_LOOSEST = 5e-5  # larger local errors would not keep their promise
_JUMP_PARTS = 4  # points of a jump at which its condition is checked
_JUMP_TOLERANCE = 1e-5
# Below this share of ‖a‖₁ a margin is rounding, where sums cancel.
_LOST_MARGIN = 1e-12


def supports(model: UFM, start: Spectrum) -> bool:
    """Is it the flow that dual steps know: balanced cross-entropy of depth 2 with hard labels?"""
    plain = model.loss == CROSS_ENTROPY and model.depth == 2 and model.imbalance is None
    free = not (model.soft_labels or model.penalized or model.settles)
    return plain and free and start.angles is None and not np.any(start.C) and bool(np.any(start.a))


def choose(request: Request, start: Spectrum) -> Request:
    """The request with the method that suits it; a method that was asked for stays."""
    known = supports(request.model, start)
    foretell = isinstance(request.until, PredictedCollapse)
    if (request.method == DUAL or foretell) and not known:
        what = 'method "dual"' if request.method == DUAL else "PredictedCollapse"
        raise InputError(
            f"Argument `{'method' if request.method == DUAL else 'until'}`: {what} needs balanced "
            "cross-entropy of depth 2 with hard labels, without penalties or phases."
        )
    if foretell and request.method not in (DUAL, AUTO_METHOD):
        raise InputError(
            f'Argument `method` must be "auto" or "dual" with PredictedCollapse, but is '
            f"{shown(request.method)}."
        )
    if request.method == DUAL:
        return _by_dual_steps(request, request.choice)
    if not known:
        return request
    if foretell:
        return _by_dual_steps(request, Choice(DUAL, "matrix-free: to foretell collapse"))
    if request.choice.forced:
        return request
    if isinstance(request.event, Collapse) and request.model.classes > EXPLICIT_CLASSES:
        return _by_dual_steps(request, Choice(DUAL, "matrix-free: many classes, to collapse"))
    far = float(log_norm_ahead(request, start.a))
    if far <= LONG_WAY:
        reason = f"explicit: the way to ‖a‖₁ ≈ e^{far:.3g} is short"
        return dataclasses.replace(request, choice=Choice(AUTO_METHOD, reason))
    reason = f"explicit steps grow in number like ‖a‖₁, which is to reach about e^{far:.3g}"
    return _by_dual_steps(request, Choice(DUAL, f"matrix-free: {reason}"))


def _by_dual_steps(request: Request, choice: Choice) -> Request:
    if request.rtol < FINEST:
        raise InputError(
            f'Argument `rtol` must be at least {FINEST:g} for this run, which needs method "dual", '
            f"but is {request.rtol:g}."
        )
    return dataclasses.replace(request, choice=choice)


def reconsider(request: Request, start: Spectrum, run: Trajectory) -> Request | None:
    """The same by dual steps, if explicit ones were our choice and the way was longer than foreseen."""
    if run.status != "failed" or request.method != AUTO_METHOD or request.choice.forced:
        return None
    if not supports(request.model, start) or request.rtol < FINEST:
        return None
    far = run.log_norm[-1] - math.log(request.value_scale)
    reason = f"matrix-free: explicit steps had become too many at ‖a‖₁ = e^{far:.3g}"
    return _by_dual_steps(request, Choice(DUAL, reason))


def log_norm_ahead(request: Request, a: np.ndarray) -> np.ndarray:
    """Roughly, log‖a‖₁ (scaled) at the end of runs from `a`; leading axes batched."""
    model, event, goals = request.model, request.event, request.goals
    shift = math.log(model.temperature)
    if goals is not None:
        last = (math.log(goals[-1]) if len(goals) and goals[-1] > 0 else -math.inf) + shift
    elif isinstance(event, Norm):
        last = math.log(request.target_value)
    elif isinstance(event, PathLength):
        last = math.log(request.target_value) + 0.5 * math.log(model.classes)
    else:
        last = math.log((model.classes - 1) * (1 + math.log(1 / min(request.target_value, 0.5))))
        with np.errstate(divide="ignore"):
            log_a = np.where(np.any(a == 0, axis=-1, keepdims=True), 0.0, np.log(a))
        return np.maximum(joining_log_norms(model.basis, log_a).max(axis=-1), last + shift)
    return np.full(a.shape[:-1], last)


class CollapsePrediction(NamedTuple):
    """Where collapse happens in the hard-margin limit, in the units of the anchor."""

    log_norm: float  # log‖a‖₁ where max|(K−1)â − 1| has fallen to the tolerance
    log_norm_uniform: float  # where the last margin joins the smallest ones
    log10_log10_time: float  # at `log_norm`


def predict_collapse(
    model: UFM, anchor: Any, tolerance: float = 1e-3, units: str | None = None
) -> CollapsePrediction:
    """Collapse foretold from a state of the orbit by water filling; see `predictions`.

    Heuristic, and better the harder the margins are at the anchor: `solve` with `PredictedCollapse`
    takes ‖a‖₁ = 12√K (scaled) and checks the condition of the jump.

    Examples:
        >>> import numpy as np
        >>> anchor = np.exp(np.random.default_rng(0).normal(0, 1, 1023))
        >>> round(predict_collapse(UFM(1024), anchor).log_norm, 2)  # integrated: 115.12
        115.12
    """
    check_model(model)
    start = fitted(model, anchor, units)
    if not supports(model, start) or start.a.ndim != 1:
        raise InputError(
            "Argument `anchor` must be one balanced spectrum of cross-entropy of depth 2 with hard "
            "labels: collapse of others is not foretold."
        )
    tolerance = PredictedCollapse(tolerance).tolerance
    with np.errstate(divide="ignore"):
        level, uniform = collapse_log_norms(
            model.basis, np.log(start.a / model.temperature), tolerance
        )
    shift = math.log(model.temperature)
    if result_units(anchor, units) == RAW:
        shift += math.log(model.singular_value_scale)
    return CollapsePrediction(
        level + shift, uniform + shift, log10_log10_time_at_collapse(model.classes, level)
    )


def solve_orbit(request: Request, start: Spectrum) -> Trajectory:
    """A run by dual steps from scaled singular values."""
    model, event = request.model, request.event
    log_tau = math.log(model.temperature)  # a/τ follows the flow of temperature one, τ times faster
    tolerance = local_tolerance(request)
    target, value = _aim(request, log_tau)
    with double_precision(), Progress(request.progress, "solve") as progress:
        course, y0 = make_course(model.basis, start.a / model.temperature, target, tolerance, value)

        def give_up(now: Reading, steps: int) -> Stop | None:
            where = f"log‖a‖₁ = {now.log_norm + log_tau:.6g}, max|(K−1)â − 1| = {now.deviation:.3g}"
            progress.report(f"{where}, {steps} steps", None)
            return _lost_digits(model.basis, now)

        march = OrbitMarch(course, y0, min(0.02 * tolerance, 1e-6), give_up)
        ended, extra = request, {}
        if isinstance(event, PredictedCollapse):
            outcome, ended, extra = _foretell(request, march, log_tau)
        else:
            values = [value] if request.log10_times is None else _requested(request, log_tau)
            keep = request.points - 2 if request.log10_times is None else 0
            outcome = march.through(values, keep)
        with held_back():
            found = read_all(march.flow, outcome.ys) if len(outcome.us) else None
            return _result(ended, start, outcome, found, march, log_tau, extra)


def local_tolerance(request: Request) -> float:
    """Of one step, so that states, log time and the norm of collapse are right to rtol.

    Errors do not add up, as the flow contracts them; with few classes the event amplifies them a little.
    """
    safety = 2.0 if request.model.classes >= MANY_CLASSES else 4.0
    return min(request.rtol / safety, _LOOSEST)


def _aim(request: Request, log_tau: float) -> tuple[type[Target], float]:
    """The kind of target and its number, as `DualFlow` counts it: a divided by the temperature."""
    event = request.event
    if isinstance(event, Collapse):
        return Collapse, event.tolerance
    if isinstance(event, PredictedCollapse):
        return Norm, ANCHOR * math.sqrt(request.model.classes)
    if isinstance(event, Norm | PathLength):
        return type(event), request.target_value / request.model.temperature
    goals = _requested(request, log_tau)
    return Time, goals[0] if goals else 1.0


def _requested(request: Request, log_tau: float) -> list[float]:
    """Times asked for as log(1 + t), t in units of the flow of temperature one."""
    asked = request.log10_times
    if asked is None:
        assert isinstance(request.until, Time)
        asked = np.array([request.until.log10_time])
    return u_from_log10(asked + request.time_shift - log_tau / LN10).tolist()


def _lost_digits(basis: Basis, now: Reading) -> Stop | None:
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
        "predicted_log10_log10_time": log10_log10_time_at_collapse(flow.basis.classes, level),
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


def _read_one(flow: DualFlow, y: Any) -> Reading:
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
        guess = Weights(*filled_weights(flow.basis, joins, goal), np.asarray(spent))
        for _ in range(4):  # log‖a‖₁ is very nearly linear in σ
            new, guess, solved = euler_step(
                op, y, flow.log_a0, guess, jnp.asarray(length), _JUMP_TOLERANCE
            )
            short = goal - float(_read_one(flow, new).log_norm)
            if abs(short) < _JUMP_TOLERANCE:
                break
            length += short * (K - 1) / K
        spent = int(guess.transforms)
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


def _result(
    request: Request, start: Spectrum, outcome: Outcome, found: Reading | None, march: OrbitMarch,
    log_tau: float, extra: dict[str, Any],
) -> Trajectory:  # fmt: skip
    model, log_scale = request.model, math.log(request.value_scale)
    log_a = np.empty((1 + len(outcome.us), len(start.a)))
    with np.errstate(divide="ignore"):
        np.add(np.log(start.a, out=log_a[0]), log_scale, out=log_a[0])
    log_time = log_path = log_log_time = log_norm = np.zeros(0)
    if found is not None:
        np.add(found.log_a, log_tau + log_scale, out=log_a[1:])
        log_norm = found.log_norm + (log_tau + log_scale)
        log_path = found.log_path + (log_tau + log_scale)
        log_time = found.log_time + (log_tau - request.time_shift * LN10)
        with np.errstate(invalid="ignore"):
            logs = np.log(np.where(log_time > 0, log_time, np.nan))
        # Where log t overflows, it is the smallest margin.
        log_log_time = np.where(np.isfinite(log_time), logs, found.log_margin)
    log10_time = np.concatenate([[-np.inf], log_time / LN10])
    if request.log10_times is not None and outcome.ending is Ending.EVENT:
        log10_time[1:] = request.log10_times
    log10_log10_time = np.concatenate([[np.nan], (log_log_time - math.log(LN10)) / LN10])
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
    with np.errstate(over="ignore"):
        path = np.concatenate([[0.0], np.exp(log_path)])
    diagnostics = {
        "method": DUAL,
        "reason": request.choice.reason,
        "accepted_steps": outcome.accepted,
        "rejected_steps": outcome.rejected,
        "local_tolerance": float(march.flow.tolerance),
        "transforms": march.transforms,
        "order": march.flow.rank,
    } | extra
    return Trajectory(
        model=model,
        view="reduced",
        arrays={"log_a": log_a, "C": np.broadcast_to(np.float64(0.0), log_a.shape)},
        log10_time=log10_time,
        log10_log10_time=log10_log10_time,
        path_length=path,
        log_path_length=np.concatenate([[-np.inf], log_path]),
        status=status,
        message=message,
        units=request.units,
        steps=outcome.accepted + outcome.rejected,
        settings=request.settings,
        diagnostics=diagnostics,
    )
