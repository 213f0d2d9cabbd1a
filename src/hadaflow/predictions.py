r"""Where collapse happens, foretold from the hard-margin limit.

At large norms the weights live on the smallest margins. As long as no weight returns to zero, margin j
joins the smallest ones when $L = \log\|a\|_1$ passes

$$T_j = \log(K-1) + \bar z - (X(z - \bar z))_j,\qquad z = \log a \text{ at a soft anchor},$$

with $X$ the Hadamard core. The direction is uniform from $L_{unif} = \max_jT_j$ on, and before that the
deviations are $\frac1K|X(T - L)_+|$. The derivation is heuristic: exact for directions near uniform and
hard margins, and the orbit up to the anchor is taken as it is.
"""

import math

import numpy as np

from hadaflow.dual import Basis
from hadaflow.errors import InputError

ANCHOR = 12.0  # ‖a‖₁ of the soft anchor over √K


def joining_log_norms(basis: Basis, log_a: np.ndarray) -> np.ndarray:
    """T_j: the value of log‖a‖₁ at which each margin joins the smallest ones, from an anchor's log a."""
    if not np.all(np.isfinite(log_a)):
        raise InputError("Zero singular values never grow: there is no collapse to foretell.")
    count = basis.classes - 1
    mean = float(np.sum(log_a * basis.multiplicity)) / count
    return math.log(count) + mean + basis.psi(log_a - mean)


def collapse_log_norms(basis: Basis, log_a: np.ndarray, tolerance: float) -> tuple[float, float]:
    """log‖a‖₁ at max|(K−1)â − 1| = `tolerance` (water filling) and where the direction is uniform."""
    joins = joining_log_norms(basis, log_a)
    uniform = float(joins.max())

    def deviation(level: float) -> float:
        left = np.maximum(joins - level, 0.0)
        total = float(np.sum(left * basis.multiplicity))
        return float(np.max(np.abs(total - basis.psi(left)))) / basis.classes

    # From above: the deviation falls like (uniform − level)/K times the margins that are still out.
    span = tolerance
    while deviation(uniform - span) < tolerance:
        if span > uniform - joins.min() + 1:
            return uniform - span, uniform
        span *= 2
    low, high = uniform - span, uniform
    for _ in range(200):
        middle = (low + high) / 2
        if high - low < 1e-10 * max(1.0, abs(uniform)):
            break
        low, high = (middle, high) if deviation(middle) > tolerance else (low, middle)
    return high, uniform


def log10_log10_time_at_collapse(classes: int, log_norm: float) -> float:
    """log10 log10 t where all margins are ‖a‖₁K/(K−1), which is log t up to its logarithm."""
    log_margin = log_norm + math.log(classes / (classes - 1))
    return (log_margin - math.log(math.log(10.0))) / math.log(10.0)
