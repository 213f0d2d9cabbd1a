r"""Functions of one state, and their exact rates along the flow by forward-mode differentiation.

A metric is a name or a user's own JAX-traceable function. The named ones are tabled here, for reduced
states and for full ones.
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.base.compiling import SOON, WELL, Compiled
from hadaflow.base.errors import InputError, failures_told, meant, printable, shown
from hadaflow.base.precision import double_precision
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
from hadaflow.metrics.matrix_metrics import FULL
from hadaflow.model.closed_forms import fixed_point
from hadaflow.model.fitting import as_spectrum, check_parameters, fitted, result_units
from hadaflow.model.geometries import EUCLIDEAN, Geometry, make_geometry
from hadaflow.model.layers import layer_values
from hadaflow.model.states import RAW, Parameters
from hadaflow.model.ufm import UFM, check_model
from hadaflow.model.views.full import FullView
from hadaflow.model.views.reduced import ReducedView

Metric = str | Callable[..., Any]
_GIVEN = "given"  # velocities that stand behind the arrays of a state

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


# Not to be changed: what is compiled for a metric is known by its name.
REDUCED: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
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
)


def _label_divergence(view: ReducedView, a, C):
    r"""Bregman divergence from the fixed point of the labels, $\phi'' = 1/w$: it only falls.

    Depth 2, balanced: $\sum_i a_i^*\log(a_i^*/a_i) - a_i^* + a_i$. Deeper models: balanced ones.
    """
    goal = jnp.maximum(view.loss.fixed_point(view.modes_of_view), 0.0)
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


_FEW_NUMBERS = 2**14  # in states whose metrics take less time to compute than to compile
_MOST_PADDED = 2**22  # numbers in states, above which more of them would take long
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


def applies(metric: str, view: str, model: UFM, turns: bool = False) -> bool:
    """Has this model that metric, in states whose modes have phases if it `turns`?"""
    try:
        check_metric(metric, view, model)
        if turns:
            _check_angles(metric, model)
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
    geometry: str = EUCLIDEAN,
    decay: float = 0.0,
) -> Any:
    """Exact derivative of `metric` along the flow, by forward-mode differentiation.

    Args:
        metric: A name or your own function, as in `measure`.
        model: The model whose flow moves the state.
        state: A spectrum, a list of singular values, or `Parameters`.
        flow: "gradient" for the time derivative; "normalized" for the derivative per unit of path
            length (Eq. 22), which stays of ordinary size where the former underflows.
        units: Units of a spectrum without its own, and of the time.
        geometry: "euclidean", or that of another steepest descent, as in `solve`.
        decay: Decoupled decay in that other one.

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
    kind = make_geometry(geometry, decay)
    if kind is None:
        return _evaluate(metric, model, state, units, flow)
    check_model(model)
    kind.check(model, state if isinstance(state, Parameters) else as_spectrum(model, state))
    return _evaluate(metric, model, state, units, flow, kind)


def _evaluate(
    metric: Metric, model: UFM, state: Any, units: str | None, flow: str | None,
    geometry: Geometry | None = None,
) -> Any:  # fmt: skip
    """`metric` (or its rate along `flow`) at every state of the batch."""
    check_model(model)
    raw = result_units(state, units) == RAW
    if isinstance(state, Parameters):
        check_metric(metric, "full", model)
        arrays, batch, view = check_parameters(model, state).factors, state.batch, "full"
        equations: Any = model.full_view
    else:
        check_metric(metric, "reduced", model)
        scaled = fitted(model, state, units, bounded=isinstance(metric, str))
        arrays, batch, view = (scaled.a, scaled.C), scaled.a.shape[:-1], "reduced"
        if scaled.angles is not None:
            _check_angles(metric, model)
            arrays = (*arrays, scaled.angles)
        equations = model.view_of(scaled.angles)
        if geometry is not None:
            arrays = (*arrays, *_moved(model, geometry, scaled, flow == "normalized"))
    clock = np.float64(_clock_scale(model, view, raw, flow))
    scale = np.float64(model.singular_value_scale if raw else 1.0)
    with double_precision():
        flat = tuple(np.reshape(x, (-1, *x.shape[len(batch) :])) for x in arrays)
        padded = tuple(_padded(x) for x in flat)
        along = flow if geometry is None else _GIVEN
        program = _program(metric, along, padded[0].size)
        found = program(equations, scale, clock, padded)
        return np.asarray(found)[: len(flat[0])].reshape(batch)[()]


def _moved(model: UFM, geometry: Geometry, state: Any, normalized: bool) -> tuple[Any, Any]:
    """Velocities of a and C, per unit of time or of path length."""
    a, C = geometry.velocity(model, state)
    if not normalized:
        return a, C
    speed = np.sqrt(a**2 @ model.multiplicity_of_modes)
    speed = np.where(speed > 0, speed, 1.0)
    layers = speed.reshape(*speed.shape, *(1,) * (C.ndim - speed.ndim))
    return a / speed[..., None], C / layers


def _padded(states: np.ndarray) -> np.ndarray:
    """More of the last state, up to one of few numbers of states, for each of which code is compiled.

    1 stays, what is more becomes a multiple of a power of two, at most a quarter too many from 16 on.
    """
    count = len(states)
    if count < 2 or states.size > _MOST_PADDED:
        return states
    step = max(16, 2 ** (count.bit_length() - 3))
    missing = -count % step
    return np.concatenate([states, *[states[-1:]] * missing]) if missing else states


def _check_angles(metric: Metric, model: UFM) -> None:
    """The distances of matrices from the simplex need more than the moduli of modes with phases."""
    if model.imbalance is None and metric in _OF_ONE_BASIS["reduced"]:
        raise InputError(
            f"Metric `{metric}` is not told by the moduli of modes with phases: `lift` the state."
        )


def _value(metric: Metric, view: Any, scale: Any, arrays: Any) -> Any:
    """The metric of one state; a user's own sees `a` in the run's units."""
    if isinstance(view, FullView):
        return (
            FULL[metric](view, arrays) if isinstance(metric, str) else _one_number(metric)(*arrays)
        )
    if isinstance(metric, str):
        return REDUCED[metric](view, *arrays)
    return _one_number(metric)(arrays[0] * scale)


def _every(metric: Metric, flow: str | None, view: Any, scale: Any, clock: Any, arrays: Any) -> Any:
    """The metric, or its rate along `flow` by a clock, at every state of a batch."""

    def one(*arrays):
        moved = ()
        if flow == _GIVEN:
            arrays, moved = arrays[:-2], arrays[-2:]

        def value(*arrays):
            return _value(metric, view, scale, arrays)

        if flow is None:
            found = value(*arrays)
        else:
            if flow != _GIVEN:
                normalized = flow == "normalized"
                moved = (
                    view.velocity(arrays, normalized)
                    if isinstance(view, FullView)
                    else view.velocity(*arrays, normalized=normalized)
                )
            found = jax.jvp(value, arrays, tuple(v * clock for v in moved))[1]
        return jnp.asarray(found).astype(jnp.float64)

    return jax.vmap(one)(*arrays)


def _program(metric: Metric, flow: str | None, numbers: int) -> Callable[..., Any]:
    """`_every` of a metric, compiled for states of so many numbers together."""
    soon = numbers <= _FEW_NUMBERS
    if isinstance(metric, str):
        return functools.partial(_named[soon], metric, flow)
    return _own(metric, flow, soon)


# Named metrics are few. Of one's own, each function has its own program, and the oldest go.
_named = [
    Compiled(_every, WELL, static_argnames=("metric", "flow")),
    Compiled(_every, SOON, static_argnames=("metric", "flow")),
]


@functools.lru_cache(maxsize=64)
def _own(metric: Callable[..., Any], flow: str | None, soon: bool) -> Callable[..., Any]:
    program = functools.partial(_every, metric, flow)
    return Compiled(program, SOON if soon else WELL)


def as_function(metric: Metric, view: ReducedView, scale: float = 1.0) -> Callable[..., Any]:
    """The metric as a function of the arrays of a reduced state."""
    return lambda a, C, *angles: _value(metric, view, scale, (a, C, *angles))


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
