r"""Singular values of all layers: what every reduced model has that a displacement cannot tell.

Penalties, under which the differences move; two blocks of classes; deep MSE. The state is the path
length, the growth of $\log\sigma_l$ of every layer and mode, and the turn of the angle between the
blocks. In scaled time, with $g$ along and $h$ across:

$$(\log\sigma_l)' = \tfrac1N\,g\,a/\sigma_l^2 - \lambda_l,\qquad \varphi' = \tfrac1N\,h\,a/\sigma_N^2.$$
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.padding import column, row, with_front
from hadaflow.algebra.shapes import Angles, Layers, Modes, Number, State
from hadaflow.flow.kinds.flow import SpectrumFlow, Values, escape, length, runs_last
from hadaflow.flow.readings import Untimed, ValuesReading
from hadaflow.model.layers import array_module, differences_by_layer, layer_values
from hadaflow.model.states import Spectrum
from hadaflow.model.views.reduced import ReducedView

_ROUNDING = 16 * float(np.finfo(float).eps)  # of a rate, relative to the terms it is made of


class LayerFlow(SpectrumFlow):
    """Layers first, then modes, without the trivial mode of cross-entropy."""

    view: ReducedView
    log_sigma0: Any
    alive: Any  # which modes are not zero
    level: Any  # whose layers are the same for ever, without penalties
    angles0: Any  # one, or none

    @classmethod
    def of(cls, view: ReducedView, start: Spectrum) -> "LayerFlow":
        layers = layer_values(view.depth, start.a, start.C)
        alive = np.all(layers > 0, axis=0)
        level = np.all(start.C == 0, axis=-2) if view.depth > 2 else start.C == 0
        free = view.decays is None  # penalties shrink what rounding makes of the differences
        angles = np.zeros((*start.a.shape[:-1], 0)) if start.angles is None else start.angles
        found = np.log(np.where(alive, layers, 1.0)), alive, level & free, angles
        return cls(view, *(runs_last(start, x) for x in found))

    @property
    def _size(self) -> int:
        return self.log_sigma0.shape[0] * self.log_sigma0.shape[1]

    def begin(self) -> np.ndarray:
        runs = self.log_sigma0.shape[2:]
        return np.zeros((1 + self._size + len(self.angles0), *runs))

    def rounding(self, u: Number) -> Number | None:
        """Of log σ, where the penalties balance the force."""
        if self.view.decays is None:
            return None
        return _ROUNDING * jnp.max(self.view.decays, axis=0) * jnp.exp(u)

    def _logs(self, y):
        """Log σ of all layers, layers before the modes.

        Layers that are the same differ by rounding, which grows as fast as a mode that dies falls.
        """
        grown = y[1 : 1 + self._size].reshape(*self.log_sigma0.shape[:2], *y.shape[1:])
        logs, xp = column(self.log_sigma0, grown) + grown, array_module(y)
        mean = xp.broadcast_to(xp.mean(logs, axis=0, keepdims=True), logs.shape)
        return xp.where(column(self.level, logs[0])[None], mean, logs)

    def _angles(self, y):
        turned = y[1 + self._size :]
        return column(self.angles0, turned) + turned

    def values(self, y) -> Values:
        xp, logs = array_module(y), self._logs(y)
        a = self._a(logs)
        layers = xp.where(column(self.alive, a)[None], xp.exp(logs), 0.0)
        moved = None if self.view.decays is None else differences_by_layer(layers)
        return Values(a, moved, self._angles(y) if len(self.angles0) else None)

    def _a(self, logs):
        xp = array_module(logs)
        a = xp.exp(logs.sum(axis=0))
        return xp.where(column(self.alive, a), a, 0.0)

    def _rates(self, u: Number, y: State) -> tuple[Layers, Angles, Modes, Modes]:
        """Rates in log time: of log σ, layers first, and of the angle; the values a, and the force."""
        view, logs, u = self.view, self._logs(y), row(u)
        log_a, a = jnp.sum(logs, axis=0), self._a(logs)
        angles = self._angles(y) if len(self.angles0) else None
        along, across, slowness = view.force(a, angles)
        size = jnp.broadcast_to(jnp.exp(u - slowness), a.shape)
        pace = jnp.exp(log_a[None] - 2 * logs) / view.depth
        growth = pace * (along * size)[None]
        if view.decays is not None:
            decays = view.decays[:, None]  # layers, modes, and runs where there are several
            growth = growth - column(decays, growth) * row(jnp.exp(u))
        growth = jnp.where(self.alive[None], growth, 0.0)
        if angles is None:
            return growth, jnp.zeros_like(a[:0]), a, along * size
        turn = jnp.where(self.alive, pace[-1] * size, 0.0)[-1:] * across
        return growth, turn, a, along * size

    def velocity(self, u: Number, y: State) -> State:
        growth, turn, a, _ = self._rates(u, y)
        moved = self.view.all_values(a * jnp.sum(growth, axis=0))
        swept = turn * a[len(a) - len(turn) :]
        speed = length(jnp.concatenate([moved, swept]))
        return jnp.concatenate([speed, growth.reshape(-1, *y.shape[1:]), turn])

    def error_scale(self, y: State) -> State:
        total = jnp.sum(self._a(self._logs(y)), axis=0, keepdims=True)
        return with_front(jnp.ones_like(y), y[:1] + total + 1e-290)

    def read(self, y: State) -> Untimed:
        return ValuesReading(
            lambda: self.view.nontrivial(self._a(self._logs(y))), y[0], lambda: self._fastest(y)
        )

    def _fastest(self, y: State) -> Number:
        growth, turn, a, force = self._rates(jnp.zeros(()), y)
        total = jnp.sum(growth, axis=0)
        largest = jnp.max(a, axis=0, keepdims=True)
        grows = (total > 0) & (a > 0)
        counts = (a > 1e-14) & (a > 1e-12 * largest) | grows
        relative = jnp.max(jnp.abs(growth), axis=0)
        relative = jnp.where(grows, jnp.maximum(relative, escape(self.view.depth, force)), relative)
        fastest = jnp.max(jnp.where(counts, relative, 0.0), axis=0)
        return jnp.maximum(fastest, jnp.max(jnp.abs(turn), axis=0, initial=0.0)) + 1e-300
