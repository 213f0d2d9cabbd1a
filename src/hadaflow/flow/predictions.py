r"""Where collapse happens, foretold from the hard-margin limit.

At large norms the weights live on the smallest margins. As long as no weight returns to zero, margin j
joins the smallest ones when $L = \log\|a\|_1$ passes

$$T_j = \log(K-1) + \bar z - (X(z - \bar z))_j,\qquad z = \log a \text{ at a soft anchor},$$

with $X$ the Hadamard core. The direction is uniform from $L_{unif} = \max_jT_j$ on, and before that the
deviations are $\frac1K|X(T - L)_+|$. The derivation is heuristic: exact for directions near uniform and
hard margins, and the orbit up to the anchor is taken as it is.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.bases import Basis
from hadaflow.base.compiling import compiled
from hadaflow.base.errors import InputError
from hadaflow.base.lazy import optimize
from hadaflow.base.precision import double_precision

ANCHOR = 12.0  # ‖a‖₁ of the soft anchor over √K


def joining_log_norms(basis: Basis, log_a: np.ndarray) -> np.ndarray:
    """T_j: the value of log‖a‖₁ at which each margin joins the smallest ones, from an anchor's log a."""
    if not np.all(np.isfinite(log_a)):
        raise InputError("Zero singular values never grow: there is no collapse to foretell.")
    count = basis.classes - 1
    mean = np.sum(log_a * basis.multiplicity, axis=-1, keepdims=True) / count
    with double_precision():
        return math.log(count) + mean + np.asarray(_psi(basis, log_a - mean))


def collapse_log_norms(basis: Basis, log_a: np.ndarray, tolerance: float) -> tuple[float, float]:
    """log‖a‖₁ at max|(K−1)â − 1| = `tolerance` (water filling) and where the direction is uniform."""
    joins = joining_log_norms(basis, log_a)
    uniform = float(joins.max())

    def deviation(level: float) -> float:
        with double_precision():
            return float(_deviation(basis, joins, np.float64(level)))

    # From above: the deviation falls like (uniform − level)/K times the margins that are still out.
    span = tolerance
    while deviation(uniform - span) < tolerance:
        if span > uniform - joins.min() + 1:
            return uniform - span, uniform
        span *= 2
    slack = 1e-10 * max(1.0, abs(uniform))
    level: Any = optimize.brentq(
        lambda level: deviation(level) - tolerance, uniform - span, uniform, xtol=slack
    )
    return level, uniform


@compiled(static_argnames=("basis",))
def _psi(basis: Basis, v):
    return basis.psi(v)


@compiled(static_argnames=("basis",))
def _deviation(basis: Basis, joins, level):
    left = jnp.maximum(joins - level, 0.0)
    total = jnp.sum(left if basis.weights is None else left * basis.weights[1:])
    return jnp.max(jnp.abs(total - basis.psi(left))) / basis.classes


def filled_weights(basis: Basis, joins: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights that have filled up the margins to log‖a‖₁ = `level`, and their logs; zero in front."""
    depth = level - joins
    q = np.maximum(depth, 0.0)
    p = q / np.sum(q * basis.multiplicity)
    with np.errstate(divide="ignore"):
        out = np.minimum(depth, 0.0) / basis.classes * math.exp(min(level, 50.0))
        log_p = np.where(q > 0, np.log(p), out - math.log(basis.classes))
    return np.concatenate([[0.0], p]), np.concatenate([[0.0], log_p])


def log10_log10_time_at_collapse(classes: int, log_norm: float, steepness: float = 1.0) -> float:
    """log10 log10 t where all margins are ‖a‖₁K/(K−1): log t over the steepness, up to its logarithm."""
    log_margin = log_norm + math.log(steepness * classes / (classes - 1))
    return (log_margin - math.log(math.log(10.0))) / math.log(10.0)
