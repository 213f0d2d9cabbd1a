r"""Singular values of all layers: what every reduced model has that a displacement cannot tell.

Penalties, under which the differences move; two blocks of classes; deep MSE. The state is the path
length, the growth of $\log\sigma_l$ of every layer and mode, and the turn of the angle between the
blocks. In scaled time, with $g$ along and $h$ across:

$$(\log\sigma_l)' = \tfrac1N\,g\,a/\sigma_l^2 - \lambda_l,\qquad \varphi' = \tfrac1N\,h\,a/\sigma_N^2.$$
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from hadaflow.flow.kinds.flow import Flow, Values, length
from hadaflow.flow.readings import ValuesReading
from hadaflow.model.layers import differences, layer_values
from hadaflow.model.states import Spectrum
from hadaflow.model.views.reduced import ReducedView
from hadaflow.runs.targets import Reading

_ROUNDING = 16 * float(np.finfo(float).eps)  # of a rate, relative to the terms it is made of


class LayerFlow(Flow):
    """Layers first, without the trivial mode of cross-entropy."""

    view: ReducedView
    log_sigma0: Any
    alive: Any  # which modes are not zero
    angles0: Any  # one, or none

    @classmethod
    def of(cls, view: ReducedView, start: Spectrum) -> "LayerFlow":
        layers = layer_values(view.depth, start.a, start.C)
        alive = np.all(layers > 0, axis=0)
        angles = np.zeros(0) if start.angles is None else start.angles
        return cls(view, np.log(np.where(alive, layers, 1.0)), alive, angles)

    @property
    def _size(self) -> int:
        return self.log_sigma0.shape[0] * self.log_sigma0.shape[1]

    def begin(self) -> np.ndarray:
        return np.zeros(1 + self._size + len(self.angles0))

    def rounding(self, u):
        """Of log σ, where the penalties balance the force."""
        if self.view.decays is None:
            return None
        return _ROUNDING * jnp.max(self.view.decays) * jnp.exp(u)

    def _logs(self, y):
        """Log σ of all layers, layers before the modes; leading axes batched."""
        return self.log_sigma0 + y[..., 1 : 1 + self._size].reshape(
            *y.shape[:-1], *self.log_sigma0.shape
        )

    def values(self, ys: np.ndarray) -> Values:
        logs = self._logs(ys)
        a = np.where(self.alive, np.exp(logs.sum(axis=-2)), 0.0)
        layers = np.where(self.alive, np.exp(np.moveaxis(logs, -2, 0)), 0.0)
        moved = None if self.view.decays is None else differences(layers)
        return Values(a, moved, self.angles0 + ys[..., 1 + self._size :])

    def _a(self, y):
        return jnp.where(self.alive, jnp.exp(jnp.sum(self._logs(y), axis=0)), 0.0)

    def _rates(self, u, y):
        """Rates in log time: of log σ, layers first, and of the angle; and the values a."""
        view, logs = self.view, self._logs(y)
        log_a = jnp.sum(logs, axis=0)
        a = jnp.where(self.alive, jnp.exp(log_a), 0.0)
        angles = self.angles0 + y[1 + self._size :] if len(self.angles0) else None
        along, across, slowness = view.force(a, angles)
        size = jnp.broadcast_to(jnp.exp(u - slowness), a.shape)
        pace = jnp.exp(log_a[None] - 2 * logs) / view.depth
        growth = pace * (along * size)[None]
        if view.decays is not None:
            growth = growth - view.decays[:, None] * jnp.exp(u)
        growth = jnp.where(self.alive[None], growth, 0.0)
        if angles is None:
            return growth, jnp.zeros(0), a
        return growth, jnp.where(self.alive, pace[-1] * size, 0.0)[-1:] * across, a

    def velocity(self, u, y):
        growth, turn, a = self._rates(u, y)
        moved = self.view.all_values(a * jnp.sum(growth, axis=0))
        swept = turn * a[len(a) - len(turn) :]
        speed = length(jnp.concatenate([moved, swept]))
        return jnp.concatenate([speed[None], growth.ravel(), turn])

    def error_scale(self, y):
        return jnp.ones_like(y).at[0].set(y[0] + jnp.sum(self._a(y)) + 1e-290)

    def read(self, y) -> Reading:
        return ValuesReading(
            lambda: self.view.nontrivial(self._a(y)), y[0], lambda: self._fastest(y)
        )

    def _fastest(self, y):
        growth, turn, a = self._rates(0.0, y)
        total = jnp.sum(growth, axis=0)
        counts = (a > 1e-14) & (a > 1e-12 * jnp.max(a)) | (total > 0) & (a > 0)
        fastest = jnp.max(jnp.where(counts, jnp.max(jnp.abs(growth), axis=0), 0.0))
        return jnp.maximum(fastest, jnp.max(jnp.abs(turn), initial=0.0)) + 1e-300
