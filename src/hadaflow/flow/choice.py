"""The choice of a method, made once for every run, and its carrying out."""

import math
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, shown
from hadaflow.flow.methods import AUTOMATIC, CLOSED_FORM, DUAL, METHODS
from hadaflow.model.closed_forms import fixed_point, too_strong
from hadaflow.model.layers import layer_values
from hadaflow.model.states import Spectrum
from hadaflow.model.ufm import UFM
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.outcomes import Ending
from hadaflow.runs.recording import record_start, status_of
from hadaflow.runs.requests import AUTO, Request
from hadaflow.runs.targets import deviation


def check_method(name: Any) -> None:
    """Refuse a name that no method has."""
    if name not in (AUTO, *METHODS):
        raise InputError(
            f"Argument `method` must be one of {AUTO}, {', '.join(METHODS)}, but is {shown(name)}."
        )


def choose(request: Request, start: Any) -> Request:
    """The request with the method that suits it; one that was asked for stays, or is refused."""
    if reason := CLOSED_FORM.suits(request, start):  # which needs none of them
        return request.by(CLOSED_FORM, reason)
    if request.asked != AUTO:
        method = METHODS[request.asked]
        method.check(request, start)
        if request.event is not None and request.event.foretold and method is not DUAL:
            raise InputError(
                f'Argument `method` must be "auto" or "dual" with PredictedCollapse, but is '
                f"{shown(request.asked)}."
            )
        return request.by(method, "asked for", forced=True)
    for method in AUTOMATIC:
        if reason := method.suits(request, start):
            return request.by(method, reason)
    raise AssertionError("the last method suits every run")


def carry_out(request: Request, start: Spectrum) -> Trajectory:
    """A reduced run, by another method once more where the one chosen has not led to the end."""
    if early := decided_at_start(request, start):
        return record_start(
            request, start, *early, method=CLOSED_FORM.name, reason="nothing to integrate"
        )
    run = request.method.run(request, start)
    reason = None if request.method in (DUAL, CLOSED_FORM) else DUAL.takes_over(request, start, run)
    return run if reason is None else DUAL.run(request.by(DUAL, reason), start)


def decided_at_start(request: Request, start: Spectrum) -> tuple[str, str] | None:
    """Status and message of a run that needs no integration."""
    model, event = request.model, request.event
    if event is None:
        return None
    # A zero stays zero for ever when two layers of it are zero; at depth 1, or unbalanced, it moves.
    dead = start.a == 0
    if dead.any():
        dead = np.sum(layer_values(model.depth, start.a, start.C) == 0, axis=0) > 1
    if event.uniform:
        dead_modes = np.flatnonzero(dead[-model.modes_of_view.modes :]) + 1
        if len(dead_modes):
            named = ", ".join(map(str, dead_modes[:8])) + (", …" if len(dead_modes) > 8 else "")
            return "never-collapses", (
                f"Singular values that start at zero stay zero (mode {named}), so the direction "
                "never becomes uniform: ask for a time, a norm or a path length instead."
            )
        if limit := _settles_elsewhere(model, event.number):
            return "never-collapses", limit
    if event.reached_at_start(model.nontrivial(start.a), request.target_value):
        return status_of(request, Ending.EVENT, 0.0)
    if event.grows and dead.all():
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
