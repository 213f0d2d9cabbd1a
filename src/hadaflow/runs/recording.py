"""What a run is answered with: its status in words, and its trajectory."""

import dataclasses
import math
from typing import Any

import numpy as np

from hadaflow.model.states import Spectrum
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.outcomes import Ending, Outcome
from hadaflow.runs.requests import Request


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


def dying_modes(log_a: np.ndarray) -> str:
    """The modes of a reduced run, times first, that have died out by its end; nothing if none has."""
    first, last = log_a[0], log_a[-1]
    died = np.isfinite(first) & (last < last.max() + math.log(1e-12))
    modes = [str(i) for i in np.flatnonzero(died) + 1]
    if not modes:
        return ""
    several = len(modes) > 1
    named = ", ".join(modes[:8]) + (", …" if len(modes) > 8 else "")
    return f"mode{'s' if several else ''} {named} {'die' if several else 'dies'} out"


@dataclasses.dataclass(frozen=True)
class Clocks:
    """Times and path lengths of the saved states, the start first, in the run's units."""

    log10_time: np.ndarray
    path_length: np.ndarray
    log10_log10_time: np.ndarray | None = None
    log_path_length: np.ndarray | None = None

    @classmethod
    def at(cls, request: Request, us: np.ndarray, path: np.ndarray) -> "Clocks":
        """From log(1 + t) and the path length of the states behind the start, in the flow's units."""
        unit = 1.0 if request.full else request.value_scale
        return cls(request.labelled_times(us), np.concatenate([[0.0], path]) * unit)


def spectra(
    request: Request, start: Spectrum, log_a: np.ndarray, C: Any = None, angles: Any = None
) -> dict[str, np.ndarray]:
    """The arrays of a reduced run from scaled states, the start put first; C moves if it is given."""
    rows = np.empty((1 + len(log_a), *start.a.shape))
    shift = math.log(request.value_scale)
    with np.errstate(divide="ignore"):
        np.add(np.log(start.a, out=rows[0]), shift, out=rows[0])
    np.add(log_a, shift, out=rows[1:])
    first = start.C * request.difference_scale
    differences = np.broadcast_to(first, (len(rows), *first.shape))
    if C is not None:
        differences = np.concatenate([first[None], C * request.difference_scale])
    arrays = {"log_a": rows, "C": differences}
    if angles is not None:
        add_angles(arrays, start, np.concatenate([start.phases[None], angles]))
    elif start.angles is not None:  # and nothing has moved
        arrays["angles"] = start.angles[None]
    return arrays


def add_angles(arrays: dict[str, np.ndarray], start: Spectrum, angles: np.ndarray) -> None:
    """Put them among the arrays, unless the modes began real and none has changed its sign."""
    if start.angles is not None or np.any(np.cos(angles) < 0):
        arrays["angles"] = angles


def record(
    request: Request,
    arrays: dict[str, np.ndarray],
    clocks: Clocks,
    status: str,
    message: str,
    outcome: Outcome | None = None,
    **more: Any,
) -> Trajectory:
    """The trajectory of a run; `more` goes into its diagnostics."""
    assert request.choice is not None
    diagnostics: dict[str, Any] = {
        "method": request.choice.method.name,
        "reason": request.choice.reason,
    }
    if outcome is not None:
        diagnostics |= {
            "accepted_steps": outcome.accepted,
            "rejected_steps": outcome.rejected,
            "local_tolerance": request.method.local_tolerance(request),
        }
    return Trajectory(
        model=request.model,
        view="full" if request.full else "reduced",
        arrays=arrays,
        log10_time=clocks.log10_time,
        log10_log10_time=clocks.log10_log10_time,
        path_length=clocks.path_length,
        log_path_length=clocks.log_path_length,
        status=status,
        message=message,
        units=request.units,
        steps=0 if outcome is None else outcome.accepted + outcome.rejected,
        settings=request.settings,
        diagnostics=diagnostics | more,
    )


def record_start(
    request: Request, start: Spectrum, status: str, message: str, **more: Any
) -> Trajectory:
    """The trajectory of a run that has not moved."""
    none = np.zeros(0)
    arrays = spectra(request, start, np.zeros((0, *start.a.shape)))
    return record(request, arrays, Clocks.at(request, none, none), status, message, **more)
