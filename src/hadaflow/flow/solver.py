"""`solve(model, start, until)`: a trajectory of the gradient flow, to any time."""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.optimize

from hadaflow.base.errors import InputError
from hadaflow.base.interruption import held_back
from hadaflow.base.precision import double_precision
from hadaflow.base.progress import Report
from hadaflow.flow.batches import solve_batch
from hadaflow.flow.estimates import check_memory
from hadaflow.flow.flows import FullFlow, LayerFlow, PhaseFlow, ReducedFlow
from hadaflow.flow.marching import NORM_LIMIT, PATIENCE, integrate, local_tolerance, stall, too_far
from hadaflow.flow.orbit_runs import choose, reconsider, solve_orbit, supports
from hadaflow.model.closed_forms import (
    fixed_point,
    mse_path_length,
    mse_singular_values,
    too_strong,
)
from hadaflow.model.layers import layer_values
from hadaflow.model.starts import compress, distance_from_hadamard, log_singular_values, project
from hadaflow.model.states import Parameters, Spectrum
from hadaflow.model.ufm import MSE, UFM
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.methods import DUAL
from hadaflow.runs.outcomes import Ending, Outcome, Stop
from hadaflow.runs.recording import deviation, reduced_result, result, status_of
from hadaflow.runs.requests import Request, make_request
from hadaflow.runs.targets import Collapse, Norm, PathLength, PredictedCollapse, Target
from hadaflow.saddles.low_rank import low_rank_limit

# As `NORM_LIMIT`, for full states, whose steps cost more.
_FULL_NORM_LIMIT = 1e5


def solve(
    model: UFM,
    start: Any,
    until: Target | None = None,
    *,
    times: Any = None,
    log10_times: Any = None,
    units: str | None = None,
    points: int | None = None,
    rtol: float = 1e-8,
    method: str = "auto",
    progress: str | Report | None = "auto",
) -> Trajectory:
    """Follow the gradient flow of `model` from `start`.

    Args:
        model: The problem.
        start: Singular values (a list or `spectrum`) for the reduced view, `Parameters` for the
            full one. A batch of spectra is solved at once, with a result whose first axis is the run.
        until: `Time`, `Collapse`, `PredictedCollapse`, `Norm`, `PathLength` or `Steady`;
            `Collapse(1e-6)` if nothing is said (`Steady()` for MSE).
        times: Times at which to keep the state, instead of `until`; the start is kept too.
        log10_times: The same by their logarithm, for times beyond 1e308.
        units: "scaled" or "raw": of the start, the times asked for and everything returned.
        points: Number of saved points, the start included: geometric in time; with dual steps the
            steps themselves, at most so many. Left out: 200, fewer where K is large, and 2 for each
            run of a batch, its start and its end.
        rtol: Global relative error promised for the singular values and for log time.
        method: "auto", or a solver by name: tsit5, dopri8 (explicit), kvaerno5 (implicit, dense),
            dual (implicit, matrix-free: balanced cross-entropy of depth 2). `diagnostics` of the
            result say which it was, and why.
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
        state = model.check_parameters(start)
        check_memory(request, state)
        run = _solve_full(request, state)
    else:
        scaled = model.scaled(start, units)
        if scaled.a.ndim == 1:
            request = choose(request, scaled)
            check_memory(request, scaled)
            run = _solve_one(request, scaled)
        else:
            check_memory(request, scaled)
            run = solve_batch(request, scaled, _solve_one)
    run.diagnostics["wall_seconds"] = time.perf_counter() - began
    return run


# --- reduced view --------------------------------------------------------------------------------


def _solve_one(request: Request, start: Spectrum) -> Trajectory:
    run = _solve_reduced(request, start)
    again = reconsider(request, start, run)
    return run if again is None else _solve_reduced(again, start)


def _solve_reduced(request: Request, start: Spectrum) -> Trajectory:
    if early := _decided_at_start(request, start):
        none = np.zeros((0, request.model.modes))
        return reduced_result(request, start, np.zeros(0), none, np.zeros(0), *early)
    model = request.model
    if start.angles is not None and model.imbalance is None:
        return _integrate_phases(request, start)
    if model.may_change_sign(start.C):
        signed = dataclasses.replace(start, angles=np.zeros_like(start.a))
        return _real_if_possible(_integrate_phases(request, signed))
    if model.penalized or model.imbalance is not None or (model.loss == MSE and model.depth > 2):
        return _integrate_layers(request, start)
    if model.loss == MSE:
        return _solve_mse(request, start)
    if request.method == DUAL:
        return solve_orbit(request, start)
    return _integrate_reduced(request, start)


def _real_if_possible(run: Trajectory) -> Trajectory:
    """The run without its angles, where no mode has changed its sign."""
    if np.any(np.cos(run.angles) < 0):
        return run
    return dataclasses.replace(run, arrays={n: v for n, v in run.arrays.items() if n != "angles"})


def _decided_at_start(request: Request, start: Spectrum) -> tuple[str, str] | None:
    """Status and message of a run that needs no integration."""
    model, until = request.model, request.until
    a = start.a[-model.modes_of_view.modes :]
    # A zero stays zero for ever when two layers of it are zero; at depth 1, or unbalanced, it moves.
    dead = start.a == 0
    if dead.any():
        dead = np.sum(layer_values(model.depth, start.a, start.C) == 0, axis=0) > 1
    if isinstance(until, Collapse | PredictedCollapse):
        dead_modes = np.flatnonzero(dead[-model.modes_of_view.modes :]) + 1
        if len(dead_modes):
            named = ", ".join(map(str, dead_modes[:8])) + (", …" if len(dead_modes) > 8 else "")
            return "never-collapses", (
                f"Singular values that start at zero stay zero (mode {named}), so the direction "
                "never becomes uniform: ask for a time, a norm or a path length instead."
            )
        if limit := _settles_elsewhere(model, until.tolerance):
            return "never-collapses", limit
        if a.any() and deviation(model.nontrivial(start.a)) <= until.tolerance:
            return status_of(request, Ending.EVENT, 0.0)
    if isinstance(until, Norm) and model.nontrivial(start.a).sum() >= request.target_value:
        return status_of(request, Ending.EVENT, 0.0)
    if isinstance(until, Norm | PathLength) and dead.all():
        return "failed", "All singular values start at zero: nothing moves."
    return None


def _settles_elsewhere(model: UFM, tolerance: float) -> str:
    """What to say when labels or penalties keep the flow from collapse; else nothing."""
    if too_strong(model):
        if model.depth == 2:
            strength = math.prod(model.decays) * (model.loss_divisor * model.temperature) ** 2
            return (
                f"The penalties are too strong: λ_Wλ_H = {strength:g} (times τ², and (Kn)² for a mean) "
                f"is at or above n = {model.samples}, so every singular value dies."
            )
        return (
            "The penalties are too strong for collapse: there is no fixed point at which all singular "
            "values are equal."
        )
    if not model.soft_labels or model.penalized or np.any(model.label_probabilities == 0):
        return ""
    limit = model.nontrivial(np.maximum(fixed_point(model), 0.0))
    if deviation(limit) <= tolerance:
        return ""
    shown = ", ".join(f"{v:.4g}" for v in np.maximum(fixed_point(model), 0.0)[:8] / limit.sum())
    return (
        f"The labels hold the flow at the direction ({shown}{', …' if model.modes > 8 else ''}), "
        f"which is not uniform to {tolerance:g}: ask for Steady() or a time instead."
    )


def _integrate_reduced(request: Request, start: Spectrum) -> Trajectory:
    model, event = request.model, request.event
    flow = ReducedFlow(model, not np.any(start.C), type(event) if event else None)
    args = flow.arguments(model, start.a, start.C, request.target_value)
    tolerance = local_tolerance(request)
    patient = request.choice.forced or not supports(model, start)
    norm_limit = NORM_LIMIT if patient else PATIENCE

    with double_precision():

        def give_up(u: float, y: np.ndarray, steps: int) -> Stop | None:
            free = flow.displaced(y, args)[1:]
            a = model.nontrivial(free)
            if isinstance(event, Collapse):
                if limit := low_rank_limit(model, free, start.C):
                    return Stop(Ending.NEVER, limit)
                if a.sum() > norm_limit:
                    return stall(a.sum(), deviation(a))
            return too_far(request, u, steps, a.sum(), float(y[0]))

        y0 = np.zeros(model.basis.modes + 1)

        def values(y: np.ndarray) -> np.ndarray:
            return model.nontrivial(flow.displaced(y, args)[1:])

        outcome = integrate(request, flow, y0, args, tolerance, give_up, values)
        with held_back():
            a = flow.displaced(outcome.ys, args)[:, 1:]
            status, message = status_of(request, outcome.ending, outcome.last, outcome.reason)
            return reduced_result(
                request, start, outcome.us, a, outcome.ys[:, 0], status, message, outcome, tolerance
            )


def _integrate_layers(request: Request, start: Spectrum) -> Trajectory:
    model, event = request.model, request.event
    zeros = np.sum(layer_values(model.depth, start.a, start.C) == 0, axis=0)
    if np.any(zeros == 1):
        raise InputError(
            "Argument `start` must have positive singular values (or zeros that stay zero) for this "
            "model, whose reduced view follows their logarithms; the full view (`hadamard`) follows "
            "such a start."
        )
    flow = LayerFlow(model, type(event) if event else None)
    args = flow.arguments(model, start, request.target_value)
    y0 = np.zeros(1 + model.depth * model.modes + len(args[2]))
    return _integrate_many(request, start, flow, y0, args, lambda y: flow.values(y, args))


def _integrate_phases(request: Request, start: Spectrum) -> Trajectory:
    flow = PhaseFlow(request.model, type(request.event) if request.event else None)
    args = (np.float64(request.target_value),)
    return _integrate_many(request, start, flow, flow.start(start), args, flow.values)


def _integrate_many(
    request: Request,
    start: Spectrum,
    flow: LayerFlow | PhaseFlow,
    y0: np.ndarray,
    args: tuple[Any, ...],
    values: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> Trajectory:
    """A reduced flow that moves more than one number per mode; `values` reads a, C and angles."""
    model, event, tolerance = request.model, request.event, local_tolerance(request)
    with double_precision():

        def give_up(u: float, y: np.ndarray, steps: int) -> Stop | None:
            free, C, angles = values(y)
            a = model.nontrivial(free)
            if isinstance(event, Collapse):
                if model.imbalance is None and (limit := low_rank_limit(model, free, C, angles)):
                    return Stop(Ending.NEVER, limit)
                if a.sum() > NORM_LIMIT:
                    return stall(a.sum(), deviation(a))
            return too_far(request, u, steps, a.sum(), float(y[0]))

        outcome = integrate(
            request, flow, y0, args, tolerance, give_up, lambda y: model.nontrivial(values(y)[0])
        )
        with held_back():
            a, C, turned = values(outcome.ys)
            status, message = status_of(request, outcome.ending, outcome.last, outcome.reason)
            return reduced_result(
                request, start, outcome.us, a, outcome.ys[:, 0], status, message, outcome,
                tolerance, C if model.penalized else None, turned,
            )  # fmt: skip


def _solve_mse(request: Request, start: Spectrum) -> Trajectory:
    """Closed form at every time; events by bisection on it."""
    model, event = request.model, request.event
    goals = request.goals
    status, message = "reached", "All requested times reached (closed form)."
    if goals is None:
        end = _first_crossing(request, start)
        if end is None:
            return reduced_result(
                request, start, np.zeros(0), np.zeros((0, model.modes)), np.zeros(0),
                "failed", f"The flow settles at a finite point before {event}.",
            )  # fmt: skip
        goals = request.grid(end)
        status, message = status_of(request, Ending.EVENT, goals[-1])
    with np.errstate(over="ignore"):
        t = np.expm1(goals)
    a = mse_singular_values(model, start.a, start.C, t)
    path = mse_path_length(model, start.a, start.C, goals)
    return reduced_result(request, start, goals, a, path, status, message)


def _first_crossing(request: Request, start: Spectrum) -> float | None:
    """The u at which the event of an MSE run happens first, or None if it never does."""
    event, value = request.event, request.target_value
    assert event is not None

    def left(us: Any) -> np.ndarray:
        with double_precision(), np.errstate(divide="ignore", invalid="ignore"):
            reading = _ClosedFormReading(request.model, start, np.atleast_1d(us))
            return np.asarray(event.left(reading, value))

    # Settled to the last bit after this time, whatever the start.
    positive = start.a[start.a > 0]
    escape = -math.log(min(positive.min() if positive.size else 1.0, 1.0))
    us = np.linspace(0.0, math.log1p(80.0 + 2 * escape), 4001)
    below = np.flatnonzero(left(us) <= 0)
    if not len(below):
        return None
    if below[0] == 0:
        return float(us[1])
    low, high = us[below[0] - 1], us[below[0]]
    # To the last digits of u itself, however small it is.
    root: Any = scipy.optimize.brentq(lambda u: left(u)[0], low, high, xtol=1e-300)
    further = 4 * np.finfo(float).eps * root
    while root < high and left(root)[0] > 0:  # to the far side, where the target has been reached
        root, further = min(root + further, high), 2 * further
    return float(root)


@dataclasses.dataclass(frozen=True)
class _ClosedFormReading:
    """Of the MSE solution at many times, as NumPy arrays."""

    model: UFM
    start: Spectrum
    u: np.ndarray

    @functools.cached_property
    def _a(self) -> np.ndarray:
        return mse_singular_values(self.model, self.start.a, self.start.C, np.expm1(self.u))

    @property
    def deviation(self) -> Any:
        return deviation(self.model.nontrivial(self._a))

    @property
    def log_norm(self) -> Any:
        return np.log(self.model.nontrivial(self._a).sum(axis=1))

    @property
    def log_path(self) -> Any:
        return np.log(mse_path_length(self.model, self.start.a, self.start.C, self.u))

    @property
    def fastest(self) -> Any:
        a = self._a
        velocity = self.model.velocity(a, np.broadcast_to(self.start.C, a.shape))
        relative = np.where(a > 0, np.abs(velocity) / a, np.where(velocity == 0, 0.0, np.inf))
        return relative.max(axis=1)


# --- full view -----------------------------------------------------------------------------------


def _solve_full(request: Request, start: Parameters) -> Trajectory:
    model, event = request.model, request.event
    if start.batch:
        raise InputError(f"Argument `start` must be one state, but is a batch of {start.batch}.")
    small_model, small, expand = compress(model, start)
    flow = FullFlow(small_model, type(event) if event else None)
    tolerance = local_tolerance(request)
    args, y0 = (np.float64(request.target_value),), (small.factors, np.zeros(()))

    def singular_values(y: Any) -> np.ndarray:
        logs = log_singular_values(small_model, Parameters(y[0]), model.classes - 1)
        return np.exp(logs) / model.singular_value_scale

    def give_up(u: float, y: Any, steps: int) -> Stop | None:
        values = singular_values(y)
        norm = values.sum()
        if isinstance(event, Collapse):
            if limit := _full_low_rank_limit(small_model, Parameters(y[0])):
                return Stop(Ending.NEVER, limit)
            if norm > _FULL_NORM_LIMIT:
                return stall(norm, deviation(values))
        return too_far(request, u, steps, norm, float(y[1]))

    with double_precision():
        early = _full_decided_at_start(request, small, flow, y0, args)
        if early:
            outcome = Outcome(Ending.EVENT, np.zeros(0), jax.tree.map(lambda x: x[None][:0], y0))
        else:
            outcome = integrate(request, flow, y0, args, tolerance, give_up, singular_values)
    factors, path = outcome.ys
    states = expand(Parameters(tuple(factors)))
    rows = [
        np.concatenate([f[None], s]) for f, s in zip(start.factors, states.factors, strict=True)
    ]
    status, message = early or status_of(request, outcome.ending, outcome.last, outcome.reason)
    return result(
        request, "full", dict(zip(model.factor_names, rows, strict=True)), outcome.us,
        np.concatenate([[0.0], path]), status, message, outcome, tolerance,
    )  # fmt: skip


def _full_low_rank_limit(model: UFM, state: Parameters) -> str:
    """The certificate of the reduced view, for a deep full state that is a Hadamard one."""
    if model.depth < 3 or model.imbalance is not None or model.feature_width < model.classes:
        return ""
    if distance_from_hadamard(model, state) > 1e-9:
        return ""
    scaled = model.scaled(project(model, state))
    return low_rank_limit(model, scaled.a, scaled.C)


def _full_decided_at_start(
    request: Request, start: Parameters, flow: FullFlow, y0: Any, args: Any
) -> tuple[str, str] | None:
    """Status and message of a full run that needs no integration."""
    modes, event = request.model.classes - 1, request.event
    if event is None:
        return None
    if len(start.factors) > 1:
        pairs = itertools.pairwise(start.factors)
        ranks = [int(np.linalg.matrix_rank(np.concatenate([A.T, B], axis=1))) for A, B in pairs]
        if isinstance(event, Collapse) and min(ranks) < modes:
            between = "W and H span" if len(ranks) == 1 else "Two neighbouring factors span"
            return "never-collapses", (
                f"{between} {min(ranks)} feature directions to double precision and never more, but "
                f"collapse needs {modes}: ask for a time, a norm or a path length instead, or for "
                "the reduced view, which resolves singular values of any size."
            )
        if isinstance(event, Norm | PathLength) and max(ranks) == 0:
            return "failed", "All matrices are zero: nothing moves."
    if float(flow.watch(y0, args)) <= 0:
        return status_of(request, Ending.EVENT, 0.0)
    return None
