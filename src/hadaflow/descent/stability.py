"""The learning rate up to which descent is stable."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.base.checks import as_number
from hadaflow.base.compiling import SOON, compiled
from hadaflow.base.errors import InputError, shown
from hadaflow.base.precision import double_precision
from hadaflow.descent.systems import spectral_descent
from hadaflow.model.closed_forms import fixed_point
from hadaflow.model.ufm import UFM, check_model


def stability_limit(model: UFM, momentum: float = 0.0, at: float | None = None) -> float:
    r"""The learning rate up to which descent is stable, for perturbations of the singular values.

    Args:
        model: The model.
        momentum: Heavy ball stretches the limit at a fixed point by 1 + momentum.
        at: Hard labels: where on the way, by the mean singular value $\mu$ (scaled) of a collapsed
            state.

    Soft labels and penalties: at the fixed point, where a step multiplies a perturbation of the layers
    by $1 - \eta\,\nabla^2$. For smoothing $s$ (or $\bar\lambda$) and $n = 1$ at depth 2 the limit is
    $K/(a^*s(1 + (K-1)(1-s)))$, $a^*$ raw.

    Hard labels: the ratios of a collapsed state are multiplied by $1 - NH(\mu - p)/(1 + H)$,
    $p = 1 - 2/N$, $H = h\mu^p$ with $h$ the step in scaled units; at depth 2 descent drives them apart
    when $h\mu > 1 + h$. Infinite where no step does.
    """
    check_model(model)
    momentum = check_momentum(momentum)
    if not model.settles:
        if momentum:
            raise InputError(
                "Argument `momentum` must be 0 for a model with hard labels: the limit is that of one "
                f"step, but is {shown(momentum)}."
            )
        return _limit_at_collapse(model, at)
    if at is not None:
        raise InputError(
            "Argument `at` is for models that never settle; this one has a fixed point."
        )
    a = fixed_point(model)
    if np.any(a <= 0):
        raise InputError(
            "Argument `model` must have a fixed point with positive singular values: a mode whose "
            "value is negative dies, and descent settles elsewhere."
        )
    raw = a * model.singular_value_scale
    layers = np.tile(raw ** (1 / model.depth), (model.depth, 1))
    if model.penalized:  # σ_l² ∝ 1/λ_l
        tilt = np.sqrt(np.array(model.decays))[:, None]
        layers = layers * np.exp(np.mean(np.log(tilt))) / tilt

    with double_precision():
        slopes = np.asarray(_slopes(spectral_descent(model), layers))
    rates = np.linalg.eigvals(slopes).real
    if rates.max() > 1e-9 * np.abs(rates).max():
        raise InputError(
            "Argument `model` must have a fixed point that attracts: at this depth and penalty the one "
            "with all singular values equal repels, whatever the learning rate."
        )
    return 2 / float(np.max(-rates)) * (1 + momentum)


@compiled(SOON)
def _slopes(system: Any, layers: Any) -> Any:
    """Of the force on all layers."""

    def push(values: Any) -> Any:
        return jnp.concatenate(system.push(tuple(values.reshape(layers.shape))))

    return jax.jacfwd(push)(layers.ravel())


def _limit_at_collapse(model: UFM, at: Any) -> float:
    if model.penalized or model.imbalance is not None:
        raise InputError(
            "Argument `model` must have balanced classes, and penalties on all layers or on none, "
            "for a stability limit."
        )
    allowed = (
        "the mean singular value (scaled) of a collapsed state, a positive number, for a model with "
        "hard labels"
    )
    at = as_number("at", at, allowed)
    if not 0 < at < 1e6:
        raise InputError(f"Argument `at` must be {allowed}, but is {shown(at)}.")
    N, tau, mu = model.depth, model.temperature, at / model.temperature
    p = 1 - 2 / N
    room = N * (mu - p) - 2  # H·room < 2 is stable
    if room <= 0:
        return math.inf
    direction, slowness = model.drive(np.full(model.modes, mu * tau))
    log_force = math.log(direction[0]) - float(slowness)
    # One step moves a layer by η/N · time_scale in scaled units.
    log_limit = math.log(2 * N / room / model.time_scale) - log_force - p * math.log(mu * tau)
    return math.exp(log_limit) if log_limit < 700 else math.inf


def check_momentum(momentum: Any) -> float:
    """Heavy-ball momentum as a number."""
    momentum = as_number("momentum", momentum)
    if not 0 <= momentum < 1:
        raise InputError(
            f"Argument `momentum` must be from 0 to below 1, but is {shown(momentum)}."
        )
    return momentum
