r"""Singular values by what the force has done: hard or soft labels at any depth, without penalties.

The state is $\delta = \int g\,dt$, from which the singular values follow in closed form, with the path
length in front, where the trivial mode would be, so that the transforms need no copies.

Depth 2: $p = a$. Deeper models: $p = \sigma_1\sigma_2$ of the two smallest layers, which move as those
of depth 2 do while $d\delta = \frac2N\prod_{l\ge3}\sigma_l\,g\,dt$; the squares of the others lie by
constant `offsets` above the smallest. So the differences stay exactly what they are.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.padding import with_front
from hadaflow.flow.kinds.flow import Flow, Values, length
from hadaflow.flow.readings import ValuesReading
from hadaflow.model.layers import displaced, excess, others, smallest_square
from hadaflow.model.states import Spectrum
from hadaflow.model.views.reduced import SymmetricView
from hadaflow.runs.targets import Reading


class DisplacementFlow(Flow):
    """All arrays have an entry in front for the trivial mode."""

    view: SymmetricView
    log_p0: Any
    excess0: Any  # None where all layers are balanced
    gap: Any  # between the squares of the two smallest layers
    offsets: Any  # of the squares of all others above the smallest
    fast: bool = eqx.field(static=True)  # the hot path: balanced, depth 2 at most

    @classmethod
    def of(cls, view: SymmetricView, start: Spectrum) -> "DisplacementFlow":
        """From scaled singular values."""
        a = np.concatenate([[0.0], start.a])
        C = np.concatenate([np.zeros_like(start.C[..., :1]), start.C], axis=-1)
        p, gap, offsets = a, C, np.zeros((0, len(a)))
        balanced = not np.any(start.C)
        if view.depth > 2:
            v, above = smallest_square(view.depth, a, C)
            above = np.sort(above, axis=0)
            p, gap, offsets = np.sqrt(v * (v + above[1])), above[1], above[2:]
        with np.errstate(divide="ignore"):
            log_p0 = np.log(p)
        return cls(
            view, log_p0, None if balanced else excess(p, gap), None if balanced else gap,
            None if balanced else offsets, balanced and view.depth <= 2,
        )  # fmt: skip

    @property
    def balanced(self) -> bool:
        return self.gap is None

    def begin(self) -> np.ndarray:
        return np.zeros(self.view.basis.modes + 1)

    def displaced(self, y):
        """Scaled singular values of one or many states, NumPy arrays too; the front is arbitrary."""
        p = self._pair(y)
        return p if self.view.depth <= 2 else p * self._rest(p)

    def values(self, ys: np.ndarray) -> Values:
        return Values(self.displaced(ys)[..., 1:], None, None)

    def _pair(self, y):
        return displaced(min(self.view.depth, 2), self.log_p0, self.excess0, y)

    def _squares(self, p):
        """Squares of all layers, the two smallest first."""
        xp = np if isinstance(p, np.ndarray) else jnp
        half = self.gap / 2
        above = xp.hypot(p, half) + half
        smallest = xp.where(above > 0, p * (p / xp.where(above > 0, above, 1.0)), 0.0)
        return [smallest, smallest + self.gap, *(smallest + offset for offset in self.offsets)]

    def _rest(self, p):
        """The product of all layers but the two smallest."""
        xp = np if isinstance(p, np.ndarray) else jnp

        def power(base, exponent):  # with a slope at zero, where that of a root is infinite
            positive = base > 0
            return xp.where(positive, xp.where(positive, base, 1.0) ** exponent, 0.0)

        if self.balanced:
            return power(p, self.view.depth / 2 - 1)
        product = 1.0
        for square in self._squares(p)[2:]:
            product = product * power(square, 0.5)
        return product

    def _moving(self, y):
        """Scaled a (zero in front), the pace of δ per force, and the mobility."""
        p, depth = with_front(self._pair(y), 0.0), self.view.depth
        if depth == 1:
            return p, None, jnp.ones_like(p)
        if depth == 2:
            return p, None, p if self.balanced else jnp.hypot(p, self.gap / 2)
        rest = self._rest(p)
        a = with_front(p * rest, 0.0)
        w = p * rest * rest if self.balanced else sum(others(self._squares(p))) / depth
        return a, rest * (2 / depth), w

    def velocity(self, u, y):
        a, pace, w = self._moving(y)
        direction, slowness = self.view.padded_drive(a)
        force = direction * jnp.exp(u - slowness)
        moved = w * force
        weights = self.view.basis.weights
        if weights is not None:  # a pair of modes adds its square twice
            moved = moved * np.sqrt(weights)
        # The squares of tiny velocities would underflow. A constant factor, free in the hot path,
        # covers 1e-270 to 1e30; unbalanced starts, which feel a jump at its edge, get the full care.
        speed = jnp.linalg.norm(1e120 * moved) * 1e-120 if self.fast else length(moved)
        return with_front(force if pace is None else force * pace, speed)

    def error_scale(self, y):
        """δ is accurate enough when a is: an error in δ moves a by w/(a·pace) times itself."""
        a, pace, w = self._moving(y)
        moving = a if pace is None else a * pace
        relative = jnp.where(w > 0, moving / jnp.where(w > 0, w, 1.0), 1.0)
        return jnp.maximum(with_front(relative, y[0] + jnp.sum(a)), 1e-290)

    def read(self, y) -> Reading:
        def values():
            return self.view.nontrivial(with_front(self.displaced(y), 0.0))

        return ValuesReading(values, y[0], lambda: self._fastest(y))

    def _fastest(self, y):
        """The largest relative rate of change; a mode that has died counts no more."""
        a, _, w = self._moving(y)
        direction, slowness = self.view.padded_drive(a)
        rate = jnp.abs(w * direction) * jnp.exp(-slowness)
        alive = (a > 1e-14) & (a > 1e-12 * jnp.max(a)) | (direction > 0) & (a > 0)
        return jnp.max(jnp.where(alive, rate / jnp.where(a > 0, a, 1.0), 0.0)) + 1e-300
