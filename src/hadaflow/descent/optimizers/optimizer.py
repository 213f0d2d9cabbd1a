"""What an optimizer is: a rule with its numbers, and what of a Hadamard state it acts on.

Plain dataclasses: optax is asked for the rule itself when a run begins.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hadaflow.base.checks import as_number
from hadaflow.base.errors import InputError, reason_of, shown

LearningRate = float | Sequence[float] | Callable[[Any], Any]
SPECTRAL, ELEMENTWISE = "spectral", "elementwise"
# Hyperparameters that are shares; the others are numbers that are not negative.
_SHARES = ("b1", "b2", "b3", "beta", "momentum", "decay")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How code that is compiled makes an optax transformation of traced numbers. Structure."""

    make: Callable[..., Any]
    options: tuple[tuple[str, Any], ...] = ()
    memory: str = ""  # the number by which its memory of gradients fades, where that is linear

    def transformation(self, numbers: dict[str, Any]) -> Any:
        return self.make(**numbers, **dict(self.options))


@dataclasses.dataclass(frozen=True)
class Kind:
    """A rule by its name."""

    name: str
    reduces: str  # to singular values, or to entries
    make: Callable[..., Any]  # from its hyperparameters
    make_of_values: Callable[..., Any] | None = None  # on singular values, where that is another
    shaped: bool = False  # are those told the shapes of the matrices?
    memory: str = ""
    scaleless: bool = False  # with eps = 0, does it not ask how large gradients are?
    descent: bool = False  # is it descent or heavy ball, which have a time?


class Optimizer:
    """Base of all optimizers."""

    learning_rate: Any  # a number, a tuple of them, a schedule, or None where it is not known
    reduces: str = ""  # SPECTRAL, ELEMENTWISE, or not at all
    on_diagonals: bool = False  # does it see singular values as rectangular matrices?
    apart: bool = True  # do runs of a batch need a state each? Not where every entry has its own
    scaleless: bool = False
    weight_decay: float = 0.0  # decoupled
    rates: np.ndarray | None = None  # learning rates of several runs
    descent: "tuple[Any, Any] | None" = None  # learning rate and momentum, if it has a time

    def recipe(self, of_values: bool) -> Recipe:
        """The rule on singular values, or on entries."""
        raise NotImplementedError

    def numbers(self, of_values: bool, shapes: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """What is traced of it."""
        return {}

    def check(self, steps: int) -> None:
        """Refuse a schedule that answers with no number, at the first and at the last step."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Named(Optimizer):
    """One of `hadaflow.optimizers`."""

    kind: Kind
    learning_rate: Any  # a number, a tuple of them or a schedule
    given: dict[str, Any]  # hyperparameters
    changed: dict[str, Any]  # those that are not the usual ones

    @classmethod
    def of(cls, kind: Kind, usual: dict[str, Any], given: dict[str, Any]) -> "Named":
        """From the arguments of the function of that name, and what they usually are."""
        rate = _checked_rate(given.pop("learning_rate"))
        checked = {name: _checked(name, value) for name, value in given.items()}
        changed = {n: v for n, v in checked.items() if v != usual[n]}
        return cls(kind, rate, checked, changed)

    @property
    def reduces(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kind.reduces

    @property
    def apart(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kind.reduces != ELEMENTWISE

    @property
    def scaleless(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kind.scaleless and not self.given.get("eps")

    @property
    def weight_decay(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.given["weight_decay"]

    @property
    def rates(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return np.array(self.learning_rate) if isinstance(self.learning_rate, tuple) else None

    @property
    def descent(self) -> tuple[Any, Any] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if not self.kind.descent or callable(self.learning_rate) or self.weight_decay:
            return None
        if self.given.get("nesterov"):
            return None
        return np.asarray(self.learning_rate, float), self.given["momentum"] or 0.0

    def recipe(self, of_values: bool) -> Recipe:
        make = (self.kind.make_of_values if of_values else None) or self.kind.make
        options = {n: v for n, v in self.given.items() if not _is_number(v)}
        if callable(self.learning_rate):
            options["learning_rate"] = self.learning_rate
        return Recipe(make, tuple(options.items()), self.kind.memory)

    def numbers(self, of_values: bool, shapes: Sequence[tuple[int, int]]) -> dict[str, Any]:
        found: dict[str, Any] = {n: np.float64(v) for n, v in self.given.items() if _is_number(v)}
        if not callable(self.learning_rate):
            found["learning_rate"] = np.asarray(self.learning_rate, float)
        if of_values and self.kind.shaped:
            found["shapes"] = tuple(
                np.float64(math.sqrt(max(1, columns / rows))) for rows, columns in shapes
            )
        return found

    def check(self, steps: int) -> None:
        if callable(self.learning_rate):
            for step in (0, steps - 1):
                _check_schedule(self.learning_rate, step)

    def __str__(self) -> str:
        rate = self.learning_rate
        if callable(rate):
            told = "schedule"
        else:
            told = ",".join(f"{r:g}" for r in np.ravel(rate))
        changed = [f"{name}={_spelled(value)}" for name, value in self.changed.items()]
        return ":".join([self.kind.name, told, *changed])

    def __repr__(self) -> str:
        return f"<optimizer {self}>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Own(Optimizer):
    """An optax transformation of one's own, and how it has been found to reduce."""

    transformation: Any
    reduces: str = ""
    on_diagonals: bool = False
    learning_rate: Any = None

    def recipe(self, of_values: bool) -> Recipe:
        return Recipe(_itself, (("transformation", self.transformation),))

    def __str__(self) -> str:
        return f"{self.reduces}:optax" if self.reduces else "optax"

    def __repr__(self) -> str:
        return f"<optimizer {self}>"


def _itself(transformation: Any) -> Any:
    return transformation


def is_transformation(value: Any) -> bool:
    """Has it what optax's transformations have?"""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def _is_number(value: Any) -> bool:
    return isinstance(value, float)


def _spelled(value: Any) -> str:
    return f"{value:g}" if _is_number(value) else str(value).lower()


def _checked_rate(rate: Any) -> Any:
    """A positive number, a tuple of them, or a schedule."""
    if callable(rate):
        return rate
    several = isinstance(rate, list | tuple | np.ndarray) and np.ndim(rate) == 1
    found = tuple(_positive_rate(each, rate) for each in (rate if several else [rate]))
    if not found:
        raise InputError(f"Argument `learning_rate` must be {_RATES}, but is {shown(rate)}.")
    return found if several else found[0]


_RATES = "a positive number, a list of them or a schedule"


def _positive_rate(each: Any, given: Any) -> float:
    try:
        number = as_number("learning_rate", each)
    except InputError:
        number = math.nan
    if not 0 < number < math.inf:
        raise InputError(f"Argument `learning_rate` must be {_RATES}, but is {shown(given)}.")
    return number


def _checked(name: str, value: Any) -> Any:
    """A hyperparameter: a number as a float, what is structure as it is."""
    if value is None or isinstance(value, bool | str):
        return value
    if name == "ns_coeffs":
        return tuple(as_number(name, v, "three numbers") for v in value)
    if name == "ns_steps":
        return value
    allowed = "a number from 0 to below 1" if name in _SHARES else "a number that is not negative"
    number = as_number(name, value, allowed)
    if not 0 <= number < (1 if name in _SHARES else math.inf):
        raise InputError(f"Argument `{name}` must be {allowed}, but is {shown(value)}.")
    return number


def _check_schedule(schedule: Callable[[Any], Any], step: int) -> None:
    try:
        found = np.asarray(schedule(step))
        if found.shape != () or found.dtype.kind not in "fiu":
            raise TypeError(f"{shown(schedule(step))}")
        number = float(found)
    except Exception as error:
        raise InputError(
            "Argument `learning_rate` must be a schedule that answers with one number for every step, "
            f"but for step {step} fails ({reason_of(error)})."
        ) from None
    if not 0 <= number < math.inf:
        raise InputError(
            "Argument `learning_rate` must be a schedule of numbers that are not negative, but is "
            f"{number:g} at step {step}."
        )
