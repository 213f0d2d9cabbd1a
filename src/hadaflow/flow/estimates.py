"""What a run will cost: its method, its memory and roughly its time, before it begins."""

import dataclasses
import math
from typing import Any

import numpy as np

from hadaflow.base.memory import in_words, require_memory
from hadaflow.flow.lanes import cores
from hadaflow.flow.orbit_runs import choose, local_tolerance, log_norm_ahead
from hadaflow.model.fitting import check_parameters, fitted
from hadaflow.model.states import Parameters, check_batch
from hadaflow.model.ufm import MSE, UFM
from hadaflow.runs.methods import DUAL, STIFF_METHOD
from hadaflow.runs.requests import Request, make_request
from hadaflow.runs.targets import PredictedCollapse, Target

_FORETOLD = 0.25  # of the transforms to collapse that a prediction takes
# Measured on two cores of a server; other machines differ by a factor of a few.
_CALL = 2e-6  # seconds of a transform of a dual step beside what grows with K
_PER_NUMBER = 9e-10  # seconds, times K log2 K
_EXPLICIT = 1e-9  # of an explicit stage, times K log2 K
_IMPLICIT, _IMPLICIT_PER_NUMBER = 5e-5, 2e-9  # of an implicit step, and times the cube of the state
_SAMPLE = 64  # runs of a batch that an estimate looks at
_DUAL_ARRAYS, _EXPLICIT_ARRAYS, _FULL_ARRAYS = 60, 40, 30  # working copies of a state


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What `estimate` found."""

    method: str
    reason: str
    memory_bytes: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.method} ({self.reason}): about {in_words(self.memory_bytes)} of memory and "
            f"{self.seconds:.2g} s, after compilation"
        )


def estimate(
    model: Any,
    start: Any,
    until: Target | None = None,
    *,
    times: Any = None,
    log10_times: Any = None,
    units: str | None = None,
    points: int | None = None,
    rtol: float = 1e-8,
    method: str = "auto",
) -> Estimate:
    """Method, memory and time of a run that `solve` would do with the same arguments.

    The memory is what `solve` refuses to exceed; the time is rough, within a factor of a few where the
    direction has no long stops on the way.

    Examples:
        >>> from hadaflow import UFM, Collapse
        >>> estimate(UFM(8), [1.0, 1, 1, 1, 0.1, 0.1, 0.1], Collapse(1e-3)).method
        'tsit5'
    """
    request = make_request(
        model, start, until, times, log10_times, units, points, rtol, method, None
    )
    if isinstance(start, Parameters):
        needed = check_memory(request, check_parameters(model, start))
        return Estimate(request.method, request.choice.reason, needed, math.nan)
    scaled = fitted(model, start, units)
    if scaled.a.ndim == 1:
        request = choose(request, scaled)
        return Estimate(
            request.method,
            request.choice.reason,
            check_memory(request, scaled),
            _seconds(request, scaled),
        )
    check_batch(scaled)
    some = np.unique(np.linspace(0, len(scaled.a) - 1, _SAMPLE).astype(int))
    rows = [scaled.row(i) for i in some]
    chosen = [choose(request, row) for row in rows]
    each = np.mean([_seconds(c, row) for c, row in zip(chosen, rows, strict=True)])
    longest = max(chosen, key=lambda c: c.method == DUAL)
    names = sorted({c.method for c in chosen})
    return Estimate(
        " and ".join(names),
        f"{len(scaled.a)} runs, of which {len(some)} were looked at",
        check_memory(longest, scaled),
        float(each) * len(scaled.a) / cores(),
    )


def check_memory(request: Request, start: Any) -> float:
    """Bytes that a run takes; refused if there are not so many."""
    model, points = request.model, _saved_points(request)
    if isinstance(start, Parameters):
        size = sum(f.size for f in start.factors)
        return require_memory(
            size * (points + _FULL_ARRAYS) + model.classes**2 * _FULL_ARRAYS,
            f"A full run with {model.classes} classes",
            "the reduced view needs K numbers, not K² (`spectrum`, `matched_spectrum`)",
        )
    state = _state_size(model)
    runs = start.a.size // model.modes
    kept = (
        4.0 * start.a.size * points if request.method == DUAL else 8.0 * runs * points * (state + 3)
    )
    if request.method == STIFF_METHOD:
        return require_memory(
            6.0 * state**2 + kept,
            f"The dense Jacobian of {state} numbers that method {STIFF_METHOD!r} needs",
            'use method "tsit5", or "dual" where the model allows it',
        )
    arrays = _DUAL_ARRAYS if request.method == DUAL else _EXPLICIT_ARRAYS
    return require_memory(
        kept + arrays * state + 2**22,
        f"A run with {model.classes} classes and {points} saved points",
        "ask for fewer `points`",
    )


def _saved_points(request: Request) -> int:
    """Each takes a step of its own."""
    return request.points if request.log10_times is None else len(request.log10_times) + 1


def _state_size(model: UFM) -> int:
    """Numbers that are integrated, nearly."""
    return model.modes * (model.depth if model.penalized or model.loss == MSE else 1)


def _seconds(request: Request, start: Any) -> float:
    """Roughly, of one run, after compilation."""
    model = request.model
    K = model.classes
    work = K * math.log2(K)
    if request.method == DUAL:
        transforms = 5000 * (5e-5 / local_tolerance(request)) ** 0.44
        if isinstance(request.until, PredictedCollapse):
            transforms *= _FORETOLD
        return transforms * (_CALL + _PER_NUMBER * work)
    far = (
        float(np.max(log_norm_ahead(request, np.atleast_2d(start.a)))) if not model.settles else 5.0
    )
    steps = 100 + 0.5 * math.exp(min(far, 30.0)) + _saved_points(request)
    if request.method == STIFF_METHOD:
        return steps * (_IMPLICIT + _IMPLICIT_PER_NUMBER * _state_size(model) ** 3)
    return steps * 6 * (2e-7 + _EXPLICIT * work)
