r"""The losses once more, over balls: pulls and energies of one sample, from their definitions.

Of losses that see margins alone a twin tells the weights $w_j = -\partial\ell/\partial x_j$ of the wrong
classes, from $x$ with the number of classes that each stands for; of the others the slopes by the logits.
Energies are those of `Rated` margins or logits, which carry their rates.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from flint import arb

from hadaflow.lab.exact.balls import Balls, ball, total


class Sample(NamedTuple):
    """What a sample sees: numbers of its loss, temperature, labels of the wrong classes if soft."""

    numbers: tuple[Fraction, ...]
    temperature: Fraction
    counts: Sequence[int]
    labels: Sequence[Fraction] | None

    @property
    def own_label(self) -> Fraction:
        assert self.labels is not None
        return 1 - sum((m * q for m, q in zip(self.counts, self.labels, strict=True)), Fraction(0))

    def summed(self, terms: Sequence[Any]) -> Any:
        return total([t if m == 1 else m * t for m, t in zip(self.counts, terms, strict=True)])


# --- of the probability ----------------------------------------------------------------------------


def _softmax(sample: Sample, x: Sequence[Any]) -> tuple[list[Any], Any, Any]:
    """Probabilities of the wrong classes, of the right one, and of all wrong ones together."""
    tau = sample.temperature
    e = [(-(v / ball(tau) if isinstance(v, arb) else v / tau)).exp() for v in x]
    wrong = sample.summed(e)
    D = 1 + wrong
    return [v / D for v in e], 1 / D, wrong / D


Pace = Callable[[tuple[Fraction, ...], Any, Any], Any]


def _of_probability(pace: Pace) -> Callable[[Sample, Balls], Balls]:
    """Weights −F′(p)p·p_j/τ, by −F′(p)p of the right and the wrong probability."""

    def weights(sample: Sample, x: Balls) -> Balls:
        p, right, wrong = _softmax(sample, x)
        factor = pace(sample.numbers, right, wrong) / ball(sample.temperature)
        return [factor * v for v in p]

    return weights


def _power(base: Any, exponent: Fraction) -> Any:
    if exponent == 0:
        return arb(1)
    return base ** (ball(exponent) if isinstance(base, arb) else exponent)


def _focal_pace(numbers: tuple[Fraction, ...], right: Any, wrong: Any) -> Any:
    (gamma,) = numbers
    easy = _power(wrong, gamma)
    return easy - ball(gamma) * right * easy / wrong * right.log()


def _energy_of(F: Pace) -> Callable[[Sample, Sequence[Any]], Any]:
    def energy(sample: Sample, x: Sequence[Any]) -> Any:
        _, right, wrong = _softmax(sample, x)
        return F(sample.numbers, right, wrong)

    return energy


def _cross_entropy_weights(sample: Sample, x: Balls) -> Balls:
    p, _, _ = _softmax(sample, x)
    if sample.labels is not None:
        p = [v - ball(q) for v, q in zip(p, sample.labels, strict=True)]
    return [v / ball(sample.temperature) for v in p]


def _cross_entropy(sample: Sample, x: Sequence[Any]) -> Any:
    tau = sample.temperature
    scaled = [v / tau for v in x]
    value = (1 + sample.summed([(-v).exp() for v in scaled])).log()
    if sample.labels is None:
        return value
    return value + sample.summed([v * q for v, q in zip(scaled, sample.labels, strict=True)])


# --- other losses of margins -------------------------------------------------------------------------


def _brier_weights(sample: Sample, x: Balls) -> Balls:
    p, right, wrong = _softmax(sample, x)
    tau = ball(sample.temperature)
    if sample.labels is None:
        mean = sample.summed([v * v for v in p]) - right * wrong
        return [2 * v * (v - mean) / tau for v in p]
    gaps = [v - ball(q) for v, q in zip(p, sample.labels, strict=True)]
    mean = sample.summed([v * g for v, g in zip(p, gaps, strict=True)])
    mean = mean + right * (right - ball(sample.own_label))
    return [2 * v * (g - mean) / tau for v, g in zip(p, gaps, strict=True)]


def _brier(sample: Sample, x: Sequence[Any]) -> Any:
    p, right, wrong = _softmax(sample, x)
    if sample.labels is None:
        return wrong * wrong + sample.summed([v * v for v in p])
    gaps = [v - q for v, q in zip(p, sample.labels, strict=True)]
    return (right - sample.own_label) ** 2 + sample.summed([g * g for g in gaps])


def _hinge_weight(x: Any) -> Any:
    if x < 1:
        return arb(1)
    return arb(0) if x > 1 else arb(0).union(arb(1))


# --- losses of the logits ------------------------------------------------------------------------------


def _scale_and_bias(sample: Sample) -> tuple[Fraction, Fraction]:
    scale, bias = sample.numbers or (Fraction(1), Fraction(0))
    return scale, bias


def _sigmoid_slopes(sample: Sample, c: Balls) -> Balls:
    """Minus the slopes by the logits, that of the right class first."""
    scale, bias = (ball(v) for v in _scale_and_bias(sample))
    y = [scale * v + bias for v in c]
    if sample.labels is not None:
        labels = [sample.own_label, *sample.labels]
        return [ball(q) - 1 / (1 + (-v).exp()) for q, v in zip(labels, y, strict=True)]
    return [scale / (1 + y[0].exp()), *(-scale / (1 + (-v).exp()) for v in y[1:])]


def _sigmoids(sample: Sample, c: Sequence[Any]) -> Any:
    scale, bias = _scale_and_bias(sample)
    y = [v * scale + bias for v in c]
    if sample.labels is not None:
        own = (1 + y[0].exp()).log() - y[0] * sample.own_label
        rest = [(1 + v.exp()).log() - v * q for v, q in zip(y[1:], sample.labels, strict=True)]
        return own + sample.summed(rest)
    return (1 + (-y[0]).exp()).log() + sample.summed([(1 + v.exp()).log() for v in y[1:]])


def _squared_slopes(sample: Sample, c: Balls) -> Balls:
    return [1 - c[0], *(-v for v in c[1:])]


def _squared(sample: Sample, c: Sequence[Any]) -> Any:
    return ((c[0] - 1) ** 2 + sample.summed([v * v for v in c[1:]])) / 2


class Twin(NamedTuple):
    """A loss over balls; of the logits, that of the right class first, where the constant mode moves."""

    pulls: Callable[[Sample, Balls], Balls]
    energy: Callable[[Sample, Sequence[Any]], Any]
    moves_constant: bool = False


TWINS: dict[str, Twin] = {
    "cross_entropy": Twin(_cross_entropy_weights, _cross_entropy),
    "focal": Twin(
        _of_probability(_focal_pace),
        _energy_of(lambda n, right, wrong: -(_power(wrong, n[0]) * right.log())),
    ),
    "exponential": Twin(
        _of_probability(lambda n, right, wrong: 1 / right),
        _energy_of(lambda n, right, wrong: wrong / right),
    ),
    "generalized_cross_entropy": Twin(
        _of_probability(lambda n, right, wrong: _power(right, n[0])),
        _energy_of(lambda n, right, wrong: (1 - _power(right, n[0])) / n[0]),
    ),
    "poly": Twin(
        _of_probability(lambda n, right, wrong: 1 + ball(n[0]) * right),
        _energy_of(lambda n, right, wrong: -right.log() + wrong * n[0]),
    ),
    "infonce": Twin(
        _of_probability(lambda n, right, wrong: arb(2)),
        _energy_of(lambda n, right, wrong: -2 * right.log()),
    ),
    "brier": Twin(_brier_weights, _brier),
    "pairwise_logistic": Twin(
        lambda sample, x: [1 / (1 + v.exp()) for v in x],
        lambda sample, x: sample.summed([(1 + (-v).exp()).log() for v in x]),
    ),
    "hinge": Twin(
        lambda sample, x: [_hinge_weight(v) for v in x],
        lambda sample, x: sample.summed([(1 - v).max(arb(0)) for v in x]),
    ),
    "squared_hinge": Twin(
        lambda sample, x: [2 * (1 - v).max(arb(0)) for v in x],
        lambda sample, x: sample.summed([(1 - v).max(arb(0)) ** 2 for v in x]),
    ),
    "one_vs_rest": Twin(_sigmoid_slopes, _sigmoids, True),
    "siglip": Twin(_sigmoid_slopes, _sigmoids, True),
    "mse": Twin(_squared_slopes, _squared, True),
}  # fmt: skip
