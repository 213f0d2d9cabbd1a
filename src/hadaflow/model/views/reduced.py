r"""Reduced views: one singular value per free mode, in scaled units (Eq. 9).

$$\frac{da_i}{dt} = a_i\,\frac{b_i}{D},\qquad b = \Psi e^{-\Psi a},\quad D = 1 + \sum_j e^{-(\Psi a)_j}.$$

The velocity is described by a *force*: a direction of ordinary size and the logarithm of the factor by
which the flow is slower than that.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from hadaflow.algebra.padding import pad
from hadaflow.model import layers
from hadaflow.model.losses import CrossEntropy, Loss, MeanSquaredError
from hadaflow.model.ufm import UFM
from hadaflow.model.views.pytrees import register

register(CrossEntropy, ("temperature", "labels"))
register(MeanSquaredError, ())


class ReducedView(eqx.Module):
    """What all reduced views have: layers, penalties, and how singular values are listed."""

    modes_of_view: Any = eqx.field(static=True)  # a basis, or two blocks of them
    depth: int = eqx.field(static=True)
    loss: Loss
    decays: Any  # λ of every layer per unit of scaled time; None without penalties
    loss_per_energy: Any  # what turns the loss of one sample into the loss: Kn for a sum

    @property
    def has_constant_mode(self) -> bool:
        return self.loss.moves_constant

    @property
    def modes(self) -> int:
        return self.modes_of_view.modes + self.has_constant_mode

    def nontrivial(self, a):
        """The K − 1 non-trivial singular values of a reduced state, multiplicities written out."""
        return self.modes_of_view.expand(a[..., -self.modes_of_view.modes :])

    def all_values(self, a):
        """`nontrivial`, with the constant mode in front where the state has one."""
        if not self.has_constant_mode:
            return self.nontrivial(a)
        return jnp.concatenate([a[..., :1], self.nontrivial(a)], axis=-1)

    def force(self, a, angles=None) -> tuple[Any, Any, Any]:
        """Force on every mode as (along, across, log slowness of each); across only with angles."""
        raise NotImplementedError

    def margins(self, a, angles=None) -> list[Any]:
        """Margins over all wrong classes; of a sample of each block, where classes differ."""
        raise NotImplementedError

    def energy(self, a, angles=None):
        r"""Loss of one sample: $E = \log(1 + \sum_j e^{-(\Psi a)_j})$ (Eq. 8 over Kn), or another."""
        return jnp.exp(self.log_energy(a, angles))

    def log_energy(self, a, angles=None):
        """Log of `energy`, exact where the energy itself underflows."""
        raise NotImplementedError

    def mobility(self, a, C):
        r"""$w(a)$ in $\dot a = w(a)\,g$: $a^{2-2/N}$ if balanced; at depth 2 $\sqrt{a^2 + C^2/4}$.

        A single number stands for the differences of balanced layers.
        """
        if self.depth > 2 and jnp.ndim(C) == 0:
            return a ** (2 - 2 / self.depth)
        return layers.mobility(
            self.depth, a, jnp.broadcast_to(C, a.shape) if self.depth == 2 else C
        )

    def velocity(self, a, C, angles=None, normalized: bool = False):
        """Rates of a, C and the angles; `normalized` per unit of path length."""
        along, across, slowness = self.force(a, angles)
        if normalized and self.decays is None:  # a common factor cancels, before it underflows
            slowness = slowness - jnp.min(slowness, axis=-1, keepdims=True)
        size = jnp.exp(-slowness)
        w = self.mobility(a, C)
        rates = [w * along * size, jnp.zeros_like(C)]
        if self.decays is not None:
            squares = layers.layer_values(self.depth, a, C) ** 2
            rates[0] = rates[0] - jnp.sum(self.decays) * a
            if self.depth > 1:
                lost = 2 * jnp.reshape(self.decays, (-1, *[1] * a.ndim)) * squares
                gap = lost[0] - lost[1] if self.depth == 2 else lost[:1] - lost[1:]
                rates[1] = -(gap if self.depth == 2 else jnp.moveaxis(gap, 0, -2))
        moved = [self.all_values(rates[0])]
        if angles is not None:
            turn = self.turn(a, C, w) * across * size[..., -across.shape[-1] :]
            rates.append(turn)
            moved.append(self.swept(turn * a[..., -turn.shape[-1] :]))
        if normalized:
            length = jnp.linalg.norm(jnp.concatenate(moved, axis=-1), axis=-1, keepdims=True)
            rates = [r / (length[..., None] if r.ndim > length.ndim else length) for r in rates]
        return tuple(rates)

    def turn(self, a, C, w):
        """Rate of the angles per unit of the force across."""
        raise NotImplementedError

    def swept(self, moved):
        """What the path length counts of the motion across."""
        raise NotImplementedError


class SymmetricView(ReducedView):
    """Logits in a basis that diagonalizes the softmax: modes without angles."""

    @classmethod
    def of(cls, model: UFM) -> "SymmetricView":
        return cls(
            model.basis,
            model.depth,
            model.loss_of_modes,
            model.traced_decays,
            model.loss_per_energy,
        )

    @property
    def basis(self) -> Any:
        return self.modes_of_view

    def padded_drive(self, a):
        """Force of an array with a zero in front for the trivial mode; so has the direction."""
        return self.loss.drive(self.basis, a)

    def drive(self, a):
        """Force as (direction, log slowness)."""
        if self.has_constant_mode:
            return self.loss.drive(self.basis, a)
        direction, slowness = self.loss.drive(self.basis, pad(a))
        return direction[..., 1:], slowness

    def force(self, a, angles=None) -> tuple[Any, Any, Any]:
        direction, slowness = self.drive(a)
        return direction, None, slowness[..., None]

    def margins(self, a, angles=None) -> list[Any]:
        return [self.basis.padded_psi(pad(a[..., -self.basis.modes :]))[..., 1:]]

    def log_energy(self, a, angles=None):
        if isinstance(self.loss, MeanSquaredError):
            return jnp.log(self.loss.mode_energy(self.basis, self.all_values(a)))
        weights = self.basis.weights
        return self.loss.log_energy(self.margins(a)[0], None if weights is None else weights[1:])
