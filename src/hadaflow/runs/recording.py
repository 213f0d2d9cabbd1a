"""What a run is answered with: its status in words, and its trajectory."""

import math
from typing import Any

import numpy as np

from hadaflow.model.states import Spectrum
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.outcomes import Ending, Outcome
from hadaflow.runs.requests import Request


def deviation(a: np.ndarray) -> Any:
    """Max |(K−1)â − 1| of NumPy arrays, along the last axis."""
    return np.max(np.abs(a / a.mean(axis=-1, keepdims=True) - 1), axis=-1)


def status_of(
    request: Request, ending: Ending, place: float | str, reason: str = ""
) -> tuple[str, str]:
    """Status and message of a run that ended at a `place`: in u, or in words."""
    where = place if isinstance(place, str) else request.where(place)
    match ending:
        case Ending.DONE:
            rest = f"; {reason}" if reason else ""
            return "reached", f"All requested times reached, the last at {where}{rest}."
        case Ending.EVENT:
            assert request.event is not None
            return request.event.reached(where)
        case Ending.INTERRUPTED:
            return "interrupted", f"Interrupted at {where}; the finished part is here."
        case Ending.NEVER:
            return "never-collapses", f"{reason} Seen at {where}."
        case _:
            return "failed", f"Stopped at {where}: {reason}."


def result(
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
    diagnostics: dict[str, Any] = {"method": "closed form", "reason": "nothing to integrate"}
    if outcome is not None:
        diagnostics = {
            "method": request.choice.method,
            "reason": request.choice.reason,
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


def reduced_result(
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
    angles: np.ndarray | None = None,
) -> Trajectory:
    """A trajectory in the run's units from scaled arrays, the start put first; C moves if given."""
    scale = request.value_scale
    rows = np.concatenate([start.a[None], a])
    with np.errstate(divide="ignore"):
        log_a = np.log(rows) + math.log(scale)
    differences = np.broadcast_to(start.C, (len(rows), *start.C.shape)).copy()
    if C is not None:
        differences[1:] = C
    arrays = {"log_a": log_a, "C": differences * request.difference_scale}
    if start.angles is not None:
        turned = np.zeros((0, len(start.angles))) if angles is None else angles
        arrays["angles"] = np.concatenate([start.angles[None], turned])
    path = np.concatenate([[0.0], path]) * scale
    return result(request, "reduced", arrays, us, path, status, message, outcome, tolerance)
