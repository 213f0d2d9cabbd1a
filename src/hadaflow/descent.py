r"""Gradient descent and heavy ball, on the matrices as the paper runs it and as its exact reduced map.

From a Hadamard start, descent moves only the singular values: with $h_i = \eta\sqrt n\,g_i$,
$\alpha_i^+ = \alpha_i + h_i\beta_i$ and $\beta_i^+ = \beta_i + h_i\alpha_i$.
"""

import dataclasses
import functools
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.closed_forms import fixed_point
from hadaflow.errors import InputError, check_whole_number
from hadaflow.initial import compress, layer_singular_values
from hadaflow.model import MSE, UFM
from hadaflow.precision import double_precision, float64
from hadaflow.progress import Progress, Report, check_progress
from hadaflow.states import RAW, Parameters, Spectrum
from hadaflow.trajectory import Trajectory

# Products up to this many terms are written out, term by term, with the runs of the batch on the
# last axis: for small matrices that is several times faster than batched matrix products.
_UNROLLED_TERMS = 64
_CHUNK_SECONDS = 0.25


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
    """Gradient descent from `start`, states kept at about `points` geometric iterations.

    Args:
        model: The problem.
        start: `Parameters` for descent on the matrices, a spectrum or a list of singular values for
            its exact reduced map. A batch of starts runs side by side in one compiled loop.
        steps: Number of iterations.
        learning_rate: Step size η of the matrices (raw), so that time is η times the iteration.
        momentum: Heavy-ball momentum, from 0 (plain descent) to below 1.
        points: About how many iterations to keep, besides the start.
        units: "scaled" or "raw", of a spectrum without its own, and of everything returned.
        progress: As in `solve`.

    Returns:
        A `Trajectory` with `iterations`; status "reached", or "interrupted" with the finished part,
        or "failed" when the iterates overflow.
    """
    steps = check_whole_number("steps", steps)
    points = check_whole_number("points", points, most=10**6)
    _check_numbers(learning_rate, momentum)
    check_progress(progress)
    kept = np.unique(np.append(np.rint(np.geomspace(1, steps, points)).astype(int), steps))
    units = model.result_units(start, units)
    settings = {
        "steps": steps,
        "learning_rate": float(learning_rate),
        "momentum": float(momentum),
        "points": points,
        "seed": getattr(start, "seed", None),
        "units": units,
    }
    began = time.perf_counter()

    def run(system, x0):
        return _run(system, x0, kept, learning_rate, momentum, progress)

    batch = (
        start.batch if isinstance(start, Parameters) else model.scaled(start, units).a.shape[:-1]
    )
    if len(batch) > 1:
        raise InputError(f"Argument `start` must be one start or a list, but has batch {batch}.")
    if isinstance(start, Parameters):
        arrays, done, interrupted = _descend_matrices(model, model.check_parameters(start), run)
    else:
        arrays, done, interrupted = _descend_spectrum(model, model.scaled(start, units), units, run)
    usable = _usable(arrays, len(batch))
    arrays = {name: v[(slice(None),) * len(batch) + (slice(usable),)] for name, v in arrays.items()}
    iterations = np.concatenate([[0], kept[:done]])[:usable]
    with np.errstate(divide="ignore"):
        log10_time = np.log10(iterations * learning_rate)
    if units != RAW:
        log10_time = log10_time + math.log10(model.time_scale)
    status, message = _ending(int(iterations[-1]), interrupted, usable == done + 1)
    return Trajectory(
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


def stability_limit(model: UFM, momentum: float = 0.0) -> float:
    r"""The learning rate up to which descent stays at the fixed point of soft labels.

    Balanced layers, perturbed in their singular values. Near the fixed point a step multiplies the
    perturbation by $1 - 2\eta\sqrt n\,A\,\partial\nu/\partial a$ with $A = \mathrm{diag}(a^*)$ (by
    $1 - \eta\sqrt n\,\partial\nu/\partial a$ at depth 1); heavy ball stretches the limit by
    1 + momentum. For smoothing $s$ and n = 1 it is $K/(a^*s(1 + (K-1)(1-s)))$, $a^*$ raw.
    """
    _check_numbers(1.0, momentum)
    if model.penalized:
        raise InputError("Argument `model` must have no `weight_decay` for this limit.")
    a = fixed_point(model)
    if np.any(a <= 0):
        raise InputError(
            "Argument `model` must have a fixed point with positive singular values: a mode whose "
            "value is negative dies, and descent settles elsewhere."
        )

    @float64
    def slopes(a):
        return -jax.jacfwd(lambda v: model.drive(v)[0])(a)

    # a′ ∂g/∂a′ is the same in raw units; at depth 1 the raw derivative is K√n times smaller.
    factor = 2 * a[:, None] if model.depth == 2 else 1 / model.singular_value_scale
    largest = float(np.max(np.linalg.eigvals(factor * slopes(a)).real))
    limit = 2 * model.loss_divisor / (math.sqrt(model.samples) * largest)
    return limit * (1 + momentum)


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


def _check_numbers(learning_rate: Any, momentum: Any) -> None:
    for name, value in (("learning_rate", learning_rate), ("momentum", momentum)):
        if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
            raise InputError(f"Argument `{name}` must be a number, but is {value!r}.")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise InputError(
            f"Argument `learning_rate` must be a positive number, but is {learning_rate!r}."
        )
    if not 0 <= momentum < 1:
        raise InputError(f"Argument `momentum` must be from 0 to below 1, but is {momentum!r}.")


# --- the two systems: minus the gradient, for a batch --------------------------------------------


@dataclasses.dataclass(frozen=True)
class MatrixDescent:
    """Parameter matrices, the runs of the batch on the last axis."""

    model: UFM

    def push(self, factors):
        if len(factors) == 1:
            return (self._residual(factors[0]),)
        W, H = factors
        R = self._residual(_contract(W, H))
        moved = _contract(R, jnp.swapaxes(H, 0, 1)), _contract(jnp.swapaxes(W, 0, 1), R)
        return self.model.decayed(factors, moved)

    def _residual(self, Z):
        """Y − P(Z) over the loss divisor; the right class sums the wrong ones, so none cancels."""
        model = self.model
        if model.soft_labels:
            shares = jax.nn.softmax(Z / model.temperature, axis=0)
            rest = jnp.asarray(model.labels)[:, :, None] - shares
            return rest / (model.temperature * model.loss_divisor)
        Y = jnp.broadcast_to(jnp.asarray(model.one_hot)[:, :, None], Z.shape)
        if model.loss == MSE:
            return (Y - Z) / model.loss_divisor
        scale = model.temperature * model.loss_divisor
        Z = Z if model.temperature == 1 else Z / model.temperature
        e = jnp.exp(Z - jnp.max(Z, axis=0, keepdims=True))
        share = e / (jnp.sum(e, axis=0, keepdims=True) * scale)
        wrong = jnp.where(Y == 0, share, 0.0)
        return jnp.where(Y == 0, -wrong, jnp.sum(wrong, axis=0, keepdims=True))


def _contract(A, B):
    """Matrix products A·B of a batch on the last axis."""
    terms = A.shape[1]
    if terms > _UNROLLED_TERMS:
        return jnp.einsum("ikb,kjb->ijb", A, B)
    return sum(A[:, k, None, :] * B[None, k, :, :] for k in range(terms))


@dataclasses.dataclass(frozen=True)
class SpectralDescent:
    """Layer singular values (α, β), or a alone at depth 1, raw units, batch first."""

    model: UFM

    def push(self, layers):
        model = self.model
        a = layers[0] if len(layers) == 1 else layers[0] * layers[1]
        direction, slowness = model.drive(a / model.singular_value_scale)
        rate = jnp.exp(-slowness)[..., None] * (math.sqrt(model.samples) / model.loss_divisor)
        h = direction * rate
        if len(layers) == 1:
            return (h,)
        return model.decayed(layers, (h * layers[1], h * layers[0]))


# --- the loop ------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("system", "heavy"))
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
    states, done, interrupted, at, chunk = [x0], 0, False, 0, 1000
    with double_precision(), Progress(progress, "descend") as bar:
        x = tuple(jnp.asarray(f) for f in x0)
        velocity = tuple(jnp.zeros_like(f) for f in x)
        heavy = momentum > 0
        try:
            for goal in kept:
                while at < goal:
                    count = min(chunk, int(goal) - at)
                    began = time.perf_counter()
                    x, velocity = jax.block_until_ready(
                        _iterate(system, heavy, x, velocity, count, learning_rate, momentum)
                    )
                    at += count
                    if count == chunk:
                        seconds = time.perf_counter() - began
                        chunk = int(np.clip(chunk * _CHUNK_SECONDS / seconds, 100, 10**7))
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
    states, done, interrupted = run(MatrixDescent(narrow), x0)
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
    scale = model.singular_value_scale
    alpha, beta = layer_singular_values(start.a * scale, start.C * scale)
    x0 = (start.a * scale,) if model.depth == 1 else (alpha, beta)
    states, done, interrupted = run(SpectralDescent(model), x0)
    layers = [np.stack(f, axis=-2) for f in zip(*states, strict=True)]
    if model.depth == 1:
        a, C = layers[0], np.zeros_like(layers[0])
    else:
        a = layers[0] * layers[1]
        C = (layers[0] - layers[1]) * (layers[0] + layers[1])
    a[..., 0, :], C[..., 0, :] = start.a * scale, start.C * scale
    shown = 1.0 if units == RAW else scale
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"log_a": np.log(a / shown), "C": C / shown}, done, interrupted
