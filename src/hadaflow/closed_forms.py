"""What can be solved by hand: MSE from any Hadamard start, and linearized cross-entropy."""

from typing import Any

import numpy as np

from hadaflow.errors import InputError
from hadaflow.model import MSE, UFM
from hadaflow.states import RAW


def check_times(name: str, times: Any) -> np.ndarray:
    """Times as an array: finite, not negative, strictly increasing."""
    try:
        ts = np.atleast_1d(np.array(times, dtype=np.float64))
    except (TypeError, ValueError):
        raise InputError(f"Argument `{name}` must hold numbers, but is {times!r}.") from None
    if ts.ndim != 1 or ts.size == 0 or not np.all(np.isfinite(ts)) or np.any(ts < 0):
        raise InputError(
            f"Argument `{name}` must be a list of finite times from 0 upwards, but is {times!r}."
        )
    if np.any(np.diff(ts) <= 0):
        raise InputError(f"Argument `{name}` must be strictly increasing, but is {times!r}.")
    return ts


def linearized(model: UFM, start: Any, times: Any, units: str | None = None) -> np.ndarray:
    r"""Singular values of the linearized cross-entropy flow (Theorem 5), one row per time.

    $$a_i(t) = \frac{a_i(0)}{a_i(0) + (1 - a_i(0))\,e^{-t}}$$

    in scaled units: independent sigmoids, right while $\|a\|_1 \ll 1$. Depth 2, balanced.
    """
    if model.loss == MSE or model.depth != 2:
        raise InputError(
            "Argument `model` must be cross-entropy at depth 2 for the linearized solution, "
            f"but is {model.loss} at depth {model.depth}."
        )
    given = model.scaled(start, units)
    if np.any(given.C):
        raise InputError("Argument `start` must be balanced (C = 0) for the linearized solution.")
    time_scale, value_scale = _scales(model, start, units)
    t = check_times("times", times)[:, None] * time_scale
    return value_scale * given.a / (given.a + (1 - given.a) * np.exp(-t))


def mse_exact(model: UFM, start: Any, times: Any, units: str | None = None) -> np.ndarray:
    r"""Singular values of the MSE flow, one row per time: exact, all K modes, any $C$.

    Balanced, raw units: $a(t) = \sqrt n\,[1 + (\sqrt n/a_0 - 1)e^{-2\sqrt n t}]^{-1}$.
    """
    if model.loss != MSE:
        raise InputError(f'Argument `model` must have loss="mse", but has {model.loss!r}.')
    given = model.scaled(start, units)
    time_scale, value_scale = _scales(model, start, units)
    t = check_times("times", times) * time_scale
    return value_scale * mse_singular_values(model, given.a, given.C, t)


def _scales(model: UFM, start: Any, units: str | None) -> tuple[float, float]:
    raw = model.result_units(start, units) == RAW
    return (model.time_scale, model.singular_value_scale) if raw else (1.0, 1.0)


def mse_singular_values(model: UFM, a0: np.ndarray, C: np.ndarray, t: np.ndarray) -> np.ndarray:
    r"""Scaled MSE solution at times `t` (which may be infinite), shape (times, modes).

    Depth 2: $q = e^\delta$, $\delta = \int g\,dt$, obeys the Riccati equation
    $\dot q = q - KAq^2 + KB$ with $A = (w_0 + a_0)/2$, $B = (w_0 - a_0)/2$; its fixed point $q_+$ is
    approached at the rate $\lambda = \sqrt{1 + K^2C^2/4}$. Depth 1: plain exponential decay.
    """
    K, t = model.classes, t[:, None]
    if model.depth == 1:
        return a0 - (a0 - 1 / K) * -np.expm1(-K * t)
    excess = model.excess(a0, C)
    A = a0 + excess / 2
    moving = A > 0  # a balanced zero stays zero
    safe_A = np.where(moving, A, 1.0)
    rate = np.hypot(1.0, K * C / 2)
    upper, lower = (1 + rate) / (2 * K * safe_A), (1 - rate) / (2 * K * safe_A)
    settled = -np.expm1(-rate * t)
    ratio = (1 - upper) / (1 - lower) * (1 - settled)
    delta = np.log1p((upper - 1) * settled / (1 - ratio))
    # exp(delta) through log a0 would turn 0 into NaN; a0·e^δ cannot overflow here.
    return np.where(moving, a0 * np.exp(delta) + excess * np.sinh(delta), 0.0)


def mse_path_length(model: UFM, a0: np.ndarray, C: np.ndarray, us: np.ndarray) -> np.ndarray:
    """Scaled path length of the MSE flow at u = log(1 + t), by Gauss–Legendre quadrature in u."""
    # Pieces short against every time scale of the solution; beyond the last nothing moves.
    settled = np.log1p(120.0 + 2 * np.log(1 / max(a0[a0 > 0].min(initial=1.0), 1e-300)))
    pieces = np.union1d(np.arange(0.0, settled, 1 / 16), np.minimum(us, settled))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    width = np.diff(pieces)
    u = pieces[:-1, None] + width[:, None] * (nodes + 1) / 2
    t = np.expm1(u.ravel())
    a = mse_singular_values(model, a0, C, t)
    velocity = model.velocity(a, np.broadcast_to(C, a.shape))
    speed = (np.linalg.norm(velocity, axis=1) * (1 + t)).reshape(u.shape)
    length = np.concatenate([[0.0], np.cumsum(speed @ weights * width / 2)])
    return length[np.searchsorted(pieces, np.minimum(us, settled))]
