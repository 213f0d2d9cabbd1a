"""What descent moves and how it is pushed: minus the gradient, for a batch of states.

Matrices, or singular values of the layers. In each the runs of the batch, if any, are the last axis.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.padding import pad, with_front
from hadaflow.flow.readings import ValuesReading
from hadaflow.metrics import matrix_metrics
from hadaflow.model.layers import others
from hadaflow.model.ufm import UFM
from hadaflow.model.views.blocks import BlockView
from hadaflow.model.views.circulant import CirculantView, times
from hadaflow.model.views.full import FullView
from hadaflow.model.views.pytrees import Traced
from hadaflow.model.views.reduced import ReducedView, SymmetricView

# Products up to this many terms are written out, term by term, with the runs of the batch on the
# last axis: for small matrices that is several times faster than batched matrix products.
_UNROLLED_TERMS = 64
_LEAST_WEIGHT = 1e-290  # of a margin: what is less pushes all the same


class System(Traced):
    """What an optimizer moves: a tuple of arrays `x`, pushed by minus the gradient of the loss."""

    def push(self, x: Any) -> Any:
        """Minus the gradient, penalties included."""
        raise NotImplementedError

    def reading(self, x: Any) -> Any:
        """What targets are told of a state."""
        return ValuesReading(lambda: self.values(x), jnp.nan, lambda: jnp.nan)

    def values(self, x: Any) -> Any:
        """The K − 1 non-trivial singular values of the logits, scaled."""
        raise NotImplementedError


class MatrixDescent(System):
    """Parameter matrices, the runs of the batch on the last axis."""

    view: FullView

    def reading(self, x):
        return MatricesReading(self, x)

    def values(self, x):
        return self.of_each(matrix_metrics.singular_values, x) / self.view.singular_value_scale

    def of_each(self, metric: Any, x: Any) -> Any:
        """A metric of every run, the runs last."""
        return jax.vmap(metric, in_axes=(None, -1), out_axes=-1)(self.view, x)

    def push(self, x):
        factors = x
        behind = [factors[-1]]  # products of each factor with all behind it, the last one first
        for factor in factors[-2::-1]:
            behind.append(_contract(factor, behind[-1]))
        before = self._residual(behind[-1])  # with all factors in front taken to its other side
        moved = []
        for factor, rest in zip(factors[:-1], behind[-2::-1], strict=True):
            moved.append(_contract(before, jnp.swapaxes(rest, 0, 1)))
            before = _contract(jnp.swapaxes(factor, 0, 1), before)
        return self.view.decayed(factors, (*moved, before))

    def _residual(self, Z):
        """Minus the gradient with respect to the logits."""
        return self.view.loss.residual_of_runs(Z, self.view.one_hot) / self.view.loss_divisor


@dataclasses.dataclass(frozen=True)
class MatricesReading:
    """What targets of a descent ask of matrices, whose singular values may be equal far from collapse."""

    system: MatrixDescent
    x: Any

    @property
    def deviation(self) -> Any:
        return self.system.of_each(matrix_metrics.full_collapse_deviation, self.x)

    @property
    def log_norm(self) -> Any:
        return jnp.log(jnp.sum(self.system.values(self.x), axis=0))


def _contract(A, B):
    """Matrix products A·B of a batch on the last axis."""
    terms = A.shape[1]
    if terms > _UNROLLED_TERMS:
        return jnp.einsum("ikb,kjb->ijb", A, B)
    return sum(A[:, k, None, :] * B[None, k, :, :] for k in range(terms))


class SpectralDescent(System):
    r"""Singular values of all layers, raw units, modes first and the runs of the batch last.

    $\sigma_l^+ = \sigma_l + h\prod_{m\ne l}\sigma_m$; at depth 2 $\alpha^+ = \alpha + h\beta$.
    """

    view: Any
    scale: Any  # raw singular value per scaled one
    rate: Any  # √n over the divisor of the loss
    decays: Any  # raw λ of every layer, or None

    @classmethod
    def of(cls, model: UFM, view: ReducedView) -> "SpectralDescent":
        return cls(
            view, np.float64(model.singular_value_scale),
            np.float64(math.sqrt(model.mean_samples) / model.loss_divisor),
            np.array(model.decays) if model.penalized else None,
        )  # fmt: skip

    def begin(self, layers: list[np.ndarray], angles: Any) -> list[np.ndarray]:
        """What the loop moves, from the singular values of the layers and the angles."""
        return layers

    def layers(self, x: Any) -> Any:
        """One number for each mode and layer, of what the loop moves."""
        return x

    def end(self, layers: list[np.ndarray]) -> tuple[list[np.ndarray], Any]:
        """Singular values of the layers and angles, or None, from many of these, side by side."""
        return layers, None

    def push(self, x):
        moved = self._moved(x)
        if self.decays is None:
            return tuple(moved)
        return tuple(v - d * f for v, f, d in zip(moved, x, self.decays, strict=True))

    def _moved(self, layers) -> list[Any]:
        moved, slowness = self.drive_of_loss(layers)
        size = jnp.exp(-slowness)
        return [m * size for m in moved]

    def drive_of_loss(self, layers, exact: bool = False) -> tuple[list[Any], Any]:
        """Minus the gradient of the loss without penalties, as (direction, log slowness).

        `exact`: each mode's to full relative accuracy, where that can be had.
        """
        rest = others(layers)
        a = rest[-1] * layers[-1] / self.scale
        if exact and self.only_pushes:
            along, slowness = self._exact_force(a)
        else:
            along, _, slowness = self.view.force(a)
        h = along * self.rate
        return [h * r for r in rest], slowness

    @property
    def only_pushes(self) -> bool:
        """Are the forces sums of positive terms?"""
        return self.view.loss.only_pushes

    def _exact_force(self, a) -> tuple[Any, Any]:
        """The force of margins whose weights are all positive: none rounds to zero, or is cancelled."""
        basis = self.view.modes_of_view
        margins = with_front(basis.padded_psi(pad(a)), jnp.inf)
        weights, slowness = self.view.loss.push(margins, basis.weights)
        weights = with_front(jnp.maximum(weights, _LEAST_WEIGHT), 0.0)
        return basis.positive_psi(weights)[1:], slowness

    def values(self, x):
        return self.view.nontrivial(math.prod(x) / self.scale)


class PhaseDescent(SpectralDescent):
    """Layers are complex numbers, and the others enter conjugated."""

    def begin(self, layers: list[np.ndarray], angles: Any) -> list[np.ndarray]:
        layers = [layer.astype(complex) for layer in layers]
        return [*layers[:-1], layers[-1] * np.exp(1j * angles)]

    def end(self, layers: list[np.ndarray]) -> tuple[list[np.ndarray], Any]:
        return [np.abs(x) for x in layers], np.angle(np.prod(layers, axis=0))

    def values(self, x):
        return self.view.nontrivial(jnp.abs(math.prod(x)) / self.scale)

    def _moved(self, layers) -> list[Any]:
        rest = others(layers)
        along, slowness = self.view.drive(times(1 / self.scale, rest[-1] * layers[-1]))
        h = times(jnp.exp(-slowness) * self.rate, along)
        return [h * jnp.conj(r) for r in rest]


class BlockDescent(SpectralDescent):
    """Between two blocks of classes the last layer has two components, at its end."""

    def begin(self, layers: list[np.ndarray], angles: Any) -> list[np.ndarray]:
        last = layers[-1]
        parts = last[-1:] * np.cos(angles), last[-1:] * np.sin(angles)
        return [*layers[:-1], np.concatenate([last[:-1], *parts])]

    def end(self, layers: list[np.ndarray]) -> tuple[list[np.ndarray], Any]:
        last, x, y = layers[-1][:-2], layers[-1][-2:-1], layers[-1][-1:]
        return [*layers[:-1], np.concatenate([last, np.hypot(x, y)])], np.arctan2(y, x)

    def values(self, x):
        return self.view.nontrivial(math.prod((*x[:-1], self._last(x))) / self.scale)

    @staticmethod
    def _last(layers) -> Any:
        """Singular values of the last layer."""
        last = jnp.linalg.norm(layers[-1][-2:], axis=0, keepdims=True)
        return jnp.concatenate([layers[-1][:-2], last])

    def _moved(self, layers) -> list[Any]:
        parts = layers[-1][-2:]
        angles = jnp.arctan2(parts[1:], parts[:1])
        values = (*layers[:-1], self._last(layers))
        rest = others(values)
        along, across, slowness = self.view.force(rest[-1] * values[-1] / self.scale, angles)
        rate = jnp.exp(-slowness) * self.rate
        h = along * rate
        moved = [h * r for r in rest]
        # The force between the blocks in the components of the right vector.
        radial, turning = h[-1:], across * rate[-1:]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        pull = jnp.concatenate([radial * cos - turning * sin, radial * sin + turning * cos])
        return [*moved[:-1], jnp.concatenate([moved[-1][:-1], pull * rest[-1][-1:]])]


_KINDS = {SymmetricView: SpectralDescent, CirculantView: PhaseDescent, BlockView: BlockDescent}


def spectral_descent(model: UFM, angles: Any = None) -> SpectralDescent:
    """The map of singular values that descent is, for modes with or without angles."""
    view = model.view_of(angles)
    return _KINDS[type(view)].of(model, view)
