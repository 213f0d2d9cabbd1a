"""What can be solved by hand: MSE from any Hadamard start, linearized cross-entropy, fixed points."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.base.checks import as_numbers
from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import optimize
from hadaflow.model.fitting import check_all_modes, fitted, result_units
from hadaflow.model.layers import excess
from hadaflow.model.states import RAW, Spectrum, check_units
from hadaflow.model.ufm import MSE, UFM, check_model

# Smaller ones are flushed to zero in compiled code.
SMALLEST_TIME = 1e-300


def check_times(name: str, times: Any) -> np.ndarray:
    """Times as an array: finite, not negative, strictly increasing."""
    ts = np.atleast_1d(as_numbers(name, times))
    if ts.ndim == 1 and ts.size > 1 and np.all(ts[1:] > ts[:-1]):
        first = ts[1] if ts[0] == 0 else ts[0]
        if ts[0] >= 0 and first >= SMALLEST_TIME and ts[-1] < np.inf:  # as they mostly are
            return ts
    if np.any((ts > 0) & (ts < SMALLEST_TIME)):
        raise InputError(
            f"Argument `{name}` must hold times of at least {SMALLEST_TIME:g} (or 0), "
            f"but is {shown(times)}."
        )
    if ts.ndim != 1 or ts.size == 0 or not np.all(np.isfinite(ts)) or np.any(ts < 0):
        raise InputError(
            f"Argument `{name}` must be a list of finite times from 0 upwards, but is {shown(times)}."
        )
    if np.any(np.diff(ts) <= 0):
        raise InputError(f"Argument `{name}` must be strictly increasing, but is {shown(times)}.")
    return ts


def linearized(model: UFM, start: Any, times: Any, units: str | None = None) -> np.ndarray:
    r"""Singular values of the linearized cross-entropy flow (Theorem 5), one row per time.

    $$a_i(t) = \frac{a_i(0)}{a_i(0) + (1 - a_i(0))\,e^{-t}}$$

    in scaled units: independent sigmoids, right while $\|a\|_1 \ll 1$. Depth 2, balanced.
    """
    check_model(model)
    if not model.is_cross_entropy or model.depth != 2:
        raise InputError(
            "Argument `model` must be cross-entropy at depth 2 for the linearized solution, "
            f"but is {model.loss} at depth {model.depth}."
        )
    plain = model.imbalance is None and not model.basis.paired
    if model.settles or model.penalized or model.temperature != 1 or not plain:
        raise InputError(
            "Argument `model` must have hard labels, temperature 1, no `weight_decay` and the "
            "Sylvester basis for the linearized solution of Theorem 5."
        )
    given = _one_spectrum(model, start, units)
    if np.any(given.C):
        raise InputError("Argument `start` must be balanced (C = 0) for the linearized solution.")
    time_scale, value_scale = _scales(model, start, units)
    t = check_times("times", times)[:, None] * time_scale
    return value_scale * given.a / (given.a + (1 - given.a) * np.exp(-t))


def mse_exact(model: UFM, start: Any, times: Any, units: str | None = None) -> np.ndarray:
    r"""Singular values of the MSE flow, one row per time: exact, all K modes, any $C$.

    Balanced, raw units: $a(t) = \sqrt n\,[1 + (\sqrt n/a_0 - 1)e^{-2\sqrt n t}]^{-1}$.
    """
    check_model(model)
    if model.loss != MSE:
        raise InputError(f'Argument `model` must have loss="mse", but has {shown(model.loss)}.')
    if model.penalized or model.depth > 2:
        raise InputError(
            "Argument `model` must have no `weight_decay` and depth 1 or 2 for the exact MSE solution."
        )
    given = _one_spectrum(model, start, units)
    time_scale, value_scale = _scales(model, start, units)
    t = check_times("times", times) * time_scale
    return value_scale * mse_singular_values(model, given.a, given.C, t)


def fixed_point(model: UFM, units: str = "scaled") -> np.ndarray:
    r"""Where the flow with soft labels or with penalties settles, one value per free mode.

    $$a^*_\chi = \frac{\tau}{K}\sum_g \mathrm{Re}\,\chi(g)\,\log q_g$$

    in scaled units: the softmax equals the labels there. It is reached from a positive start when all
    of it is positive; a mode whose value is negative dies instead, and the others settle elsewhere.

    With penalties $a^* = \tau\sqrt n\log(K/\tau\bar\lambda - K + 1)$ (raw) for every mode,
    $\bar\lambda = \sqrt{\lambda_W\lambda_H/n}$, and zero from $\tau\bar\lambda = 1$ on. At other depths
    the largest root of one equation, or zero if it has none. Deeper models rest at zero and in low-rank
    states as well, and where $a^*/K\sqrt n < (1 - 2/N)\tau$ the point repels.
    """
    check_model(model)
    if model.imbalance is not None:
        raise InputError(
            "Argument `model` must have balanced classes: with `imbalance` there is no closed form; "
            "`solve` until Steady() finds it."
        )
    check_all_modes(model)
    scale = 1.0 if check_units(units) == RAW else model.singular_value_scale
    if model.penalized:
        if model.soft_labels or not model.is_cross_entropy:
            raise InputError(
                "Argument `model` must have penalties with hard labels and cross-entropy, or soft labels "
                "without penalties: both together have no closed form; `solve` until Steady() finds it."
            )
        if not all(model.decays):
            raise InputError(
                "Argument `model` must have penalties on all layers: else there is no finite fixed "
                "point."
            )
        return np.full(model.modes, _penalized_fixed_point(model) / scale)
    if model.loss_kind.moves_constant:
        raise InputError(
            "Argument `model` must have a softmax for a fixed point in closed form, but has loss = "
            f"{model.loss}; `solve` until Steady() finds it."
        )
    if not model.soft_labels:
        raise InputError(
            "Argument `model` must have soft labels or penalties (`label_smoothing`, "
            "`label_distribution`, `weight_decay`): else there is no finite fixed point."
        )
    q = model.label_probabilities
    if np.any(q == 0):
        raise InputError("Argument `model` must have labels that are positive for every class.")
    logs = np.log(q)
    complement = model.basis.psi(logs[model.basis.representatives][1:])  # Σ (1 − Re χ) log q
    a = model.temperature / model.classes * (np.sum(logs) - complement)
    return a * (model.singular_value_scale / scale)


def too_strong(model: UFM) -> bool:
    """Are the penalties so strong that no state with all singular values equal can rest?"""
    hard = model.is_cross_entropy and not model.soft_labels
    if not (hard and all(model.decays)) or model.imbalance is not None:
        return False
    return model.depth > 1 and _penalized_fixed_point(model) == 0.0


def _penalized_fixed_point(model: UFM) -> float:
    r"""The raw value of all modes at rest under penalties, the larger one if there are two; 0 if none.

    There $g(a)\,a^{1-2/N} = \bar\lambda$ with $g = \frac1\tau K/(e^{a/\tau\sqrt n} + K - 1)$.
    """
    N, K, strength = model.depth, model.classes, model.decay_strength * model.temperature
    unit = math.sqrt(model.samples) * model.temperature
    if N == 2:
        return unit * math.log(K / strength - K + 1) if strength < 1 else 0.0

    def excess(log_a: float) -> float:
        """Log of g(a) a^{1−2/N}/λ̄."""
        a = math.exp(log_a)
        log_g = math.log(K) - a / unit - math.log1p((K - 1) * math.exp(-a / unit))
        return log_g + (1 - 2 / N) * log_a - math.log(strength)

    low = -1.0
    if N == 1:  # falls for all a
        while excess(low) < 0:
            low -= 1.0
    else:  # concave: one maximum, and the larger root lies behind it
        best: Any = optimize.minimize_scalar(
            lambda s: -excess(s), bounds=(-50.0, 50.0), method="bounded"
        )
        low = float(best.x)
        if excess(low) <= 0:
            return 0.0
    high = low + 1.0
    while excess(high) > 0:
        high += 1.0
    root: Any = optimize.brentq(excess, low, high, xtol=1e-15)
    return math.exp(root)


def _one_spectrum(model: UFM, start: Any, units: str | None) -> Spectrum:
    given = fitted(model, start, units)
    if given.a.ndim != 1:
        raise InputError(
            f"Argument `start` must be one spectrum, but is a batch of shape {given.a.shape}."
        )
    return given


def _scales(model: UFM, start: Any, units: str | None) -> tuple[float, float]:
    raw = result_units(start, units) == RAW
    return (model.time_scale, model.singular_value_scale) if raw else (1.0, 1.0)


def mse_singular_values(model: UFM, a0: np.ndarray, C: np.ndarray, t: np.ndarray) -> np.ndarray:
    r"""Scaled MSE solution at times `t` (which may be infinite), shape (times, modes).

    Depth 2: $q = e^\delta$, $\delta = \int g\,dt$, obeys the Riccati equation
    $\dot q = q - KAq^2 + KB$ with $A = (w_0 + a_0)/2$, $B = (w_0 - a_0)/2$; its fixed point $q_+$ is
    approached at the rate $\lambda = \sqrt{1 + K^2C^2/4}$. Depth 1: plain exponential decay.
    """
    K, t = model.classes, t[:, None]
    if model.depth == 1:
        return 1 / K + (a0 - 1 / K) * np.exp(-K * t)
    excess0 = excess(a0, C)
    w0 = a0 + excess0
    moving = w0 > 0  # a balanced zero stays zero
    double_A = np.where(moving, a0 + w0, 1.0)
    rate = np.hypot(1.0, K * C / 2)
    # 1/q₊, (q₊ − 1)/q₊ and 1 − q₋ as sums and products in which nothing cancels.
    inverse = K * double_A / (1 + rate)
    share = (1 - K * a0) * (1 + (1 + K * a0) / (rate + K * w0)) / (1 + rate)
    below = 1 + (K * C / 2) ** 2 / (1 + rate) / (K * double_A)
    settled, left = -np.expm1(-rate * t), np.exp(-rate * t)
    begun = 2 * rate / (1 + rate) / below * left
    slowed = inverse * settled + begun
    change = share * settled / slowed  # q − 1, and q = (settled + begun)/slowed
    small = np.abs(change) < 0.5
    delta = np.where(
        small, np.log1p(np.where(small, change, 0.0)), np.log(settled + begun) - np.log(slowed)
    )
    return np.where(moving, a0 * np.exp(delta) + excess0 * np.sinh(delta), 0.0)


def mse_path_length(model: UFM, a0: np.ndarray, C: np.ndarray, us: np.ndarray) -> np.ndarray:
    """Scaled path length of the MSE flow at u = log(1 + t): adaptive Gauss–Legendre quadrature.

    Pieces are halved until the rule of twice the points agrees, because modes may start to move at
    very different times and unbalanced ones settle very fast.
    """
    # Beyond this time nothing moves any more, whatever the start.
    last = np.log1p(120.0 - 2 * np.log(a0[a0 > 0].min(initial=1.0)))

    def speed(us: np.ndarray) -> np.ndarray:
        t = np.expm1(us)
        a = mse_singular_values(model, a0, C, t)
        w = np.ones_like(a) if model.depth == 1 else np.hypot(a, C / 2)
        return _length(model, w * (1 - model.classes * a)) * (1 + t)

    return path_lengths(speed, us, float(last), absolute=1e-13)


def path_lengths(
    speed: Callable[[np.ndarray], np.ndarray], us: np.ndarray, last: float, absolute: float
) -> np.ndarray:
    """Integrals of `speed` from 0 to each of the `us`, and to `last` for those beyond it.

    To 1e-12 of every piece, or to `absolute` of the whole.
    """
    pieces = np.union1d(np.linspace(0.0, last, 65), np.minimum(us, last))
    left, right = pieces[:-1], pieces[1:]
    ends, lengths = [np.zeros(1)], [np.zeros(1)]
    for _ in range(60):
        coarse, fine = (_lengths(speed, left, right, n) for n in (8, 16))
        scale = fine.sum() + sum(part.sum() for part in lengths)
        done = np.abs(fine - coarse) <= absolute * scale + 1e-12 * fine
        done |= ~np.isfinite(fine)  # which no smaller pieces mend
        ends.append(right[done])
        lengths.append(fine[done])
        left, right = left[~done], right[~done]
        if not len(left):
            break
        middle = (left + right) / 2
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    ends_, lengths_ = np.concatenate([*ends, right]), np.concatenate([*lengths, 0 * right])
    order = np.argsort(ends_)
    total = np.cumsum(lengths_[order])
    return total[np.searchsorted(ends_[order], np.minimum(us, last), side="right") - 1]


def _length(model: UFM, moved: np.ndarray) -> np.ndarray:
    """Euclidean norm over all K modes, pairs counted twice."""
    return np.sqrt(moved**2 @ model.multiplicity_of_modes)


def _lengths(speed: Callable[[np.ndarray], np.ndarray], left, right, count: int) -> np.ndarray:
    """Integral over each piece by a Gauss–Legendre rule of `count` points."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    width = (right - left)[:, None]
    us = left[:, None] + width * (nodes + 1) / 2
    return (speed(us.ravel()).reshape(us.shape) @ weights) * width[:, 0] / 2
