"""`solve(model, start, until)`: a trajectory of the gradient flow, to any time."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hadaflow.closed_forms import fixed_point, mse_path_length, mse_singular_values
from hadaflow.errors import InputError
from hadaflow.flows import FullFlow, PenalizedFlow, ReducedFlow
from hadaflow.initial import compress
from hadaflow.integrate import Integration, Outcome
from hadaflow.model import MSE, UFM
from hadaflow.precision import double_precision
from hadaflow.progress import Progress, Report
from hadaflow.requests import Request, make_request
from hadaflow.states import Parameters, Spectrum
from hadaflow.targets import Collapse, Norm, PathLength, Steady, Target
from hadaflow.trajectory import Trajectory

# An explicit step in log time is of order one however large ‖a‖ is, so work grows like ‖a‖. The
# first limit is ten times the collapse norm up to which an end is promised, seconds of work; the
# others are for full states, whose steps cost more, and for targets at a known distance.
_NORM_LIMIT = 1e6
_FULL_NORM_LIMIT = 1e5
_STEP_LIMIT = 2e7
# Looser local errors would keep the direction from settling at all.
_LOOSEST = 1e-5


def solve(
    model: UFM,
    start: Any,
    until: Target | None = None,
    *,
    times: Any = None,
    log10_times: Any = None,
    units: str | None = None,
    points: int = 200,
    rtol: float = 1e-8,
    method: str = "auto",
    progress: str | Report | None = "auto",
) -> Trajectory:
    """Follow the gradient flow of `model` from `start`.

    Args:
        model: The problem.
        start: Singular values (a list or `spectrum`) for the reduced view, `Parameters` for the
            full one.
        until: `Time`, `Collapse`, `Norm`, `PathLength` or `Steady`; `Collapse(1e-6)` if nothing
            is said (`Steady()` for MSE).
        times: Times at which to keep the state, instead of `until`; the start is kept too.
        log10_times: The same by their logarithm, for times beyond 1e308.
        units: "scaled" or "raw": of the start, the times asked for and everything returned.
        points: Number of saved points, geometric in time, the start included.
        rtol: Global relative error promised for the singular values and for log time.
        method: "auto", or a solver by name: tsit5, dopri8, kvaerno5.
        progress: "auto" shows a line on a terminal after a second, None is silent, a function of
            (text, fraction) is called instead.

    Returns:
        A `Trajectory`; its `status` and `message` say how it ended. A run that fails or is
        interrupted returns the finished part.

    Examples:
        >>> from hadaflow import Time
        >>> run = solve(UFM(classes=4), [0.1, 0.2, 0.3], Time(log10=100))
        >>> run.status, bool(abs(run.a_hat[-1] - 1 / 3).max() < 1e-12)
        ('reached', True)
    """
    request = make_request(
        model, start, until, times, log10_times, units, points, rtol, method, progress
    )
    began = time.perf_counter()
    if isinstance(start, Parameters):
        run = _solve_full(request, model.check_parameters(start))
    else:
        run = _solve_reduced(request, model.scaled(start, units))
    run.diagnostics["wall_seconds"] = time.perf_counter() - began
    return run


# --- reduced view --------------------------------------------------------------------------------


def _solve_reduced(request: Request, start: Spectrum) -> Trajectory:
    if start.a.ndim != 1:
        raise InputError(
            f"Argument `start` must be one spectrum, but is a batch of shape {start.a.shape}."
        )
    if early := _decided_at_start(request, start):
        none = np.zeros((0, request.model.modes))
        return _reduced_result(request, start, np.zeros(0), none, np.zeros(0), *early)
    if request.model.penalized:
        return _integrate_penalized(request, start)
    if request.model.loss == MSE:
        return _solve_mse(request, start)
    return _integrate_reduced(request, start)


def _decided_at_start(request: Request, start: Spectrum) -> tuple[str, str] | None:
    """Status and message of a run that needs no integration."""
    model, until = request.model, request.until
    a = start.a[-model.basis.modes :]
    # A balanced zero stays zero for ever; at depth 1, or unbalanced, it moves.
    dead = (start.a == 0) & (start.C == 0) & (model.depth == 2)
    if isinstance(until, Collapse):
        dead_modes = np.flatnonzero(dead[-model.basis.modes :]) + 1
        if len(dead_modes):
            named = ", ".join(map(str, dead_modes[:8])) + (", …" if len(dead_modes) > 8 else "")
            return "never-collapses", (
                f"Singular values that start at zero stay zero (mode {named}), so the direction "
                "never becomes uniform: ask for a time, a norm or a path length instead."
            )
        if limit := _settles_elsewhere(model, until.tolerance):
            return "never-collapses", limit
        if a.any() and _deviation(model.nontrivial(start.a)) <= until.tolerance:
            return _ending(request, "event", 0.0)
    if isinstance(until, Norm) and model.nontrivial(start.a).sum() >= request.target_value:
        return _ending(request, "event", 0.0)
    if isinstance(until, Norm | PathLength) and dead.all():
        return "failed", "All singular values start at zero: nothing moves."
    return None


def _settles_elsewhere(model: UFM, tolerance: float) -> str:
    """What to say when soft labels hold the flow at a direction that is not uniform; else nothing."""
    if model.penalized and model.loss != MSE and model.decay_strength >= 1:
        return (
            f"The penalties are too strong: λ_Wλ_H = {math.prod(model.decays):g} is at or above "
            f"n = {model.samples} (over (Kn)² for a mean), so every singular value dies."
        )
    if not model.soft_labels or model.penalized or np.any(model.label_probabilities == 0):
        return ""
    limit = model.nontrivial(np.maximum(fixed_point(model), 0.0))
    if _deviation(limit) <= tolerance:
        return ""
    shown = ", ".join(f"{v:.4g}" for v in np.maximum(fixed_point(model), 0.0)[:8] / limit.sum())
    return (
        f"The labels hold the flow at the direction ({shown}{', …' if model.modes > 8 else ''}), "
        f"which is not uniform to {tolerance:g}: ask for Steady() or a time instead."
    )


def _deviation(a: np.ndarray) -> Any:
    """Max |(K−1)â − 1| of NumPy arrays, along the last axis."""
    return np.max(np.abs(a / a.mean(axis=-1, keepdims=True) - 1), axis=-1)


def _stall(norm: float, deviation: float) -> str:
    return (
        f"‖a‖₁ has reached {norm:.3g} (scaled) and max|(K−1)â − 1| is still {deviation:.3g}; "
        "an explicit method needs of the order of ‖a‖₁ steps"
    )


def _integrate_reduced(request: Request, start: Spectrum) -> Trajectory:
    model, event = request.model, request.event
    flow = ReducedFlow(model, not np.any(start.C), type(event) if event else None)
    # Padded in front, where the flow keeps the path length.
    a, C = (np.concatenate([[0.0], values]) for values in (start.a, start.C))
    with np.errstate(divide="ignore"):
        args = (np.log(a), model.excess(a, C), C, np.float64(request.target_value))
    tolerance = _local_tolerance(request)

    with double_precision():

        def give_up(u: float, y: np.ndarray, steps: int) -> str:
            a = model.nontrivial(flow.displaced(y, args)[1:])
            if isinstance(event, Collapse) and a.sum() > _NORM_LIMIT:
                return _stall(a.sum(), _deviation(a))
            return _too_far(request, u, steps, {Norm: a.sum(), PathLength: float(y[0])})

        y0 = np.zeros(model.basis.modes + 1)
        outcome = _integrate(request, flow, y0, args, tolerance, give_up)
        a = flow.displaced(outcome.ys, args)[:, 1:]
    status, message = _ending(request, outcome.ending, _last(outcome), outcome.reason)
    return _reduced_result(
        request, start, outcome.us, a, outcome.ys[:, 0], status, message, outcome, tolerance
    )


def _integrate_penalized(request: Request, start: Spectrum) -> Trajectory:
    model, event = request.model, request.event
    if np.any((start.a == 0) & (start.C != 0)):
        raise InputError(
            "Argument `start` must have positive singular values where `C` is not zero, for a model "
            "with `weight_decay`; the full view (`hadamard`) follows such a start."
        )
    flow = PenalizedFlow(model, type(event) if event else None)
    alive = start.a > 0
    ratio = np.arcsinh(np.divide(start.C, 2 * start.a, out=np.zeros_like(start.a), where=alive)) / 2
    with np.errstate(divide="ignore"):
        args = (np.log(start.a), ratio, np.float64(request.target_value))
    tolerance = _local_tolerance(request)
    with double_precision():

        def give_up(u: float, y: np.ndarray, steps: int) -> str:
            a = model.nontrivial(flow.values(y, args)[0])
            return _too_far(request, u, steps, {Norm: a.sum(), PathLength: float(y[0])})

        outcome = _integrate(request, flow, np.zeros(1 + 2 * model.modes), args, tolerance, give_up)
        a, C = flow.values(outcome.ys, args)
    status, message = _ending(request, outcome.ending, _last(outcome), outcome.reason)
    return _reduced_result(
        request, start, outcome.us, a, outcome.ys[:, 0], status, message, outcome, tolerance, C
    )


def _solve_mse(request: Request, start: Spectrum) -> Trajectory:
    """Closed form at every time; events by bisection on it."""
    model, event = request.model, request.event
    goals = request.goals
    status, message = "reached", "All requested times reached (closed form)."
    if goals is None:
        end = _first_crossing(request, start)
        if end is None:
            return _reduced_result(
                request, start, np.zeros(0), np.zeros((0, model.modes)), np.zeros(0),
                "failed", f"The flow settles at a finite point before {event}.",
            )  # fmt: skip
        goals = request.grid(end)
        status, message = _ending(request, "event", goals[-1])
    with np.errstate(over="ignore"):
        t = np.expm1(goals)
    a = mse_singular_values(model, start.a, start.C, t)
    path = mse_path_length(model, start.a, start.C, goals)
    return _reduced_result(request, start, goals, a, path, status, message)


def _first_crossing(request: Request, start: Spectrum) -> float | None:
    """The u at which the event of an MSE run happens first, or None if it never does."""
    model, event, value = request.model, request.event, request.target_value

    def watch(us: np.ndarray) -> np.ndarray:
        a = mse_singular_values(model, start.a, start.C, np.expm1(us))
        shown = model.nontrivial(a)
        with np.errstate(divide="ignore", invalid="ignore"):
            if isinstance(event, Collapse):
                return _deviation(shown) / value - 1
            if isinstance(event, Norm):
                return 1 - shown.sum(axis=1) / value
            if isinstance(event, PathLength):
                return 1 - mse_path_length(model, start.a, start.C, us) / value
            velocity = model.velocity(a, np.broadcast_to(start.C, a.shape))
            relative = np.where(a > 0, np.abs(velocity) / a, np.where(velocity == 0, 0.0, np.inf))
            return relative.max(axis=1) / value - 1

    # Settled to the last bit after this time, whatever the start.
    positive = start.a[start.a > 0]
    escape = -math.log(min(positive.min() if positive.size else 1.0, 1.0))
    us = np.linspace(0.0, math.log1p(80.0 + 2 * escape), 4001)
    values = watch(us)
    below = np.flatnonzero(values <= 0)
    if not len(below):
        return None
    if below[0] == 0:
        return float(us[1])
    low, high = us[below[0] - 1], us[below[0]]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if watch(np.array([middle]))[0] <= 0 else (middle, high)
    return float(high)


def _reduced_result(
    request: Request,
    start: Spectrum,
    us: np.ndarray,
    a: np.ndarray,
    path: np.ndarray,
    status: str,
    message: str,
    outcome: Outcome | None = None,
    tolerance: float | None = None,
    C: np.ndarray | None = None,
) -> Trajectory:
    """A trajectory in the run's units from scaled arrays, the start put first; C moves if given."""
    scale = request.value_scale
    rows = np.concatenate([start.a[None], a])
    with np.errstate(divide="ignore"):
        log_a = np.log(rows) + math.log(scale)
    differences = np.broadcast_to(start.C, rows.shape).copy()
    if C is not None:
        differences[1:] = C
    arrays = {"log_a": log_a, "C": differences * scale}
    path = np.concatenate([[0.0], path]) * scale
    return _result(request, "reduced", arrays, us, path, status, message, outcome, tolerance)


# --- full view -----------------------------------------------------------------------------------


def _solve_full(request: Request, start: Parameters) -> Trajectory:
    model, event = request.model, request.event
    if start.batch:
        raise InputError(f"Argument `start` must be one state, but is a batch of {start.batch}.")
    small_model, small, expand = compress(model, start)
    flow = FullFlow(small_model, type(event) if event else None)
    tolerance = _local_tolerance(request)
    args, y0 = (np.float64(request.target_value),), (small.factors, np.zeros(()))

    def give_up(u: float, y: Any, steps: int) -> str:
        Z = Parameters(y[0]).Z
        values = np.linalg.svd(Z, compute_uv=False)[: model.classes - 1]
        norm = values.sum() / model.singular_value_scale
        if isinstance(event, Collapse) and norm > _FULL_NORM_LIMIT:
            return _stall(norm, _deviation(values))
        return _too_far(request, u, steps, {Norm: norm, PathLength: float(y[1])})

    with double_precision():
        early = _full_decided_at_start(request, small, flow, y0, args)
        if early:
            outcome = Outcome("", np.zeros(0), jax.tree.map(lambda x: x[None][:0], y0))
        else:
            outcome = _integrate(request, flow, y0, args, tolerance, give_up)
    factors, path = outcome.ys
    states = expand(Parameters(tuple(factors)))
    rows = [
        np.concatenate([f[None], s]) for f, s in zip(start.factors, states.factors, strict=True)
    ]
    status, message = early or _ending(request, outcome.ending, _last(outcome), outcome.reason)
    return _result(
        request, "full", dict(zip(model.factor_names, rows, strict=True)), outcome.us,
        np.concatenate([[0.0], path]), status, message, outcome, tolerance,
    )  # fmt: skip


def _full_decided_at_start(
    request: Request, start: Parameters, flow: FullFlow, y0: Any, args: Any
) -> tuple[str, str] | None:
    """Status and message of a full run that needs no integration."""
    modes, event = request.model.classes - 1, request.event
    if event is None:
        return None
    if len(start.factors) == 2:
        rank = int(np.linalg.matrix_rank(np.concatenate([start.W, start.H.T])))
        if isinstance(event, Collapse) and rank < modes:
            return "never-collapses", (
                f"W and H span {rank} feature directions to double precision and never more, but "
                f"collapse needs {modes}: ask for a time, a norm or a path length instead, or for "
                "the reduced view, which resolves singular values of any size."
            )
        if isinstance(event, Norm | PathLength) and rank == 0:
            return "failed", "W and H are zero: nothing moves."
    if float(flow.watch(y0, args)) <= 0:
        return _ending(request, "event", 0.0)
    return None


# --- both ----------------------------------------------------------------------------------------


def _integrate(
    request: Request,
    flow: ReducedFlow | PenalizedFlow | FullFlow,
    y0: Any,
    args: tuple[Any, ...],
    tolerance: float,
    give_up: Callable[[float, Any, int], str],
) -> Outcome:
    goals = request.goals
    if goals is not None and len(goals) == 0:  # only time 0 was asked for
        return Outcome("done", goals, jax.tree.map(lambda x: np.zeros((0, *x.shape)), y0))
    with Progress(request.progress, "solve") as progress:

        def report(u: float) -> None:
            progress.report(request.where(u), None if goals is None else u / goals[-1])

        integration = Integration(flow, request.method, y0, args, tolerance, report, give_up)
        return integration.to_event(request.grid) if goals is None else integration.to_goals(goals)


def _local_tolerance(request: Request) -> float:
    """Tolerance of one step that keeps the global promise `rtol`; the tests hold us to it.

    At a given time errors add up to less than the local tolerance. The time and the norm of
    collapse amplify an error in log a by about K.
    """
    amplification = 0.8 * request.model.classes if isinstance(request.event, Collapse) else 1.0
    return min(request.rtol / max(5.0, amplification), _LOOSEST)


def _too_far(request: Request, u: float, steps: int, reached: dict[type, float]) -> str:
    """Refuse a target that, at the pace so far, is tens of millions of steps away."""
    event = type(request.event)
    if request.goals is not None:
        share = u / request.goals[-1]
    elif event in reached:
        share = reached[event] / request.target_value
    else:
        return ""
    if steps < 10**4 or steps < _STEP_LIMIT * share:
        return ""
    return f"the way there would take about {steps / share:.1e} steps of an explicit method"


def _last(outcome: Outcome) -> float:
    return float(outcome.us[-1]) if len(outcome.us) else 0.0


def _ending(request: Request, ending: str, u: float, reason: str = "") -> tuple[str, str]:
    """Status and message of a run that ended at `u`."""
    where, event = request.where(u), request.event
    match ending, event:
        case "done", _:
            return "reached", f"All requested times reached, the last at {where}."
        case "interrupted", _:
            return "interrupted", f"Interrupted at {where}; the finished part is here."
        case "event", Collapse():
            return "collapsed", f"max|(K−1)â − 1| fell below {event.tolerance:g} at {where}."
        case "event", Steady():
            return "steady", f"All relative speeds are below {event.tolerance:g} at {where}."
        case "event", Norm():
            return "reached", f"‖a‖₁ reached {event.value:g} at {where}."
        case "event", PathLength():
            return "reached", f"The path length reached {event.value:g} at {where}."
        case _:
            return "failed", f"Stopped at {where}: {reason}."


def _result(
    request: Request,
    view: str,
    arrays: dict[str, np.ndarray],
    us: np.ndarray,
    path_length: np.ndarray,
    status: str,
    message: str,
    outcome: Outcome | None,
    tolerance: float | None,
) -> Trajectory:
    diagnostics: dict[str, Any] = {"method": request.method if outcome else "closed form"}
    if outcome is not None:
        diagnostics |= {
            "accepted_steps": outcome.accepted,
            "rejected_steps": outcome.rejected,
            "local_tolerance": tolerance,
        }
    return Trajectory(
        model=request.model,
        view=view,
        arrays=arrays,
        log10_time=request.labelled_times(us),
        path_length=path_length,
        status=status,
        message=message,
        units=request.units,
        steps=outcome.accepted + outcome.rejected if outcome else 0,
        settings=request.settings,
        diagnostics=diagnostics,
    )
