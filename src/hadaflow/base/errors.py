"""The one exception for input that cannot be used, and how input is shown in its message."""

import contextlib
import difflib
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class InputError(ValueError):
    """An argument is not allowed; the message names it, what was given and what is allowed.

    The command line prints the message as one line and exits with code 2.
    """


def printable(text: str, most: int | None = None) -> str:
    r"""`text` as one line that a terminal shows and never obeys, of at most `most` characters.

    Spaces of every kind become one space, and what is no letter is `visible`.

    Examples:
        >>> print(printable("a line\nor two"), printable("1234567890", 5))
        a line or two 1234…
    """
    if most is not None:
        text = text[: 4 * most]  # what is cut anyway is not looked at
    line = visible(" ".join(text.split()))
    return line if most is None or len(line) <= most else line[: most - 1] + "…"


def visible(text: str) -> str:
    r"""`text` with everything that a terminal would obey rather than show as its number.

    Control characters, escape sequences among them, and marks that turn the direction of writing; lines
    stay lines.

    Examples:
        >>> print(visible("holds\x1b[2K"))
        holds\x1b[2K
    """
    if text.isprintable():
        return text

    def one(character: str) -> str:
        if character == "\n" or unicodedata.category(character)[0] != "C":
            return character
        return character.encode("unicode_escape", "surrogatepass").decode()

    return "".join(map(one, text))


def shown(value: object, most: int = 80) -> str:
    """Any value for a message: its `repr` on one line, shortened, without where it lies in memory."""
    text = _described(repr, value) or f"a value of type {type(value).__name__}"
    return printable(_ADDRESS.sub("", text[: 8 * most]), most)


def _described(how: Callable[[object], str], value: object) -> str:
    """`repr` or `str`; nothing of an integer of too many digits, or of an object that fails at it."""
    try:
        return how(value)
    except BaseException as error:
        if type(error) is KeyboardInterrupt:
            raise
        return ""


def meant(name: str, known: Iterable[str]) -> str:
    """The known names that may have been meant, for a message; nothing if none is near."""
    wanted, names = name.lower().replace("-", "_")[:80], sorted(known)
    close = [n for n in names if n.startswith(wanted)] if wanted else []
    close = close or difflib.get_close_matches(wanted, names, 3, 0.7)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


@contextlib.contextmanager
def failures_told(sentence: Callable[[str], str]) -> Iterator[None]:
    """Whatever code of a user raises becomes an `InputError`, `sentence` of the reason.

    That includes `SystemExit` and exceptions of its own kind; only Ctrl-C still interrupts.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if type(error) is KeyboardInterrupt:
            raise
        told = no_device(error) if isinstance(error, Exception) else None
        raise InputError(told or sentence(reason_of(error))) from None


def reason_of(error: BaseException) -> str:
    """An exception as `Type: message`, fit for a sentence."""
    text = _ADDRESS.sub("", _described(str, error)[:2000])
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__, 160)


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
