r"""Ball arithmetic (python-flint): exact input, enclosures, and derivatives carried beside values.

A ball contains the exact number. A sign read off a ball that excludes zero is a proof.
"""

import dataclasses
import functools
import itertools
import numbers
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import flint
from flint import arb, fmpq

from hadaflow.errors import InputError

Balls = list[Any]  # flint.arb has no type stubs
FIRST_BITS, LAST_BITS = 64, 2**14
_MOST_DIGIT_BITS = 13_000


def exact(value: Any, name: str = "a") -> Fraction:
    """A number as the rational it is: decimals and fractions as written, floats as stored.

    Examples:
        >>> exact("1.25"), exact("1/3"), exact(0.5)
        (Fraction(5, 4), Fraction(1, 3), Fraction(1, 2))
    """
    try:
        if isinstance(value, numbers.Integral):  # NumPy's integers too, of any size
            known = Fraction(int(value))
        elif isinstance(value, str | Decimal | Fraction):
            known = Fraction(value)
        else:
            known = Fraction(float(value))
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        raise InputError(
            f"Argument `{name}` must hold finite numbers, but has {value!r}."
        ) from None
    if max(known.numerator.bit_length(), known.denominator.bit_length()) > _MOST_DIGIT_BITS:
        raise InputError(f"Argument `{name}` must hold numbers of at most 4000 digits.")
    return known


def written(value: Fraction) -> str:
    """A rational as a decimal where it has one, else as a fraction.

    Examples:
        >>> written(Fraction(1, 8)), written(Fraction(1, 3)), written(Fraction(3))
        ('0.125', '1/3', '3')
    """
    twos, fives, rest = 0, 0, value.denominator
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        return str(value)
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


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


class Dual:
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
        waiting: list[Dual] = [self]
        while waiting:  # a loop, because sums may be longer than Python's stack
            last = waiting[-1]
            parts = () if last._way is None else last._way
            missing = [p for p in parts if isinstance(p, Dual) and p._key is None]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if last._key is None:
                known = tuple(p._key if isinstance(p, Dual) else p for p in parts)
                last._key = _interned(known) if known else next(_NUMBERS)
        assert self._key is not None
        return self._key

    def with_rate(self, rate: Any) -> "Dual":
        """The same number, changing at another rate."""
        copy = Dual(self.value, ball(rate), self._way)
        copy._key = self.key
        return copy

    @classmethod
    def constant(cls, value: Any) -> "Dual":
        """A number that does not change; balls are of unknown origin."""
        if isinstance(value, arb):
            return cls(value)
        known = value if isinstance(value, Fraction) else exact(value)
        return cls(ball(known), _NOTHING, ("exact", known))

    def __add__(self, other: Any) -> "Dual":
        if isinstance(other, Dual):
            return Dual(self.value + other.value, self.rate + other.rate, ("+", self, other))
        return Dual(self.value + _operand(other), self.rate, ("+", self, _origin(other)))

    def __mul__(self, other: Any) -> "Dual":
        if isinstance(other, Dual):
            rate = self.rate * other.value + self.value * other.rate
            return Dual(self.value * other.value, rate, ("*", self, other))
        number = _operand(other)
        return Dual(self.value * number, self.rate * number, ("*", self, _origin(other)))

    def __truediv__(self, other: Any) -> "Dual":
        if isinstance(other, Dual):
            value = self.value / other.value
            rate = (self.rate - value * other.rate) / other.value
            return Dual(value, rate, ("/", self, other))
        number = _operand(other)
        return Dual(self.value / number, self.rate / number, ("/", self, _origin(other)))

    def __neg__(self) -> "Dual":
        return Dual(-self.value, -self.rate, ("-", self))

    def __sub__(self, other: Any) -> "Dual":
        return self + (-other)

    def __rsub__(self, other: Any) -> "Dual":
        return -self + other

    def __rtruediv__(self, other: Any) -> "Dual":
        return _dual(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def __pow__(self, power: Any) -> "Dual":
        if isinstance(power, Dual):
            return (self.log() * power).exp()
        p = exact(power, "power")
        if p.denominator == 1:
            n = p.numerator
            value, slope = self.value**n, n * self.value ** (n - 1) if n else _NOTHING
        else:
            value = self.value ** ball(p)
            slope = ball(p) * value / self.value
        return Dual(value, slope * self.rate, ("**", self, p))

    def __rpow__(self, base: Any) -> "Dual":
        return (_dual(base).log() * self).exp()

    def __abs__(self) -> "Dual":
        return largest([self, -self])

    def max(self, other: Any) -> "Dual":
        return largest([self, _dual(other)])

    def min(self, other: Any) -> "Dual":
        return smallest([self, _dual(other)])

    def __getattr__(self, name: str) -> Callable[[], "Dual"]:
        if name not in _SLOPES:
            raise AttributeError(f"an exact number has no {name!r}")

        def apply() -> Dual:
            value = getattr(self.value, name)()
            return Dual(value, _SLOPES[name](self.value, value) * self.rate, (name, self))

        return apply

    def _undecidable(self, *_: Any) -> Any:
        raise TypeError("exact numbers are compared with `largest` and `smallest`")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _undecidable  # pyright: ignore
    __bool__ = __float__ = __int__ = __hash__ = _undecidable


def _dual(value: Any) -> Dual:
    return value if isinstance(value, Dual) else Dual.constant(value)


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


def largest(values: Iterable[Any]) -> Dual:
    """The maximum, and its rate to the right: among tied entries the one that leaves first.

    Entries that might tie, without being proven to, are all kept: their rates' hull is the rate.
    """
    given = [_dual(v) for v in values]
    floor = functools.reduce(lambda p, q: p.max(q), (v.value.lower() for v in given))
    tied: list[Dual] = []
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
    return Dual(value, functools.reduce(lambda p, q: p.union(q), (v.rate for v in tied)))


def smallest(values: Iterable[Any]) -> Dual:
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
    function: Callable[[], Any], relative: float = 1e-15, most_bits: int = LAST_BITS
) -> Enclosure:
    """Evaluate with more and more bits until the sign is proven and the ball is `relative`ly small.

    Gives up at `most_bits` (2^14), which an exact zero reaches, or a value below about 10^−4900 of its
    terms.
    """
    bits = min(FIRST_BITS, most_bits)
    while True:
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
