"""Carrying out one request: the march to its end, and when it is given up."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hadaflow.base.progress import Progress
from hadaflow.flow.integrate import Integration
from hadaflow.flow.kinds.flow import Course, Flow
from hadaflow.runs.methods import STIFF_METHOD
from hadaflow.runs.outcomes import Ending, Outcome, Stop
from hadaflow.runs.requests import Request
from hadaflow.runs.targets import Collapse, Steady

_STEP_LIMIT = 2e7  # steps: minutes
_STIFF_STEPS = 20_000  # of the implicit method; hundreds are usual
_STIFF_EXPLICIT_STEPS = 10**6  # of an explicit one where the implicit one is at home
_REST_TOLERANCE = 1e-10  # largest relative speed per unit of time
# What the promised error is divided by for one step, as measured on thousands of random models.
_SAFETY, _SAFETY_OF_COLLAPSE, _SAFETY_OF_SUMS, _SAFETY_OF_LONG_STEPS = 6.0, 15.0, 25.0, 100.0
# Looser local errors would keep the direction from settling at all.
_LOOSEST = 1e-5


# An explicit step in log time is of order one however large ‖a‖ is, so work grows like ‖a‖. This is ten
# times the collapse norm up to which an end is promised, seconds of work.
NORM_LIMIT = 1e6
# Where another method is at hand, it takes over from here.
PATIENCE = 5e4


def stall(norm: float, deviation: float) -> Stop:
    return Stop(
        Ending.GIVEN_UP,
        f"‖a‖₁ has reached {norm:.3g} (scaled) and max|(K−1)â − 1| is still {deviation:.3g}; "
        "an explicit method needs of the order of ‖a‖₁ steps",
    )


def integrate(
    request: Request,
    flow: Flow,
    tolerance: float,
    give_up: Callable[[float, Any, int], Stop | None],
    values: Callable[[Any], np.ndarray],
) -> Outcome:
    """March to the request's end; `values(y)` are the K − 1 singular values of a state.

    A flow that settles comes to rest before a late time, or short of another target: it is stopped
    there, since the noise of rounding, which log time magnifies, would only cost steps.
    """
    goals = request.goals
    if goals is not None and len(goals) == 0:  # only time 0 was asked for
        return Outcome(
            Ending.DONE, goals, jax.tree.map(lambda x: np.zeros((0, *x.shape)), flow.begin())
        )
    with Progress(request.progress, "solve") as progress:

        def report(u: float) -> None:
            progress.report(request.where(u), None if goals is None else u / goals[-1])

        def rests(y: Any) -> bool:
            if not request.model.settles or isinstance(request.event, Steady):
                return False
            return float(Steady.left(flow.read(y), _REST_TOLERANCE)) <= 0

        def stop(u: float, y: Any, steps: int) -> Stop | None:
            return Stop(Ending.REST) if rests(y) else give_up(u, y, steps)

        course = Course.towards(flow, request.event, request.target_value)
        integration = Integration(course, request.method, tolerance, report, stop)
        if goals is None:
            outcome = integration.to_event(request.grid)
        else:
            outcome = integration.to_goals(goals)
        if not len(outcome.us):
            return outcome
        final = jax.tree.map(lambda y: y[-1], outcome.ys)
        stopped = outcome.ending in (Ending.GIVEN_UP, Ending.NEVER, Ending.STUCK)
        if outcome.ending is not Ending.REST and not (stopped and rests(final)):
            return outcome
        return _at_rest(request, outcome, values(final))


def _at_rest(request: Request, outcome: Outcome, a: np.ndarray) -> Outcome:
    """The outcome of a flow that has come to rest: later times see the same state."""
    goals, since = request.goals, request.where(float(outcome.us[-1]))
    if goals is None:
        shares = ", ".join(f"{v:.3g}" for v in (a / a.sum())[:8]) if a.sum() > 1e-12 else "zero"
        more = ", …" if len(a) > 8 else ""
        if isinstance(request.event, Collapse):
            reason = (
                "The direction never becomes uniform: the flow has come to rest at the direction "
                f"({shares}{more})."
            )
            return dataclasses.replace(outcome, ending=Ending.NEVER, reason=reason)
        reason = f"the flow settles at a finite point, with ‖a‖₁ = {a.sum():.6g} (scaled)"
        return dataclasses.replace(outcome, ending=Ending.GIVEN_UP, reason=reason)
    row = np.minimum(np.searchsorted(outcome.us, goals), len(outcome.us) - 1)
    ys = jax.tree.map(lambda y: y[row], outcome.ys)
    return dataclasses.replace(
        outcome, ending=Ending.DONE, us=goals, ys=ys, reason=f"at rest since {since}"
    )


def local_tolerance(request: Request) -> float:
    """Tolerance of one step that keeps the global promise `rtol`; the tests hold us to it.

    The flow of the paper contracts errors, which add up to less than the local tolerance; the time and
    the norm of collapse amplify them by about K. Elsewhere they add up: log a of a mode that dies, or
    that depth makes grow ever faster, forgets none of them. Of the long steps of the implicit method
    each makes nearly the error it may.
    """
    model, safety = request.model, _SAFETY
    if isinstance(request.event, Collapse):
        safety = max(_SAFETY_OF_COLLAPSE, 0.8 * model.classes)
    if not request.full and (model.depth != 2 or model.settles or model.penalized):
        safety = max(safety, _SAFETY_OF_SUMS)
    if request.method == STIFF_METHOD:
        safety = _SAFETY_OF_LONG_STEPS
    return min(request.rtol / safety, _LOOSEST)


def too_far(request: Request, u: float, steps: int, norm: float, path: float) -> Stop | None:
    """Give up a target that, at the pace so far, is tens of millions of steps away.

    Or that is still not reached after so many: every march has an end.
    """
    reason = _too_many_steps(request, steps)
    if reason:
        return Stop(Ending.GIVEN_UP, reason)
    share = None
    if request.goals is not None:
        share = u / request.goals[-1]
    elif request.event is not None:
        share = request.event.share(norm, path, request.target_value)
    if share is None or steps < 10**4 or steps < _STEP_LIMIT * share:
        return None
    reason = f"the way there would take about {steps / share:.1e} steps of {request.method}"
    return Stop(Ending.GIVEN_UP, reason)


def _too_many_steps(request: Request, steps: int) -> str:
    if request.method == STIFF_METHOD and steps > _STIFF_STEPS:
        return (
            "rounding, which log time magnifies, leaves the implicit method no steps of ordinary size "
            f"({steps} were taken)"
        )
    most = _STEP_LIMIT
    if request.model.penalized or request.model.settles:
        most = _STIFF_EXPLICIT_STEPS
    if steps > most:
        return f"{steps} steps of {request.method} were taken" + (
            ", which log time makes ever shorter for a flow that settles: method auto has longer ones"
            if most == _STIFF_EXPLICIT_STEPS
            else ""
        )
    return ""
