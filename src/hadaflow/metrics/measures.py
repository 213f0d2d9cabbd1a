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

from hadaflow.base.errors import InputError, failures_told, meant, printable, shown
from hadaflow.base.precision import double_precision, to_numpy
from hadaflow.metrics.distances import (
    alignment,
    collapse_deviation,
    frobenius,
    kl,
    l2,
    log_ratio,
    reverse_kl,
    smallest,
)
from hadaflow.metrics.matrix_metrics import FULL, loss_per_energy
from hadaflow.model.closed_forms import fixed_point
from hadaflow.model.fitting import check_parameters, fitted, result_units
from hadaflow.model.layers import layer_values
from hadaflow.model.states import RAW, Parameters
from hadaflow.model.ufm import UFM, check_model

Metric = str | Callable[..., Any]

# --- the same and more, for a reduced state (scaled a, C) ----------------------------------------


def _of_nontrivial(function):
    return lambda view, a, C, *angles: function(view.nontrivial(a))


def _alignment_w_reduced(view: ReducedView, a, C, *angles):
    """Distance of WWᵀ from uniform: the squares of the first layer."""
    return alignment(view.nontrivial(layer_values(view.depth, a, C)[0] ** 2))


def _alignment_h_reduced(view: ReducedView, a, C, *angles):
    """Distance of HᵀH from uniform: the squares of the product of all other layers."""
    rest = layer_values(view.depth, a, C)[1:]
    return alignment(view.nontrivial(jnp.prod(rest, axis=0) ** 2))


REDUCED: dict[str, Callable[..., Any]] = {
    "kl": _of_nontrivial(kl),
    "reverse_kl": _of_nontrivial(reverse_kl),
    "l2": _of_nontrivial(l2),
    "frobenius": _of_nontrivial(frobenius),
    "log_ratio": _of_nontrivial(log_ratio),
    "collapse_deviation": _of_nontrivial(collapse_deviation),
    "energy": lambda view, a, C, *angles: view.energy(a, *angles),
    "log_energy": lambda view, a, C, *angles: view.log_energy(a, *angles),
    "loss": lambda view, a, C, *angles: view.energy(a, *angles) * view.loss_per_energy,
    "log_loss": lambda view, a, C, *angles: (
        view.log_energy(a, *angles) + jnp.log(view.loss_per_energy)
    ),
    "margin": lambda view, a, C, *angles: smallest(jnp.concatenate(view.margins(a, *angles))),
    "alignment_w": _alignment_w_reduced,
    "alignment_h": _alignment_h_reduced,
    "alignment_z": _of_nontrivial(alignment),
    "label_divergence": lambda view, a, C, *angles: _label_divergence(view, a, C),
}


def _fixed_point(view: ReducedView):
    """Where the softmax equals the labels: `closed_forms.fixed_point`, traced."""
    basis, loss = view.modes_of_view, view.loss
    counts = jnp.asarray(basis.multiplicity, float)
    logs = jnp.log(loss.labels)
    own = jnp.log(1 - jnp.sum(counts * loss.labels))
    complement = basis.padded_psi(pad(logs))[..., 1:]
    return loss.temperature / basis.classes * (own + jnp.sum(counts * logs) - complement)


def _label_divergence(view: ReducedView, a, C):
    r"""Bregman divergence from the fixed point of the labels, $\phi'' = 1/w$: it only falls.

    Depth 2, balanced: $\sum_i a_i^*\log(a_i^*/a_i) - a_i^* + a_i$. Deeper models: balanced ones.
    """
    goal = jnp.maximum(_fixed_point(view), 0.0)
    if view.depth == 1:
        terms = (a - goal) ** 2 / 2
    elif view.depth == 2:
        # φ′ = log(a + w) up to a constant.
        w, w_goal = view.mobility(a, C), view.mobility(goal, C)
        positive = goal > 0
        logs = jnp.log(jnp.where(positive, goal + w_goal, 1.0)) - jnp.log(
            jnp.where(positive, a + w, 1.0)
        )
        terms = goal * logs - w_goal + w
    else:
        q = 2 / view.depth
        slope = a ** (q - 1) / (q - 1)
        terms = (goal**q - a**q) / (q * (q - 1)) - slope * (goal - a)
    return jnp.sum(view.nontrivial(terms))


# --- evaluation ----------------------------------------------------------------------------------


def metric_names(view: str | None = None, model: UFM | None = None) -> list[str]:
    """Names of the metrics for the "reduced" or the "full" view; for either if none is named.

    Those that the paper's model has; with a `model`, those that it has.

    Examples:
        >>> metric_names("reduced", UFM(classes=4, depth=1))[:4]
        ['alignment_z', 'collapse_deviation', 'energy', 'frobenius']
    """
    if view is None:
        return sorted({*metric_names("reduced", model), *metric_names("full", model)})
    if not isinstance(view, str) or view not in ("reduced", "full"):
        given = "a UFM, which comes second" if isinstance(view, UFM) else shown(view)
        raise InputError(f'Argument `view` must be "reduced" or "full", but is {given}.')
    if model is not None:
        check_model(model)
    names = sorted(FULL if view == "full" else REDUCED)
    if model is None:
        return [name for name in names if name != "label_divergence"]
    return [name for name in names if applies(name, view, model)]


_TWO_LAYERS = ("alignment_w", "alignment_h", *(n for n in FULL if n.startswith("nc")))
# Distances from the simplex that a spectrum alone does not tell when the right vectors turn, and
# shares of the logits in the Hadamard basis.
_OF_ONE_BASIS = {
    "reduced": ("l2", "frobenius", "alignment_w", "alignment_h", "alignment_z"),
    "full": ("residual", "off_diagonal"),
}


def check_metric(metric: Metric, view: str, model: UFM) -> None:
    """Refuse a name that is not a metric of this view or of this model."""
    if callable(metric):
        return
    if not isinstance(metric, str):
        raise InputError(f"A metric must be a name or a function, but is {shown(metric)}.")
    if model.depth == 1 and metric in _TWO_LAYERS:
        raise InputError(f"Metric `{metric}` is about W and H and needs `depth` of at least 2.")
    if model.imbalance is not None and metric in _OF_ONE_BASIS[view]:
        raise InputError(
            f"Metric `{metric}` needs balanced classes in the {view} view, but `imbalance` is given."
        )
    if metric == "label_divergence":
        fixed_point(model)  # refuses a model without one
        if model.penalized:
            raise InputError(
                "Metric `label_divergence` must have soft labels without `weight_decay`."
            )
    table, other = (FULL, REDUCED) if view == "full" else (REDUCED, FULL)
    if metric in table:
        return
    allowed = ", ".join(metric_names(view, model))
    if metric in other:
        kind = "full" if view == "reduced" else "reduced"
        raise InputError(f"Metric `{metric}` needs a {kind} state; for a {view} one: {allowed}.")
    nearest = meant(metric, {*REDUCED, *FULL})
    raise InputError(f"Unknown metric {shown(metric)}{nearest}; allowed are {allowed}.")


def applies(metric: str, view: str, model: UFM) -> bool:
    """Has this model that metric?"""
    try:
        check_metric(metric, view, model)
    except InputError:
        return False
    return True


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
        raise InputError(
            f'Argument `flow` must be "gradient" or "normalized", but is {shown(flow)}.'
        )
    return _evaluate(metric, model, state, units, flow)


def _evaluate(metric: Metric, model: UFM, state: Any, units: str | None, flow: str | None) -> Any:
    """`metric` (or its rate along `flow`) at every state of the batch."""
    check_model(model)
    raw = result_units(state, units) == RAW
    if isinstance(state, Parameters):
        check_metric(metric, "full", model)
        arrays, batch, view = check_parameters(model, state).factors, state.batch, "full"
    else:
        check_metric(metric, "reduced", model)
        scaled = fitted(model, state, units, bounded=isinstance(metric, str))
        arrays, batch, view = (scaled.a, scaled.C), scaled.a.shape[:-1], "reduced"
        if scaled.angles is not None:
            _check_angles(metric, model)
            arrays = (*arrays, scaled.angles)
    with double_precision():
        flat = [jnp.asarray(x).reshape(-1, *x.shape[len(batch) :]) for x in arrays]
        return to_numpy(_compiled(metric, model, view, raw, flow)(*flat).reshape(batch))


def spectral_distance(name: str, values: np.ndarray) -> np.ndarray:
    """A distance from uniform, `kl` or `l2`, of the K − 1 singular values, whatever their vectors are.

    Leading axes batched.
    """
    with double_precision():
        flat = jnp.asarray(values.reshape(-1, values.shape[-1]))
        return np.asarray(_batched_distance(name)(flat)).reshape(values.shape[:-1])


@functools.cache
def _batched_distance(name: str):
    return jax.jit(jax.vmap({"kl": kl, "l2": l2}[name]))


def _check_angles(metric: Metric, model: UFM) -> None:
    """The distances of matrices from the simplex need more than the moduli of modes with phases."""
    if model.imbalance is None and metric in _OF_ONE_BASIS["reduced"]:
        raise InputError(
            f"Metric `{metric}` is not told by the moduli of modes with phases: `lift` the state."
        )


@functools.lru_cache(maxsize=256)
def _compiled(metric: Metric, model: UFM, view: str, raw: bool, flow: str | None):
    """Compiled, batched evaluation; kept, because trajectories ask for the same metric again."""
    function = as_function(metric, model, view, raw)
    velocity = _full_velocity if view == "full" else _reduced_velocity
    clock = _clock_scale(model, view, raw, flow)

    def one(*arrays):
        if flow is None:
            value = function(*arrays)
        else:
            tangents = tuple(v * clock for v in velocity(model, arrays, flow))
            value = jax.jvp(function, arrays, tangents)[1]
        return jnp.asarray(value).astype(jnp.float64)

    return jax.jit(jax.vmap(one))


def as_function(
    metric: Metric, model: UFM, view: str = "reduced", raw: bool = False
) -> Callable[..., Any]:
    """The metric as a function of the arrays of a state; a user's own sees `a` in the run's units."""
    if view == "full":
        if isinstance(metric, str):
            return lambda *factors: FULL[metric](model, factors)
        return _one_number(metric)
    if isinstance(metric, str):
        return lambda a, C, *angles: REDUCED[metric](model, a, C, *angles)
    scale, own = model.singular_value_scale if raw else 1.0, _one_number(metric)
    return lambda a, C, *angles: own(a * scale)


def _one_number(metric: Callable[..., Any]) -> Callable[..., Any]:
    """A user's metric, whose answer must be one real number that can change."""

    def checked(*arrays):
        with failures_told(_untraceable(metric)):
            value = jnp.asarray(metric(*arrays))
        if value.shape != ():
            raise InputError(
                f"A metric must return one number, but this one has shape {value.shape}."
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise InputError(
                f"A metric must return a real number, but this one returns {value.dtype}."
            )
        return value

    return checked


def _untraceable(metric: Callable[..., Any]) -> Callable[[str], str]:
    name = getattr(metric, "__name__", type(metric).__name__)
    return lambda reason: f"Metric `{printable(name, 80)}` cannot be traced by JAX ({reason})."


def _clock_scale(model: UFM, view: str, raw: bool, flow: str | None) -> float:
    """What the velocity is multiplied by, so that the rate is per unit of the run's own clock."""
    if flow == "gradient":
        if view == "full":
            return 1.0 if raw else 1 / model.time_scale
        return model.time_scale if raw else 1.0
    # Path length is measured in parameter space (full) or in the run's singular values (reduced).
    return 1 / model.singular_value_scale if raw and view == "reduced" else 1.0


def _reduced_velocity(model: UFM, arrays, flow: str):
    return model.reduced_velocity(*arrays, normalized=flow == "normalized")


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
