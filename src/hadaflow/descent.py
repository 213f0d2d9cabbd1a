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

from hadaflow.errors import InputError
from hadaflow.initial import compress, layer_singular_values
from hadaflow.model import MSE, UFM
from hadaflow.precision import double_precision
from hadaflow.progress import Progress, Report
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
    progress: str | None | Report = "auto",
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
    _check_settings(model, steps, learning_rate, momentum, points)
    kept = np.unique(np.rint(np.geomspace(1, steps, points)).astype(int))
    units = model.result_units(start, units)
    settings = {
        "steps": int(steps),
        "learning_rate": float(learning_rate),
        "momentum": float(momentum),
        "points": int(points),
        "units": units,
    }
    began = time.perf_counter()
    if isinstance(start, Parameters):
        view = "full"
        small_model, small, expand = compress(model, model.check_parameters(start))
        system = MatrixDescent(small_model)
        x0 = tuple(np.moveaxis(_flat_batch(f, 2), 0, -1) for f in small.factors)
        batch = start.batch
    else:
        view, expand = "reduced", None
        scaled = model.scaled(start, units)
        system, batch = SpectralDescent(model), scaled.a.shape[:-1]
        factor = model.singular_value_scale
        layers = layer_singular_values(
            _flat_batch(scaled.a, 1) * factor, _flat_batch(scaled.C, 1) * factor
        )
        x0 = (layers[0] * layers[1],) if model.depth == 1 else layers
    states, done, interrupted = _run(system, x0, kept, learning_rate, momentum, progress)
    iterations = np.concatenate([[0], kept[:done]])
    if view == "full":
        stacked = [np.moveaxis(np.stack(f), -1, 0) for f in zip(*states, strict=True)]
        assert expand is not None
        factors = expand_batch(expand, stacked, batch)
        factors[0][..., 0, :, :], factors[-1][..., 0, :, :] = start.factors[0], start.factors[-1]
        names = ("Z",) if model.depth == 1 else ("W", "H")
        arrays = dict(zip(names, factors, strict=True))
    else:
        stacked = [
            np.stack(f, axis=1).reshape(*batch, len(states), -1) for f in zip(*states, strict=True)
        ]
        arrays = _spectral_arrays(model, stacked, units)
    with np.errstate(divide="ignore"):
        log10_time = np.log10(iterations * learning_rate)
    if units != RAW:
        log10_time = log10_time + math.log10(model.time_scale)
    finite = all(np.all(np.isfinite(a) | (a == -np.inf)) for a in arrays.values())
    status, message = _ending(int(iterations[-1]), interrupted, finite)
    return Trajectory(
        model=model,
        view=view,
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


def _ending(last: int, interrupted: bool, finite: bool) -> tuple[str, str]:
    if interrupted:
        return "interrupted", f"Interrupted after iteration {last}; the finished part is here."
    if not finite:
        return "failed", "The iterates overflowed: the learning rate is too large."
    return "reached", f"All {last} iterations done."


def _check_settings(model: UFM, steps: Any, learning_rate: Any, momentum: Any, points: Any) -> None:
    for name, value in (("steps", steps), ("points", points)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise InputError(
                f"Argument `{name}` must be a whole number of at least 1, but is {value!r}."
            )
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
        model = self.model
        if len(factors) == 1:
            return (self._residual(factors[0]),)
        W, H = factors
        R = self._residual(_contract(W, H))
        return _contract(R, jnp.swapaxes(H, 0, 1)), _contract(jnp.swapaxes(W, 0, 1), R)

    def _residual(self, Z):
        """Y − P(Z) over the loss divisor; the right class sums the wrong ones, so none cancels."""
        model = self.model
        Y = jnp.broadcast_to(jnp.asarray(model.labels)[:, :, None], Z.shape)
        if model.loss == MSE:
            return (Y - Z) / model.loss_divisor
        e = jnp.exp(Z - jnp.max(Z, axis=0, keepdims=True))
        share = e / (jnp.sum(e, axis=0, keepdims=True) * model.loss_divisor)
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
        return (h,) if len(layers) == 1 else (h * layers[1], h * layers[0])


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


def _flat_batch(array: np.ndarray, core: int) -> np.ndarray:
    """All leading axes but the last `core` as one."""
    return array.reshape(-1, *array.shape[array.ndim - core :])


def expand_batch(expand, stacked: list[np.ndarray], batch: tuple[int, ...]) -> list[np.ndarray]:
    """(runs, times, rows, columns) factors back at full width, in the shape of the batch."""
    times_first = [np.swapaxes(f, 0, 1).reshape(f.shape[1], *batch, *f.shape[2:]) for f in stacked]
    wide = expand(Parameters(tuple(times_first))).factors
    return [np.array(np.moveaxis(f, 0, len(batch))) for f in wide]


def _spectral_arrays(model: UFM, layers: list[np.ndarray], units: str) -> dict[str, np.ndarray]:
    scale = 1.0 if units == RAW else model.singular_value_scale
    if len(layers) == 1:
        a, C = layers[0], np.zeros_like(layers[0])
    else:
        a = layers[0] * layers[1]
        C = (layers[0] - layers[1]) * (layers[0] + layers[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"log_a": np.log(a / scale), "C": C / scale}
