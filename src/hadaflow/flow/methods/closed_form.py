"""Flows with a formula at every time: the squared error, and steepest descent in other geometries."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np

from hadaflow.base.compiling import SOON, compiled
from hadaflow.base.errors import InputError
from hadaflow.base.lazy import optimize
from hadaflow.base.precision import double_precision
from hadaflow.model.clock import log10_from_u
from hadaflow.model.closed_forms import mse_path_length, mse_singular_values, path_lengths
from hadaflow.model.geometries import Geometry
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
_NUMBERS = 2**22  # in the states that are looked at together
_EARLY = 1e-20  # of the time in which a layer doubles: nothing has changed


class ClosedForm(Method):
    name: ClassVar[str] = "closed form"
    compilation: ClassVar[float] = 0.3  # of velocities, by which it is told where the flow rests

    def suits(self, request: Request, start: Any) -> str | None:
        return None if _solution(request, start) is None else "nothing to integrate"

    def run(self, request: Request, start: Spectrum) -> Trajectory:
        solution = _solution(request, start)
        assert solution is not None
        status, message = "reached", "All requested times reached (closed form)."
        end = request.end
        if end is None:
            end = _first_crossing(request, solution)
            if end is None:
                return record_start(
                    request, start, "failed", solution.ends_before(str(request.event))
                )
            status, message = status_of(request, Ending.EVENT, end)
        solution.check_end(request, end)
        us = request.goals if request.until is None else _kept(request, solution, end)
        assert us is not None
        a, C = solution.values(us)
        path = solution.path(us)
        with np.errstate(divide="ignore"):
            arrays = spectra(request, start, np.log(a), C)
        return record(request, arrays, Clocks.at(request, us, path), status, message)

    def is_compiled(self, request: Request, start: Any) -> bool:
        event = request.event
        if event is None or not event.rests or request.geometry is not None:
            return True
        states = np.zeros((start.a.size, _SEARCHED))
        with double_precision():
            return _velocity.knows(request.model.view, states, states)

    def memory(self, request: Request, start: Any) -> float:
        return 16.0 * start.a.size * request.saved_points

    def seconds(self, request: Request, start: Any) -> float:
        return _SECONDS


@dataclasses.dataclass(frozen=True)
class _Solution:
    """A flow from a start, in scaled units."""

    model: UFM
    start: Spectrum

    def values(self, us: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Singular values at u = log(1 + t), times first, and C where it moves."""
        raise NotImplementedError

    def path(self, us: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def fastest(self, us: np.ndarray, a: np.ndarray) -> np.ndarray:
        """The largest relative speed."""
        raise NotImplementedError

    @property
    def searched(self) -> np.ndarray:
        """The u among which an event is searched, from 0 on."""
        raise NotImplementedError

    def ends_before(self, event: str) -> str:
        """Why there is no such event."""
        raise NotImplementedError

    def check_end(self, request: Request, end: float) -> None:
        """Refuse an end beyond what doubles hold."""


class _MseSolution(_Solution):
    def values(self, us: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        with np.errstate(over="ignore"):
            t = np.expm1(us)
            return mse_singular_values(self.model, self.start.a, self.start.C, t), None

    def path(self, us: np.ndarray) -> np.ndarray:
        return mse_path_length(self.model, self.start.a, self.start.C, us)

    def fastest(self, us: np.ndarray, a: np.ndarray) -> np.ndarray:
        C = np.broadcast_to(self.start.C, a.shape)
        return _relative(np.asarray(_velocity(self.model.view, a.T, C.T)).T, a)

    @property
    def searched(self) -> np.ndarray:
        """Settled to the last bit at the end, whatever the start."""
        positive = self.start.a[self.start.a > 0]
        escape = -math.log(min(positive.min() if positive.size else 1.0, 1.0))
        return np.linspace(0.0, math.log1p(80.0 + 2 * escape), _SEARCHED)

    def ends_before(self, event: str) -> str:
        return f"The flow settles at a finite point before {event}."


@dataclasses.dataclass(frozen=True)
class _SteepestSolution(_Solution):
    geometry: Geometry

    def values(self, us: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        return self.geometry.values(self.model, self.start, _times(us))

    def path(self, us: np.ndarray) -> np.ndarray:
        weights = self.model.multiplicity_of_modes

        def speed(us: np.ndarray) -> np.ndarray:
            found = []
            for part in _parts(us, self.start.a.size):
                v = self._velocity(part)
                size = np.abs(v).max(axis=1, initial=1e-300)  # whose square may be no double
                found.append(size * np.sqrt((v / size[:, None]) ** 2 @ weights))
            return np.concatenate(found) * np.exp(us)

        last = min(float(us.max(initial=0.0)), math.log1p(self._last))  # later nothing moves
        return path_lengths(speed, us, last, absolute=1e-15)

    def _velocity(self, us: np.ndarray) -> np.ndarray:
        return self.geometry.velocity_at(self.model, self.start, _times(us))

    def fastest(self, us: np.ndarray, a: np.ndarray) -> np.ndarray:
        return _relative(self._velocity(us), a)

    @functools.cached_property
    def _last(self) -> float:
        return self.geometry.last_time(self.model, self.start)

    @property
    def searched(self) -> np.ndarray:
        first = _EARLY * self.geometry.doubling_time(self.model, self.start)
        first = min(max(first, 1e-280), 1e-3 * self._last)
        count = int(np.clip(2**28 // self.start.a.size, 256, _SEARCHED))
        return np.append(0.0, np.log1p(np.geomspace(first, self._last, count - 1)))

    def ends_before(self, event: str) -> str:
        if self.geometry.settles(self.model, self.start):
            return f"The flow settles at a finite point before {event}."
        return f"The flow has not come to {event} when its squares exceed what a double can hold."

    def check_end(self, request: Request, end: float) -> None:
        if self.geometry.settles(self.model, self.start):
            return
        if math.expm1(min(end, 700.0)) > self._last:
            last = float(log10_from_u(np.float64(math.log1p(self._last)))) - request.time_shift
            raise InputError(
                f"Argument `until` (or `times`) must be at most log10 t = {last:.6g} in the "
                f"{self.geometry}, whose squares exceed what a double can hold later."
            )


def _solution(request: Request, start: Any) -> _Solution | None:
    model = request.model
    if request.geometry is not None:
        request.geometry.check(model, start)
        return _SteepestSolution(model, start, request.geometry)
    if request.full or model.loss != MSE or model.depth > 2 or model.penalized:
        return None
    return None if start.angles is not None else _MseSolution(model, start)


def _times(us: np.ndarray) -> np.ndarray:
    """t, and infinity where it is no double."""
    with np.errstate(over="ignore"):
        return np.expm1(us)


def _relative(velocity: np.ndarray, a: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(a > 0, np.abs(velocity) / a, np.where(velocity == 0, 0.0, np.inf))
    return relative.max(axis=1)


def _parts(us: np.ndarray, modes: int) -> list[np.ndarray]:
    """Not more at once than memory likes."""
    return np.array_split(us, max(1, -(-us.size * modes // _NUMBERS)))


def _kept(request: Request, solution: _Solution, end: float) -> np.ndarray:
    us = np.append(0.0, geometric(end, _LOOKED_AT))

    def profile() -> Profile:
        with np.errstate(divide="ignore"):
            return Profile.of_logs(np.log(request.model.nontrivial(solution.values(us)[0])))

    return request.kept(us, profile)


def _first_crossing(request: Request, solution: _Solution) -> float | None:
    """The u at which the event happens first, or None if it never does."""
    event, value = request.event, request.target_value
    assert event is not None

    def left(us: Any) -> np.ndarray:
        with double_precision(), np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(event.left(ClosedFormReading(solution, np.atleast_1d(us)), value))

    low, high = 0.0, None
    for part in _parts(solution.searched, solution.start.a.size):
        below = np.flatnonzero(left(part) <= 0)
        if len(below):
            high = float(part[below[0]])
            low = float(part[below[0] - 1]) if below[0] else low
            break
        low = float(part[-1])
    if high is None:
        return None
    if high == 0:
        return float(solution.searched[1])
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

    solution: _Solution
    u: np.ndarray

    @functools.cached_property
    def _a(self) -> np.ndarray:
        return self.solution.values(self.u)[0]

    @property
    def deviation(self) -> Any:
        return deviation(self.solution.model.nontrivial(self._a))

    @property
    def log_norm(self) -> Any:
        return np.log(self.solution.model.nontrivial(self._a).sum(axis=1))

    @property
    def log_path(self) -> Any:
        return np.log(self.solution.path(self.u))

    @property
    def fastest(self) -> Any:
        return self.solution.fastest(self.u, self._a)
