r"""The reduced flow once more, over balls: exact rational input, any symmetric group, any depth.

Written down from the definitions; nothing here uses the model, the bases or JAX.
"""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import flint
from flint import arb, fmpq

from hadaflow.lab.exact.ball_losses import TWINS, Sample, Twin
from hadaflow.lab.exact.balls import Balls, Rated, ball, increasing_root, total

Matrix = Sequence[Sequence[Any]]
CROSS_ENTROPY = "cross_entropy"


@functools.cache
def sylvester_psi(K: int) -> tuple[tuple[int, ...], ...]:
    """Ψ = 11ᵀ − X over the integers: entry 2 where bits i and j share an odd number of ones, else 0."""
    return tuple(tuple(2 * ((i & j).bit_count() % 2) for j in range(1, K)) for i in range(1, K))


def multiply(matrix: Matrix, vector: Sequence[Any]) -> list[Any]:
    """A matrix of numbers times a vector of balls; zeros cost nothing."""
    return [sum((m * v for m, v in zip(row, vector, strict=True) if m), arb(0)) for row in matrix]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The problem of a certificate: every number a rational. See `UFM` for what they mean."""

    group: tuple[int, ...]
    depth: int = 2
    samples: int = 1
    loss: str = CROSS_ENTROPY
    reduction: str = "sum"
    label_smoothing: Fraction = Fraction(0)
    label_distribution: tuple[Fraction, ...] | None = None
    temperature: Fraction = Fraction(1)
    weight_decay: tuple[Fraction, ...] = ()

    @classmethod
    @functools.cache
    def walsh(cls, classes: int, depth: int = 2) -> "Setting":
        return cls((2,) * (classes.bit_length() - 1), depth, weight_decay=(Fraction(0),) * depth)

    @property
    def classes(self) -> int:
        return math.prod(self.group)

    @property
    def has_constant_mode(self) -> bool:
        return self.twin.moves_constant

    @property
    def twin(self) -> Twin:
        """The loss over balls."""
        return TWINS[self.loss.partition(":")[0]]

    @functools.cached_property
    def sample(self) -> Sample:
        """What one sample sees beside its margins."""
        numbers = tuple(Fraction(v) for v in self.loss.split(":")[1:])
        soft = [self.label(j) for j in range(self.modes)] if self.soft_labels else None
        return Sample(numbers, self.temperature, self.multiplicity, soft)

    @functools.cached_property
    def elements(self) -> tuple[tuple[int, ...], ...]:
        """The first member of every non-trivial class {g, −g}, in lexicographic order."""
        return tuple(
            g
            for g in itertools.product(*(range(n) for n in self.group))
            if any(g) and g <= self.negative(g)
        )

    def negative(self, g: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-x % n for x, n in zip(g, self.group, strict=True))

    @functools.cached_property
    def multiplicity(self) -> tuple[int, ...]:
        """How many singular values each free mode stands for: 1 for a real character, 2 for a pair."""
        return tuple(1 if g == self.negative(g) else 2 for g in self.elements)

    @property
    def modes(self) -> int:
        """Free non-trivial modes."""
        return len(self.elements)

    @functools.cached_property
    def turns(self) -> tuple[tuple[Fraction, ...], ...]:
        r"""Phases of the characters over $2\pi$, folded to 0 … ½: $\chi_h(g)$ has cosine $\cos2\pi t$."""
        n = math.lcm(*self.group)
        folded = [Fraction(min(k, n - k), n) for k in range(n)]
        scaled = [[x * (n // m) for x, m in zip(h, self.group, strict=True)] for h in self.elements]
        return tuple(
            tuple(folded[sum(map(operator.mul, h, g)) % n] for g in self.elements) for h in scaled
        )

    @property
    def soft_labels(self) -> bool:
        return self.label_smoothing > 0 or self.label_distribution is not None

    def label(self, index: int) -> Fraction:
        """Q at a mode's group element, for a sample of class 0."""
        if self.label_distribution is None:
            return self.label_smoothing / self.classes
        place = 0
        for x, n in zip(self.elements[index], self.group, strict=True):
            place = place * n + x
        return self.label_distribution[place]

    def psi(self) -> Matrix:
        r"""$1 - \cos2\pi t$ at the working precision: integers where they are."""
        return _psi(self, flint.ctx.prec)

    @property
    def total_samples(self) -> int:
        return self.classes * self.samples

    @property
    def loss_divisor(self) -> int:
        return self.total_samples if self.reduction == "mean" else 1

    def scaled_decays(self) -> Balls:
        r"""$\lambda$ of every layer per unit of scaled time, $t' = N\sqrt n(K\sqrt n)^{1-2/N}t$."""
        N, root = self.depth, arb(self.samples).sqrt()
        clock = N * root * (self.classes * root) ** ball(Fraction(N - 2, N)) / self.loss_divisor
        return [ball(decay) / clock for decay in self.weight_decay]


@functools.lru_cache(maxsize=8)
def _psi(setting: Setting, bits: int) -> Matrix:
    known = {Fraction(0): 0, Fraction(1, 2): 2, Fraction(1, 4): 1}
    values: dict[Fraction, Any] = dict(known)
    for t in {t for row in setting.turns for t in row} - set(known):
        values[t] = 1 - arb.cos_pi_fmpq(fmpq(2 * t.numerator, t.denominator))
    return tuple(tuple(values[t] for t in row) for row in setting.turns)


@dataclasses.dataclass(frozen=True)
class ExactState:
    r"""The reduced flow at one state, over balls, in scaled units.

    $x = \Psi a$, $e = e^{-x/\tau}$, $b = \Psi e$, $D = 1 + \sum e$ and $\dot a$; depth 2, balanced, is
    Eq. (9), $\dot a = a\,b/D$. `sizes` are the squares of the layers' singular values, mode by mode.
    """

    setting: Setting
    state: tuple[Fraction, ...]
    a: Balls
    x: Balls
    e: Balls
    b: Balls
    D: Any
    force: Balls
    velocity: Balls
    sizes: list[Balls]
    C: tuple[tuple[Fraction, ...], ...] | None = None
    multiplicity: tuple[int, ...] = ()
    psi: Matrix = ()

    @classmethod
    def at(cls, a: Sequence[Fraction], psi: Matrix | None = None, depth: int = 2) -> "ExactState":
        r"""The flow on Sylvester's basis, or with another integer matrix in place of $\Psi$."""
        return cls.of(Setting.walsh(len(a) + 1, depth), a, psi=psi)

    @classmethod
    def of(
        cls,
        setting: Setting,
        a: Sequence[Fraction],
        C: tuple[tuple[Fraction, ...], ...] | None = None,
        psi: Matrix | None = None,
    ) -> "ExactState":
        r"""`C`: rows of differences $\sigma_1^2 - \sigma_{l+1}^2$, one for each $l$; None if balanced."""
        own = psi is None
        psi = setting.psi() if psi is None else psi
        count = setting.multiplicity if own else (1,) * len(a)
        balls = [ball(v) for v in a]
        inner = balls[-len(count) :]
        x = multiply(psi, [m * v for m, v in zip(count, inner, strict=True)])
        tau = ball(setting.temperature)
        e = [(-v / tau).exp() for v in x]
        counted = [m * v for m, v in zip(count, e, strict=True)]
        b, D = multiply(psi, counted), sum(counted, arb(1))
        sample = setting.sample._replace(counts=count)
        if setting.has_constant_mode:
            right = balls[0] + total([m * v for m, v in zip(count, inner, strict=True)])
            pulls = setting.twin.pulls(sample, [right, *(right - v for v in x)])
            everything = pulls[0] + sample.summed(pulls[1:])
            counted = [m * v for m, v in zip(count, pulls[1:], strict=True)]
            force = [everything, *(everything - v for v in multiply(psi, counted))]
        else:
            weights = setting.twin.pulls(sample, x)
            force = multiply(psi, [m * v for m, v in zip(count, weights, strict=True)])
        rows = [None] * len(a) if C is None else list(zip(*C, strict=True))
        sizes = [_squares(setting.depth, *mode) for mode in zip(a, balls, rows, strict=True)]
        velocity = _velocity(setting, sizes, balls, force)
        return cls(setting, tuple(a), balls, x, e, b, D, force, velocity, sizes, C, count, psi)

    # --- what metrics look at --------------------------------------------------------------------

    @property
    def values(self) -> list[Rated]:
        """The free non-trivial singular values."""
        return self.all_values[-len(self.multiplicity) :]

    @property
    def all_values(self) -> list[Rated]:
        """The same, with the constant mode in front where the state has one."""
        values = zip(self.a, self.velocity, self.state, strict=True)
        return [Rated(a, v, ("exact", known)) for a, v, known in values]

    @property
    def squares(self) -> list[tuple[Rated, ...]]:
        r"""The layers' squares, layer by layer; their rates are $\frac2N a\,g - 2\lambda_l\sigma_l^2$."""
        N = self.setting.depth
        decays = self.setting.scaled_decays() if any(self.setting.weight_decay) else [arb(0)] * N
        modes = [
            [Rated(s, 2 * v * g / N - 2 * d * s) for d, s in zip(decays, squares, strict=True)]
            for v, g, squares in zip(self.a, self.force, self.sizes, strict=True)
        ]
        return list(zip(*modes, strict=True))

    @property
    def margins(self) -> list[Rated]:
        """X and its rate; equal sums of equal cosines have equal keys."""
        inner = self.velocity[-len(self.multiplicity) :]
        counted = [m * v for m, v in zip(self.multiplicity, inner, strict=True)]
        rates = multiply(self.psi, counted)
        if self.psi is not self.setting.psi():  # another matrix in its place: nothing proves ties
            return [Rated(*v) for v in zip(self.x, rates, strict=True)]
        exact = self.state[-len(self.multiplicity) :]
        keys = []
        for row in self.setting.turns:
            sums: dict[Fraction, Fraction] = {}
            for t, m, v in zip(row, self.multiplicity, exact, strict=True):
                if t:
                    sums[t] = sums.get(t, Fraction(0)) + m * v
            keys.append(("margin", *sorted(sums.items())))
        return [Rated(*v) for v in zip(self.x, rates, keys, strict=True)]


def logits(flow: ExactState) -> list[Rated]:
    """Of one sample, that of its own class first, where the constant mode moves."""
    constant, *inner = flow.all_values
    right = constant + total([m * v for m, v in zip(flow.multiplicity, inner, strict=True)])
    return [right, *(right - x for x in flow.margins)]


def _velocity(setting: Setting, sizes: list[Balls], balls: Balls, force: Balls) -> Balls:
    r"""$\dot a = w g - \sum_l\lambda_l a$ with mobility $w = \frac1N\sum_l\prod_{m\ne l}\sigma_m^2$."""
    N, found = setting.depth, []
    for squares, g in zip(sizes, force, strict=True):
        others = [arb(1)] if N == 1 else [_product(squares, layer) for layer in range(N)]
        found.append(total(others) / N * g)
    if any(setting.weight_decay):
        decay = total(setting.scaled_decays())
        found = [v - decay * a for v, a in zip(found, balls, strict=True)]
    return found


def _product(sizes: Balls, left_out: int) -> Any:
    return functools.reduce(lambda p, q: p * q, [s for m, s in enumerate(sizes) if m != left_out])


def _squares(N: int, a: Fraction, v: Any, C: Sequence[Fraction] | None) -> Balls:
    """Squares of the layers' singular values of one mode."""
    if N == 1:
        return [v * v]
    if C is None or not any(C):
        return [v] * 2 if N == 2 else [arb(0) if a == 0 else v ** ball(Fraction(2, N))] * N
    below_first = [Fraction(0), *C]
    offsets = [max(below_first) - c for c in below_first]
    if N == 2:
        d = ball(max(offsets))
        root = 2 * v * v / (d + (d * d + 4 * v * v).sqrt())
    else:
        root = increasing_root(offsets, a * a)
    return [root + ball(d) for d in offsets]
