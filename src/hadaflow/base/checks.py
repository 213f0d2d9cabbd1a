"""Numbers that users give, in whatever form, as numbers; or one sentence that says what is wrong."""

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
