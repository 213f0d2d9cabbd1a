r"""Reduced views: one singular value per free mode, in scaled units (Eq. 9).

$$\frac{da_i}{dt} = a_i\,\frac{b_i}{D},\qquad b = \Psi e^{-\Psi a},\quad D = 1 + \sum_j e^{-(\Psi a)_j}.$$

The velocity is described by a *force*: a direction of ordinary size and the logarithm of the factor by
which the flow is slower than that.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from hadaflow.algebra.padding import pad
from hadaflow.algebra.shapes import Angles, Margins, Modes, Number, One, Padded
from hadaflow.model import layers
from hadaflow.model.losses import Loss
from hadaflow.model.views.pytrees import Traced, static, traced

if TYPE_CHECKING:
    from hadaflow.model.ufm import UFM


class ReducedView(Traced):
    """What all reduced views have: layers, penalties, and how singular values are listed.

    Modes are the first axis of all arrays, and the runs of a batch, if any, the last.
    """

    modes_of_view: Any = static()  # a basis, or two blocks of them
    depth: int = static()
    loss: Loss
    decays: Any  # λ of every layer per unit of scaled time; None without penalties
    loss_per_energy: Any  # what turns the loss of one sample into the loss: Kn for a sum

    @property
    def has_constant_mode(self) -> bool:
        return self.loss.moves_constant

    @property
    def modes(self) -> int:
        return self.modes_of_view.modes + self.has_constant_mode

    def nontrivial(self, a: Modes) -> Modes:
        """The K − 1 non-trivial singular values of a reduced state, multiplicities written out."""
        return self.modes_of_view.expand(a[-self.modes_of_view.modes :], 0)

    def all_values(self, a: Modes) -> Modes:
        """`nontrivial`, with the constant mode in front where the state has one."""
        if not self.has_constant_mode:
            return self.nontrivial(a)
        return jnp.concatenate([a[:1], self.nontrivial(a)])

    def force(self, a: Modes, angles: Any = None) -> tuple[Modes, Any, Modes | One]:
        """Force on every mode as (along, across, log slowness of each); across only with angles."""
        raise NotImplementedError

    def margins(self, a: Modes, angles: Any = None) -> list[Margins]:
        """Margins over all wrong classes; of a sample of each block, where classes differ."""
        raise NotImplementedError

    def energy(self, a: Modes, angles: Any = None) -> Number:
        r"""Loss of one sample: $E = \log(1 + \sum_j e^{-(\Psi a)_j})$ (Eq. 8 over Kn), or another."""
        return jnp.exp(self.log_energy(a, angles))

    def log_energy(self, a: Modes, angles: Any = None) -> Number:
        """Log of `energy`, exact where the energy itself underflows."""
        raise NotImplementedError

    def mobility(self, a: Any, C: Any) -> Any:
        r"""$w(a)$ in $\dot a = w(a)\,g$: $a^{2-2/N}$ if balanced; at depth 2 $\sqrt{a^2 + C^2/4}$.

        A single number stands for the differences of balanced layers.
        """
        if self.depth > 2 and jnp.ndim(C) == 0:
            return a ** (2 - 2 / self.depth)
        return layers.mobility(
            self.depth, a, jnp.broadcast_to(C, a.shape) if self.depth == 2 else C
        )

    def velocity(
        self, a: Modes, C: Any, angles: Any = None, normalized: bool = False
    ) -> tuple[Any, ...]:
        """Rates of a, C and the angles of one run; `normalized` per unit of path length."""
        along, across, slowness = self.force(a, angles)
        if normalized and self.decays is None:  # a common factor cancels, before it underflows
            slowness = slowness - jnp.min(slowness, axis=0, keepdims=True)
        size = jnp.exp(-slowness)
        w = self.mobility(a, C)
        rates = [w * along * size, jnp.zeros_like(C)]
        if self.decays is not None:
            rates = self._decayed(a, C, rates[0])
        moved = [self.all_values(rates[0])]
        if angles is not None:
            turn = self.turn(a, C, w) * across * size[-len(across) :]
            rates.append(turn)
            moved.append(self.swept(turn * a[-len(turn) :]))
        if normalized:
            length = jnp.linalg.norm(jnp.concatenate(moved))
            rates = [r / length for r in rates]
        return tuple(rates)

    def _decayed(self, a, C, rate) -> list[Any]:
        """Rates of a and C with those of the penalties added."""
        rate = rate - jnp.sum(self.decays) * a
        if self.depth == 1:
            return [rate, jnp.zeros_like(C)]
        lost = 2 * self.decays[:, None] * layers.layer_values(self.depth, a, C) ** 2
        return [rate, lost[1] - lost[0] if self.depth == 2 else lost[1:] - lost[:1]]

    def turn(self, a: Modes, C: Any, w: Modes) -> Angles:
        """Rate of the angles per unit of the force across."""
        raise NotImplementedError

    def swept(self, moved: Angles) -> Modes:
        """What the path length counts of the motion across."""
        raise NotImplementedError


class SymmetricView(ReducedView):
    """Logits in a basis that diagonalizes the softmax: modes without angles."""

    @classmethod
    def of(cls, model: "UFM") -> "SymmetricView":
        return cls(
            model.basis,
            model.depth,
            traced(model.loss_of_modes),
            model.traced_decays,
            model.loss_per_energy,
        )

    @property
    def basis(self) -> Any:
        return self.modes_of_view

    def padded_drive(self, a: Padded) -> tuple[Padded, One]:
        """Force of an array with a zero in front for the trivial mode; so has the direction."""
        return self.loss.drive(self.basis, a)

    def drive(self, a: Modes) -> tuple[Modes, One]:
        """Force as (direction, log slowness)."""
        if self.has_constant_mode:
            return self.loss.drive(self.basis, a)
        direction, slowness = self.loss.drive(self.basis, pad(a))
        return direction[1:], slowness

    def force(self, a: Modes, angles: Any = None) -> tuple[Modes, Any, Modes | One]:
        direction, slowness = self.drive(a)
        return direction, None, slowness

    def margins(self, a: Modes, angles: Any = None) -> list[Margins]:
        return [self.basis.padded_psi(pad(a[-self.basis.modes :]))[1:]]

    def log_energy(self, a: Modes, angles: Any = None) -> Number:
        return self.loss.log_energy_of_modes(self.basis, a)
