r"""What an optimizer sees of a Hadamard state in the reduced view: a few numbers for each layer.

A rule that commutes with rotations from both sides acts on singular values. One that acts entry by entry
acts on one row of each matrix, where the start is such that all rows stay alike.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.bases import negatives
from hadaflow.algebra.padding import column, pad, with_front
from hadaflow.base.compiling import SOON, compiled
from hadaflow.descent.optimizers.own import relaxed
from hadaflow.descent.systems import SpectralDescent, System
from hadaflow.model.ufm import UFM
from hadaflow.model.views.pytrees import Traced, static


class Coordinates(Traced):
    """Linear maps between the singular values of the layers, free modes first, and what is moved.

    Forces are mapped as the values are: the gradient of a matrix has its singular vectors.
    """

    def of(self, layers: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def layers(self, x: Any) -> tuple[Any, ...]:
        raise NotImplementedError


class Values(Coordinates):
    """All singular values, each as often as its multiplicity, so that norms count every one."""

    basis: Any = static()
    constant: int = static()  # entries in front for the constant mode: 1 where the loss moves it

    def of(self, layers: Any) -> tuple[Any, ...]:
        return tuple(self._all(layer) for layer in layers)

    def _all(self, values: Any) -> Any:
        if not self.basis.paired:
            return values
        nontrivial = self.basis.expand(values[self.constant :], 0)
        return jnp.concatenate([values[: self.constant], nontrivial])

    def layers(self, x: Any) -> tuple[Any, ...]:
        return tuple(x) if not self.basis.paired else tuple(values[self._firsts] for values in x)

    @property
    def _firsts(self) -> np.ndarray:
        """Where each free mode stands first among all singular values."""
        count = np.concatenate([np.ones(self.constant, int), self.basis.multiplicity])
        return np.cumsum(count) - count


class Diagonals(Values):
    """Singular values on the diagonals of matrices of the true shapes, for rules that look at shapes."""

    shapes: Any = static()

    def of(self, layers: Any) -> tuple[Any, ...]:
        found = []
        for values, shape in zip(super().of(layers), self.shapes, strict=True):
            i = np.arange(len(values))
            found.append(jnp.zeros((*shape, *values.shape[1:])).at[i, i].set(values))
        return tuple(found)

    def layers(self, x: Any) -> tuple[Any, ...]:
        i = np.arange(self.constant + int(np.sum(self.basis.multiplicity)))
        return super().layers([matrix[i, i] for matrix in x])


class HadamardRows(Coordinates):
    r"""Rows of $W = UD_W$ and $H = D_HV^\top$ with the Hadamard matrix $U$: $\pm\alpha_j/\sqrt K$ and
    $\pm\beta_j/\sqrt{Kn}$. Signs are left out, since the rules are odd.
    """

    scales: Any

    def of(self, layers: Any) -> tuple[Any, ...]:
        return tuple(layer / scale for layer, scale in zip(layers, self.scales, strict=True))

    def layers(self, x: Any) -> tuple[Any, ...]:
        return tuple(row * scale for row, scale in zip(x, self.scales, strict=True))


class CirculantRows(Coordinates):
    r"""Rows of circulant matrices: $w_g = \frac1K\sum_\chi\alpha_\chi\chi(g)$, of the last layer over
    $\sqrt n$.

    The constant mode of the layers moves as well. Where the loss does not see it, it is nobody's but
    theirs: it is `hidden`.
    """

    basis: Any = static()
    hidden: bool = static()
    samples: Any

    def of(self, layers: Any) -> tuple[Any, ...]:
        rows = [_character_sums(self.basis, v) / self.basis.classes for v in self._whole(layers)]
        rows = [row[self._classes_of_elements] for row in rows] if self.basis.paired else rows
        return (*rows[:-1], rows[-1] / jnp.sqrt(self.samples))

    def layers(self, x: Any) -> tuple[Any, ...]:
        whole = [*x[:-1], x[-1] * jnp.sqrt(self.samples)]
        whole = [row[self.basis.representatives] for row in whole] if self.basis.paired else whole
        return tuple(_character_sums(self.basis, row)[int(self.hidden) :] for row in whole)

    @property
    def _classes_of_elements(self) -> np.ndarray:
        """For every element of the group the number of {g, −g}."""
        group = self.basis.group
        first = np.minimum(np.arange(self.basis.classes), negatives(group))
        return np.searchsorted(self.basis.representatives, first)

    def _whole(self, layers: Any) -> list[Any]:
        return [pad(layer) for layer in layers] if self.hidden else list(layers)


def _character_sums(basis: Any, v: Any) -> Any:
    r"""$\sum_g v_g\,\mathrm{Re}\,\chi(g)$ over the group, from one value for $g$ and $-g$; modes first.

    Twice it is $K$ times the values themselves.
    """
    counted = v if basis.weights is None else v * column(basis.weights, v)
    return jnp.sum(counted, axis=0, keepdims=True) - basis.padded_psi(with_front(v, 0.0))


class CoordinateDescent(System):
    """The reduced view in the coordinates of an optimizer."""

    values_of: SpectralDescent
    places: Coordinates

    def push(self, x: Any) -> Any:
        return self._sized(x, *self._forces(x))

    def drive(self, x: Any) -> tuple[Any, Any]:
        """`push` as (direction, log slowness): for rules that do not ask how large it is."""
        if self.values_of.decays is None:
            return self._forces(x, exact=True)
        forces, slowness = self._forces(x)
        return self._sized(x, forces, slowness), jnp.zeros_like(slowness)

    def _forces(self, x: Any, exact: bool = False) -> tuple[Any, Any]:
        forces, slowness = self.values_of.drive_of_loss(self.places.layers(x), exact)
        return self.places.of(forces), slowness

    def _sized(self, x: Any, forces: Any, slowness: Any) -> Any:
        size = jnp.exp(-slowness)
        moved = tuple(f * size for f in forces)
        decays = self.values_of.decays
        if decays is None:
            return moved
        return tuple(m - d * v for m, v, d in zip(moved, x, decays, strict=True))

    def values(self, x: Any) -> Any:
        return self.values_of.values(self.places.layers(x))

    def begin(self, layers: list[np.ndarray], angles: Any) -> list[Any]:
        return [np.asarray(v) for v in _places_of(self.places, tuple(layers))]

    def layers(self, x: Any) -> Any:
        return tuple(np.asarray(v) for v in _layers_of(self.places, x))

    def end(self, layers: list[np.ndarray]) -> tuple[list[np.ndarray], Any]:
        """Signs of singular values are their angles."""
        product = functools.reduce(np.multiply, layers)
        return [np.abs(v) for v in layers], np.where(product < 0, np.pi, 0.0)


@compiled(SOON)
def _places_of(places: Coordinates, layers: Any) -> Any:
    with relaxed():
        return places.of(layers)


@compiled(SOON)
def _layers_of(places: Coordinates, x: Any) -> Any:
    with relaxed():
        return places.layers(x)


def hadamard_rows(model: UFM) -> HadamardRows:
    scales = [model.classes, model.classes * model.mean_samples]
    return HadamardRows(tuple(np.sqrt(np.float64(scale)) for scale in scales))


def circulant_rows(model: UFM) -> CirculantRows:
    return CirculantRows(model.basis, not model.has_constant_mode, np.float64(model.samples))


def all_values(model: UFM) -> Values:
    return Values(model.basis, int(model.has_constant_mode))


def diagonals(model: UFM) -> Diagonals:
    return Diagonals(model.basis, int(model.has_constant_mode), model.factor_shapes)
