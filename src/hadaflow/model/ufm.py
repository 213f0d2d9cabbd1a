r"""The unconstrained features model: one problem statement, two views.

*Full view*: the parameter matrices, logits $Z = WH$, gradient flow of the loss (Eqs. 1 and 2).
*Reduced view*: the logit singular values $a$ from a Hadamard start, in scaled units (Eq. 9):

$$\frac{da_i}{dt} = a_i\,\frac{b_i}{D},\qquad b = \Psi e^{-\Psi a},\quad D = 1 + \sum_j e^{-(\Psi a)_j}.$$

Both views describe their velocity by a *drive*: a direction of ordinary size and the logarithm of
the factor by which the flow is slower than that. The factor reaches $e^{-10^5}$ and beyond, where
the textbook form $1 - \nu$ has long rounded to zero.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.bases import pad, with_front
from hadaflow.base.errors import InputError
from hadaflow.base.precision import float64
from hadaflow.model import layers, phases
from hadaflow.model.problem import CROSS_ENTROPY, MSE, Problem
from hadaflow.model.states import Parameters

__all__ = ["CROSS_ENTROPY", "MSE", "UFM", "check_model", "log_softplus"]


@dataclasses.dataclass(frozen=True)
class UFM(Problem):
    r"""The unconstrained features model (Eq. 1): free features, linear classifier.

    Args:
        classes: Number of classes K, from 2 on.
        samples: Samples per class n.
        width: Feature dimension d; K when left out.
        depth: Number N of factors of the logit matrix: 2 is the paper's $Z = WH$, 1 is direct
            optimization of the logits (Eq. 13), more is $Z = W_1 W_2\cdots H$.
        loss: "cross_entropy" or "mse" ($\frac12\|Y - Z\|_F^2$).
        reduction: "sum" over samples as in Eq. 1, or "mean", which makes raw time run Kn times
            slower and changes nothing in scaled units.
        group: Orders of the cyclic factors of an abelian group on the classes, such as (10,) or
            (2, 4), whose characters are the basis. Left out: $Z_2^m$ (Sylvester) when K is a power of
            two, else the cyclic group. A reduced state has one singular value for each pair of
            conjugate characters. With `imbalance`, a pair of groups, one for each block.
        label_smoothing: Share s of every label that is spread evenly over all classes.
        label_distribution: Soft labels instead: the probability of each class for a sample of class
            0, classes in the order of the group; for class h shifted by h. The same for g and −g.
        temperature: Logits are divided by it before the softmax.
        weight_decay: λ of the penalties $\frac{\lambda_W}2\|W\|^2 + \frac{\lambda_H}2\|H\|^2$, one
            number for all layers or one for each, in the units of the matrices.
        imbalance: Blocks of (classes, samples of each) instead of `samples`, such as
            ((4, 5), (4, 1)). Two blocks have a reduced view.

    Examples:
        >>> UFM(classes=8).modes, UFM(classes=10).modes
        (7, 5)
    """

    # --- reduced view, in scaled units -----------------------------------------------------------

    @float64
    def drive(self, a):
        r"""Reduced force $g = b/D$ as (direction, log slowness): $g$ = direction · exp(−slowness).

        Cross-entropy: direction $\Psi p$ with weights $p = \mathrm{softmax}(-\Psi a)$ and slowness
        $\log(1 + e^M)$, $M = -\log\sum_j e^{-(\Psi a)_j}$. MSE: direction $1 - Ka$, slowness 0.
        """
        if self.loss == MSE:
            return 1.0 - self.classes * a, jnp.zeros_like(a[..., 0])
        direction, slowness = self.padded_drive(pad(a))
        return direction[..., 1:], slowness

    def padded_drive(self, a):
        r"""`drive` of an array with a zero in front for the trivial mode; so has the direction.

        Soft labels: $y - \nu$ itself, which has no slowness, with $1 - y = \Psi q$.
        """
        x = self.basis.padded_psi(a)
        if self.temperature != 1:
            x = x / self.temperature
        margins = with_front(x, jnp.inf)
        weights = self.basis.weights
        smallest = jnp.min(margins, axis=-1, keepdims=True)
        e = jnp.exp(smallest - margins)
        counted = e if weights is None else e * np.broadcast_to(weights, e.shape)
        total = jnp.sum(counted, axis=-1, keepdims=True)
        soft_minimum = (smallest - jnp.log(total))[..., 0]
        direction, slowness = self.basis.padded_psi(e) / total, jax.nn.softplus(soft_minimum)
        if self.soft_labels:
            missing = self.basis.padded_psi(jnp.asarray(self._folded_labels, a.dtype))
            direction = direction * jnp.exp(-slowness)[..., None] - missing
            slowness = jnp.zeros_like(slowness)
        if self.temperature != 1:
            direction = direction / self.temperature
        return direction, slowness

    def force(self, a, angles=None) -> tuple[Any, Any, Any]:
        """Force on every mode as (along, across, log slowness of each): across only with angles.

        Along the mode's direction and across it: the phase of a circulant mode, the right vector
        between two blocks. In compiled code, scaled units.
        """
        if self.imbalance is not None:
            along, across, slowness = self.blocks.drive(
                a * self.singular_value_scale, angles, self.temperature, self.label_smoothing
            )
            root = self.mean_samples**0.5
            return along / root, across / root, slowness
        if angles is None:
            direction, slowness = self.drive(a)
            return jnp.asarray(direction), None, jnp.asarray(slowness)[..., None]
        direction, slowness = self.phase_drive(phases.polar(a, angles))
        turned = direction * phases.polar(jnp.ones_like(angles), -angles)
        return turned.real, turned.imag, slowness

    def phase_drive(self, values):
        """Force on the modes of a circulant state, as (complex direction, log slowness).

        `values` are the scaled eigenvalues of the free modes; the slowness has one axis of length 1.
        """
        x = phases.margins(self.basis, values) / self.temperature
        direction, slowness = phases.drive(self.basis, x)
        pairs = np.broadcast_to(self.basis.multiplicity == 2, direction.shape)
        along, across = direction.real, jnp.where(pairs, direction.imag, 0.0)
        slowness = slowness[..., None]
        if self.soft_labels:
            missing = self.basis.padded_psi(jnp.asarray(self._folded_labels, x.dtype))[1:]
            size = jnp.exp(-slowness)
            along, across = along * size - jnp.broadcast_to(missing, along.shape), across * size
            slowness = jnp.zeros_like(slowness)
        return jax.lax.complex(along / self.temperature, across / self.temperature), slowness

    @float64
    def mobility(self, a, C=0.0):
        r"""$w(a)$ in $\dot a = w(a)\,g$: $a^{2-2/N}$ if balanced; at depth 2 $\sqrt{a^2 + C^2/4}$."""
        C = jnp.asarray(C, a.dtype)
        if self.depth == 2:
            C = jnp.broadcast_to(C, a.shape)
        elif self.depth > 2 and C.ndim == 0:
            return a ** (2 - 2 / self.depth)
        return layers.mobility(self.depth, a, C)

    @float64
    def velocity(self, a, C=0.0):
        r"""$da/dt$ in scaled units, Eq. (9): $w(a)\,b/D$. Leading axes batched."""
        direction, slowness = self.drive(a)
        return self.mobility(a, C) * direction * jnp.exp(-slowness)[..., None]

    def reduced_velocity(self, a, C, angles=None, normalized: bool = False):
        """Rates of a, C and the angles, in scaled units; `normalized` per unit of path length."""
        along, across, slowness = self.force(a, angles)
        if normalized and not self.penalized:  # a common factor cancels, before it underflows
            slowness = slowness - jnp.min(slowness, axis=-1, keepdims=True)
        size = jnp.exp(-slowness)
        w = jnp.asarray(self.mobility(a, C))
        rates = [w * along * size, jnp.zeros_like(C)]
        if self.penalized:
            squares = layers.layer_values(self.depth, a, C) ** 2
            decays = np.array(self.scaled_decays)
            rates[0] = rates[0] - decays.sum() * a
            if self.depth > 1:
                lost = 2 * decays.reshape(-1, *[1] * a.ndim) * squares
                gap = lost[0] - lost[1] if self.depth == 2 else lost[:1] - lost[1:]
                rates[1] = -(gap if self.depth == 2 else jnp.moveaxis(gap, 0, -2))
        moved = [self.all_values(rates[0])]
        if angles is not None:
            turn = self._turn(a, C, w) * across * size[..., -across.shape[-1] :]
            rates.append(turn)
            swept = turn * a[..., -turn.shape[-1] :]
            moved.append(self.all_values(swept) if self.imbalance is None else swept)
        if normalized:
            length = jnp.linalg.norm(jnp.concatenate(moved, axis=-1), axis=-1, keepdims=True)
            rates = [r / (length[..., None] if r.ndim > length.ndim else length) for r in rates]
        return tuple(rates)

    def _turn(self, a, C, w):
        """Rate of the angles per unit of the force across: all layers turn, or the last one alone."""
        if self.imbalance is None:
            return jnp.where(a > 0, w / jnp.where(a > 0, a, 1.0), 0.0)
        last = layers.layer_values(self.depth, a, C)[-1, ..., -1:]
        return a[..., -1:] / last**2 / self.depth

    def displaced(self, log_a0, excess, delta) -> Any:
        r"""Singular values after the force has acted by $\delta = \int g\,dt$ on $a_0$.

        Depth 2: $a = a_0 e^\delta + (w_0 - a_0)\sinh\delta$ solves $da/d\delta = w(a)$ exactly, for
        every $C$, and adds only positive terms. `excess` is $w_0 - a_0$, or None when balanced.
        Depth 1: $a = a_0 + \delta$.
        """
        xp = np if isinstance(delta, np.ndarray) else jnp
        if self.depth == 1:
            return xp.exp(log_a0) + delta
        grown = xp.exp(log_a0 + delta)
        if excess is None:
            return grown
        # sinh alone overflows where its product with a small excess does not: two factors of e^{δ/2}.
        small = excess * xp.sinh(xp.clip(delta, -30.0, 30.0))
        half = xp.exp(xp.clip(delta, 0.0, 1400.0) / 2)
        return grown + xp.where(delta > 30.0, excess * half * half / 2, small)

    @staticmethod
    def excess(a: np.ndarray, C: np.ndarray) -> np.ndarray:
        """w(a) − a = (C²/4)/(a + w), without cancellation; zero for balanced modes."""
        half = np.abs(C) / 2
        return half * (half / np.maximum(a + np.hypot(a, half), np.finfo(float).tiny))

    @float64
    def energy(self, a, angles=None):
        r"""Loss of one sample: $E = \log(1 + \sum_j e^{-(\Psi a)_j})$ (Eq. 8 over Kn), or its MSE.

        The mean over all samples, where classes differ.
        """
        if self.loss == MSE:
            return jnp.sum(self.all_values((1.0 - self.classes * a) ** 2), axis=-1) / (
                2 * self.classes
            )
        if not self.soft_labels:
            return jnp.exp(self.log_energy(a, angles))
        return self._mean_over_blocks(
            [jax.nn.softplus(wrong) for wrong in self.log_wrong(a, angles)]
        ) + self._label_part(a, angles)

    @float64
    def log_energy(self, a, angles=None):
        """Log of `energy`, exact where the energy itself underflows."""
        if self.loss == MSE or self.soft_labels:
            return jnp.log(jnp.asarray(self.energy(a, angles)))
        logs = [log_softplus(wrong) for wrong in self.log_wrong(a, angles)]
        if self.imbalance is None:
            return logs[0]
        weighted = [v + np.log(s) for v, s in zip(logs, self._block_shares, strict=True)]
        return jax.nn.logsumexp(jnp.stack(weighted, axis=-1), axis=-1)

    def _mean_over_blocks(self, values):
        if self.imbalance is None:
            return values[0]
        return sum(share * value for share, value in zip(self._block_shares, values, strict=True))

    @property
    def _block_shares(self) -> list[float]:
        """The share of each block in all samples."""
        return [count * n / self.total_samples for count, n in self.imbalance or ()]

    def margins_of(self, a, angles=None) -> list[Any]:
        """Margins over all wrong classes, scaled units; of each block, where classes differ."""
        if self.imbalance is not None:
            found = self.blocks.margins(a * self.singular_value_scale, angles)
            return [jnp.concatenate([own, other[..., None]], axis=-1) for own, other in found]
        if angles is not None:
            return [phases.margins(self.basis, phases.polar(a, angles))]
        return [jnp.asarray(self.basis.psi(a[..., -self.basis.modes :]))]

    def log_wrong(self, a, angles=None) -> list[Any]:
        """Log Σ e^{−margin} over the wrong classes, for a sample of each block."""
        if self.imbalance is not None:
            return self.blocks.log_wrong(a * self.singular_value_scale, angles, self.temperature)
        exponents = -self.margins_of(a, angles)[0] / self.temperature
        if angles is None and self.basis.weights is not None:
            exponents = exponents + np.log(self.basis.weights[1:])
        return [jax.nn.logsumexp(exponents, axis=-1)]

    def _label_part(self, a, angles):
        """Σ_g q_g x_g/τ: what soft labels add to the energy."""
        if self.imbalance is not None:
            q, parts = self.label_smoothing / self.classes, []
            margins = self.blocks.margins(a * self.singular_value_scale, angles)
            for k, (own, other) in enumerate(margins):
                basis, strangers = self.blocks.inner[k], self.blocks.blocks[1 - k][0]
                inside = 0.0 if basis is None else jnp.sum(basis.expand(own), axis=-1)
                parts.append((inside + strangers * other) * q / self.temperature)
            return self._mean_over_blocks(parts)
        if angles is not None:
            counted = self.label_probabilities[1:] / self.temperature
        else:
            counted = self._folded_labels[1:] * self.basis.multiplicity / self.temperature
        return self.margins_of(a, angles)[0] @ counted

    @functools.cached_property
    def _folded_labels(self) -> np.ndarray:
        """Q at the first member of every class of the basis, the trivial one in front."""
        return self.label_probabilities[self.basis.representatives]

    def nontrivial(self, a):
        """The K − 1 non-trivial singular values of a reduced state, multiplicities written out."""
        return self.modes_of_view.expand(a[..., -self.modes_of_view.modes :])

    def all_values(self, a):
        """`nontrivial`, with the constant mode in front where the state has one (MSE)."""
        if self.loss != MSE:
            return self.nontrivial(a)
        if self.basis.weights is None:
            return a
        xp = np if isinstance(a, np.ndarray) else jnp
        return xp.concatenate([a[..., :1], self.nontrivial(a)], axis=-1)

    # --- full view, raw units --------------------------------------------------------------------

    def _labels_like(self, Z):
        return jnp.broadcast_to(jnp.asarray(self.one_hot, Z.dtype), Z.shape)

    def logits(self, factors):
        """Z, the product of the factors; leading axes batched."""
        return functools.reduce(jnp.matmul, factors)

    def full_drive(self, Z):
        r"""$Y - P(Z)$ as (direction, log slowness), without ever forming $1 - p$.

        The entry of the right class is the summed probability of the wrong ones. For MSE $Y - Z$.
        """
        Y = self._labels_like(Z)
        if self.loss == MSE:
            return Y - Z, jnp.zeros_like(Z[..., 0, 0])
        log_p = jax.nn.log_softmax(Z / self.temperature, axis=-2)
        if self.soft_labels:
            residual = jnp.asarray(self.labels, Z.dtype) - jnp.exp(log_p)
            return residual / self.temperature, jnp.zeros_like(Z[..., 0, 0])
        wrong_log_p = jnp.where(Y == 0, log_p, -jnp.inf)
        largest = jnp.max(wrong_log_p, axis=(-2, -1), keepdims=True)
        wrong = jnp.exp(wrong_log_p - largest)
        direction = Y * jnp.sum(wrong, axis=-2, keepdims=True) - wrong
        if self.temperature != 1:
            direction = direction / self.temperature
        return direction, -largest[..., 0, 0]

    @float64
    def residual(self, Z):
        """Softmax residual Y − P(Z) (Y − Z for MSE), accurate when 1 − p is far below 1e-16."""
        direction, slowness = self.full_drive(Z)
        return direction * jnp.exp(-slowness)[..., None, None]

    def pull_back(self, factors, residual):
        """Minus the gradient with respect to each factor, given the residual (Eq. 2)."""
        residual, moved, last = residual / self.loss_divisor, [], len(factors) - 1
        after: list[Any] = [None] * len(factors)  # products of the factors behind each
        for k in range(last - 1, -1, -1):
            right = after[k + 1]
            after[k] = factors[k + 1] if right is None else factors[k + 1] @ right
        before = residual  # the residual with all factors in front taken to its other side
        for factor, behind in zip(factors, after, strict=True):
            moved.append(before if behind is None else before @ jnp.swapaxes(behind, -1, -2))
            before = jnp.swapaxes(factor, -1, -2) @ before
        return tuple(moved)

    def gradient(self, state: Parameters) -> Parameters:
        """Gradient of the loss, penalties included, with respect to the parameter matrices."""
        self.check_parameters(state)

        @float64
        def gradient(*factors):
            Z = self.logits(factors)
            moved = self.pull_back(factors, jnp.asarray(self.residual(Z)))
            return tuple(-p for p in self.decayed(factors, moved))

        return Parameters(tuple(gradient(*state.factors)))

    def decayed(self, factors, moved):
        """Velocities of the factors with the pull of the penalties added; raw time."""
        if not self.penalized:
            return moved
        return tuple(v - d * f for v, f, d in zip(moved, factors, self.decays, strict=True))

    def log_losses(self, Z):
        """Natural log of the loss of every sample, shape (…, Kn)."""
        Y = self._labels_like(Z)
        if self.loss == MSE:
            return jnp.log(jnp.sum((Y - Z) ** 2, axis=-2) / 2)
        Z = Z / self.temperature
        if self.soft_labels:
            mean = jnp.sum(jnp.asarray(self.labels, Z.dtype) * Z, axis=-2)
            return jnp.log(jax.nn.logsumexp(Z, axis=-2) - mean)
        right = jnp.sum(Y * Z, axis=-2, keepdims=True)
        wrong = jnp.where(Y == 0, Z - right, -jnp.inf)
        return log_softplus(jax.nn.logsumexp(wrong, axis=-2))


def check_model(model: Any) -> None:
    """Refuse what is no model."""
    if not isinstance(model, UFM):
        raise InputError(f"Argument `model` must be a UFM, but is {type(model).__name__}.")


def log_softplus(x):
    """log(log(1 + eˣ)), which is x itself where eˣ is below rounding."""
    tiny = x < -40.0
    return jnp.where(tiny, x, jnp.log(jax.nn.softplus(jnp.where(tiny, 0.0, x))))
