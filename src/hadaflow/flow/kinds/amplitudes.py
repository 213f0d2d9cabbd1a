r"""Complex modes, whose phases move, and real ones that may pass through zero.

The state is the path length and the complex amplitudes $A_l$ of every layer and mode, real parts before
imaginary ones: $\lambda = \prod_lA_l$ and, in scaled time,
$A_l' = \frac1N(1 - \nu)\overline{\prod_{m\ne l}A_m} - \lambda_lA_l$.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.algebra.padding import column, row
from hadaflow.algebra.shapes import Amplitudes, Modes, Number, State
from hadaflow.flow.kinds.flow import SpectrumFlow, Values, escape, length, runs_last
from hadaflow.flow.readings import Untimed, ValuesReading
from hadaflow.model.layers import array_module, differences_by_layer, layer_values, others
from hadaflow.model.states import Spectrum
from hadaflow.model.views.circulant import CirculantView, times


class AmplitudeFlow(SpectrumFlow):
    view: CirculantView
    start: Any  # the state of the start

    @classmethod
    def of(cls, view: CirculantView, start: Spectrum) -> "AmplitudeFlow":
        """The phases of a spectrum are put into the last layer."""
        layers = layer_values(view.depth, start.a, start.C).astype(complex)
        assert start.angles is not None
        layers[-1] *= np.exp(1j * start.angles)
        layers = runs_last(start, layers)
        flat: Any = layers.reshape(-1, *layers.shape[2:])
        return cls(view, np.concatenate([np.zeros_like(flat[:1].real), flat.real, flat.imag]))

    def begin(self) -> np.ndarray:
        return self.start

    def _amplitudes(self, y):
        """Amplitudes, layers before the modes."""
        half = (len(y) - 1) // 2
        shape = (self.view.depth, self.view.modes, *y.shape[1:])
        real, imaginary = y[1 : 1 + half], y[1 + half :]
        if isinstance(y, np.ndarray):
            return (real + 1j * imaginary).reshape(shape)
        return lax.complex(real, imaginary).reshape(shape)

    def values(self, y) -> Values:
        xp, A = array_module(y), self._amplitudes(y)
        product = xp.prod(A, axis=0)
        moved = None if self.view.decays is None else differences_by_layer(xp.abs(A))
        return Values(xp.abs(product), moved, xp.angle(product))

    def _rates(self, u: Number, A: Amplitudes) -> tuple[Amplitudes, Amplitudes]:
        u, rest = row(u), jnp.stack(others(A))
        direction, slowness = self.view.drive(rest[-1] * A[-1])
        force = times(jnp.exp(u - slowness) / self.view.depth, direction)
        moved = force[None] * jnp.conj(rest)
        if self.view.decays is not None:
            decays = self.view.decays[:, None]  # layers, modes, and runs where there are several
            moved = moved - times(column(decays, moved) * row(jnp.exp(u)), A)
        return moved, rest

    def velocity(self, u: Number, y: State) -> State:
        moved, rest = self._rates(u, self._amplitudes(y))
        speed = length(self.view.nontrivial(jnp.abs(jnp.sum(moved * rest, axis=0))))
        flat = moved.reshape(-1, *y.shape[1:])
        return jnp.concatenate([speed, flat.real, flat.imag])

    def _sizes(self, A: Amplitudes) -> Modes:
        """The size of each mode's amplitudes, against which its errors count."""
        return jnp.sqrt(jnp.mean(jnp.abs(A) ** 2, axis=0)) + 1e-290

    def error_scale(self, y: State) -> State:
        A = self._amplitudes(y)
        sizes = [self._sizes(A)] * (2 * self.view.depth)
        total = jnp.sum(jnp.abs(jnp.prod(A, axis=0)), axis=0, keepdims=True)
        return jnp.concatenate([y[:1] + total + 1e-290, *sizes])

    def read(self, y: State) -> Untimed:
        A = self._amplitudes(y)
        return ValuesReading(
            lambda: self.view.nontrivial(jnp.abs(jnp.prod(A, axis=0))), y[0],
            lambda: self._fastest(A),
        )  # fmt: skip

    def _fastest(self, A: Amplitudes) -> Number:
        moved, rest = self._rates(jnp.zeros(()), A)
        sizes = self._sizes(A)
        alive = sizes > 1e-10 * jnp.max(sizes, axis=0, keepdims=True)
        relative = jnp.max(jnp.abs(moved), axis=0) / sizes
        value = rest[-1] * A[-1]
        direction, slowness = self.view.drive(value)
        force = jnp.real(direction * jnp.conj(value)) / jnp.maximum(jnp.abs(value), 1e-300)
        grows = jnp.sum(jnp.real(moved * jnp.conj(A)), axis=0) > 0
        least = escape(self.view.depth, force * jnp.exp(-slowness))
        relative = jnp.where(grows, jnp.maximum(relative, least), relative)
        relative = jnp.where(alive, relative, 0.0)
        return jnp.max(relative, axis=0) + 1e-300
