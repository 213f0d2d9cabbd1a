r"""Gradient descent and heavy ball, on the matrices as the paper runs it and as its exact reduced map.

From a Hadamard start, descent moves only the singular values: with $h_i = \eta\sqrt n\,g_i$,
$\alpha_i^+ = \alpha_i + h_i\beta_i$ and $\beta_i^+ = \beta_i + h_i\alpha_i$.
"""

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.base.checks import as_number, check_positive, check_whole_number
from hadaflow.base.compiling import compiled
from hadaflow.base.errors import InputError, shown
from hadaflow.base.interruption import held_back
from hadaflow.base.precision import double_precision, float64
from hadaflow.base.progress import Pace, Progress, Report, check_progress
from hadaflow.model.closed_forms import fixed_point
from hadaflow.model.fitting import as_spectrum, check_parameters, fitted, result_units, with_phases
from hadaflow.model.layers import differences, layer_axes, layer_values, others
from hadaflow.model.starts import compress
from hadaflow.model.states import RAW, Parameters, Spectrum
from hadaflow.model.ufm import UFM, check_model
from hadaflow.model.views.blocks import BlockView
from hadaflow.model.views.circulant import CirculantView, times
from hadaflow.model.views.full import FullView
from hadaflow.model.views.pytrees import Traced
from hadaflow.model.views.reduced import ReducedView, SymmetricView
from hadaflow.results.batch import made_of
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.many import for_each_model
from hadaflow.runs.recording import add_angles

# Products up to this many terms are written out, term by term, with the runs of the batch on the
# last axis: for small matrices that is several times faster than batched matrix products.
_UNROLLED_TERMS = 64


@for_each_model
def descend(
    model: UFM,
    start: Any,
    steps: int,
    learning_rate: float,
    *,
    momentum: float = 0.0,
    points: int = 100,
    units: str | None = None,
    progress: str | Report | None = "auto",
) -> Trajectory:
    r"""Gradient descent from `start`, states kept at about `points` geometric iterations.

    Args:
        model: The problem; or a list of problems, or names with problems, for as many results.
        start: `Parameters` for descent on the matrices, a spectrum, a list of singular values or the
            spelling of a start for its exact reduced map. A batch of starts runs side by side in one
            compiled loop.
        steps: Number of iterations.
        learning_rate: Step size $\eta$ of the matrices (raw), so that time is $\eta$ times the
            iteration.
        momentum: Heavy-ball momentum, from 0 (plain descent) to below 1.
        points: About how many iterations to keep, besides the start.
        units: "scaled" or "raw", of a spectrum without its own, and of everything returned.
        progress: As in `solve`.

    Returns:
        A `Trajectory` with `iterations`; status "reached", or "interrupted" with the finished part,
        or "failed" when the iterates overflow.
    """
    check_model(model)
    steps = check_whole_number("steps", steps, most=10**15)
    points = check_whole_number("points", points, most=10**6)
    learning_rate, momentum = _check_numbers(learning_rate, momentum)
    check_progress(progress)
    kept = np.unique(np.append(np.rint(np.geomspace(1, steps, points)).astype(int), steps))
    spelled = {"start": start} if isinstance(start, str) else {}
    if not isinstance(start, Parameters):
        start = as_spectrum(model, start)
    units = result_units(start, units)
    settings = spelled | {
        "steps": steps,
        "learning_rate": learning_rate,
        "momentum": momentum,
        "points": points,
        "seed": getattr(start, "seed", None),
        "units": units,
    }
    began = time.perf_counter()

    def run(system, x0):
        return _run(system, x0, kept, learning_rate, momentum, progress)

    batch = (
        start.batch if isinstance(start, Parameters) else fitted(model, start, units).a.shape[:-1]
    )
    if len(batch) > 1:
        raise InputError(f"Argument `start` must be one start or a list, but has batch {batch}.")
    if isinstance(start, Parameters):
        arrays, done, interrupted = _descend_matrices(model, check_parameters(model, start), run)
    else:
        arrays, done, interrupted = _descend_spectrum(
            model, fitted(model, start, units), units, run
        )
    usable = _usable(arrays, len(batch))
    arrays = {name: v[(slice(None),) * len(batch) + (slice(usable),)] for name, v in arrays.items()}
    iterations = np.concatenate([[0], kept[:done]])[:usable]
    with np.errstate(divide="ignore"):
        log10_time = np.log10(iterations * learning_rate)
    if units != RAW:
        log10_time = log10_time + math.log10(model.time_scale)
    status, message = _ending(int(iterations[-1]), interrupted, usable == done + 1)
    return made_of(
        model=model,
        view="full" if isinstance(start, Parameters) else "reduced",
        arrays=arrays,
        log10_time=log10_time,
        iterations=iterations,
        status=status,
        message=message,
        units=units,
        steps=int(iterations[-1]),
        settings=settings,
        diagnostics={"wall_seconds": time.perf_counter() - began},
    )


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
    _, momentum = _check_numbers(1.0, momentum)
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

    system = spectral_descent(model)

    @float64
    def slopes(flat):
        def push(values):
            return jnp.concatenate(system.push(tuple(values.reshape(layers.shape))))

        return jax.jacfwd(push)(flat)

    rates = np.linalg.eigvals(slopes(layers.ravel())).real
    if rates.max() > 1e-9 * np.abs(rates).max():
        raise InputError(
            "Argument `model` must have a fixed point that attracts: at this depth and penalty the one "
            "with all singular values equal repels, whatever the learning rate."
        )
    return 2 / float(np.max(-rates)) * (1 + momentum)


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


def _ending(last: int, interrupted: bool, finite: bool) -> tuple[str, str]:
    if interrupted:
        return "interrupted", f"Interrupted after iteration {last}; the finished part is here."
    if not finite:
        return "failed", (
            f"After iteration {last} a value overflowed or a singular value turned negative: the "
            "steps overshoot. The part before is here."
        )
    return "reached", f"All {last} iterations done."


def _usable(arrays: dict[str, np.ndarray], time_axis: int) -> int:
    """How many of the kept states, from the first on, are of a size that no metric overflows at.

    log 0 = −∞ is a state too.
    """
    good = np.array(True)
    for values in arrays.values():
        rows = np.moveaxis((np.abs(values) < 1e30) | (values == -np.inf), time_axis, 0)
        good = good & rows.reshape(len(rows), -1).all(axis=1)
    return len(good) if good.all() else max(int(np.argmin(good)), 1)


def _check_numbers(learning_rate: Any, momentum: Any) -> tuple[float, float]:
    learning_rate = check_positive("learning_rate", learning_rate)
    momentum = as_number("momentum", momentum)
    if not 0 <= momentum < 1:
        raise InputError(
            f"Argument `momentum` must be from 0 to below 1, but is {shown(momentum)}."
        )
    return learning_rate, momentum


# --- the two systems: minus the gradient, for a batch --------------------------------------------


class MatrixDescent(Traced):
    """Parameter matrices, the runs of the batch on the last axis."""

    view: FullView

    def push(self, factors):
        behind = [factors[-1]]  # products of each factor with all behind it, the last one first
        for factor in factors[-2::-1]:
            behind.append(_contract(factor, behind[-1]))
        before = self._residual(behind[-1])  # with all factors in front taken to its other side
        moved = []
        for factor, rest in zip(factors[:-1], behind[-2::-1], strict=True):
            moved.append(_contract(before, jnp.swapaxes(rest, 0, 1)))
            before = _contract(jnp.swapaxes(factor, 0, 1), before)
        return self.view.decayed(factors, (*moved, before))

    def _residual(self, Z):
        """Minus the gradient with respect to the logits."""
        return self.view.loss.residual_of_runs(Z, self.view.one_hot) / self.view.loss_divisor


def _contract(A, B):
    """Matrix products A·B of a batch on the last axis."""
    terms = A.shape[1]
    if terms > _UNROLLED_TERMS:
        return jnp.einsum("ikb,kjb->ijb", A, B)
    return sum(A[:, k, None, :] * B[None, k, :, :] for k in range(terms))


class SpectralDescent(Traced):
    r"""Singular values of all layers, raw units, modes first and the runs of the batch last.

    $\sigma_l^+ = \sigma_l + h\prod_{m\ne l}\sigma_m$; at depth 2 $\alpha^+ = \alpha + h\beta$.
    """

    view: Any
    scale: Any  # raw singular value per scaled one
    rate: Any  # √n over the divisor of the loss
    decays: Any  # raw λ of every layer, or None

    @classmethod
    def of(cls, model: UFM, view: ReducedView) -> "SpectralDescent":
        return cls(
            view, np.float64(model.singular_value_scale),
            np.float64(math.sqrt(model.mean_samples) / model.loss_divisor),
            np.array(model.decays) if model.penalized else None,
        )  # fmt: skip

    def begin(self, layers: list[np.ndarray], angles: Any) -> list[np.ndarray]:
        """What the loop moves, from the singular values of the layers and the angles."""
        return layers

    def end(self, layers: list[np.ndarray]) -> tuple[list[np.ndarray], Any]:
        """Singular values of the layers and angles, or None, of what the loop has moved."""
        return layers, None

    def push(self, layers):
        moved = self._moved(layers)
        if self.decays is None:
            return tuple(moved)
        return tuple(v - d * f for v, f, d in zip(moved, layers, self.decays, strict=True))

    def _moved(self, layers) -> list[Any]:
        rest = others(layers)
        along, _, slowness = self.view.force(rest[-1] * layers[-1] / self.scale)
        h = along * jnp.exp(-slowness) * self.rate
        return [h * r for r in rest]


class PhaseDescent(SpectralDescent):
    """Layers are complex numbers, and the others enter conjugated."""

    def begin(self, layers: list[np.ndarray], angles: Any) -> list[np.ndarray]:
        layers = [layer.astype(complex) for layer in layers]
        return [*layers[:-1], layers[-1] * np.exp(1j * angles)]

    def end(self, layers: list[np.ndarray]) -> tuple[list[np.ndarray], Any]:
        return [np.abs(x) for x in layers], np.angle(np.prod(layers, axis=0))

    def _moved(self, layers) -> list[Any]:
        rest = others(layers)
        along, slowness = self.view.drive(times(1 / self.scale, rest[-1] * layers[-1]))
        h = times(jnp.exp(-slowness) * self.rate, along)
        return [h * jnp.conj(r) for r in rest]


class BlockDescent(SpectralDescent):
    """Between two blocks of classes the last layer has two components, at its end."""

    def begin(self, layers: list[np.ndarray], angles: Any) -> list[np.ndarray]:
        last = layers[-1]
        parts = last[-1:] * np.cos(angles), last[-1:] * np.sin(angles)
        return [*layers[:-1], np.concatenate([last[:-1], *parts])]

    def end(self, layers: list[np.ndarray]) -> tuple[list[np.ndarray], Any]:
        last, x, y = layers[-1][:-2], layers[-1][-2:-1], layers[-1][-1:]
        return [*layers[:-1], np.concatenate([last, np.hypot(x, y)])], np.arctan2(y, x)

    def _moved(self, layers) -> list[Any]:
        parts = layers[-1][-2:]
        last = jnp.linalg.norm(parts, axis=0, keepdims=True)
        angles = jnp.arctan2(parts[1:], parts[:1])
        values = (*layers[:-1], jnp.concatenate([layers[-1][:-2], last]))
        rest = others(values)
        along, across, slowness = self.view.force(rest[-1] * values[-1] / self.scale, angles)
        rate = jnp.exp(-slowness) * self.rate
        h = along * rate
        moved = [h * r for r in rest]
        # The force between the blocks in the components of the right vector.
        radial, turning = h[-1:], across * rate[-1:]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        pull = jnp.concatenate([radial * cos - turning * sin, radial * sin + turning * cos])
        return [*moved[:-1], jnp.concatenate([moved[-1][:-1], pull * rest[-1][-1:]])]


_KINDS = {SymmetricView: SpectralDescent, CirculantView: PhaseDescent, BlockView: BlockDescent}


def spectral_descent(model: UFM, angles: Any = None) -> SpectralDescent:
    """The map of singular values that descent is, for modes with or without angles."""
    view = model.view_of(angles)
    return _KINDS[type(view)].of(model, view)


# --- the loop ------------------------------------------------------------------------------------


@compiled(static_argnames=("heavy",))
def _iterate(system, heavy, x, velocity, count, learning_rate, momentum):
    def body(_, carry):
        x, velocity = carry
        push = system.push(x)
        if heavy:
            velocity = tuple(
                momentum * v + learning_rate * p for v, p in zip(velocity, push, strict=True)
            )
            return tuple(a + v for a, v in zip(x, velocity, strict=True)), velocity
        return tuple(a + learning_rate * p for a, p in zip(x, push, strict=True)), velocity

    return lax.fori_loop(0, count, body, (x, velocity))


def _run(system, x0, kept: np.ndarray, learning_rate, momentum, progress):
    """States at the start and at the kept iterations, how many of those, and whether interrupted."""
    states, done, interrupted, at, pace = [x0], 0, False, 0, Pace(10**7)
    with double_precision(), Progress(progress, "descend") as bar:
        x = tuple(np.asarray(f) for f in x0)
        velocity = tuple(np.zeros_like(f) for f in x)
        heavy = momentum > 0
        try:
            for goal in kept:
                while at < goal:
                    count = min(pace.steps, int(goal) - at)
                    began = time.perf_counter()
                    x, velocity = jax.block_until_ready(
                        _iterate(system, heavy, x, velocity, count, learning_rate, momentum)
                    )
                    at += count
                    pace.took(count, time.perf_counter() - began)
                    bar.report(f"iteration {at}", at / int(kept[-1]))
                states.append(tuple(np.asarray(f) for f in x))
                done += 1
        except KeyboardInterrupt:
            interrupted = True
    return states, done, interrupted


# --- between states and the arrays of the loop ---------------------------------------------------


def _descend_matrices(
    model: UFM, start: Parameters, run
) -> tuple[dict[str, np.ndarray], int, bool]:
    narrow, state, expand = compress(model, start)
    batch = start.batch
    # Runs of the batch on the last axis inside the loop, on the first ones outside.
    x0 = tuple(np.moveaxis(f.reshape(-1, *f.shape[-2:]), 0, -1) for f in state.factors)
    states, done, interrupted = run(MatrixDescent(narrow.full_view), x0)
    with held_back():
        times_first = [
            np.moveaxis(np.stack(f), -1, 1).reshape(len(states), *batch, *f[0].shape[:2])
            for f in zip(*states, strict=True)
        ]
        wide = expand(Parameters(tuple(times_first))).factors
        arrays = {}
        for name, values, first in zip(model.factor_names, wide, start.factors, strict=True):
            arrays[name] = np.array(np.moveaxis(values, 0, len(batch)))
            arrays[name][..., 0, :, :] = first  # not rotated there and back
        return arrays, done, interrupted


def _descend_spectrum(
    model: UFM, start: Spectrum, units: str, run
) -> tuple[dict[str, np.ndarray], int, bool]:
    given, start = start, with_phases(model, start)
    scale, difference_scale = model.singular_value_scale, model.difference_scale
    raw_a, raw_C = start.a * scale, start.C * difference_scale
    system = spectral_descent(model, start.angles)
    # Modes first inside the loop, with the runs of the batch last; outside the other way round.
    layers = [f.T for f in layer_values(model.depth, raw_a, raw_C)]
    begun = system.begin(layers, None if start.angles is None else start.angles.T)
    states, done, interrupted = run(system, tuple(begun))
    with np.errstate(over="ignore", invalid="ignore"):  # `_usable` cuts off what has overflowed
        layers, angles = system.end([np.stack(f, axis=1) for f in zip(*states, strict=True)])
        by_layer = np.stack([f.T for f in layers])
        product, C = np.prod(by_layer, axis=0), differences(by_layer)
    first = (..., 0, *(slice(None),) * layer_axes(model.depth))
    product[..., 0, :], C[first] = raw_a, raw_C
    unit, unit_C = (1.0, 1.0) if units == RAW else (scale, difference_scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        arrays = {"log_a": np.log(product / unit), "C": C / unit_C}
    if angles is not None:
        turned = angles.T
        turned[..., 0, :] = start.phases
        add_angles(arrays, given, turned)
    return arrays, done, interrupted
