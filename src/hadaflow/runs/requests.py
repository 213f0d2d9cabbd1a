"""What a run was asked for: checked once, with the clocks and units it is answered in."""

import dataclasses
import math
from typing import Any

import numpy as np

from hadaflow.base.checks import as_number, as_numbers
from hadaflow.base.errors import InputError, check_whole_number, shown
from hadaflow.base.progress import Report, check_progress
from hadaflow.model.closed_forms import check_times
from hadaflow.model.fitting import as_spectrum, result_units
from hadaflow.model.states import RAW, Parameters
from hadaflow.model.ufm import MSE, UFM, check_model
from hadaflow.runs.methods import AUTO_METHOD, DUAL, METHODS, STIFF_METHOD, Choice
from hadaflow.runs.targets import (
    Collapse,
    PredictedCollapse,
    Steady,
    Target,
    Time,
)

LN10 = math.log(10.0)
_MOST_NUMBERS = 2**24  # in the states of a run, unless more points are asked for
_LARGEST_STIFF = 1024  # numbers in a state; the implicit method solves dense systems
_FIRST_SAVED = -2.0  # log10 of the first saved time, unless the run is shorter
_RESOLUTION = (
    1e-16  # rounding of log a shifts the time of collapse by about this over the tolerance
)


def u_from_log10(log10_time: Any) -> Any:
    """log(1 + t) from log10 t."""
    return np.logaddexp(0.0, np.asarray(log10_time) * LN10)


def log10_from_u(u: Any) -> Any:
    """log10 t from log(1 + t)."""
    u = np.asarray(u, dtype=float)
    with np.errstate(divide="ignore"):
        return (u + np.log(-np.expm1(-u))) / LN10


@dataclasses.dataclass(frozen=True)
class Request:
    """A validated request. Times and values are in `units`; the flow itself runs in scaled ones."""

    model: UFM
    until: Target | None
    log10_times: np.ndarray | None  # requested times after the start
    units: str
    points: int
    rtol: float
    choice: Choice
    progress: str | Report | None
    full: bool
    seed: Any

    @property
    def method(self) -> str:
        return self.choice.method

    @property
    def time_shift(self) -> float:
        """log10 of scaled time minus log10 of the run's time."""
        return math.log10(self.model.time_scale) if self.units == RAW else 0.0

    @property
    def value_scale(self) -> float:
        """The run's singular values over the scaled ones."""
        return self.model.singular_value_scale if self.units == RAW else 1.0

    @property
    def difference_scale(self) -> float:
        """The run's differences C over the scaled ones."""
        return self.model.difference_scale if self.units == RAW else 1.0

    @property
    def event(self) -> Target | None:
        """What ends the run, if it is not a time."""
        return None if isinstance(self.until, Time) else self.until

    @property
    def goals(self) -> np.ndarray | None:
        """Where states are kept, in u, if that is known beforehand."""
        if self.log10_times is not None:
            return u_from_log10(self.log10_times + self.time_shift)
        if isinstance(self.until, Time):
            return self.grid(float(u_from_log10(self.until.log10_time + self.time_shift)))
        return None

    def grid(self, end: float) -> np.ndarray:
        """Points geometric in time up to u = `end`, without the start."""
        last = float(log10_from_u(end))
        first = min(_FIRST_SAVED, last - 3)
        us = u_from_log10(np.linspace(first, last, self.points)[1:])
        us[-1] = end
        return us

    @property
    def target_value(self) -> float:
        """The event's number in the units of the flow."""
        return 1.0 if self.event is None else self.event.scaled_number(self.value_scale, self.full)

    @property
    def settings(self) -> dict[str, Any]:
        asked = self.log10_times
        return {
            "until": None if self.until is None else str(self.until),
            "log10_times": None if asked is None else asked.tolist(),
            "units": self.units,
            "points": self.points,
            "rtol": self.rtol,
            "method": self.method,
            "seed": self.seed,
        }

    def labelled_times(self, us: np.ndarray) -> np.ndarray:
        """log10 time in the run's units, −∞ for the start; requested times exactly as requested."""
        times = log10_from_u(us) - self.time_shift
        if self.log10_times is not None:
            count = min(len(times), len(self.log10_times))
            asked = self.log10_times[:count]
            same = np.abs(times[:count] - asked) <= 1e-12 * (1 + np.abs(asked))
            times[:count] = np.where(same, asked, times[:count])
        elif isinstance(self.until, Time) and len(times) == self.points - 1:
            times[-1] = self.until.log10_time
        return np.concatenate([[-np.inf], times])

    def where(self, u: float) -> str:
        return f"log10 t = {float(log10_from_u(u)) - self.time_shift:.8g}" if u > 0 else "the start"


def make_request(
    model: Any,
    start: Any,
    until: Any,
    times: Any,
    log10_times: Any,
    units: str | None,
    points: Any,
    rtol: Any,
    method: str,
    progress: str | Report | None,
) -> Request:
    check_model(model)
    if points is not None:
        points = check_whole_number("points", points, least=2, most=10**6)
    rtol = as_number("rtol", rtol, "a number from 1e-12 to 1e-2")
    if not 1e-12 <= rtol <= 1e-2:
        raise InputError(f"Argument `rtol` must be from 1e-12 to 1e-2, but is {shown(rtol)}.")
    check_progress(progress)
    until = _check_until(model, until, times, log10_times)
    if isinstance(until, Collapse | PredictedCollapse) and until.tolerance * rtol < _RESOLUTION:
        raise InputError(
            f"Collapse to {until.tolerance:g} cannot be located to `rtol` = {rtol:g} in double "
            f"precision: the product of the two must be at least {_RESOLUTION:g}."
        )
    if method not in ("auto", *METHODS):
        raise InputError(
            f"Argument `method` must be one of auto, {', '.join(METHODS)}, but is {shown(method)}."
        )
    full = isinstance(start, Parameters)
    if full and isinstance(until, PredictedCollapse):
        raise InputError(
            "Argument `until` cannot be PredictedCollapse for matrices, whose collapse is not foretold: "
            "use Collapse, or the reduced view of a Hadamard start (`project`)."
        )
    if full and method == DUAL:
        raise InputError(
            'Argument `method` cannot be "dual" for matrices: dual steps are those of singular values. '
            'Use "auto", or the reduced view of a Hadamard start (`project`).'
        )
    return Request(
        model=model,
        until=until,
        log10_times=_check_requested_times(times, log10_times),
        units=result_units(start, units),
        points=_default_points(model, start) if points is None else points,
        rtol=rtol,
        choice=_automatic(model, full) if method == "auto" else Choice(method, "asked for", True),
        progress=progress,
        full=full,
        seed=getattr(start, "seed", None),
    )


def _default_points(model: UFM, start: Any) -> int:
    """200, or as many as keep the states of a run at about a hundred megabytes; 2 in a batch."""
    if not isinstance(start, Parameters) and as_spectrum(model, start).a.ndim > 1:
        return 2
    return int(np.clip(_MOST_NUMBERS // model.classes, 8, 200))


def _automatic(model: UFM, full: bool) -> Choice:
    """A first choice. `orbit_runs` turns to dual steps where the way is long.

    In log time a flow that settles is stiff: its rate, of order one in t, grows like t in log t.
    """
    if full:
        return Choice(AUTO_METHOD, "explicit: the full view has no other method")
    if not (model.soft_labels or model.penalized or model.loss == MSE):
        return Choice(AUTO_METHOD, "explicit: the way is short")
    size = model.modes * (model.depth if model.penalized or model.loss == MSE else 1)
    if size <= _LARGEST_STIFF:
        return Choice(STIFF_METHOD, "implicit, dense: a flow that settles is stiff in log time")
    return Choice(AUTO_METHOD, f"explicit: a dense Jacobian of {size} numbers squared is too large")


def _check_until(model: UFM, until: Any, times: Any, log10_times: Any) -> Target | None:
    arguments = {"until": until, "times": times, "log10_times": log10_times}
    given = [name for name, value in arguments.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"Give one of `until`, `times` and `log10_times`, but not {given}.")
    if until is None:
        if given:
            return None
        if model.imbalance is not None and not model.settles:
            raise InputError(
                "Argument `until` must be given with `imbalance`: the direction of imbalanced "
                "classes does not become uniform, so there is no collapse to wait for."
            )
        return Steady() if model.settles else Collapse()
    if not isinstance(until, Target):
        raise InputError(
            "Argument `until` must be Time, Collapse, PredictedCollapse, Norm, PathLength or Steady, "
            f"but is {shown(until)}."
        )
    if isinstance(until, Collapse | PredictedCollapse) and model.imbalance is not None:
        raise InputError(
            "Argument `until` cannot be Collapse with `imbalance`, under which the direction does "
            "not become uniform: use Time, Norm or PathLength."
        )
    if isinstance(until, Steady) and not model.settles:
        raise InputError(
            "Argument `until` cannot be Steady for cross-entropy, whose norm grows for ever: "
            "use Collapse or Time."
        )
    return until


def _check_requested_times(times: Any, log10_times: Any) -> np.ndarray | None:
    """log10 of the requested times; time 0 is the start, which is kept anyway."""
    if times is not None:
        values = check_times("times", times)
        return np.log10(values[values > 0])
    if log10_times is None:
        return None
    try:
        values = np.atleast_1d(as_numbers("log10_times", log10_times))
    except InputError:
        values = np.zeros(0)
    if values.ndim != 1 or values.size == 0 or not np.all((values >= -300) & (values <= 1e15)):
        raise InputError(
            "Argument `log10_times` must be a list of numbers from -300 to 1e15, "
            f"but is {shown(log10_times)}."
        )
    if np.any(np.diff(values) <= 0):
        raise InputError(
            f"Argument `log10_times` must be strictly increasing, but is {shown(log10_times)}."
        )
    return values
