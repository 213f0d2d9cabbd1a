"""What a run may be asked to reach."""

import dataclasses
import math
from typing import Any

from hadaflow.base.errors import InputError, shown


def _positive(name: str, value: Any, least: float = 0.0) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > 0 and number >= least):
        bound = f" of at least {least:g}" if least else ""
        raise InputError(
            f"Argument `{name}` must be a positive number{bound}, but is {shown(value)}."
        )
    return number


def _check_log10(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not -300 <= number <= 1e15:
        raise InputError(
            f"Argument `log10` must be a number from -300 to 1e15, but is {shown(value)}."
        )
    return number


@dataclasses.dataclass(frozen=True)
class Time:
    """Stop at a time: `Time(1e6)`, or `Time(log10=4000)` for times beyond 1e308."""

    t: float | None = None
    log10: float | None = None

    def __post_init__(self) -> None:
        if (self.t is None) == (self.log10 is None):
            raise InputError("`Time` takes either a time `t` or its `log10`, one of the two.")
        if self.t is not None:
            object.__setattr__(self, "t", _positive("t", self.t, least=1e-300))
        else:
            object.__setattr__(self, "log10", _check_log10(self.log10))

    @property
    def log10_time(self) -> float:
        return math.log10(self.t) if self.t is not None else self.log10 or 0.0

    def __str__(self) -> str:
        return f"time:{self.t!r}" if self.t is not None else f"log10time:{self.log10!r}"


@dataclasses.dataclass(frozen=True)
class Collapse:
    """Stop at neural collapse: when max_i |(K−1)â_i − 1| falls below `tolerance`."""

    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerance", _positive("tolerance", self.tolerance))

    def __str__(self) -> str:
        return f"collapse:{self.tolerance!r}"


@dataclasses.dataclass(frozen=True)
class PredictedCollapse:
    """Stop at a soft anchor and foretell collapse from there, in the hard-margin limit.

    The last state is that of one long jump along the hard-margin path. Where a weight returns to zero
    on the way the prediction does not hold: the run then goes on to `Collapse(tolerance)`, step by step.
    """

    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerance", _positive("tolerance", self.tolerance))

    def __str__(self) -> str:
        return f"predicted-collapse:{self.tolerance!r}"


@dataclasses.dataclass(frozen=True)
class Norm:
    """Stop when ‖a‖₁ over the non-trivial modes, in the run's units, reaches `value`."""

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _positive("value", self.value))

    def __str__(self) -> str:
        return f"norm:{self.value!r}"


@dataclasses.dataclass(frozen=True)
class PathLength:
    """Stop at a path length: the time of the normalized gradient flow (Eq. 22)."""

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _positive("value", self.value))

    def __str__(self) -> str:
        return f"path:{self.value!r}"


@dataclasses.dataclass(frozen=True)
class Steady:
    """Stop at a steady state, for flows that settle at a finite point (MSE).

    That is when no singular value changes by more than `tolerance` of itself per unit of time. A
    small one that is still growing therefore keeps the run going past a saddle.
    """

    tolerance: float = 1e-8

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerance", _positive("tolerance", self.tolerance))

    def __str__(self) -> str:
        return f"steady:{self.tolerance!r}"


Target = Time | Collapse | PredictedCollapse | Norm | PathLength | Steady

_KINDS = {
    "time": lambda x: Time(x),
    "log10time": lambda x: Time(log10=x),
    "collapse": lambda x: Collapse(x),
    "predicted-collapse": lambda x: PredictedCollapse(x),
    "norm": lambda x: Norm(x),
    "path": lambda x: PathLength(x),
    "steady": lambda x: Steady(x),
}


def parse_target(text: str) -> Target:
    """A target from the command line, such as `collapse:1e-6` or `log10time:4000`."""
    kind, _, value = text.partition(":")
    if text == "predicted-collapse":
        return PredictedCollapse()
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if kind not in _KINDS or math.isnan(number):
        allowed = ", ".join(f"{k}:NUMBER" for k in _KINDS)
        raise InputError(f"Argument `until` must be one of {allowed}, but is {shown(text)}.")
    return _KINDS[kind](number)
