r"""The metrics once more, over balls that carry their rates: each from its definition.

Every one is a function of an `ExactState`; singular values count as often as their multiplicity.
"""

import functools
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from flint import arb

from hadaflow.base.errors import InputError, meant, shown
from hadaflow.lab.exact.ball_flow import ExactState, Setting, logits, multiply
from hadaflow.lab.exact.balls import Rated, ball, largest, smallest, total


def _sum(flow: ExactState, terms: Iterable[Any]) -> Any:
    """Σ over all K − 1 non-trivial modes of terms given for the free ones."""
    return total([t if m == 1 else m * t for m, t in zip(flow.multiplicity, terms, strict=True)])


def _count(flow: ExactState) -> int:
    return sum(flow.multiplicity)


def kl(flow: ExactState) -> Rated:
    """KL(uniform ‖ â) = log‖a‖₁ − mean log a − log(K−1)."""
    n, a = _count(flow), flow.values
    return _sum(flow, a).log() - _sum(flow, [v.log() for v in a]) / n - arb(n).log()


def reverse_kl(flow: ExactState) -> Rated:
    """KL(â ‖ uniform) = log(K−1) + Σ â log â."""
    a = flow.values
    norm = _sum(flow, a)
    shares = [v / norm for v in a]
    return arb(_count(flow)).log() + _sum(flow, [h * h.log() for h in shares])


def _square_distance(flow: ExactState, values: list[Rated]) -> Rated:
    """Σ (v/Σv − 1/(K−1))²."""
    n, norm = _count(flow), _sum(flow, values)
    gaps = [v / norm - Fraction(1, n) for v in values]
    return _sum(flow, [g * g for g in gaps])


def l2(flow: ExactState) -> Rated:
    """M = ½ Σ (â − 1/(K−1))²."""
    return _square_distance(flow, flow.values) / 2


def frobenius(flow: ExactState) -> Rated:
    """M̃ = Σ (a/‖a‖₂ − 1/√(K−1))² = 2 − 2 Σa/(‖a‖₂ √(K−1))."""
    a = flow.values
    length = _sum(flow, [v * v for v in a]).sqrt()
    return 2 - 2 * _sum(flow, a) / (length * arb(_count(flow)).sqrt())


def log_ratio(flow: ExactState) -> Rated:
    """Max log a − min log a, to the right: among tied entries the one that leaves first decides."""
    return largest(flow.values).log() - smallest(flow.values).log()


def collapse_deviation(flow: ExactState) -> Rated:
    """Max |(K−1)â − 1|."""
    n, norm = _count(flow), _sum(flow, flow.values)
    top, bottom = largest(flow.values), smallest(flow.values)
    return (n * top / norm - 1).max(1 - n * bottom / norm)


def energy(flow: ExactState) -> Rated:
    """Loss of one sample."""
    setting = flow.setting
    sample = setting.sample._replace(counts=flow.multiplicity)
    return setting.twin.energy(sample, logits(flow) if setting.has_constant_mode else flow.margins)


def loss(flow: ExactState) -> Rated:
    setting = flow.setting
    return energy(flow) * Fraction(setting.total_samples, setting.loss_divisor)


def margin(flow: ExactState) -> Rated:
    return smallest(flow.margins)


def _alignment(flow: ExactState, values: list[Rated]) -> Rated:
    """√Σ (v/Σv − 1/(K−1))²."""
    return _square_distance(flow, values).sqrt()


def _inner(flow: ExactState, layers: Iterable[tuple[Rated, ...]]) -> list[Rated]:
    """Products of layers' squares, for the non-trivial modes."""
    modes = zip(*layers, strict=True)
    products = [functools.reduce(lambda p, q: p * q, mode) for mode in modes]
    return products[-len(flow.multiplicity) :]


def alignment_w(flow: ExactState) -> Rated:
    return _alignment(flow, _inner(flow, flow.squares[:1]))


def alignment_h(flow: ExactState) -> Rated:
    return _alignment(flow, _inner(flow, flow.squares[1:]))


def alignment_z(flow: ExactState) -> Rated:
    return _alignment(flow, flow.values)


def label_divergence(flow: ExactState) -> Rated:
    r"""Bregman divergence from $a^* = \frac\tau K\sum_g\chi(g)\log q_g$, $\phi'' = 1/w$."""
    setting = flow.setting
    N, a = setting.depth, flow.values
    goals = [g.max(arb(0)) for g in _fixed_point(setting)]
    if N == 1:
        return _sum(flow, [(v - g) ** 2 / 2 for v, g in zip(a, goals, strict=True)])
    terms = []
    for i, (v, g) in enumerate(zip(a, goals, strict=True)):
        if N == 2:
            C = Fraction(0) if flow.C is None else flow.C[0][i]
            w = (v * v + ball(C / 2) ** 2).sqrt() if C else v
            w_goal = (g * g + ball(C / 2) ** 2).sqrt() if C else g
            terms.append(w - g * (v + w).log() + (_times_log(g, g + w_goal) - w_goal))
        else:
            q = Fraction(2, N)
            slope = v ** (q - 1) / (q - 1)
            terms.append((_power(g, q) - v**q) / (q * (q - 1)) - slope * (g - v))
    return _sum(flow, terms)


def _times_log(g: Any, x: Any) -> Any:
    """G log x for 0 ≤ g ≤ x; where the ball of x reaches zero, so small that |g log x| < 1."""
    return g * x.log() if x > 0 else arb(0, 1)


def _power(g: Any, q: Fraction) -> Any:
    """g^q for g ≥ 0, 0 < q < 1."""
    return g ** ball(q) if g > 0 else arb(0).union(abs(g).upper() ** ball(q))


def _fixed_point(setting: Setting) -> list[Any]:
    logs = [m * ball(setting.label(j)).log() for j, m in enumerate(setting.multiplicity)]
    first = 1 - sum(m * setting.label(j) for j, m in enumerate(setting.multiplicity))
    everything = sum(logs, ball(first).log())
    missing = multiply(setting.psi(), logs)
    factor = ball(setting.temperature) / setting.classes
    return [factor * (everything - v) for v in missing]


METRICS: dict[str, Callable[[ExactState], Rated]] = {
    "kl": kl,
    "reverse_kl": reverse_kl,
    "l2": l2,
    "frobenius": frobenius,
    "log_ratio": log_ratio,
    "collapse_deviation": collapse_deviation,
    "energy": energy,
    "log_energy": lambda flow: energy(flow).log(),
    "loss": loss,
    "log_loss": lambda flow: loss(flow).log(),
    "margin": margin,
    "alignment_w": alignment_w,
    "alignment_h": alignment_h,
    "alignment_z": alignment_z,
    "label_divergence": label_divergence,
}


def check_setting(metric: str, setting: Setting) -> None:
    """Refuse a metric that there is not, or not for this problem."""
    if metric not in METRICS:
        raise InputError(
            f"Unknown metric {shown(metric)}{meant(metric, METRICS)}; allowed are {', '.join(METRICS)}."
        )
    if metric in ("alignment_w", "alignment_h") and setting.depth == 1:
        raise InputError(f"Metric `{metric}` is about W and H and needs `depth` of at least 2.")
    if metric == "label_divergence":
        labels = [setting.label(j) for j in range(setting.modes)]
        if not setting.soft_labels or min(labels) <= 0 or any(setting.weight_decay):
            raise InputError(
                "Metric `label_divergence` must have soft labels, positive for every class, "
                "without `weight_decay`."
            )
