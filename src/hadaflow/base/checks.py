"""Numbers that users give, in whatever form, as numbers; or one sentence that says what is wrong."""

import math
import operator
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, shown

_NO_NUMBERS = "mMUSc"  # kinds of arrays: times, text, complex


def as_number(name: str, value: Any, allowed: str = "a number") -> float:
    """`value` as a float; integers beyond all floats, text and truth values are none."""
    try:
        if isinstance(value, bool | str | bytes) or np.ndim(value) != 0:
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"Argument `{name}` must be {allowed}, but is {shown(value)}.") from None


def as_numbers(
    name: str, values: Any, dtype: Any = np.float64, copy: bool | None = True
) -> np.ndarray:
    """`values` as an array of real numbers, or of complex ones if that is the `dtype`.

    A new one, unless `copy` is None: then only where one is needed.
    """
    try:
        given = np.asanyarray(values)
        if isinstance(given, np.ma.MaskedArray) and np.any(given.mask):
            raise TypeError
        kinds = _NO_NUMBERS if dtype is np.float64 else _NO_NUMBERS.replace("c", "")
        if given.dtype.kind in kinds:
            raise TypeError
        return np.array(given, dtype=dtype, copy=copy, subok=False)
    except (TypeError, ValueError, OverflowError):
        kind = "numbers" if dtype is np.float64 else "complex numbers"
        raise InputError(f"Argument `{name}` must hold {kind}, but is {shown(values)}.") from None


def is_whole_number(value: Any, least: int = 1, most: int | None = None) -> bool:
    """Is it a whole number within the bounds? Truth values are none."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return False
    return number is not None and number >= least and (most is None or number <= most)


def check_whole_number(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """`value` as an int, if it is a whole number within the bounds."""
    if not is_whole_number(value, least, most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(
            f"Argument `{name}` must be a whole number {bounds}, but is {shown(value)}."
        )
    return operator.index(value)


def check_positive(name: str, value: Any, least: float = 0.0) -> float:
    """`value` as a float, if it is a positive finite number, and not below `least`."""
    allowed = "a positive number" + (f" of at least {least:g}" if least else "")
    number = as_number(name, value, allowed)
    if not (math.isfinite(number) and number > 0 and number >= least):
        raise InputError(f"Argument `{name}` must be {allowed}, but is {shown(value)}.")
    return number


def check_seconds(seconds: Any) -> float:
    """`seconds` as a float, if it is a length of time; inf is without end."""
    length = as_number("seconds", seconds, "a positive number")
    if not length > 0:
        raise InputError(f"Argument `seconds` must be a positive number, but is {shown(seconds)}.")
    return length
