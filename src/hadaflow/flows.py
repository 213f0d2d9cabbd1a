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

from hadaflow import metrics
from hadaflow.bases import with_front
from hadaflow.distances import collapse_deviation
from hadaflow.model import UFM
from hadaflow.targets import Collapse, Norm, PathLength, Steady


@dataclasses.dataclass(frozen=True)
class ReducedFlow:
    """Singular values of cross-entropy. The state is δ, with the path length in front.

    The front entry is where the trivial mode would be, so that the transforms need no copies.
    `args` = (log a₀, excess, C, target), the first three padded in front with −∞, 0 and 0.
    """

    model: UFM
    balanced: bool
    target: type | None

    def a(self, y, args):
        """Scaled singular values, zero in front."""
        return with_front(self.displaced(y, args), 0.0)

    def displaced(self, y, args):
        """Scaled singular values of one or many states, NumPy arrays too; the front is arbitrary."""
        return self.model.displaced(args[0], None if self.balanced else args[1], y)

    def _mobility(self, a, args):
        if self.balanced and self.model.depth == 2:
            return a
        return self.model.mobility(a, args[2])

    def velocity(self, u, y, args):
        a = self.a(y, args)
        direction, slowness = self.model.padded_drive(a)
        force = direction * jnp.exp(u - slowness)
        moved = self._mobility(a, args) * force
        if self.model.basis.weights is not None:  # a pair of modes adds its square twice
            moved = moved * np.sqrt(self.model.basis.weights)
        # The squares of tiny velocities would underflow. A constant factor, free in the hot path,
        # covers 1e-270 to 1e30; unbalanced starts, which feel a jump at its edge, get the full care.
        speed = jnp.linalg.norm(1e120 * moved) * 1e-120 if self.balanced else _length(moved)
        return with_front(force, speed)

    def error_scale(self, y, args):
        """δ is accurate enough when a is: an error in δ moves a by w(a)/a times itself."""
        a = self.a(y, args)
        w = self._mobility(a, args)
        relative = jnp.where(w > 0, a / jnp.where(w > 0, w, 1.0), 1.0)
        return jnp.maximum(with_front(relative, y[0] + jnp.sum(a)), 1e-290)

    def disarmed(self, args):
        return _disarmed(self.target, args)

    def watch(self, y, args):
        a, value = self.a(y, args), args[3]
        if self.target is Collapse:
            return jnp.log(collapse_deviation(self.model.nontrivial(a)) / value)
        if self.target is Norm:
            return jnp.log(value / jnp.sum(self.model.nontrivial(a)))
        if self.target is PathLength:
            return 1.0 - y[0] / value
        if self.target is Steady:
            return jnp.log(self._fastest(a, args) / value)
        return jnp.ones(())

    def _fastest(self, a, args):
        """The largest relative rate of change; a mode that has died counts no more."""
        direction, slowness = self.model.padded_drive(a)
        rate = jnp.abs(self._mobility(a, args) * direction) * jnp.exp(-slowness)
        alive = (a > 1e-12 * jnp.max(a)) | (direction > 0) & (a > 0)
        return jnp.max(jnp.where(alive, rate / jnp.where(a > 0, a, 1.0), 0.0)) + 1e-300


@dataclasses.dataclass(frozen=True)
class PenalizedFlow:
    r"""Singular values under L2 penalties, where $C$ moves too.

    The state is the path length and, for each mode, the growth of $\log a$ and of
    $\rho = \frac12\log(\alpha/\beta)$ since the start:
    $(\log a)' = g\cosh2\rho - \lambda_W - \lambda_H$, $2\rho' = -g\sinh2\rho - \lambda_W + \lambda_H$,
    in scaled time. `args` = (log a₀, ρ₀, target), the first two without the trivial mode of
    cross-entropy.
    """

    model: UFM
    target: type | None

    def values(self, y, args) -> Any:
        """Scaled a and C of one or many states, NumPy arrays too."""
        xp = np if isinstance(y, np.ndarray) else jnp
        modes = self.model.modes
        a = xp.exp(args[0] + y[..., 1 : 1 + modes])
        return a, 2 * a * xp.sinh(2 * (args[1] + y[..., 1 + modes :]))

    def _rates(self, y, args):
        a, _ = self.values(y, args)
        twice = 2 * (args[1] + y[1 + self.model.modes :])
        direction, slowness = self.model.drive(a)
        g = jnp.asarray(direction) * jnp.exp(-slowness)
        first, second = self.model.scaled_decays
        return a, g * jnp.cosh(twice) - first - second, -(g * jnp.sinh(twice) + first - second) / 2

    def velocity(self, u, y, args):
        a, growth, turn = self._rates(y, args)
        speed = _length(self.model.all_values(a * growth))
        return jnp.concatenate([speed[None], growth, turn]) * jnp.exp(u)

    def error_scale(self, y, args):
        a, _ = self.values(y, args)
        return jnp.concatenate([(y[0] + jnp.sum(a) + 1e-290)[None], jnp.ones(2 * self.model.modes)])

    def disarmed(self, args):
        return _disarmed(self.target, args)

    def watch(self, y, args):
        a, value = self.values(y, args)[0], args[2]
        shown = self.model.nontrivial(a)
        if self.target is Collapse:
            return jnp.log(collapse_deviation(shown) / value)
        if self.target is Norm:
            return jnp.log(value / jnp.sum(shown))
        if self.target is PathLength:
            return 1.0 - y[0] / value
        if self.target is Steady:
            a, growth, turn = self._rates(y, args)
            counts = (a > 1e-14) & (a > 1e-12 * jnp.max(a)) | (growth > 0) & (a > 0)
            fastest = jnp.maximum(jnp.abs(growth), jnp.abs(turn))
            return jnp.log((jnp.max(jnp.where(counts, fastest, 0.0)) + 1e-300) / value)
        return jnp.ones(())


@dataclasses.dataclass(frozen=True)
class FullFlow:
    """Parameter matrices; the state is (factors, path length), `args` = (target,)."""

    model: UFM
    target: type | None

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

    def _fastest(self, factors):
        """The largest relative rate of change, per unit of scaled time, in any feature direction.

        The rows of W and columns of H are moved by T' = M T with M made of the residual, so this is
        the norm of M on the range of T: it sees directions that have hardly begun to grow.
        """
        direction, slowness = self.model.full_drive(self.model.logits(factors))
        residual = direction * jnp.exp(-slowness) / self.model.loss_divisor / self.model.time_scale
        if len(factors) == 1:
            return jnp.linalg.norm(residual) / jnp.linalg.norm(factors[0])
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

    def error_scale(self, y, args):
        factors, path = y
        sizes = [jnp.sqrt(jnp.mean(f**2)) + 1e-290 for f in factors]
        scale = tuple(jnp.full_like(f, s) for f, s in zip(factors, sizes, strict=True))
        return scale, path + sum(sizes)

    def disarmed(self, args):
        return _disarmed(self.target, args)

    def watch(self, y, args):
        (factors, path), value = y, args[0]
        if self.target is Collapse:
            return jnp.log(metrics.full_collapse_deviation(self.model, factors) / value)
        if self.target is Norm:
            scaled = jnp.sum(metrics.singular_values(self.model, factors))
            return jnp.log(value * self.model.singular_value_scale / scaled)
        if self.target is PathLength:
            return 1.0 - path / value
        if self.target is Steady:
            return jnp.log(self._fastest(factors) / value)
        return jnp.ones(())


def _length(v):
    """Euclidean norm that neither underflows nor overflows."""
    largest = jnp.maximum(jnp.max(jnp.abs(v)), 1e-300)
    return largest * jnp.linalg.norm(v / largest)


def _disarmed(target: type | None, args):
    """The target's value is the last of `args`; some are approached from above, some from below."""
    return (*args[:-1], np.float64(0.0 if target in (Collapse, Steady) else np.inf))
