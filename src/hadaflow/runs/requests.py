"""What a run was asked for: checked once, with the clocks and units it is answered in."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.base.checks import as_number, as_numbers, check_whole_number
from hadaflow.base.errors import InputError, shown
from hadaflow.base.progress import Report, check_progress
from hadaflow.model.clock import log10_from_u, u_from_log10
from hadaflow.model.closed_forms import check_times
from hadaflow.model.fitting import as_spectrum, result_units
from hadaflow.model.geometries import EUCLIDEAN, Geometry, make_geometry
from hadaflow.model.states import RAW, Parameters
from hadaflow.model.ufm import UFM, check_model
from hadaflow.runs.methods import Choice, Method
from hadaflow.runs.spacing import Profile, spaced
from hadaflow.runs.targets import Collapse, Steady, Target, Time, parse_target

AUTO = "auto"
_MOST_NUMBERS = 2**24  # in the states of a run, unless more points are asked for


@dataclasses.dataclass(frozen=True)
class Request:
    """A validated request. Times and values are in `units`; the flow itself runs in scaled ones."""

    model: UFM
    until: Target | None
    log10_times: np.ndarray | None  # requested times after the start
    units: str
    points: int
    rtol: float
    asked: str  # the method asked for by name, or "auto"
    progress: str | Report | None
    full: bool
    seed: Any
    geometry: Geometry | None = None  # None of gradient flow
    choice: Choice | None = None

    @property
    def method(self) -> Method:
        assert self.choice is not None
        return self.choice.method

    @property
    def forced(self) -> bool:
        """Does the caller insist on the method?"""
        return self.choice is not None and self.choice.forced

    def by(self, method: Method, reason: str, forced: bool = False) -> "Request":
        """The same with a method chosen."""
        chosen = copy.copy(self)  # with its goals, where they are known already
        object.__setattr__(chosen, "choice", Choice(method, reason, forced))
        return chosen

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

    @functools.cached_property
    def goals(self) -> np.ndarray | None:
        """Times of one's own at which states are kept, in u."""
        if self.log10_times is None:
            return None
        return u_from_log10(self.log10_times + self.time_shift)

    @functools.cached_property
    def end(self) -> float | None:
        """Where the run ends, in u, if that is known beforehand: at a time, or the last of one's own.

        0 where nothing but the start is asked for.
        """
        if isinstance(self.until, Time):
            return float(u_from_log10(self.until.log10_time + self.time_shift))
        if self.until is not None or self.goals is None:
            return None
        return float(self.goals[-1]) if len(self.goals) else 0.0

    def kept(self, us: np.ndarray, profile: Callable[[], Profile]) -> np.ndarray:
        """Where states are kept, in u, of a run with states at `us`, from the start to its end.

        At times of one's own before the end, or where the states change, by what `profile` makes of
        them; and at the end.
        """
        if self.goals is None:
            return spaced(us, profile(), self.points - 1)
        end = float(us[-1])
        return np.append(self.goals[self.goals < end], end)

    @property
    def target_value(self) -> float:
        """The event's number in the units of the flow."""
        return 1.0 if self.event is None else self.event.scaled_number(self.value_scale, self.full)

    @property
    def saved_points(self) -> int:
        """Each takes a step of its own."""
        return self.points if self.log10_times is None else len(self.log10_times) + 2

    @property
    def settings(self) -> dict[str, Any]:
        asked = self.log10_times
        return {
            "until": None if self.until is None else str(self.until),
            "log10_times": None if asked is None else asked.tolist(),
            "units": self.units,
            "points": self.points,
            "rtol": self.rtol,
            "method": self.asked,
            "seed": self.seed,
        } | (self.geometry.settings if self.geometry else {})

    def labelled_times(self, us: np.ndarray) -> np.ndarray:
        """log10 time in the run's units, −∞ for the start; requested times exactly as requested."""
        times = log10_from_u(us) - self.time_shift
        if self.log10_times is not None:
            count = min(len(times), len(self.log10_times))
            asked = self.log10_times[:count]
            same = np.abs(times[:count] - asked) <= 1e-12 * (1 + np.abs(asked))
            times[:count] = np.where(same, asked, times[:count])
        if isinstance(self.until, Time) and len(us) and us[-1] == self.end:
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
    method: Any,
    progress: str | Report | None,
    geometry: Any = EUCLIDEAN,
    decay: Any = 0.0,
) -> Request:
    """What `solve` was asked for, checked; the method is still to be chosen."""
    check_model(model)
    if points is not None:
        points = check_whole_number("points", points, least=2, most=10**6)
    rtol = as_number("rtol", rtol, "a number from 1e-12 to 1e-2")
    if not 1e-12 <= rtol <= 1e-2:
        raise InputError(f"Argument `rtol` must be from 1e-12 to 1e-2, but is {shown(rtol)}.")
    check_progress(progress)
    full = isinstance(start, Parameters)
    if model.loss_kind.kinked and model.penalized:
        raise InputError(
            f"Argument `model`: with `weight_decay` the flow of loss = {model.loss} slides along its "
            "kink, where it has no velocity; `squared_hinge` has none, and `descend` steps over it."
        )
    kind = make_geometry(geometry, decay)
    if kind is not None:
        kind.check(model, start)
        _check_closed(kind, until, method)
    until = _check_until(model, until, times, log10_times)
    if until is not None and not (until.rests and kind is not None):
        until.check(model, rtol, full)
        if until.foretold and (times is not None or log10_times is not None):
            raise InputError(
                "Times of one's own do not go with PredictedCollapse, which leaps over most of the way: "
                "leave `times` and `log10_times` out, or ask for Collapse."
            )
    return Request(
        model=model,
        until=until,
        log10_times=_check_requested_times(times, log10_times),
        units=result_units(start, units),
        points=_default_points(model, start) if points is None else points,
        rtol=rtol,
        asked=method,
        progress=progress,
        full=full,
        seed=getattr(start, "seed", None),
        geometry=kind,
    )


def _check_closed(geometry: Geometry, until: Any, method: Any) -> None:
    """A closed form needs no method, foretells nothing, and rests only where it decays."""
    if method != AUTO:
        raise InputError(
            f'Argument `method` must be "auto" in the {geometry}, which has a closed form, but is '
            f"{shown(method)}."
        )
    target = parse_target(until) if isinstance(until, str) else until
    if isinstance(target, Target) and target.foretold:
        raise InputError(
            f"Argument `until` cannot be PredictedCollapse in the {geometry}: Collapse is reached there."
        )
    if isinstance(target, Target) and target.rests and not geometry.decay:
        raise InputError(
            f"Argument `until` cannot be Steady in the {geometry} without decay, whose norm grows for "
            "ever: use Collapse or Time."
        )


def _default_points(model: UFM, start: Any) -> int:
    """200, or as many as keep the states of a run at about a hundred megabytes; 2 in a batch."""
    if not isinstance(start, Parameters) and as_spectrum(model, start).a.ndim > 1:
        return 2
    return int(np.clip(_MOST_NUMBERS // model.classes, 8, 200))


def _check_until(model: UFM, until: Any, times: Any, log10_times: Any) -> Target | None:
    if times is not None and log10_times is not None:
        raise InputError("Give one of `times` and `log10_times`, but not both.")
    if until is None:
        if times is not None or log10_times is not None:
            return None
        if model.imbalance is not None and not model.settles:
            raise InputError(
                "Argument `until` must be given with `imbalance`: the direction of imbalanced "
                "classes does not become uniform, so there is no collapse to wait for."
            )
        return Steady() if model.settles else Collapse()
    if isinstance(until, str):
        return parse_target(until)
    if not isinstance(until, Target):
        numbers = isinstance(until, list | tuple | np.ndarray)
        hint = "; times at which states are kept go to `times=`" if numbers else ""
        raise InputError(
            "Argument `until` must be Time, Collapse, PredictedCollapse, Norm, PathLength or Steady, or "
            f'spelled as text such as "collapse:1e-6", but is {shown(until)}{hint}.'
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
