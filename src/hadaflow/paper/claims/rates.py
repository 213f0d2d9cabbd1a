"""Claims about displayed derivatives: every closed form of the paper against differentiation."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.algebra.bases import Sylvester
from hadaflow.lab.trial_states import random_states
from hadaflow.metrics.measures import rate
from hadaflow.model.ufm import UFM
from hadaflow.paper.claim import CORRECTED, Finding, claim, finding, larger

# Each form takes (psi, a) and returns dm/dt as the paper displays it.
Form = Callable[[np.ndarray, np.ndarray], Any]


def _parts(psi: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, Any, np.ndarray, Any]:
    e = np.exp(-(psi @ a))
    b, a_hat = psi @ e, a / a.sum()
    return b, 1 + e.sum(), a_hat, a_hat @ b


def kl_sum(psi: np.ndarray, a: np.ndarray) -> Any:
    """Eq. (15): −[Σb − (K−1) b̄]/((K−1)D)."""
    b, D, _, mean = _parts(psi, a)
    return -(b.sum() - len(a) * mean) / (len(a) * D)


def kl_pairs(psi: np.ndarray, a: np.ndarray) -> Any:
    """Section 7.2: Σ_ij (x_i − x_j)(e^{−x_i} − e^{−x_j}) / (2(K−1)D‖a‖₁)."""
    x = psi @ a
    e = np.exp(-x)
    pairs = np.sum(np.subtract.outer(x, x) * np.subtract.outer(e, e))
    return pairs / (2 * len(a) * (1 + e.sum()) * a.sum())


def kl_margins(psi: np.ndarray, a: np.ndarray) -> Any:
    """Eqs. (16), (17): b̄ = Σxe^{−x}/‖a‖₁ and Σb = Σx Σe^{−x}/‖a‖₁, put into Eq. (15)."""
    x = psi @ a
    e = np.exp(-x)
    return (len(a) * (x @ e) - x.sum() * e.sum()) / (len(a) * (1 + e.sum()) * a.sum())


def l2_replicator(psi: np.ndarray, a: np.ndarray) -> Any:
    """Eq. (20): Σ â²(b − b̄)/D."""
    b, D, a_hat, mean = _parts(psi, a)
    return a_hat**2 @ (b - mean) / D


def l2_pairs(psi: np.ndarray, a: np.ndarray) -> Any:
    """Appendix D.5: Σ_ij a_i² a_j (b_i − b_j) / (D‖a‖₁³)."""
    b, D, _, _ = _parts(psi, a)
    return np.sum(np.outer(a**2, a) * np.subtract.outer(b, b)) / (D * a.sum() ** 3)


def l2_four_classes(psi: np.ndarray, a: np.ndarray) -> Any:
    """Appendix D.2, K = 4: 2 Σ â²(â·x − x)/(x₁x₂x₃ + Σx) with x = e^{2a}."""
    x, a_hat = np.exp(2 * a), a / a.sum()
    return 2 * (a_hat**2 @ (a_hat @ x - x)) / (x.prod() + x.sum())


def l2_expansion(psi: np.ndarray, a: np.ndarray) -> Any:
    """Appendix D.5, the expansion in ε: its four terms, the series summed as e^y − 1 − y."""
    K, mu = len(a) + 1, a.mean()
    eps = a / mu - 1
    y = -mu * (psi @ eps)
    tail = np.expm1(y) - y
    b_scale = np.exp(-K * mu) / (1 + np.exp(-(psi @ a)).sum())
    square, cube = np.sum(eps**2), np.sum(eps**3)
    weights = (K - 1) * (psi @ eps) + (K - 1) * (psi @ eps**2) - K * square - square * (psi @ eps)
    first = -K * mu / (K - 1) ** 2 * (square + cube) + K * mu / (K - 1) ** 3 * square**2
    return b_scale * (first + weights @ tail / (K - 1) ** 3)


def reverse_kl_display(psi: np.ndarray, a: np.ndarray) -> Any:
    """Appendix B.3: Σ (b − b̄) â log â / D."""
    b, D, a_hat, mean = _parts(psi, a)
    return np.sum((b - mean) * a_hat * np.log(a_hat)) / D


def _frobenius(psi: np.ndarray, a: np.ndarray, norm: Any) -> Any:
    b, D, _, _ = _parts(psi, a)
    bracket = np.sum(np.outer(a, a * b) * (a[None, :] - a[:, None]))
    return 2 * bracket / (D * norm**3 * np.sqrt(len(a)))


def frobenius_printed(psi: np.ndarray, a: np.ndarray) -> Any:
    """Appendix B.3 with ‖Z‖_F = √Σa_j as printed."""
    return _frobenius(psi, a, np.sqrt(a.sum()))


def frobenius_corrected(psi: np.ndarray, a: np.ndarray) -> Any:
    """Appendix B.3 with ‖Z‖_F = √Σa_j²."""
    return _frobenius(psi, a, np.linalg.norm(a))


def logit_l2(psi: np.ndarray, a: np.ndarray) -> Any:
    """Appendix D.4: [Σâb − Σâ² Σb]/(D‖a‖₁), direct logit optimization."""
    b, D, a_hat, mean = _parts(psi, a)
    return (mean - np.sum(a_hat**2) * b.sum()) / (D * a.sum())


def logit_direction(psi: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Appendix D.4: dâ/dt = (b − â Σb)/(D‖a‖₁)."""
    b, D, a_hat, _ = _parts(psi, a)
    return (b - a_hat * b.sum()) / (D * a.sum())


FORMS: dict[str, tuple[str, int, Form]] = {
    "KL, Eq. (15)": ("kl", 2, kl_sum),
    "KL, pair sum": ("kl", 2, kl_pairs),
    "KL, Eqs. (16), (17)": ("kl", 2, kl_margins),
    "M, Eq. (20)": ("l2", 2, l2_replicator),
    "M, pair sum": ("l2", 2, l2_pairs),
    "M, K = 4": ("l2", 2, l2_four_classes),
    "M, ε-expansion": ("l2", 2, l2_expansion),
    "reverse KL": ("reverse_kl", 2, reverse_kl_display),
    "Frobenius, corrected": ("frobenius", 2, frobenius_corrected),
    "M, logit optimization": ("l2", 1, logit_l2),
}


@claim(
    "Section 7.2; Appendices B.3, D.2, D.4, D.5",
    "Every displayed derivative of KL, M (five forms), reverse KL, the Frobenius distance, and of â for "
    "logits.",
    "each display against forward-mode differentiation of the metric's definition along the flow, at "
    "150 random states at K = 4 and 8",
    CORRECTED,
    correction="In the Frobenius derivative ‖Z‖_F is √Σa_j², not √Σa_j; all other displays are right.",
    seconds=3,
)
def closed_form_rates(
    forms: dict[str, tuple[str, int, Form]] | None = None,
    direction: Callable[..., np.ndarray] = logit_direction,
) -> Finding:
    """Relative errors below 1e-8, relative to ‖ȧ‖/‖a‖; the printed Frobenius form above 0.1.

    An error relative to the rate itself would compare rounding where a rate nearly vanishes.
    """
    forms = forms or FORMS
    checked = {**forms, "Frobenius, printed": ("frobenius", 2, frobenius_printed)}
    worst = dict.fromkeys([*checked, "â, logit optimization"], 0.0)
    for K in (4, 8):
        psi = Sylvester(K).dense_psi
        states = random_states(K, 150, seed=20, low=-1, high=0.7)
        states = states[states.min(axis=1) > 1e-9 * states.max(axis=1)]
        for depth in (1, 2):
            model = UFM(K, depth=depth)
            speed = np.abs(model.velocity(states) / states.sum(axis=1, keepdims=True)).max(axis=1)
            if depth == 1:
                for a, v in zip(states, model.velocity(states), strict=True):
                    want = (v - a / a.sum() * v.sum()) / a.sum()
                    error = np.abs(direction(psi, a) - want).max() / np.abs(v / a.sum()).max()
                    worst["â, logit optimization"] = larger(worst["â, logit optimization"], error)
            truth: dict[str, Any] = {}
            for name, (metric, needs, form) in checked.items():
                if needs != depth or (name == "M, K = 4" and K != 4):
                    continue
                if metric not in truth:
                    truth[metric] = np.asarray(rate(metric, model, states))
                got = np.array([form(psi, a) for a in states])
                scale = speed * (1 + np.abs(np.log(states.min(axis=1) / states.sum(axis=1))))
                worst[name] = larger(
                    worst[name], float(np.max(np.abs(got - truth[metric]) / scale))
                )
    printed = worst["Frobenius, printed"] < 0.1
    right = all(error < 1e-8 for name, error in worst.items() if name != "Frobenius, printed")
    return finding(worst, printed=printed and right, corrected=right)
