"""The squared error at depth 1 and 2 without penalties: a formula at every time."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np

from hadaflow.base.compiling import SOON, compiled
from hadaflow.base.lazy import optimize
from hadaflow.base.precision import double_precision
from hadaflow.model.closed_forms import mse_path_length, mse_singular_values
from hadaflow.model.states import Spectrum
from hadaflow.model.ufm import MSE, UFM
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.methods import Method
from hadaflow.runs.outcomes import Ending
from hadaflow.runs.recording import Clocks, record, record_start, spectra, status_of
from hadaflow.runs.requests import Request
from hadaflow.runs.spacing import Profile, geometric
from hadaflow.runs.targets import deviation

_SECONDS = 1e-3
_SEARCHED = 4001  # times among which an event is searched
_LOOKED_AT = 1024  # times at which it is asked how the state changes


class ClosedForm(Method):
    name: ClassVar[str] = "closed form"
    compilation: ClassVar[float] = 0.3  # of velocities, by which it is told where the flow rests

    def suits(self, request: Request, start: Any) -> str | None:
        model = request.model
        if request.full or model.loss != MSE or model.depth > 2 or model.penalized:
            return None
        if start.angles is not None:
            return None
        return "nothing to integrate"

    def run(self, request: Request, start: Spectrum) -> Trajectory:
        status, message = "reached", "All requested times reached (closed form)."
        end = request.end
        if end is None:
            end = _first_crossing(request, start)
            if end is None:
                settled = f"The flow settles at a finite point before {request.event}."
                return record_start(request, start, "failed", settled)
            status, message = status_of(request, Ending.EVENT, end)
        us = request.goals if request.until is None else _kept(request, start, end)
        assert us is not None
        path = mse_path_length(request.model, start.a, start.C, us)
        with np.errstate(divide="ignore"):
            arrays = spectra(request, start, np.log(_values(request, start, us)))
        return record(request, arrays, Clocks.at(request, us, path), status, message)

    def is_compiled(self, request: Request, start: Any) -> bool:
        if request.event is None or not request.event.rests:
            return True
        states = np.zeros((start.a.size, _SEARCHED))
        with double_precision():
            return _velocity.knows(request.model.view, states, states)

    def memory(self, request: Request, start: Any) -> float:
        return 16.0 * start.a.size * request.saved_points

    def seconds(self, request: Request, start: Any) -> float:
        return _SECONDS


def _values(request: Request, start: Spectrum, us: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return mse_singular_values(request.model, start.a, start.C, np.expm1(us))


def _kept(request: Request, start: Spectrum, end: float) -> np.ndarray:
    us = np.append(0.0, geometric(end, _LOOKED_AT))

    def profile() -> Profile:
        with np.errstate(divide="ignore"):
            return Profile.of_logs(np.log(request.model.nontrivial(_values(request, start, us))))

    return request.kept(us, profile)


def _first_crossing(request: Request, start: Spectrum) -> float | None:
    """The u at which the event of an MSE run happens first, or None if it never does."""
    event, value = request.event, request.target_value
    assert event is not None

    def left(us: Any) -> np.ndarray:
        with double_precision(), np.errstate(divide="ignore", invalid="ignore"):
            reading = ClosedFormReading(request.model, start, np.atleast_1d(us))
            return np.asarray(event.left(reading, value))

    # Settled to the last bit after this time, whatever the start.
    positive = start.a[start.a > 0]
    escape = -math.log(min(positive.min() if positive.size else 1.0, 1.0))
    us = np.linspace(0.0, math.log1p(80.0 + 2 * escape), _SEARCHED)
    below = np.flatnonzero(left(us) <= 0)
    if not len(below):
        return None
    if below[0] == 0:
        return float(us[1])
    low, high = us[below[0] - 1], us[below[0]]
    # To the last digits of u itself, however small it is.
    root: Any = optimize.brentq(lambda u: left(u)[0], low, high, xtol=1e-300)
    further = 4 * np.finfo(float).eps * root
    while root < high and left(root)[0] > 0:  # to the far side, where the target has been reached
        root, further = min(root + further, high), 2 * further
    return float(root)


@compiled(SOON)
def _velocity(view: Any, a, C):
    return view.velocity(a, C)[0]


@dataclasses.dataclass(frozen=True)
class ClosedFormReading:
    """Of the solution at many times, as NumPy arrays."""

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
        C = np.broadcast_to(self.start.C, a.shape)
        velocity = np.asarray(_velocity(self.model.view, a.T, C.T)).T
        relative = np.where(a > 0, np.abs(velocity) / a, np.where(velocity == 0, 0.0, np.inf))
        return relative.max(axis=1)
