"""Starts of the reduced view that have a name, and how starts are spelled as text."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hadaflow.base.checks import as_number, check_positive, check_whole_number
from hadaflow.base.errors import InputError, meant, shown
from hadaflow.base.files import read_text_file
from hadaflow.model.states import Spectrum, circulant, spectrum
from hadaflow.model.ufm import UFM, check_model

Draw = Callable[[np.random.Generator, int], np.ndarray]
_LEAST = 1e-3  # of the two levels of Figure 1
_DIGITS = 128  # bytes that one number of a file may take


def uniform(
    model: UFM, low: float, high: float, seeds: int | Sequence[int] = 0, *, C: Any = None,
    angle: float | None = None, units: str | None = None,
) -> Spectrum:  # fmt: skip
    """Singular values drawn independently and evenly between `low` and `high`.

    `seeds` is one seed for one start, or a list of seeds, such as `range(20)`, for a batch of as many.

    Examples:
        >>> uniform(UFM(4), 1.0, 1.0).a
        array([1., 1., 1.])
    """
    return _drawn(model, _uniform(low, high), seeds, C, angle, units)


def log_uniform(
    model: UFM, low: float, high: float, seeds: int | Sequence[int] = 0, *, C: Any = None,
    angle: float | None = None, units: str | None = None,
) -> Spectrum:  # fmt: skip
    """Singular values whose logarithms are even between those of `low` and `high`.

    `seeds` is one seed for one start, or a list of seeds for a batch of as many.

    Examples:
        >>> start = log_uniform(UFM(8), 1e-6, 1.0, seeds=[0, 1])
        >>> start.a.shape, bool(start.a.min() > 1e-6)
        ((2, 7), True)
    """
    return _drawn(model, _log_uniform(low, high), seeds, C, angle, units)


def lognormal(
    model: UFM, sigma: float = 1.0, seeds: int | Sequence[int] = 0, *, scale: float = 1.0,
    C: Any = None, angle: float | None = None, units: str | None = None,
) -> Spectrum:  # fmt: skip
    r"""Singular values $\mathrm{scale}\cdot e^{\sigma\xi}$ with normal $\xi$: `scale` is their median.

    `seeds` is one seed for one start, or a list of seeds for a batch of as many.

    Examples:
        >>> lognormal(UFM(4), 0.0, scale=0.5).a
        array([0.5, 0.5, 0.5])
    """
    return _drawn(model, _lognormal(sigma, scale), seeds, C, angle, units)


def small(
    model: UFM, scale: float = 1e-3, seeds: int | Sequence[int] = 0, *, C: Any = None,
    angle: float | None = None, units: str | None = None,
) -> Spectrum:  # fmt: skip
    """Singular values of one size: `scale` times numbers even between 0.5 and 1.5.

    `seeds` is one seed for one start, or a list of seeds for a batch of as many.

    Examples:
        >>> bool(abs(small(UFM(8), 1e-3, seeds=0).a / 1e-3 - 1).max() <= 0.5)
        True
    """
    return _drawn(model, _small(scale), seeds, C, angle, units)


def figure1(
    model: UFM, *, C: Any = None, angle: float | None = None, units: str | None = None
) -> Spectrum:
    """The start of the paper's Figure 1: the first half of the modes at 1, the others at 0.001.

    Of an odd number of modes the one in the middle is at 1; the constant mode of MSE is, too.

    Examples:
        >>> print(*figure1(UFM(8)).a)
        1.0 1.0 1.0 1.0 0.001 0.001 0.001
    """
    check_model(model)
    free = model.modes_of_view.modes
    values = np.where(np.arange(free) < (free + 1) // 2, 1.0, _LEAST)
    constant = [1.0] * model.has_constant_mode
    return spectrum(np.concatenate([constant, values]), C, units, angle=angle)


# --- drawing -------------------------------------------------------------------------------------


def _uniform(low: Any, high: Any) -> Draw:
    low, high = as_number("low", low), as_number("high", high)
    if not 0 <= low <= high < math.inf:
        raise InputError(
            "Arguments `low` and `high` must be numbers with 0 ≤ low ≤ high, but are "
            f"{shown(low)} and {shown(high)}."
        )
    return lambda rng, count: rng.uniform(low, high, count)


def _log_uniform(low: Any, high: Any) -> Draw:
    low, high = as_number("low", low), as_number("high", high)
    if not 0 < low <= high < math.inf:
        raise InputError(
            "Arguments `low` and `high` must be numbers with 0 < low ≤ high, but are "
            f"{shown(low)} and {shown(high)}."
        )
    logs = math.log(low), math.log(high)
    return lambda rng, count: np.clip(np.exp(rng.uniform(*logs, count)), low, high)


def _lognormal(sigma: Any, scale: Any = 1.0) -> Draw:
    sigma, scale = as_number("sigma", sigma), check_positive("scale", scale)
    if not 0 <= sigma < math.inf:
        raise InputError(f"Argument `sigma` must be from 0 upwards, but is {shown(sigma)}.")
    return lambda rng, count: scale * np.exp(sigma * rng.standard_normal(count))


def _small(scale: Any) -> Draw:
    scale = check_positive("scale", scale)
    return lambda rng, count: scale * rng.uniform(0.5, 1.5, count)


def _drawn(
    model: UFM, draw: Draw, seeds: Any, C: Any, angle: float | None, units: str | None
) -> Spectrum:
    """One start, or one for each seed: run i of a batch is that of seed i alone."""
    check_model(model)
    checked, several = check_seeds(seeds, "seeds")
    with np.errstate(over="ignore", under="ignore"):  # what is no number is refused by `spectrum`
        values = np.stack([draw(np.random.default_rng(s), model.modes) for s in checked])
    if several and model.depth > 2 and C is not None and np.ndim(C) == 2:  # one row for each layer
        C = np.broadcast_to(np.asarray(C, dtype=float), (len(checked), *np.shape(C)))
    start = spectrum(values if several else values[0], C, units, angle=angle)
    return dataclasses.replace(start, seed=checked if several else checked[0])


def check_seeds(seeds: Any, name: str = "seed") -> tuple[list[int], bool]:
    """One seed or several, and which of the two."""
    if isinstance(seeds, Sequence | np.ndarray) and not isinstance(seeds, str) and np.ndim(seeds):
        if len(seeds) == 0:
            raise InputError(f"Argument `{name}` must hold at least one seed, but is empty.")
        return [check_seed(s, name) for s in seeds], True
    return [check_seed(seeds, name)], False


def check_seed(seed: Any, name: str = "seed") -> int:
    return check_whole_number(name, seed, least=0)


# --- text ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Named:
    """A start that is spelled by its name and its numbers; the last one of drawn ones is a seed."""

    numbers: tuple[str, ...]
    allowed: str = ""
    draw: Callable[..., Draw] | None = None

    def spelling(self, name: str) -> str:
        return ":".join([name, *self.numbers, *(["SEED"] if self.draw else [])])


_NAMED = {
    "uniform": _Named(("LOW", "HIGH"), " with 0 ≤ LOW ≤ HIGH", _uniform),
    "lognormal": _Named(("SIGMA",), " with 0 ≤ SIGMA", _lognormal),
    "log-uniform": _Named(("LOW", "HIGH"), " with 0 < LOW ≤ HIGH", _log_uniform),
    "small": _Named(("SCALE",), " with 0 < SCALE", _small),
    "figure1": _Named(()),
}
SPELLINGS = ", ".join(named.spelling(name) for name, named in _NAMED.items())
DRAWN = [name for name, named in _NAMED.items() if named.draw]


def parse(
    model: UFM, text: str, *, seeds: int | Sequence[int] | None = None, C: Any = None,
    angle: float | None = None, units: str | None = None,
) -> Spectrum:  # fmt: skip
    """The start that a text spells, on the command line and wherever a start is taken.

    Args:
        model: The model that it is for.
        text: Numbers separated by commas, complex ones for modes with phases; @FILE with such
            numbers; or uniform:LOW:HIGH:SEED, log-uniform:LOW:HIGH:SEED, lognormal:SIGMA:SEED,
            small:SCALE:SEED, figure1. A seed that is left out is 0.
        seeds: The seeds instead, for starts that are drawn; a list gives a batch.
        C: Differences of the layers, as in `spectrum`.
        angle: The angle between two blocks of classes, as in `spectrum`.
        units: "scaled" or "raw".

    Examples:
        >>> parse(UFM(4), "1, 0.5, 0.1").a
        array([1. , 0.5, 0.1])
        >>> parse(UFM(8), "uniform:0.1:1", seeds=range(100)).a.shape
        (100, 7)
    """
    check_model(model)
    if not isinstance(text, str):
        raise InputError(f"Argument `text` must be text, but is {shown(text)}.")
    name, numbers = _parts(text)
    named = _NAMED.get(name)
    if named is not None and named.draw is not None:
        draw, own = _read(name, named, numbers, text)
        if own is not None and seeds is not None:
            raise InputError(
                f"Argument `start` must have no seed of its own beside `seeds`, but is {shown(text)}."
            )
        chosen = (own or 0) if seeds is None else seeds
        return _drawn(model, draw, chosen, C, angle, units)
    if seeds is not None:
        raise InputError(
            f"Argument `seeds` is for starts that are drawn ({', '.join(DRAWN)}), but `start` is "
            f"{shown(text)}."
        )
    if named is not None:
        _read(name, named, numbers, text)
        return figure1(model, C=C, angle=angle, units=units)
    if _is_word(name):
        raise InputError(
            f"Argument `start` must be numbers separated by commas, @FILE or one of {SPELLINGS}, but "
            f"is {shown(text)}{meant(name, _NAMED)}."
        )
    if text.startswith("@"):
        size = _DIGITS * (max(0, min(model.modes, 2**24)) + 64)
        text = read_text_file("the start", Path(text[1:]), size)
    return _of_numbers(text, C, angle, units)


def wants_seed(text: str) -> bool:
    """Is it the spelling of a start that is drawn, without its seed?"""
    name, numbers = _parts(text)
    return name in DRAWN and len(numbers) <= len(_NAMED[name].numbers)


def is_named(text: str) -> bool:
    """Is it the spelling of a start that has a name?"""
    return _parts(text)[0] in _NAMED


def _parts(text: str) -> tuple[str, list[str]]:
    """The name, if it is one, and the numbers behind it."""
    name, *numbers = text.strip().split(":")
    return name.replace("_", "-"), numbers


def _read(name: str, named: _Named, numbers: list[str], text: str) -> tuple[Any, int | None]:
    """How a named start is drawn, and its seed, if it says one."""
    count = len(named.numbers)
    try:
        if len(numbers) not in (count, count + bool(named.draw)):
            raise ValueError
        values = [float(v) for v in numbers[:count]]
        seed = check_seed(int(numbers[count])) if len(numbers) > count else None
        return named.draw and named.draw(*values), seed
    except ValueError:  # an InputError is one
        drawn = " and a whole SEED" if named.draw else ""
        raise InputError(
            f"Argument `start` must be {named.spelling(name)}{named.allowed}{drawn}, but is "
            f"{shown(text)}."
        ) from None


def _is_word(name: str) -> bool:
    """Is it a name rather than a number, such as nan or 1j?"""
    if not re.fullmatch(r"[A-Za-z][\w-]*", name.strip(), re.ASCII):
        return False
    try:
        complex(name)
    except ValueError:
        return True
    return False


def _of_numbers(text: str, C: Any, angle: float | None, units: str | None) -> Spectrum:
    parts = text.replace(",", " ").split()
    phases = "j" in text
    try:
        values: list[Any] = [complex(v) if phases else float(v) for v in parts]
    except ValueError:
        kinds = ", complex ones such as 1+0.5j" if phases else ""
        raise InputError(
            f"Argument `start` must be numbers separated by commas{kinds}, but is {shown(text)}."
        ) from None
    if not phases:
        return spectrum(values, C, units, angle=angle)
    if angle is not None:
        raise InputError("Argument `angle` does not go with complex numbers, which have their own.")
    return circulant(values, C, units)
