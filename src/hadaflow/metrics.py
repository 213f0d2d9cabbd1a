r"""Functions of one state, and their exact rates along the flow by forward-mode differentiation.

A metric is a name or a user's own JAX-traceable function. The named ones are tabled here, for reduced
states and for full ones.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.closed_forms import fixed_point
from hadaflow.distances import (
    alignment,
    collapse_deviation,
    frobenius,
    kl,
    l2,
    log_ratio,
    norm,
    reverse_kl,
    smallest,
)
from hadaflow.errors import InputError
from hadaflow.model import MSE, UFM
from hadaflow.precision import double_precision, to_numpy
from hadaflow.states import RAW, Parameters

Metric = str | Callable[..., Any]

# --- the same and more, for a reduced state (scaled a, C) ----------------------------------------


def _of_nontrivial(function):
    return lambda model, a, C: function(model.nontrivial(a))


def _layer_alignment(sign: int):
    r"""Distance of α² (WWᵀ) or β² (HᵀH) from uniform; α² = w + C/2, β² = w − C/2 up to a factor."""

    def layer_alignment(model: UFM, a, C):
        return alignment(model.nontrivial(model.mobility(a, C) + sign * C / 2))

    return layer_alignment


REDUCED: dict[str, Callable[..., Any]] = {
    "kl": _of_nontrivial(kl),
    "reverse_kl": _of_nontrivial(reverse_kl),
    "l2": _of_nontrivial(l2),
    "frobenius": _of_nontrivial(frobenius),
    "log_ratio": _of_nontrivial(log_ratio),
    "collapse_deviation": _of_nontrivial(collapse_deviation),
    "energy": lambda model, a, C: model.energy(a),
    "log_energy": lambda model, a, C: model.log_energy(a),
    "loss": lambda model, a, C: model.energy(a) * _samples(model),
    "log_loss": lambda model, a, C: model.log_energy(a) + jnp.log(_samples(model)),
    "margin": lambda model, a, C: smallest(model.basis.psi(a[-model.basis.modes :])),
    "alignment_w": _layer_alignment(1),
    "alignment_h": _layer_alignment(-1),
    "alignment_z": _of_nontrivial(alignment),
    "label_divergence": lambda model, a, C: _label_divergence(model, a),
}


def _label_divergence(model: UFM, a):
    r"""$\sum_i a_i^*\log(a_i^*/a_i) - a_i^* + a_i$ from the fixed point of the labels: it only falls."""
    goal = np.maximum(fixed_point(model), 0.0)
    positive = goal > 0
    logs = jnp.log(jnp.where(positive, goal, 1.0)) - jnp.log(jnp.where(positive, a, 1.0))
    return jnp.sum(model.nontrivial(goal * logs - goal + a))


def _samples(model: UFM) -> float:
    """What turns the loss of one sample into the loss: Kn for a sum, 1 for a mean."""
    return model.classes * model.samples / model.loss_divisor


# --- for a full state (tuple of factors) ---------------------------------------------------------


def _etf(model: UFM):
    """S = I − 11ᵀ/K, the simplex equiangular tight frame."""
    return jnp.asarray(np.eye(model.classes) - 1 / model.classes)


def _simplex(model: UFM):
    """S ⊗ 1ᵀ, the direction of the collapsed logits."""
    return jnp.repeat(_etf(model), model.samples, axis=1)


def _shown(model: UFM, factors) -> Any:
    """The factors that distances to collapse look at.

    As the paper takes them for cross-entropy; for MSE without the trivial mode, which learns too and
    is no part of the simplex.
    """
    if model.loss != MSE:
        return factors
    first, *rest = factors
    centred = (first - jnp.mean(first, axis=0, keepdims=True), *rest)
    if len(centred) == 1:
        return centred
    H = centred[1]
    by_class = H.reshape(H.shape[0], model.classes, model.samples)
    trivial = jnp.mean(by_class, axis=(1, 2), keepdims=True)
    return centred[0], (by_class - trivial).reshape(H.shape)


def _signal_subspace(model: UFM):
    """Right vectors V₁ = U ⊗ 1/√n of the class means, Kn × K."""
    n = model.samples
    return jnp.asarray(np.kron(model.basis.vectors, np.full((n, 1), n**-0.5)))


def singular_values(model: UFM, factors):
    """The largest K − 1 singular values of the logits, descending."""
    Z = model.logits(_shown(model, factors))
    return jnp.linalg.svd(Z, compute_uv=False)[: model.classes - 1]


def _distance(matrix, target, nuclear: bool):
    """Frobenius distance of two matrices, each divided by its nuclear or Frobenius norm."""
    size = (lambda m: jnp.linalg.norm(m, "nuc")) if nuclear else jnp.linalg.norm
    return norm(matrix / size(matrix) - target / size(target))


def _alignment_z(model, factors):
    return _distance(model.logits(_shown(model, factors)), _simplex(model), nuclear=True)


def _alignment_w(model, factors):
    W, _ = _shown(model, factors)
    return _distance(W @ W.T, _etf(model), nuclear=True)


def _alignment_h(model, factors):
    _, H = _shown(model, factors)
    target = _simplex(model)
    return _distance(H.T @ H, target.T @ target, nuclear=True)


def _residual(model, factors):
    r"""Share of Z outside the signal subspace, $\|Z - U U^\top Z V V^\top\|_F/\|Z\|_F$, U normalized."""
    Z = model.logits(factors)
    U, V = jnp.asarray(model.basis.vectors)[:, 1:], _signal_subspace(model)[:, 1:]
    return jnp.linalg.norm(Z - U @ (U.T @ Z @ V) @ V.T) / jnp.linalg.norm(Z)


def _off_diagonal(model, factors):
    """Share of Z that is not diagonal in the Hadamard basis: zero while the vectors are frozen."""
    Z = model.logits(factors)
    U, V = jnp.asarray(model.basis.vectors), _signal_subspace(model)
    diagonal = jnp.diagonal(U.T @ Z @ V)
    return jnp.linalg.norm(Z - (U * diagonal[None, :]) @ V.T) / jnp.linalg.norm(Z)


def _margin(model, factors):
    Z = model.logits(factors)
    Y = jnp.asarray(model.one_hot)
    right = jnp.sum(Y * Z, axis=0, keepdims=True)
    return smallest(jnp.where(Y == 0, right - Z, jnp.inf))


def _class_means(model, factors):
    """Class means of the features, d × K, and features grouped by class, d × K × n."""
    _, H = factors
    grouped = H.reshape(H.shape[0], model.classes, model.samples)
    return jnp.mean(grouped, axis=2), grouped


def _nc1_parts(model, factors):
    means, grouped = _class_means(model, factors)
    within = (grouped - means[:, :, None]).reshape(means.shape[0], -1)
    between = means - jnp.mean(means, axis=1, keepdims=True)
    return within, between


def _nc1_quot(model, factors):
    r"""$\mathrm{tr}\,\Sigma_W / \mathrm{tr}\,\Sigma_B$: within-class over between-class variance."""
    within, between = _nc1_parts(model, factors)
    return jnp.sum(within**2) / model.samples / jnp.sum(between**2)


def _nc1_pinv(model, factors):
    r"""$\mathrm{tr}(\Sigma_W\Sigma_B^+)/K$ (Papyan et al. 2020)."""
    within, between = _nc1_parts(model, factors)
    K, n = model.classes, model.samples
    inverse = jnp.linalg.pinv(between @ between.T / K, rtol=1e-10)
    return jnp.sum(within * (inverse @ within)) / (K * n) / K


def _nc1_cdnv(model, factors):
    """Class-distance normalized variance, averaged over pairs (Galanti et al. 2022)."""
    means, grouped = _class_means(model, factors)
    variance = jnp.mean(jnp.sum((grouped - means[:, :, None]) ** 2, axis=0), axis=1)
    pair = np.triu_indices(model.classes, 1)
    gaps = jnp.sum((means[:, pair[0]] - means[:, pair[1]]) ** 2, axis=0)
    return jnp.mean((variance[pair[0]] + variance[pair[1]]) / (2 * gaps))


def _nc2_etf_err(model, factors):
    r"""$\|\bar H^\top\bar H/\|\cdot\|_F - S/\|S\|_F\|_F$."""
    means, _ = _class_means(model, factors)
    return _distance(means.T @ means, _etf(model), nuclear=False)


def _nc3_etf_err(model, factors):
    r"""$\|WW^\top/\|\cdot\|_F - S/\|S\|_F\|_F$, the paper's NC3."""
    W, _ = factors
    return _distance(W @ W.T, _etf(model), nuclear=False)


def _nc3_dual_err(model, factors):
    r"""$\|W^\top/\|W\|_F - \bar H/\|\bar H\|_F\|_F$, self-duality of classifier and class means."""
    W, _ = factors
    means, _ = _class_means(model, factors)
    return _distance(W.T, means, nuclear=False)


def _of_singular_values(function):
    return lambda model, factors: function(singular_values(model, factors))


def _log_loss(model, factors):
    return jax.nn.logsumexp(model.log_losses(model.logits(factors))) - jnp.log(
        float(model.loss_divisor)
    )


FULL: dict[str, Callable[..., Any]] = {
    "kl": _of_singular_values(kl),
    "reverse_kl": _of_singular_values(reverse_kl),
    "log_ratio": _of_singular_values(log_ratio),
    "l2": lambda model, factors: _alignment_z(model, factors) ** 2 / 2,
    "frobenius": lambda model, factors: (
        _distance(model.logits(_shown(model, factors)), _simplex(model), nuclear=False) ** 2
    ),
    "collapse_deviation": lambda model, factors: full_collapse_deviation(model, factors),
    "energy": lambda model, factors: jnp.exp(_log_loss(model, factors)) / _samples(model),
    "log_energy": lambda model, factors: _log_loss(model, factors) - jnp.log(_samples(model)),
    "loss": lambda model, factors: jnp.exp(_log_loss(model, factors)),
    "log_loss": _log_loss,
    "margin": _margin,
    "alignment_w": _alignment_w,
    "alignment_h": _alignment_h,
    "alignment_z": _alignment_z,
    "residual": _residual,
    "off_diagonal": _off_diagonal,
    "nc1_pinv": _nc1_pinv,
    "nc1_quot": _nc1_quot,
    "nc1_cdnv": _nc1_cdnv,
    "nc2_etf_err": _nc2_etf_err,
    "nc3_etf_err": _nc3_etf_err,
    "nc3_dual_err": _nc3_dual_err,
}


def full_collapse_deviation(model: UFM, factors):
    r"""Spectral distance of the centred logits from the simplex, (K−1)·‖Z/‖Z‖_* − S/‖S‖_*‖₂.

    On a Hadamard state it is $\max_i|(K-1)\hat a_i - 1|$. The class-constant part of the logits,
    which the softmax does not see and the flow does not move, is left out.
    """
    Z = model.logits(factors)
    centred = Z - jnp.mean(Z, axis=0, keepdims=True)
    target = _simplex(model) * ((model.classes - 1) * model.samples**0.5) ** -1
    gap = centred / jnp.linalg.norm(centred, "nuc") - target
    return (model.classes - 1) * jnp.linalg.norm(gap, 2)


# --- evaluation ----------------------------------------------------------------------------------


def metric_names(view: str, model: UFM | None = None) -> list[str]:
    """Names of the metrics for the "reduced" or the "full" view.

    Those that every model has; with a `model`, also those that it has beside them.
    """
    names = set(FULL if view == "full" else REDUCED)
    if model is None or not model.soft_labels:
        names.discard("label_divergence")
    return sorted(names)


_TWO_LAYERS = ("alignment_w", "alignment_h", *(n for n in FULL if n.startswith("nc")))


def check_metric(metric: Metric, view: str, model: UFM) -> None:
    """Refuse a name that is not a metric of this view or of this model."""
    if callable(metric):
        return
    if model.depth == 1 and metric in _TWO_LAYERS:
        raise InputError(f"Metric `{metric}` is about W and H and needs `depth` = 2.")
    if metric == "label_divergence":
        fixed_point(model)  # refuses a model without one
    table, other = (FULL, REDUCED) if view == "full" else (REDUCED, FULL)
    if metric in table:
        return
    allowed = ", ".join(metric_names(view, model))
    if metric in other:
        kind = "full" if view == "reduced" else "reduced"
        raise InputError(f"Metric `{metric}` needs a {kind} state; for a {view} one: {allowed}.")
    raise InputError(f"Unknown metric {metric!r}; allowed are {allowed}.")


def measure(metric: Metric, model: UFM, state: Any, units: str | None = None) -> Any:
    """Value of `metric` at `state`: a name, or your own JAX-traceable function.

    Your function is called with the singular values `a` (in `units`) for a reduced state and with
    the matrices `W, H` for a full one, and returns one number. Leading axes of the state are
    batched.

    Examples:
        >>> model = UFM(classes=4)
        >>> float(measure("l2", model, [1.0, 1.0, 1.0]))
        0.0
    """
    return _evaluate(metric, model, state, units, None)


def rate(
    metric: Metric,
    model: UFM,
    state: Any,
    *,
    flow: str = "gradient",
    units: str | None = None,
) -> Any:
    """Exact derivative of `metric` along the flow, by forward-mode differentiation.

    Args:
        metric: A name or your own function, as in `measure`.
        model: The model whose flow moves the state.
        state: A spectrum, a list of singular values, or `Parameters`.
        flow: "gradient" for the time derivative; "normalized" for the derivative per unit of path
            length (Eq. 22), which stays of ordinary size where the former underflows.
        units: Units of a spectrum without its own, and of the time.

    Where entries of `a` tie, metrics with a maximum in them have a kink, and the rate is the one to
    the right. For a full state whose singular values coincide, `log_ratio` has no such rate: project
    it first.

    Examples:
        >>> a = [1.0, 1.0, 1.0, 1.25, 1e-4, 1e-4, 1e-4]
        >>> bool(rate("l2", UFM(classes=8), a) > 0), bool(rate("kl", UFM(classes=8), a) < 0)
        (True, True)
    """
    if flow not in ("gradient", "normalized"):
        raise InputError(f'Argument `flow` must be "gradient" or "normalized", but is {flow!r}.')
    return _evaluate(metric, model, state, units, flow)


def _evaluate(metric: Metric, model: UFM, state: Any, units: str | None, flow: str | None) -> Any:
    """`metric` (or its rate along `flow`) at every state of the batch."""
    raw = model.result_units(state, units) == RAW
    if isinstance(state, Parameters):
        check_metric(metric, "full", model)
        arrays, batch, view = model.check_parameters(state).factors, state.batch, "full"
    else:
        check_metric(metric, "reduced", model)
        scaled = model.scaled(state, units)
        arrays, batch, view = (scaled.a, scaled.C), scaled.a.shape[:-1], "reduced"
    with double_precision():
        flat = [jnp.asarray(x).reshape(-1, *x.shape[len(batch) :]) for x in arrays]
        return to_numpy(_compiled(metric, model, view, raw, flow)(*flat).reshape(batch))


@functools.lru_cache(maxsize=256)
def _compiled(metric: Metric, model: UFM, view: str, raw: bool, flow: str | None):
    """Compiled, batched evaluation; kept, because trajectories ask for the same metric again."""
    function = _as_function(metric, model, view, raw)
    velocity = _full_velocity if view == "full" else _reduced_velocity
    clock = _clock_scale(model, view, raw, flow)

    def one(*arrays):
        if flow is None:
            value = function(*arrays)
        else:
            tangents = tuple(v * clock for v in velocity(model, arrays, flow))
            value = jax.jvp(function, arrays, tangents)[1]
        value = jnp.asarray(value)
        if value.shape != ():
            raise InputError(
                f"A metric must return one number, but this one has shape {value.shape}."
            )
        return value.astype(jnp.float64)

    return jax.jit(jax.vmap(one))


def _as_function(metric: Metric, model: UFM, view: str, raw: bool) -> Callable[..., Any]:
    """The metric as a function of the arrays of a state; a user's own sees `a` in the run's units."""
    if view == "full":
        if isinstance(metric, str):
            return lambda *factors: FULL[metric](model, factors)
        return metric
    if isinstance(metric, str):
        return lambda a, C: REDUCED[metric](model, a, C)
    scale = model.singular_value_scale if raw else 1.0
    return lambda a, C: metric(a * scale)


def _clock_scale(model: UFM, view: str, raw: bool, flow: str | None) -> float:
    """What the velocity is multiplied by, so that the rate is per unit of the run's own clock."""
    if flow == "gradient":
        if view == "full":
            return 1.0 if raw else 1 / model.time_scale
        return model.time_scale if raw else 1.0
    # Path length is measured in parameter space (full) or in the run's singular values (reduced).
    return 1 / model.singular_value_scale if raw and view == "reduced" else 1.0


def _reduced_velocity(model: UFM, arrays, flow: str):
    a, C = arrays
    direction, slowness = model.drive(a)
    velocity = model.mobility(a, C) * direction
    drift = jnp.zeros_like(C)
    if flow == "gradient" or model.penalized:
        velocity = velocity * jnp.exp(-slowness)
    if model.penalized:
        lost, drift_lost = model.decay(a, C)
        velocity, drift = velocity - lost, drift - drift_lost
    if flow == "normalized":
        length = jnp.linalg.norm(model.all_values(velocity))
        return velocity / length, drift / length
    return velocity, drift


def _full_velocity(model: UFM, factors, flow: str):
    direction, slowness = model.full_drive(model.logits(factors))
    velocity = model.pull_back(factors, direction)
    if model.penalized:
        slow = jnp.exp(-slowness)
        velocity = model.decayed(factors, tuple(v * slow for v in velocity))
        slowness = jnp.zeros_like(slowness)
    if flow == "normalized":
        length = jnp.sqrt(sum(jnp.sum(v**2) for v in velocity))
        return tuple(v / length for v in velocity)
    return tuple(v * jnp.exp(-slowness) for v in velocity)
