"""What a run may be asked to reach. A target knows when it is reached, from a reading of the state."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from hadaflow.base.checks import as_number, check_positive
from hadaflow.base.errors import InputError, meant, shown
from hadaflow.model.ufm import UFM

# Rounding of log a shifts the time of collapse by about this over the tolerance.
_RESOLUTION = 1e-16
# What rounding leaves uncertain in max|(K−1)â − 1|: computed anew, it is below the tolerance, too.
_ROUNDING = 4 * float(np.finfo(float).eps)


class Reading(Protocol):
    """What a target may ask of a state, in scaled units; flows compute only what is asked for."""

    @property
    def u(self) -> Any: ...  # log(1 + t)

    @property
    def deviation(self) -> Any: ...  # max |(K−1)â − 1|

    @property
    def log_norm(self) -> Any: ...  # log‖a‖₁ over the non-trivial modes

    @property
    def log_path(self) -> Any: ...  # log of the path length

    @property
    def fastest(self) -> Any: ...  # largest relative rate of change, per unit of time


class Target:
    """Base of all targets.

    In compiled code a target is its class, and its number is traced: another number compiles nothing.
    """

    spelled: ClassVar[str]  # on the command line, before the colon
    never: ClassVar[float] = 0.0  # a number that is never reached
    uniform: ClassVar[bool] = False  # is it the direction that is waited for, until it is uniform?
    grows: ClassVar[bool] = False  # is it something that grows for as long as anything moves?
    rests: ClassVar[bool] = False  # is it rest itself?
    foretold: ClassVar[bool] = False  # is the end foretold, not integrated to?

    def check(self, model: UFM, rtol: float, full: bool) -> None:
        """Refuse a model that never reaches it, or matrices where only the reduced view does."""

    @property
    def number(self) -> float:
        """What is to be reached, in the units of the run."""
        raise NotImplementedError

    def scaled_number(self, value_scale: float, full: bool) -> float:
        """The same in the units of the flow; `full` for matrices, which have no scaled ones."""
        return self.number

    @staticmethod
    def left(reading: Reading, number: Any) -> Any:
        """Positive until the target is reached, and smooth; traced."""
        raise NotImplementedError

    def reached_at_start(self, values: np.ndarray, number: float) -> Any:
        """Has it been reached before anything moves, by the K − 1 singular values, which are batched?"""
        return np.zeros(values.shape[:-1], dtype=bool)

    def share(self, norm: float, path: float, number: float) -> float | None:
        """How much of the way is done, where that can be told from the norm or the path length."""
        return None

    def log_norm_ahead(self, classes: int, number: float) -> float:
        """Roughly, log‖a‖₁ (scaled) where it is reached, at temperature one."""
        raise NotImplementedError

    def reached(self, where: str) -> tuple[str, str]:
        """Status and message of a run that has reached it."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.spelled}:{self.number!r}"


def deviation(a: np.ndarray) -> Any:
    """Max |(K−1)â − 1| of NumPy arrays, along the last axis; NaN where all are zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.max(np.abs(a / a.mean(axis=-1, keepdims=True) - 1), axis=-1)


@dataclasses.dataclass(frozen=True)
class Time(Target):
    """Stop at a time: `Time(1e6)`, or `Time(log10=4000)` for times beyond 1e308."""

    t: float | None = None
    log10: float | None = None
    spelled: ClassVar[str] = "time"
    never: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        if (self.t is None) == (self.log10 is None):
            raise InputError("`Time` takes either a time `t` or its `log10`, one of the two.")
        if self.t is not None:
            object.__setattr__(self, "t", check_positive("t", self.t, least=1e-300))
        else:
            allowed = "a number from -300 to 1e15"
            log10 = as_number("log10", self.log10, allowed)
            if not -300 <= log10 <= 1e15:
                raise InputError(f"Argument `log10` must be {allowed}, but is {shown(self.log10)}.")
            object.__setattr__(self, "log10", log10)

    @property
    def log10_time(self) -> float:
        return math.log10(self.t) if self.t is not None else self.log10 or 0.0

    @staticmethod
    def left(reading: Reading, number: Any) -> Any:
        r"""`number` is $\log(1 + t)$."""
        return 1.0 - reading.u / number

    def __str__(self) -> str:
        return f"time:{self.t!r}" if self.t is not None else f"log10time:{self.log10!r}"


@dataclasses.dataclass(frozen=True)
class _Tolerance(Target):
    """A target whose number is a tolerance, which something falls below."""

    tolerance: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerance", check_positive("tolerance", self.tolerance))

    @property
    def number(self) -> float:
        return self.tolerance


@dataclasses.dataclass(frozen=True)
class _Uniform(_Tolerance):
    """A direction that is uniform to a tolerance."""

    uniform: ClassVar[bool] = True

    def check(self, model: UFM, rtol: float, full: bool) -> None:
        if model.imbalance is not None:
            raise InputError(
                "Argument `until` cannot be Collapse with `imbalance`, under which the direction does "
                "not become uniform: use Time, Norm or PathLength."
            )
        if self.tolerance * rtol < _RESOLUTION:
            raise InputError(
                f"Collapse to {self.tolerance:g} cannot be located to `rtol` = {rtol:g} in double "
                f"precision: the product of the two must be at least {_RESOLUTION:g}."
            )

    def reached_at_start(self, values: np.ndarray, number: float) -> Any:
        return deviation(values) <= number

    def log_norm_ahead(self, classes: int, number: float) -> float:
        return math.log((classes - 1) * (1 + math.log(1 / min(number, 0.5))))


@dataclasses.dataclass(frozen=True)
class Collapse(_Uniform):
    r"""Stop at neural collapse: when $\max_i|(K-1)\hat a_i - 1|$ falls below `tolerance`."""

    tolerance: float = 1e-6
    spelled: ClassVar[str] = "collapse"

    @staticmethod
    def left(reading: Reading, number: Any) -> Any:
        import jax.numpy as jnp

        return jnp.log((reading.deviation + _ROUNDING) / number)

    def reached(self, where: str) -> tuple[str, str]:
        return "collapsed", f"max|(K−1)â − 1| fell below {self.tolerance:g} at {where}."


@dataclasses.dataclass(frozen=True)
class PredictedCollapse(_Uniform):
    """Stop at a soft anchor and foretell collapse from there, in the hard-margin limit.

    The last state is that of one long jump along the hard-margin path. Where a weight returns to zero
    on the way the prediction does not hold: the run then goes on to `Collapse(tolerance)`, step by step.
    """

    tolerance: float = 1e-3
    spelled: ClassVar[str] = "predicted-collapse"
    foretold: ClassVar[bool] = True

    def check(self, model: UFM, rtol: float, full: bool) -> None:
        super().check(model, rtol, full)
        if full:
            raise InputError(
                "Argument `until` cannot be PredictedCollapse for matrices, whose collapse is not "
                "foretold: use Collapse, or the reduced view of a Hadamard start (`project`)."
            )

    def reached(self, where: str) -> tuple[str, str]:
        return "predicted", (
            f"Foretold in the hard-margin limit: max|(K−1)â − 1| = {self.tolerance:g} at {where}."
        )


@dataclasses.dataclass(frozen=True)
class _Growing(Target):
    """A target whose number is a value that something grows to."""

    value: float
    never: ClassVar[float] = math.inf
    grows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_positive("value", self.value))

    @property
    def number(self) -> float:
        return self.value

    def scaled_number(self, value_scale: float, full: bool) -> float:
        return self.value / value_scale


@dataclasses.dataclass(frozen=True)
class Norm(_Growing):
    r"""Stop when $\|a\|_1$ over the non-trivial modes, in the run's units, reaches `value`."""

    spelled: ClassVar[str] = "norm"

    @staticmethod
    def left(reading: Reading, number: Any) -> Any:
        import jax.numpy as jnp

        return jnp.log(number) - reading.log_norm

    def share(self, norm: float, path: float, number: float) -> float | None:
        return norm / number

    def reached_at_start(self, values: np.ndarray, number: float) -> Any:
        return values.sum(axis=-1) >= number

    def log_norm_ahead(self, classes: int, number: float) -> float:
        return math.log(number)

    def reached(self, where: str) -> tuple[str, str]:
        return "reached", f"‖a‖₁ reached {self.value:g} at {where}."


@dataclasses.dataclass(frozen=True)
class PathLength(_Growing):
    r"""Stop at a path length: the time of the normalized gradient flow (Eq. 22).

    That is $\int\lVert da\rVert$ in the reduced view, and the path of the matrices,
    $\int\lVert(dW, dH)\rVert$ in raw units, in the full one: two clocks, and two places.
    """

    spelled: ClassVar[str] = "path"

    def scaled_number(self, value_scale: float, full: bool) -> float:
        return self.value if full else self.value / value_scale

    @staticmethod
    def left(reading: Reading, number: Any) -> Any:
        import jax.numpy as jnp

        return 1.0 - jnp.exp(reading.log_path - jnp.log(number))

    def share(self, norm: float, path: float, number: float) -> float | None:
        return path / number

    def log_norm_ahead(self, classes: int, number: float) -> float:
        return math.log(number) + 0.5 * math.log(classes)

    def reached(self, where: str) -> tuple[str, str]:
        return "reached", f"The path length reached {self.value:g} at {where}."


@dataclasses.dataclass(frozen=True)
class Steady(_Tolerance):
    """Stop at a steady state, for flows that settle at a finite point.

    These are soft labels that are positive for every class, penalties on all layers, and MSE. Steady is
    when no singular value changes by more than `tolerance` of itself per unit of time, nor by more than
    a hundred times that while time grows e-fold (up to a hundred times as long as the model takes to
    settle): what settles slowly is not taken for settled. A small one that is still growing keeps the
    run going past a saddle; one that dies out, below 1e-12 of the largest, counts no more.
    """

    tolerance: float = 1e-8
    spelled: ClassVar[str] = "steady"
    rests: ClassVar[bool] = True

    def check(self, model: UFM, rtol: float, full: bool) -> None:
        if model.settles:
            return
        if model.soft_labels:
            raise InputError(
                "Argument `until` cannot be Steady for labels that are zero for some class, whose "
                "logit may fall for ever: use Time, Norm or PathLength."
            )
        if model.penalized:
            raise InputError(
                "Argument `until` cannot be Steady for penalties on some of the layers alone, under "
                "which these layers die while the others grow: use Collapse or Time."
            )
        raise InputError(
            f"Argument `until` cannot be Steady for {model.loss}, whose norm grows for ever: "
            "use Collapse or Time."
        )

    @staticmethod
    def left(reading: Reading, number: Any) -> Any:
        import jax.numpy as jnp

        slowly = 1e-2 * jnp.exp(jnp.minimum(reading.u, 700.0))
        return jnp.log(reading.fastest / number) + jnp.log(jnp.maximum(slowly, 1.0))

    def reached(self, where: str, dying: str = "") -> tuple[str, str]:
        """`dying` names the modes that fall for ever, and are no longer counted."""
        counted = " of singular values above 1e-12 of the largest" if dying else ""
        more = f"; {dying}" if dying else ""
        said = f"All relative speeds{counted} are below {self.tolerance:g} at {where}{more}."
        return "steady", said


_TARGETS: dict[str, Any] = {
    kind.spelled: kind for kind in (Time, Collapse, PredictedCollapse, Norm, PathLength, Steady)
} | {"log10time": lambda x: Time(log10=x)}


def parse_target(text: str, told: Sequence[type[Target]] = ()) -> Target:
    """A target as it is spelled, `collapse:1e-6` or `log10time:4000`.

    One whose tolerance has a usual value may be spelled without it: `collapse`. What is none of them
    is told those that it may be, all unless some are `told`.
    """
    kind, colon, value = text.strip().partition(":")
    usual = {k.spelled for k in (Collapse, PredictedCollapse, Steady)}
    if kind in usual and not colon:
        return _TARGETS[kind]()
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if kind not in _TARGETS or math.isnan(number):
        names = [k.spelled for k in told] or list(_TARGETS)
        allowed = ", ".join(f"{k}{':NUMBER' if k not in usual else '[:NUMBER]'}" for k in names)
        near = "" if kind in _TARGETS else meant(kind, names)
        raise InputError(f"Argument `until` must be one of {allowed}, but is {shown(text)}{near}.")
    try:
        return _TARGETS[kind](number)
    except InputError as error:  # which names the number as Python does
        allowed = str(error).partition(" must be ")[2].partition(", but is ")[0]
        raise InputError(
            f"Argument `until` must have {allowed} behind its colon, but is {shown(text)}."
        ) from None
