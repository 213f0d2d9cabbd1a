"""The one exception for input that cannot be used."""

import os
import sys


class InputError(ValueError):
    """An argument is not allowed; the message names it, what was given and what is allowed.

    The command line prints the message as one line and exits with code 2.
    """


def check_whole_number(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """`value` as an int, if it is a whole number within the bounds."""
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    number = value.__index__() if whole else None  # pyright: ignore
    if number is None or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"Argument `{name}` must be a whole number {bounds}, but is {value!r}.")
    return number


def check_seconds(seconds: object) -> None:
    """Refuse what is no length of time."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (number and seconds > 0):  # pyright: ignore
        raise InputError(f"Argument `seconds` must be a positive number, but is {seconds!r}.")


def no_device(error: Exception) -> str | None:
    """What to say where JAX has nothing to compute on, which it tells in many ways; else None."""
    devices = getattr(sys.modules.get("jax"), "devices", None)
    if devices is None or isinstance(error, InputError):
        return None
    try:
        devices()
    except Exception as reason:
        said = " ".join(str(reason).split())[:200] or "there is no such device"
        asked = os.environ.get("JAX_PLATFORMS", "")
        return f"JAX has no device to compute on with JAX_PLATFORMS={asked!r}: {said.rstrip('.')}."
    return None
