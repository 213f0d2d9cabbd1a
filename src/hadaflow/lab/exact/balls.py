r"""Ball arithmetic (python-flint): exact input, enclosures, and derivatives carried beside values.

A ball contains the exact number. A sign read off a ball that excludes zero is a proof.
"""

import dataclasses
import functools
import itertools
import math
import numbers
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import flint
from flint import arb, fmpq

from hadaflow.base.errors import InputError, shown

Balls = list[Any]  # flint.arb has no type stubs
FIRST_BITS, LAST_BITS = 64, 2**14
_MOST_DIGITS, _MOST_DIGIT_BITS = 4000, 13_000  # Python reads and writes 4300 digits at most
_EXPONENT = re.compile(r"[eE]([+-]?[0-9_]+)\s*\Z")


def exact(value: Any, name: str = "a") -> Fraction:
    """A number as the rational it is: decimals and fractions as written, floats as stored.

    Examples:
        >>> exact("1.25"), exact("1/3"), exact(0.5)
        (Fraction(5, 4), Fraction(1, 3), Fraction(1, 2))
    """
    if isinstance(value, str | Decimal):
        # The exponent is looked at first: 1e-999999999 is a long way to a fraction.
        exponent = _EXPONENT.search(str(value))
        if exponent and (len(exponent[1]) > 5 or abs(int(exponent[1])) > _MOST_DIGITS):
            raise InputError(
                f"Argument `{name}` must hold numbers of at most {_MOST_DIGITS} digits."
            )
    try:
        if isinstance(value, numbers.Integral):  # NumPy's integers too, of any size
            known = Fraction(int(value))
        elif isinstance(value, str | Decimal | Fraction):
            known = Fraction(value)
        else:
            known = Fraction(float(value))
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        raise InputError(
            f"Argument `{name}` must hold finite numbers, but has {shown(value)}."
        ) from None
    if max(known.numerator.bit_length(), known.denominator.bit_length()) > _MOST_DIGIT_BITS:
        raise InputError(f"Argument `{name}` must hold numbers of at most {_MOST_DIGITS} digits.")
    return known


def check_denominators(name: str, values: Iterable[Fraction]) -> None:
    """Refuse numbers whose sums would be fractions of very many digits."""
    common = 1
    for value in values:
        common = math.lcm(common, value.denominator)
        if common.bit_length() > _MOST_DIGIT_BITS:
            raise InputError(
                f"Argument `{name}` must hold numbers with a common denominator of at most "
                f"{_MOST_DIGITS} digits."
            )


def written(value: Fraction) -> str:
    """A rational as a decimal where it has one, else as a fraction.

    Examples:
        >>> written(Fraction(1, 8)), written(Fraction(1, 3)), written(Fraction(3))
        ('0.125', '1/3', '3')
    """
    rest, twos = _without(value.denominator, 2)
    rest, fives = _without(rest, 5)
    places = max(twos, fives)
    if rest != 1 or places > _MOST_DIGITS:
        return str(value)
    whole = abs(value.numerator) * 10**places // value.denominator
    if whole.bit_length() > _MOST_DIGIT_BITS:
        return str(value)
    digits = str(whole).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def _without(number: int, prime: int) -> tuple[int, int]:
    """The number without a prime factor, and how often it had it; for thousands of times, too."""
    powers = [prime]
    while number % powers[-1] == 0:
        powers.append(powers[-1] ** 2)
    times = 0
    for k in reversed(range(len(powers))):
        if number % powers[k] == 0:
            number, times = number // powers[k], times + 2**k
    return number, times


def ball(value: Any) -> Any:
    """A rational, integer or float as a ball, rounded outward at the working precision."""
    if isinstance(value, arb):
        return value
    value = value if isinstance(value, Fraction) else exact(value)
    return arb(fmpq(value.numerator, value.denominator))


# --- a ball and its derivative -------------------------------------------------------------------

_SLOPES: dict[str, Callable[[Any, Any], Any]] = {  # of f at v, given f(v)
    "log": lambda v, f: 1 / v,
    "exp": lambda v, f: f,
    "sqrt": lambda v, f: 1 / (2 * f),
    "log1p": lambda v, f: 1 / (1 + v),
    "expm1": lambda v, f: f + 1,
    "sin": lambda v, f: v.cos(),
    "cos": lambda v, f: -v.sin(),
    "tanh": lambda v, f: 1 - f * f,
}


# Ways in which numbers were made, numbered: the same way has the same number, and no number is used
# twice, so that the table may be cleared between evaluations.
_NUMBERS = itertools.count()
_WAYS: dict[Any, int] = {}
_NOTHING = arb(0)


def _interned(way: Any) -> int:
    if way not in _WAYS:
        _WAYS[way] = next(_NUMBERS)
    return _WAYS[way]


class Rated:
    """A number and its rate of change, both as balls.

    Arithmetic and the methods of `flint.arb` that are defined here follow the chain rule. `way` is how
    the number was made from exact ones, an operation and what it was applied to: two that were made in
    the same way are equal, which balls alone never prove.
    """

    __slots__ = ("_key", "_way", "rate", "value")

    def __init__(
        self, value: Any, rate: Any = _NOTHING, way: tuple[Any, ...] | None = None
    ) -> None:
        self.value, self.rate = value, rate
        self._way, self._key = way, None

    @property
    def key(self) -> int:
        """The number of the way; of a number of unknown origin its own."""
        waiting: list[Rated] = [self]
        while waiting:  # a loop, because sums may be longer than Python's stack
            last = waiting[-1]
            parts = () if last._way is None else last._way
            missing = [p for p in parts if isinstance(p, Rated) and p._key is None]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if last._key is None:
                known = tuple(p._key if isinstance(p, Rated) else p for p in parts)
                last._key = _interned(known) if known else next(_NUMBERS)
        assert self._key is not None
        return self._key

    def with_rate(self, rate: Any) -> "Rated":
        """The same number, changing at another rate."""
        copy = Rated(self.value, ball(rate), self._way)
        copy._key = self.key
        return copy

    @classmethod
    def constant(cls, value: Any) -> "Rated":
        """A number that does not change; balls are of unknown origin."""
        if isinstance(value, arb):
            return cls(value)
        known = value if isinstance(value, Fraction) else exact(value)
        return cls(ball(known), _NOTHING, ("exact", known))

    def __add__(self, other: Any) -> "Rated":
        if isinstance(other, Rated):
            return Rated(self.value + other.value, self.rate + other.rate, ("+", self, other))
        return Rated(self.value + _operand(other), self.rate, ("+", self, _origin(other)))

    def __mul__(self, other: Any) -> "Rated":
        if isinstance(other, Rated):
            rate = self.rate * other.value + self.value * other.rate
            return Rated(self.value * other.value, rate, ("*", self, other))
        number = _operand(other)
        return Rated(self.value * number, self.rate * number, ("*", self, _origin(other)))

    def __truediv__(self, other: Any) -> "Rated":
        if isinstance(other, Rated):
            value = self.value / other.value
            rate = (self.rate - value * other.rate) / other.value
            return Rated(value, rate, ("/", self, other))
        number = _operand(other)
        return Rated(self.value / number, self.rate / number, ("/", self, _origin(other)))

    def __neg__(self) -> "Rated":
        return Rated(-self.value, -self.rate, ("-", self))

    def __sub__(self, other: Any) -> "Rated":
        return self + (-other)

    def __rsub__(self, other: Any) -> "Rated":
        return -self + other

    def __rtruediv__(self, other: Any) -> "Rated":
        return _dual(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def __pow__(self, power: Any) -> "Rated":
        if isinstance(power, Rated):
            return (self.log() * power).exp()
        p = exact(power, "power")
        if p.denominator == 1:
            n = p.numerator
            value, slope = self.value**n, n * self.value ** (n - 1) if n else _NOTHING
        else:
            value = self.value ** ball(p)
            slope = ball(p) * value / self.value
        return Rated(value, slope * self.rate, ("**", self, p))

    def __rpow__(self, base: Any) -> "Rated":
        return (_dual(base).log() * self).exp()

    def __abs__(self) -> "Rated":
        return largest([self, -self])

    def max(self, other: Any) -> "Rated":
        return largest([self, _dual(other)])

    def min(self, other: Any) -> "Rated":
        return smallest([self, _dual(other)])

    def __getattr__(self, name: str) -> Callable[[], "Rated"]:
        if name not in _SLOPES:
            raise AttributeError(f"an exact number has no {name!r}")

        def apply() -> Rated:
            value = getattr(self.value, name)()
            return Rated(value, _SLOPES[name](self.value, value) * self.rate, (name, self))

        return apply

    def _undecidable(self, *_: Any) -> Any:
        raise TypeError("exact numbers are compared with `largest` and `smallest`")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _undecidable  # pyright: ignore
    __bool__ = __float__ = __int__ = __hash__ = _undecidable


def _dual(value: Any) -> Rated:
    return value if isinstance(value, Rated) else Rated.constant(value)


def _operand(value: Any) -> Any:
    """A plain number for arithmetic with balls: integers and balls as they are."""
    return value if isinstance(value, int | arb) else ball(value)


def _origin(value: Any) -> Any:
    """What a plain number adds to a way: itself, exactly; a ball may be any number in it."""
    if isinstance(value, arb):
        return next(_NUMBERS), "ball"
    return "exact", value if isinstance(value, int | Fraction) else exact(value)


def total(values: Iterable[Any]) -> Any:
    """The sum, of balls or of duals; never the integer 0."""
    return functools.reduce(lambda p, q: p + q, values)


def largest(values: Iterable[Any]) -> Rated:
    """The maximum, and its rate to the right: among tied entries the one that leaves first.

    Entries that might tie, without being proven to, are all kept: their rates' hull is the rate.
    """
    given = [_dual(v) for v in values]
    floor = functools.reduce(lambda p, q: p.max(q), (v.value.lower() for v in given))
    tied: list[Rated] = []
    for v in given:
        if v.value < floor:
            continue
        same = next((i for i, w in enumerate(tied) if w.key == v.key), None)
        if same is None:
            tied.append(v)
        else:
            tied[same] = v.with_rate(v.rate.max(tied[same].rate))
    if len(tied) == 1:
        return tied[0]
    value = functools.reduce(lambda p, q: p.max(q), (v.value for v in tied))
    return Rated(value, functools.reduce(lambda p, q: p.union(q), (v.rate for v in tied)))


def smallest(values: Iterable[Any]) -> Rated:
    return -largest([-_dual(v) for v in values])


# --- deciding signs ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Enclosure:
    """A ball around the exact value, and the sign it proves (0 when it proves none)."""

    ball: Any
    bits: int

    @property
    def sign(self) -> int:
        return 1 if self.ball > 0 else -1 if self.ball < 0 else 0

    @property
    def value(self) -> float:
        return float(self.ball.mid())

    def __str__(self) -> str:
        return self.ball.str(20)


def enclose(
    function: Callable[[], Any],
    relative: float = 1e-15,
    most_bits: int = LAST_BITS,
    begin: Callable[[int], None] = lambda bits: None,
) -> Enclosure:
    r"""Evaluate with more and more bits until the sign is proven and the ball is `relative`ly small.

    Gives up at `most_bits` ($2^{14}$), which an exact zero reaches, or a value below about
    $10^{-4900}$ of its terms. `begin` is called with the bits before each evaluation, and may refuse it.
    """
    bits = min(FIRST_BITS, most_bits)
    while True:
        begin(bits)
        _WAYS.clear()
        with flint.ctx.workprec(bits):
            result = function()
            size = abs(result.mid())
            done = size > 0 and bool(result.rad() <= size * relative)
        if done or bits >= most_bits:
            return Enclosure(result, bits)
        bits = min(2 * bits, most_bits)


def increasing_root(offsets: Sequence[Fraction], goal: Fraction) -> Any:
    r"""The root $v\ge0$ of $\prod_l(v + d_l) = $ `goal`, $d_l\ge0$, one of them zero: proven bounds."""
    if goal == 0:
        return arb(0)
    shifts, aim, N = [ball(d) for d in offsets], ball(goal), len(offsets)

    def product(v: Any) -> Any:
        return functools.reduce(lambda p, q: p * q, [v + d for d in shifts])

    # Two bounds from above: all factors are at least v, and those with an offset at least that.
    zeros = [d for d in offsets if d == 0]
    rest = functools.reduce(lambda p, q: p * q, [ball(d) for d in offsets if d], arb(1))
    highest = (aim ** (arb(1) / N)).min((aim / rest) ** (arb(1) / len(zeros))).upper()
    # Newton from there on an increasing convex function; the bounds are proven afterwards.
    v = highest
    for _ in range(60 + flint.ctx.prec.bit_length()):
        slope = total([product(v) / (v + d) for d in shifts])
        step = (v - (product(v) - aim) / slope).mid()
        v = step if step > 0 else v / 2
    width = arb(2) ** (8 - flint.ctx.prec)
    while width < 1:
        low, high = (v * (1 - width)).lower(), (v * (1 + width)).upper()
        if product(low) < aim and product(high) > aim:
            return low.union(high)
        width = width * 256
    return arb(0).union(highest)
