r"""General real group-circulant logits, $Z_{gh} = c_{g-h}$ with no symmetry between $g$ and $-g$.

Their eigenvalues $\lambda_\chi = \sum_g c_g\overline{\chi(g)}$ are complex, $\lambda_{\bar\chi} =
\overline{\lambda_\chi}$: a free mode is one of each pair, with a modulus (the logit singular value)
and a phase, which moves.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.algebra.bases import Basis, negatives
from hadaflow.algebra.padding import column, pad
from hadaflow.algebra.shapes import Angles, ComplexModes, Margins, Modes, Number, One
from hadaflow.model.views.pytrees import traced
from hadaflow.model.views.reduced import ReducedView

if TYPE_CHECKING:
    from hadaflow.model.ufm import UFM


def polar(modulus: Modes, angle: Modes) -> ComplexModes:
    """The complex numbers of that modulus and angle."""
    return lax.complex(modulus * jnp.cos(angle), modulus * jnp.sin(angle))


def times(factor, z):
    """Complex numbers times real ones."""
    return lax.complex(factor * z.real, factor * z.imag)


class CirculantView(ReducedView):
    """Modes with phases."""

    @classmethod
    def of(cls, model: "UFM") -> "CirculantView":
        return cls(
            model.basis,
            model.depth,
            traced(model.loss_of_classes),
            model.traced_decays,
            model.loss_per_energy,
        )

    @property
    def basis(self) -> Basis:
        return self.modes_of_view

    def drive(self, values: ComplexModes) -> tuple[ComplexModes, One]:
        """Force on complex eigenvalues, as (complex direction, log slowness of length 1)."""
        if self.has_constant_mode:
            direction, slowness = self.loss.pull(self._logits(values))
            along = _sums(self.basis, direction)
            pairs = np.concatenate([[False], self.basis.multiplicity == 2])
        else:
            direction, slowness = self.loss.push(self._margins(values))
            along = _fourier(self.basis, direction)
            pairs = self.basis.multiplicity == 2
        # A mode of a real character has no phase to move.
        turning = jnp.broadcast_to(column(pairs, along), along.shape)
        return lax.complex(along.real, jnp.where(turning, along.imag, 0.0)), slowness

    def force(self, a: Modes, angles: Any = None) -> tuple[Modes, Modes, One]:
        direction, slowness = self.drive(polar(a, angles))
        turned = direction * polar(jnp.ones_like(angles), -angles)
        return turned.real, turned.imag, slowness

    def turn(self, a: Modes, C: Any, w: Modes) -> Angles:
        """All layers turn."""
        return jnp.where(a > 0, w / jnp.where(a > 0, a, 1.0), 0.0)

    def swept(self, moved: Angles) -> Modes:
        return self.all_values(moved)

    def margins(self, a: Modes, angles: Any = None) -> list[Margins]:
        return [self._margins(polar(a, angles))]

    def _margins(self, values: ComplexModes) -> Margins:
        r"""All K − 1 margins $x_g = c_0 - c_g$ of complex eigenvalues."""
        c = self._logits(values)
        return c[:1] - c[1:]

    def _logits(self, values: ComplexModes) -> Margins:
        """The logits $c_g$ of a sample of class 0; up to a constant, where the loss does not see it."""
        front = values if self.has_constant_mode else pad(values)
        return _inverse_fourier(self.basis, _spread(self.basis, front)).real

    def log_energy(self, a: Modes, angles: Any = None) -> Number:
        return self.loss.log_energy_of_logits(self._logits(polar(a, angles)))


def _spread(basis: Basis, values):
    """Values at all elements of the group from the trivial one and the free modes: conjugates at −g."""
    firsts = np.minimum(np.arange(basis.classes), negatives(basis.group))
    number = np.searchsorted(basis.representatives, firsts)
    second = firsts != np.arange(basis.classes)
    taken = values[number]
    return jnp.where(jnp.broadcast_to(column(second, taken), taken.shape), jnp.conj(taken), taken)


def _transformed(basis: Basis, values, transform):
    shape = values.shape
    values = values.reshape(*basis.group, *shape[1:])
    for axis in range(len(basis.group)):
        values = transform(values, axis=axis)
    return values.reshape(shape)


def _inverse_fourier(basis: Basis, values):
    """Σ_g v_g χ(g) over the group."""
    return times(float(basis.classes), _transformed(basis, values, jnp.fft.ifft))


def _sums(basis: Basis, forces):
    """Σ_g r_g χ̄(g) for the forces on all classes, the trivial character first."""
    nu = _transformed(basis, lax.complex(forces, jnp.zeros_like(forces)), jnp.fft.fft)
    return nu[basis.representatives]


def _fourier(basis: Basis, weights):
    """Σ_{g≠0} w_g (1 − χ̄(g)) for the weights of all wrong classes, one for each free mode."""
    wrong = pad(weights)
    nu = _transformed(basis, lax.complex(wrong, jnp.zeros_like(wrong)), jnp.fft.fft)
    nu = nu[basis.representatives]
    return (nu[:1] - nu)[1:]
