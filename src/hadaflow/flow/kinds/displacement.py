r"""Singular values by what the force has done: hard or soft labels at any depth, without penalties.

The state is $\delta = \int g\,dt$, from which the singular values follow in closed form, with the path
length in front, where the trivial mode would be, so that the transforms need no copies.

Depth 2: $p = a$. Deeper models: $p = \sigma_1\sigma_2$ of the two smallest layers, which move as those
of depth 2 do while $d\delta = \frac2N\prod_{l\ge3}\sigma_l\,g\,dt$; the squares of the others lie by
constant `offsets` above the smallest. So the differences stay exactly what they are.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.padding import column, row, with_front
from hadaflow.algebra.shapes import Number, One, Padded, State
from hadaflow.flow.kinds.flow import SpectrumFlow, Values, escape, length, root, runs_last
from hadaflow.flow.readings import Untimed, ValuesReading
from hadaflow.model.layers import array_module, displaced, excess, others, smallest_square
from hadaflow.model.states import Spectrum
from hadaflow.model.views.reduced import SymmetricView


class DisplacementFlow(SpectrumFlow):
    """All arrays have an entry in front for the trivial mode."""

    view: SymmetricView
    log_p0: Any
    excess0: Any  # None where all layers are balanced
    gap: Any  # between the squares of the two smallest layers
    offsets: Any  # of the squares of all others above the smallest, layers first

    @classmethod
    def of(cls, view: SymmetricView, start: Spectrum) -> "DisplacementFlow":
        """From scaled singular values; of many starts, they become the last axis."""
        a = np.concatenate([np.zeros_like(start.a[..., :1]), start.a], axis=-1)
        C = np.concatenate([np.zeros_like(start.C[..., :1]), start.C], axis=-1)
        p, gap, offsets = a, C, np.zeros((0, *a.shape))
        if view.depth > 2:
            v, above = smallest_square(view.depth, a, C)
            above = np.sort(above, axis=0)
            p, gap, offsets = np.sqrt(v * (v + above[1])), above[1], above[2:]
        with np.errstate(divide="ignore"):
            log_p0 = runs_last(start, np.log(p))
        if start.balanced:
            return cls(view, log_p0, None, None, None)
        return cls(view, log_p0, *(runs_last(start, x) for x in (excess(p, gap), gap, offsets)))

    @property
    def balanced(self) -> bool:
        return self.gap is None

    def begin(self) -> np.ndarray:
        return np.zeros_like(self.log_p0)

    def values(self, y) -> Values:
        return Values(self._displaced(y)[1:], None, None)

    def _displaced(self, y):
        """Scaled singular values of one or many states; the front is arbitrary."""
        p = self._pair(y)
        return p if self.view.depth <= 2 else p * self._rest(p)

    def _pair(self, y):
        excess0 = None if self.balanced else column(self.excess0, y)
        return displaced(min(self.view.depth, 2), column(self.log_p0, y), excess0, y)

    def _squares(self, p):
        """Squares of all layers, the two smallest first."""
        xp = array_module(p)
        half = column(self.gap, p) / 2
        above = xp.hypot(p, half) + half
        smallest = xp.where(above > 0, p * (p / xp.where(above > 0, above, 1.0)), 0.0)
        return [
            smallest, smallest + column(self.gap, p),
            *(smallest + column(offset, p) for offset in self.offsets),
        ]  # fmt: skip

    def _rest(self, p):
        """The product of all layers but the two smallest."""
        xp = array_module(p)

        def power(base, exponent):  # with a slope at zero, where that of a root is infinite
            positive = base > 0
            return xp.where(positive, xp.where(positive, base, 1.0) ** exponent, 0.0)

        if self.balanced:
            return power(p, self.view.depth / 2 - 1)
        product = 1.0
        for square in self._squares(p)[2:]:
            product = product * power(square, 0.5)
        return product

    def _moving(self, y: State) -> tuple[Padded, Any, Padded]:
        """Scaled a (zero in front), the pace of δ per force, and the mobility."""
        p, depth = with_front(self._pair(y), 0.0), self.view.depth
        if depth == 1:
            return p, None, jnp.ones_like(p)
        if depth == 2:
            return p, None, p if self.balanced else jnp.hypot(p, self.gap / 2)
        rest = self._rest(p)
        a = with_front(p * rest, 0.0)
        w: Any = p * rest * rest if self.balanced else sum(others(self._squares(p))) / depth
        pace: Any = rest * (2 / depth)
        return a, pace, w

    def velocity(self, u: Number, y: State) -> State:
        a, pace, w = self._moving(y)
        direction, slowness = self.view.padded_drive(a)
        force = direction * jnp.exp(row(u) - slowness)
        moved = w * force
        weights = self.view.basis.weights
        if weights is not None:  # a pair of modes adds its square twice
            moved = moved * column(np.sqrt(weights), moved)
        return with_front(force if pace is None else force * pace, self._speed(moved))

    def _speed(self, moved: Padded) -> One:
        """The squares of tiny velocities would underflow.

        A constant factor, free in the hot path, covers 1e-270 to 1e30; unbalanced and deep models, which
        feel a jump at its edge, get the full care.
        """
        if self.balanced and self.view.depth <= 2:
            return root(jnp.sum((1e120 * moved) ** 2, axis=0, keepdims=True)) * 1e-120
        return length(moved)

    def error_scale(self, y: State) -> State:
        """δ is accurate enough when a is: an error in δ moves a by w/(a·pace) times itself."""
        a, pace, w = self._moving(y)
        moving = a if pace is None else a * pace
        path = jnp.maximum(y[:1] + jnp.sum(a, axis=0, keepdims=True), 1e-290)
        if w is moving:
            return with_front(jnp.ones_like(a), path)
        relative = jnp.where(w > 0, moving / jnp.where(w > 0, w, 1.0), 1.0)
        return jnp.maximum(with_front(relative, path), 1e-290)

    def read(self, y: State) -> Untimed:
        def values():
            return self.view.nontrivial(self._displaced(y)[1:])

        return ValuesReading(values, y[0], lambda: self._fastest(y))

    def _fastest(self, y: State) -> Number:
        """The largest relative rate of change; a mode that has died counts no more."""
        a, _, w = self._moving(y)
        direction, slowness = self.view.padded_drive(a)
        rate = jnp.abs(w * direction) * jnp.exp(-slowness)
        largest = jnp.max(a, axis=0, keepdims=True)
        grows = (direction > 0) & (a > 0)
        alive = (a > 1e-14) & (a > 1e-12 * largest) | grows
        relative = jnp.where(alive, rate / jnp.where(a > 0, a, 1.0), 0.0)
        least = escape(self.view.depth, direction * jnp.exp(-slowness))
        relative = jnp.where(grows, jnp.maximum(relative, least), relative)
        return jnp.max(relative, axis=0) + 1e-300
