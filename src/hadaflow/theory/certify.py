r"""Rigorous signs: exact rational input, enclosures in ball arithmetic (python-flint).

Nothing here uses the model or the metrics of the rest: the flow and the derivative of each metric
are written down once more, from their definitions, over balls that contain the exact value. A sign
read off a ball that excludes zero is a proof.
"""

import dataclasses
import functools
import numbers
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import flint
from flint import arb, fmpq

from hadaflow.bases import Sylvester
from hadaflow.errors import InputError

Balls = list[Any]  # flint.arb has no type stubs
Matrix = Sequence[Sequence[int]]
_FIRST_BITS, _LAST_BITS = 64, 2**14


def exact(value: Any) -> Fraction:
    """A number as the rational it is: decimals and fractions as written, floats as stored.

    Examples:
        >>> exact("1.25"), exact("1/3"), exact(0.5)
        (Fraction(5, 4), Fraction(1, 3), Fraction(1, 2))
    """
    try:
        if isinstance(value, numbers.Integral):  # NumPy's integers too, of any size
            return Fraction(int(value))
        if isinstance(value, str | Decimal | Fraction):
            return Fraction(value)
        return Fraction(float(value))
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        raise InputError(f"Argument `a` must hold finite numbers, but has {value!r}.") from None


def ball(value: Fraction) -> Any:
    """The rational as a ball, rounded outward at the working precision."""
    return arb(fmpq(value.numerator, value.denominator))


@functools.cache
def sylvester_psi(K: int) -> tuple[tuple[int, ...], ...]:
    """Ψ = 11ᵀ − X over the integers: entry 2 where bits i and j share an odd number of ones, else 0."""
    return tuple(tuple(2 * ((i & j).bit_count() % 2) for j in range(1, K)) for i in range(1, K))


@dataclasses.dataclass(frozen=True)
class Flow:
    r"""The reduced flow at one state, over balls: $x = \Psi a$, $e = e^{-x}$, $b$, $D$, $\dot a$.

    `depth` 2 is Eq. (9), $\dot a = a\,b/D$; depth 1 is direct logit optimization, $\dot a = b/D$.
    """

    state: tuple[Fraction, ...]
    a: Balls
    x: Balls
    e: Balls
    b: Balls
    D: Any
    velocity: Balls

    @classmethod
    def at(cls, a: Sequence[Fraction], psi: Matrix | None = None, depth: int = 2) -> "Flow":
        psi = sylvester_psi(len(a) + 1) if psi is None else psi
        balls = [ball(v) for v in a]
        x = multiply(psi, balls)
        e = [(-v).exp() for v in x]
        b = multiply(psi, e)
        D = sum(e, arb(1))
        weights = balls if depth == 2 else [arb(1)] * len(balls)
        velocity = [w * v / D for w, v in zip(weights, b, strict=True)]
        return cls(tuple(a), balls, x, e, b, D, velocity)


def multiply(matrix: Matrix, vector: Balls) -> Balls:
    """An integer matrix times a vector of balls; zeros cost nothing."""
    return [sum((m * v for m, v in zip(row, vector, strict=True) if m), arb(0)) for row in matrix]


# --- derivatives of the metrics along a velocity, from their definitions --------------------------


def _direction_rate(flow: Flow) -> tuple[Balls, Balls]:
    """â and dâ/dt = (ȧ − â Σȧ)/‖a‖₁, for positive a."""
    norm, growth = sum(flow.a, arb(0)), sum(flow.velocity, arb(0))
    a_hat = [v / norm for v in flow.a]
    return a_hat, [(v - h * growth) / norm for v, h in zip(flow.velocity, a_hat, strict=True)]


def kl_rate(flow: Flow) -> Any:
    """KL(uniform ‖ â) = log‖a‖₁ − mean log a − log(K−1)."""
    growth = sum(flow.velocity, arb(0)) / sum(flow.a, arb(0))
    logs = sum((v / a for v, a in zip(flow.velocity, flow.a, strict=True)), arb(0))
    return growth - logs / len(flow.a)


def reverse_kl_rate(flow: Flow) -> Any:
    """KL(â ‖ uniform) = log(K−1) + Σ â log â, so Σ dâ log â (as Σ dâ = 0)."""
    a_hat, rates = _direction_rate(flow)
    return sum((r * h.log() for r, h in zip(rates, a_hat, strict=True)), arb(0))


def l2_rate(flow: Flow) -> Any:
    """M = ½ Σ (â − 1/(K−1))², so Σ â dâ."""
    a_hat, rates = _direction_rate(flow)
    return sum((r * h for r, h in zip(rates, a_hat, strict=True)), arb(0))


def frobenius_rate(flow: Flow) -> Any:
    """M̃ = 2 − 2 Σa/(‖a‖₂ √(K−1))."""
    total, growth = sum(flow.a, arb(0)), sum(flow.velocity, arb(0))
    square = sum((v * v for v in flow.a), arb(0))
    inner = sum((v * w for v, w in zip(flow.a, flow.velocity, strict=True)), arb(0))
    return (
        -2 * (growth * square - total * inner) / (square.sqrt() * square * arb(len(flow.a)).sqrt())
    )


def log_ratio_rate(flow: Flow) -> Any:
    """Max log a − min log a, to the right: among tied entries the one that leaves first decides."""
    rates = [v / w for v, w in zip(flow.velocity, flow.a, strict=True)]

    def tied(extreme: Fraction) -> Balls:
        return [r for r, v in zip(rates, flow.state, strict=True) if v == extreme]

    top = functools.reduce(lambda p, q: p.max(q), tied(max(flow.state)))
    return top - functools.reduce(lambda p, q: p.min(q), tied(min(flow.state)))


RATES: dict[str, Callable[[Flow], Any]] = {
    "kl": kl_rate,
    "reverse_kl": reverse_kl_rate,
    "l2": l2_rate,
    "frobenius": frobenius_rate,
    "log_ratio": log_ratio_rate,
}


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


def enclose(function: Callable[[], Any], relative: float = 1e-15) -> Enclosure:
    """Evaluate with more and more bits until the sign is proven and the ball is `relative`ly small.

    Gives up at 2^14 bits, which an exact zero reaches, or a value below about 10^−4900 of its terms.
    """
    bits = _FIRST_BITS
    while True:
        with flint.ctx.workprec(bits):
            result = function()
            size = abs(result.mid())
            done = size > 0 and bool(result.rad() <= size * relative)
        if done or bits >= _LAST_BITS:
            return Enclosure(result, bits)
        bits *= 2


def metric_rate(
    metric: str,
    a: Iterable[Any],
    psi: Matrix | None = None,
    depth: int = 2,
    relative: float = 1e-15,
) -> Enclosure:
    """Rigorous enclosure of dm/dt along the reduced flow (scaled units) at an exactly given state.

    Examples:
        >>> print(metric_rate("l2", ["1", "1", "1", "1.25", "0.01", "0.01", "0.01"]).sign)
        1
    """
    state = [exact(v) for v in a]
    if metric not in RATES:
        raise InputError(f"Unknown metric {metric!r}; allowed are {', '.join(RATES)}.")
    if depth not in (1, 2):
        raise InputError(f"Argument `depth` must be 1 or 2, but is {depth!r}.")
    if min(state, default=Fraction(0)) <= 0:
        raise InputError("Argument `a` must hold positive numbers, one for each non-trivial mode.")
    if psi is None:
        Sylvester(len(state) + 1)  # refuses a number of modes that is not 2^m − 1
    return enclose(lambda: RATES[metric](Flow.at(state, psi, depth)), relative)
