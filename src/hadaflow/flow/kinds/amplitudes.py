r"""Complex modes, whose phases move, and real ones that may pass through zero.

The state is the path length and the complex amplitudes $A_l$ of every layer and mode, real parts before
imaginary ones: $\lambda = \prod_lA_l$ and, in scaled time,
$A_l' = \frac1N(1 - \nu)\overline{\prod_{m\ne l}A_m} - \lambda_lA_l$.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.flow.kinds.flow import Flow, Values, length
from hadaflow.flow.readings import ValuesReading
from hadaflow.model.layers import differences, layer_values, others
from hadaflow.model.states import Spectrum
from hadaflow.model.views.circulant import CirculantView, times
from hadaflow.runs.targets import Reading


class AmplitudeFlow(Flow):
    view: CirculantView
    start: Any  # the state of the start

    @classmethod
    def of(cls, view: CirculantView, start: Spectrum) -> "AmplitudeFlow":
        """The phases of a spectrum are put into the last layer."""
        layers = layer_values(view.depth, start.a, start.C).astype(complex)
        assert start.angles is not None
        layers[-1] *= np.exp(1j * start.angles)
        return cls(view, np.concatenate([[0.0], layers.real.ravel(), layers.imag.ravel()]))

    def begin(self) -> np.ndarray:
        return self.start

    def _amplitudes(self, y):
        """Amplitudes, layers before the modes; leading axes batched."""
        half = (y.shape[-1] - 1) // 2
        shape = (*y.shape[:-1], self.view.depth, self.view.modes)
        real, imaginary = y[..., 1 : 1 + half], y[..., 1 + half :]
        if isinstance(y, np.ndarray):
            return (real + 1j * imaginary).reshape(shape)
        return lax.complex(real, imaginary).reshape(shape)

    def values(self, ys: np.ndarray) -> Values:
        A = np.asarray(self._amplitudes(ys))
        product = np.prod(A, axis=-2)
        moved = None
        if self.view.decays is not None:
            moved = differences(np.abs(np.moveaxis(A, -2, 0)))
        return Values(np.abs(product), moved, np.angle(product))

    def _rates(self, u, A):
        rest = jnp.stack(others(A))
        direction, slowness = self.view.drive(rest[-1] * A[-1])
        force = times(jnp.exp(u - slowness) / self.view.depth, direction)
        moved = force[None] * jnp.conj(rest)
        if self.view.decays is not None:
            moved = moved - times(self.view.decays[:, None] * jnp.exp(u), A)
        return moved, rest

    def velocity(self, u, y):
        moved, rest = self._rates(u, self._amplitudes(y))
        speed = length(self.view.nontrivial(jnp.abs(jnp.sum(moved * rest, axis=0))))
        return jnp.concatenate([speed[None], moved.real.ravel(), moved.imag.ravel()])

    def _sizes(self, A):
        """The size of each mode's amplitudes, against which its errors count."""
        return jnp.sqrt(jnp.mean(jnp.abs(A) ** 2, axis=0)) + 1e-290

    def error_scale(self, y):
        A = self._amplitudes(y)
        sizes = jnp.tile(self._sizes(A), 2 * self.view.depth)
        total = jnp.sum(jnp.abs(jnp.prod(A, axis=0)))
        return jnp.concatenate([(y[0] + total + 1e-290)[None], sizes])

    def read(self, y) -> Reading:
        A = self._amplitudes(y)
        return ValuesReading(
            lambda: self.view.nontrivial(jnp.abs(jnp.prod(A, axis=0))), y[0],
            lambda: self._fastest(A),
        )  # fmt: skip

    def _fastest(self, A):
        moved, _ = self._rates(0.0, A)
        sizes = self._sizes(A)
        alive = sizes > 1e-10 * jnp.max(sizes)
        relative = jnp.where(alive, jnp.max(jnp.abs(moved), axis=0) / sizes, 0.0)
        return jnp.max(relative) + 1e-300
