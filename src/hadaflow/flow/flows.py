r"""The gradient flow in log time, $u = \log(1+t)$: what `integrate` integrates.

The reduced state is $\delta = \int g\,dt$, what the force has done so far, from which the singular
values follow in closed form (`UFM.displaced`); beside it runs the path length, which is the time of
the normalized gradient flow: one orbit, several clocks. Nothing overflows, because the force enters
only as $e^{u - \text{slowness}}$, and nothing freezes, because $1 - p$ is never formed.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.algebra.bases import with_front
from hadaflow.flow.readings import ValuesReading
from hadaflow.flow.steppers import make_solver
from hadaflow.metrics import matrix_metrics
from hadaflow.model.layers import differences, layer_values, others, smallest_square
from hadaflow.model.phases import times
from hadaflow.model.states import Spectrum
from hadaflow.model.ufm import UFM
from hadaflow.runs.targets import Reading, Target

_ROUNDING = 16 * float(np.finfo(float).eps)  # of a rate, relative to the terms it is made of


class _RungeKutta:
    """Flows that any of the named methods can step; the target's number is the last of `args`."""

    target: type[Target] | None

    def solver(self, method: str) -> Any:
        return make_solver(method)

    def read(self, y, args) -> Reading:
        raise NotImplementedError

    def watch(self, y, args):
        """Positive until the target is reached."""
        if self.target is None:
            return jnp.ones(())
        return self.target.left(self.read(y, args), args[-1])

    def disarmed(self, args):
        """`args` with a target that is never reached."""
        return args if self.target is None else (*args[:-1], np.float64(self.target.never))


@dataclasses.dataclass(frozen=True)
class ReducedFlow(_RungeKutta):
    r"""Singular values of cross-entropy. The state is δ, with the path length in front.

    The front entry is where the trivial mode would be, so that the transforms need no copies.
    `args` = (log p₀, excess, C, offsets, target), all but the last padded in front.

    Depth 2: $p = a$. Deeper models: $p = \sigma_1\sigma_2$ of the two smallest layers, which move as
    those of depth 2 do while $d\delta = \frac2N\prod_{l\ge3}\sigma_l\,g\,dt$; the squares of the
    others lie by constant `offsets` above the smallest. So the differences stay exactly what they are.
    """

    model: UFM
    balanced: bool
    target: type[Target] | None

    @staticmethod
    def arguments(model: UFM, a: np.ndarray, C: np.ndarray, target_value: float) -> tuple[Any, ...]:
        """`args` for scaled a and C without the trivial mode."""
        a = np.concatenate([[0.0], a])
        C = np.concatenate([np.zeros_like(C[..., :1]), C], axis=-1)
        p, gap, offsets = a, C, np.zeros((0, len(a)))
        if model.depth > 2:
            v, above = smallest_square(model.depth, a, C)
            above = np.sort(above, axis=0)
            p, gap, offsets = np.sqrt(v * (v + above[1])), above[1], above[2:]
        with np.errstate(divide="ignore"):
            return np.log(p), model.excess(p, gap), gap, offsets, np.float64(target_value)

    def a(self, y, args):
        """Scaled singular values, zero in front."""
        return with_front(self.displaced(y, args), 0.0)

    def displaced(self, y, args):
        """Scaled singular values of one or many states, NumPy arrays too; the front is arbitrary."""
        p = self._pair(y, args)
        return p if self.model.depth <= 2 else p * self._rest(p, args)

    def _pair(self, y, args):
        return self.model.displaced(args[0], None if self.balanced else args[1], y)

    def _squares(self, p, args):
        """Squares of all layers, the two smallest first."""
        xp = np if isinstance(p, np.ndarray) else jnp
        half = args[2] / 2
        above = xp.hypot(p, half) + half
        smallest = xp.where(above > 0, p * (p / xp.where(above > 0, above, 1.0)), 0.0)
        return [smallest, smallest + args[2], *(smallest + offset for offset in args[3])]

    def _rest(self, p, args):
        """The product of all layers but the two smallest."""
        xp = np if isinstance(p, np.ndarray) else jnp

        def power(base, exponent):  # with a slope at zero, where that of a root is infinite
            positive = base > 0
            return xp.where(positive, xp.where(positive, base, 1.0) ** exponent, 0.0)

        if self.balanced:
            return power(p, self.model.depth / 2 - 1)
        product = 1.0
        for square in self._squares(p, args)[2:]:
            product = product * power(square, 0.5)
        return product

    def _values(self, y, args):
        """Scaled a (zero in front), the pace of δ per force, and the mobility."""
        model, p = self.model, with_front(self._pair(y, args), 0.0)
        if model.depth <= 2:
            if model.depth == 2:
                return p, None, p if self.balanced else jnp.hypot(p, args[2] / 2)
            return p, None, jnp.ones_like(p)
        rest = self._rest(p, args)
        a = with_front(p * rest, 0.0)
        if self.balanced:
            w = p * rest * rest
        else:
            w = sum(others(self._squares(p, args))) / model.depth
        return a, rest * (2 / model.depth), w

    def velocity(self, u, y, args):
        a, pace, w = self._values(y, args)
        direction, slowness = self.model.padded_drive(a)
        force = direction * jnp.exp(u - slowness)
        moved = w * force
        if self.model.basis.weights is not None:  # a pair of modes adds its square twice
            moved = moved * np.sqrt(self.model.basis.weights)
        # The squares of tiny velocities would underflow. A constant factor, free in the hot path,
        # covers 1e-270 to 1e30; unbalanced starts, which feel a jump at its edge, get the full care.
        fast = self.balanced and self.model.depth <= 2
        speed = jnp.linalg.norm(1e120 * moved) * 1e-120 if fast else _length(moved)
        return with_front(force if pace is None else force * pace, speed)

    def error_scale(self, y, args):
        """δ is accurate enough when a is: an error in δ moves a by w/(a·pace) times itself."""
        a, pace, w = self._values(y, args)
        moving = a if pace is None else a * pace
        relative = jnp.where(w > 0, moving / jnp.where(w > 0, w, 1.0), 1.0)
        return jnp.maximum(with_front(relative, y[0] + jnp.sum(a)), 1e-290)

    def read(self, y, args) -> Reading:
        return ValuesReading(
            lambda: self.model.nontrivial(self.a(y, args)), y[0], lambda: self._fastest(y, args)
        )

    def _fastest(self, y, args):
        """The largest relative rate of change; a mode that has died counts no more."""
        a, _, w = self._values(y, args)
        direction, slowness = self.model.padded_drive(a)
        rate = jnp.abs(w * direction) * jnp.exp(-slowness)
        alive = (a > 1e-14) & (a > 1e-12 * jnp.max(a)) | (direction > 0) & (a > 0)
        return jnp.max(jnp.where(alive, rate / jnp.where(a > 0, a, 1.0), 0.0)) + 1e-300


@dataclasses.dataclass(frozen=True)
class LayerFlow(_RungeKutta):
    r"""Singular values of all layers: what every reduced model has that `ReducedFlow` has not.

    Penalties, under which the differences move; two blocks of classes; deep MSE. The state is the
    path length, the growth of $\log\sigma_l$ of every layer and mode, and the turn of the angle
    between the blocks. In scaled time, with $g$ along and $h$ across:

    $$(\log\sigma_l)' = \tfrac1N\,g\,a/\sigma_l^2 - \lambda_l,\qquad
    \varphi' = \tfrac1N\,h\,a/\sigma_N^2.$$

    `args` = (log σ₀, which modes are alive, angle₀, target), layers first, without the trivial mode
    of cross-entropy.
    """

    model: UFM
    target: type[Target] | None

    @staticmethod
    def arguments(model: UFM, start: Spectrum, target_value: float) -> tuple[Any, ...]:
        layers = layer_values(model.depth, start.a, start.C)
        alive = np.all(layers > 0, axis=0)
        angles = np.zeros(0) if start.angles is None else start.angles
        return np.log(np.where(alive, layers, 1.0)), alive, angles, np.float64(target_value)

    @property
    def _size(self) -> int:
        return self.model.depth * self.model.modes

    def rounding(self, u):
        """What rounding leaves of log σ in a step, where the penalties balance the force."""
        return _ROUNDING * max(self.model.scaled_decays) * jnp.exp(u)

    def _logs(self, y, args):
        """Log σ of all layers, layers before the modes; leading axes batched."""
        shape = (*y.shape[:-1], self.model.depth, self.model.modes)
        return args[0] + y[..., 1 : 1 + self._size].reshape(shape)

    def values(self, y: np.ndarray, args) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scaled a, C and angles of many states."""
        logs = self._logs(y, args)
        a = np.where(args[1], np.exp(logs.sum(axis=-2)), 0.0)
        layers = np.where(args[1], np.exp(np.moveaxis(logs, -2, 0)), 0.0)
        return a, differences(layers), args[2] + y[..., 1 + self._size :]

    def _rates(self, u, y, args):
        """Rates in log time: of log σ, layers first, and of the angle; and the values a."""
        model, logs, alive = self.model, self._logs(y, args), args[1]
        log_a = jnp.sum(logs, axis=0)
        a = jnp.where(alive, jnp.exp(log_a), 0.0)
        angles = args[2] + y[1 + self._size :] if len(args[2]) else None
        along, across, slowness = model.force(a, angles)
        size = jnp.broadcast_to(jnp.exp(u - slowness), a.shape)
        pace = jnp.exp(log_a[None] - 2 * logs) / model.depth
        growth = pace * (along * size)[None]
        if model.penalized:
            growth = growth - np.array(model.scaled_decays)[:, None] * jnp.exp(u)
        growth = jnp.where(alive[None], growth, 0.0)
        if angles is None:
            return growth, jnp.zeros(0), a
        return growth, jnp.where(alive, pace[-1] * size, 0.0)[-1:] * across, a

    def velocity(self, u, y, args):
        growth, turn, a = self._rates(u, y, args)
        moved = self.model.all_values(a * jnp.sum(growth, axis=0))
        swept = turn * a[len(a) - len(turn) :]
        speed = _length(jnp.concatenate([moved, swept]))
        return jnp.concatenate([speed[None], growth.ravel(), turn])

    def error_scale(self, y, args):
        return jnp.ones_like(y).at[0].set(y[0] + jnp.sum(self._a(y, args)) + 1e-290)

    def read(self, y, args) -> Reading:
        return ValuesReading(
            lambda: self.model.nontrivial(self._a(y, args)), y[0], lambda: self._fastest(y, args)
        )

    def _a(self, y, args):
        return jnp.where(args[1], jnp.exp(jnp.sum(self._logs(y, args), axis=0)), 0.0)

    def _fastest(self, y, args):
        growth, turn, a = self._rates(0.0, y, args)
        total = jnp.sum(growth, axis=0)
        counts = (a > 1e-14) & (a > 1e-12 * jnp.max(a)) | (total > 0) & (a > 0)
        fastest = jnp.max(jnp.where(counts, jnp.max(jnp.abs(growth), axis=0), 0.0))
        return jnp.maximum(fastest, jnp.max(jnp.abs(turn), initial=0.0)) + 1e-300


@dataclasses.dataclass(frozen=True)
class PhaseFlow(_RungeKutta):
    r"""Circulant logits without symmetry: complex modes, whose phases move.

    The state is the path length and the complex amplitudes $A_l$ of every layer and mode, real parts
    before imaginary ones: $\lambda = \prod_lA_l$ and, in scaled time,
    $A_l' = \frac1N(1 - \nu)\overline{\prod_{m\ne l}A_m} - \lambda_lA_l$. They may pass through zero.
    `args` = (target,).
    """

    model: UFM
    target: type[Target] | None

    def start(self, start: Spectrum) -> np.ndarray:
        """The state of a spectrum with angles: the phases are put into the last layer."""
        layers = layer_values(self.model.depth, start.a, start.C).astype(complex)
        assert start.angles is not None
        layers[-1] *= np.exp(1j * start.angles)
        return np.concatenate([[0.0], layers.real.ravel(), layers.imag.ravel()])

    def _amplitudes(self, y):
        """Amplitudes, layers before the modes; leading axes batched."""
        half = (y.shape[-1] - 1) // 2
        shape = (*y.shape[:-1], self.model.depth, self.model.modes)
        real, imaginary = y[..., 1 : 1 + half], y[..., 1 + half :]
        if isinstance(y, np.ndarray):
            return (real + 1j * imaginary).reshape(shape)
        return lax.complex(real, imaginary).reshape(shape)

    def values(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scaled a, C and phases of many states."""
        A = np.asarray(self._amplitudes(y))
        product = np.prod(A, axis=-2)
        return np.abs(product), differences(np.abs(np.moveaxis(A, -2, 0))), np.angle(product)

    def _rates(self, u, A):
        rest = jnp.stack(others(A))
        direction, slowness = self.model.phase_drive(rest[-1] * A[-1])
        force = times(jnp.exp(u - slowness) / self.model.depth, direction)
        moved = force[None] * jnp.conj(rest)
        if self.model.penalized:
            moved = moved - times(np.array(self.model.scaled_decays)[:, None] * jnp.exp(u), A)
        return moved, rest

    def velocity(self, u, y, args):
        moved, rest = self._rates(u, self._amplitudes(y))
        speed = _length(self.model.nontrivial(jnp.abs(jnp.sum(moved * rest, axis=0))))
        return jnp.concatenate([speed[None], moved.real.ravel(), moved.imag.ravel()])

    def _sizes(self, A):
        """The size of each mode's amplitudes, against which its errors count."""
        return jnp.sqrt(jnp.mean(jnp.abs(A) ** 2, axis=0)) + 1e-290

    def error_scale(self, y, args):
        A = self._amplitudes(y)
        sizes = jnp.tile(self._sizes(A), 2 * self.model.depth)
        total = jnp.sum(jnp.abs(jnp.prod(A, axis=0)))
        return jnp.concatenate([(y[0] + total + 1e-290)[None], sizes])

    def read(self, y, args) -> Reading:
        A = self._amplitudes(y)
        return ValuesReading(
            lambda: self.model.nontrivial(jnp.abs(jnp.prod(A, axis=0))), y[0],
            lambda: self._fastest(A),
        )  # fmt: skip

    def _fastest(self, A):
        moved, _ = self._rates(0.0, A)
        sizes = self._sizes(A)
        alive = sizes > 1e-10 * jnp.max(sizes)
        relative = jnp.where(alive, jnp.max(jnp.abs(moved), axis=0) / sizes, 0.0)
        return jnp.max(relative) + 1e-300


@dataclasses.dataclass(frozen=True)
class FullFlow(_RungeKutta):
    """Parameter matrices; the state is (factors, path length), `args` = (target,)."""

    model: UFM
    target: type[Target] | None

    def velocity(self, u, y, args):
        factors, _ = y
        direction, slowness = self.model.full_drive(self.model.logits(factors))
        rate = jnp.exp(u - slowness) / self.model.time_scale
        moved = tuple(v * rate for v in self.model.pull_back(factors, direction))
        if self.model.penalized:
            pull = jnp.exp(u)
            moved = tuple(
                v - d * pull * f
                for v, f, d in zip(moved, factors, self.model.scaled_decays, strict=True)
            )
        return moved, jnp.sqrt(sum(jnp.sum(v**2) for v in moved))

    def fastest(self, factors):
        """The largest relative rate of change, per unit of scaled time, in any feature direction.

        The rows of W and columns of H are moved by T' = M T with M made of the residual, so this is
        the norm of M on the range of T: it sees directions that have hardly begun to grow.
        """
        direction, slowness = self.model.full_drive(self.model.logits(factors))
        residual = direction * jnp.exp(-slowness) / self.model.loss_divisor / self.model.time_scale
        if len(factors) != 2:
            return self._fastest_factor(factors, residual)
        W, H = factors
        T = jnp.concatenate([W, H.T])
        if self.model.penalized:
            # A direction that has died, or that is rounding, shrinks for ever and counts no more.
            Q, sizes, _ = jnp.linalg.svd(T, full_matrices=False)
            Q = jnp.where((sizes > 1e-10 * sizes[0])[None, :], Q, 0.0)
        else:
            Q, R = jnp.linalg.qr(T)
            Q = jnp.where((jnp.diagonal(R) != 0)[None, :], Q, 0.0)
        first, second = self.model.scaled_decays
        moved = jnp.concatenate(
            [
                residual @ Q[len(W) :] - first * Q[: len(W)],
                residual.T @ Q[: len(W)] - second * Q[len(W) :],
            ]
        )
        return jnp.linalg.norm(moved, 2)

    def _fastest_factor(self, factors, residual):
        """The same where no linear map moves all: each factor against its own singular values.

        A pair of directions counts by the larger of its two values; what has died counts no more.
        """
        moved = self.model.pull_back(factors, residual * self.model.loss_divisor)
        fastest = jnp.zeros(())
        for factor, push, decay in zip(factors, moved, self.model.scaled_decays, strict=True):
            U, sizes, Vt = jnp.linalg.svd(factor, full_matrices=False)
            rates = jnp.abs(U.T @ (push - decay * factor) @ Vt.T)
            larger = jnp.maximum(sizes[:, None], sizes[None, :])
            counts = larger > 1e-10 * sizes[0]
            fastest = jnp.maximum(fastest, jnp.max(jnp.where(counts, rates / larger, 0.0)))
        return fastest

    def error_scale(self, y, args):
        factors, path = y
        sizes = [jnp.sqrt(jnp.mean(f**2)) + 1e-290 for f in factors]
        scale = tuple(jnp.full_like(f, s) for f, s in zip(factors, sizes, strict=True))
        return scale, path + sum(sizes)

    def read(self, y, args) -> "MatrixReading":
        return MatrixReading(self, *y)


@dataclasses.dataclass(frozen=True)
class MatrixReading:
    """Of parameter matrices."""

    flow: FullFlow
    factors: Any
    path: Any

    @property
    def u(self) -> Any:
        raise NotImplementedError("the march itself knows the time")

    @property
    def deviation(self) -> Any:
        return matrix_metrics.full_collapse_deviation(self.flow.model, self.factors)

    @property
    def log_norm(self) -> Any:
        raw = jnp.sum(matrix_metrics.singular_values(self.flow.model, self.factors))
        return jnp.log(raw / self.flow.model.singular_value_scale)

    @property
    def log_path(self) -> Any:
        return jnp.log(self.path)

    @property
    def fastest(self) -> Any:
        return self.flow.fastest(self.factors)


def _length(v):
    """Euclidean norm that neither underflows nor overflows."""
    largest = jnp.maximum(jnp.max(jnp.abs(v)), 1e-300)
    return largest * jnp.linalg.norm(v / largest)
