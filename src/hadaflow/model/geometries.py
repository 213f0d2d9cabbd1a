r"""Steepest descent in other geometries than the Euclidean one: flows with a closed form.

In the geometry of the largest entry the velocity of a matrix is the sign of minus its gradient, entry by
entry; in that of the largest singular value it is the polar factor of minus the gradient. Where hard
labels push every mode upwards, neither asks how large the force is: each layer $l$ of a mode moves at a
speed $v_l$ of its own, less the decoupled decay $\lambda$,

$$\dot\sigma_l = v_l - \lambda\sigma_l,\qquad
\sigma_l(t) = \sigma_l(0)e^{-\lambda t} + v_l\frac{1 - e^{-\lambda t}}\lambda,$$

raw units, whatever the loss. Polar factors give $v_l = 1$. Signs give $\sqrt K$ and $\sqrt{Kn}$ for $W$
and $H$ whose columns and rows are those of a Hadamard matrix, and $2\sqrt n$ at depth 1.
"""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from hadaflow.base.checks import as_number
from hadaflow.base.errors import InputError, meant, shown
from hadaflow.base.words import group_name
from hadaflow.model.layers import differences, layer_values, others
from hadaflow.model.states import Parameters, Spectrum
from hadaflow.model.ufm import UFM

EUCLIDEAN = "euclidean"
_LARGEST_LOG = 690.0  # of products and squares of layers, which are doubles
_LEAST_DECAY, _MOST_DECAY = 1e-100, 1e100
_DECAYS = f"zero or a number from {_LEAST_DECAY:g} to {_MOST_DECAY:g}"


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A geometry in which steepest descent has a closed form, and the decay that goes with it."""

    decay: float = 0.0  # λ per unit of raw time
    name: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.name} geometry" + (f" with decay {self.decay:g}" if self.decay else "")

    @property
    def settings(self) -> dict[str, Any]:
        """What a run says of it."""
        return {"geometry": self.name, "decay": self.decay}

    def speeds(self, model: UFM) -> list[float]:
        """The speed v of every layer, raw units."""
        raise NotImplementedError

    def check(self, model: UFM, start: Any) -> None:
        """Refuse what has no such flow in closed form."""
        if isinstance(start, Parameters):
            raise InputError(
                f'Argument `geometry` = "{self.name}" is one of the reduced view, but `start` is '
                "matrices: `project` a Hadamard state, or take small steps (`descend` with "
                f"optimizers.{self.name})."
            )
        one_signed = model.loss_kind.only_pushes and not model.soft_labels and not model.penalized
        if not one_signed or model.imbalance is not None:
            raise InputError(
                f'Argument `geometry` = "{self.name}" needs forces that are positive from every start: '
                "hard labels, balanced classes, no `weight_decay` (its own is `decay`), and a loss that "
                "only pushes (cross_entropy and other functions of the probability, "
                f"pairwise_logistic); the model is {model.describe(short=True)}."
            )
        if getattr(start, "angles", None) is not None and np.any(start.angles):
            raise InputError(
                f'Argument `start` must have no phases with `geometry` = "{self.name}", whose flow is '
                "one of positive singular values."
            )

    # --- the flow, scaled units ------------------------------------------------------------------

    def values(self, model: UFM, start: Spectrum, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Singular values of the logits and differences C at times `t`, times first."""
        layers, _ = self._at(model, start, t)
        return np.prod(layers, axis=0), differences(layers)

    def velocity_at(self, model: UFM, start: Spectrum, t: np.ndarray) -> np.ndarray:
        """How fast the former change at these times."""
        return _of_product(*self._at(model, start, t))

    def velocity(self, model: UFM, state: Spectrum) -> tuple[np.ndarray, np.ndarray]:
        """How fast both change, in states of any batch."""
        layers, moved = self._moving(model, state)
        if model.depth == 1:
            return moved[0], np.zeros_like(moved[0])
        squares = 2 * layers * moved
        gaps = squares[:1] - squares[1:]
        C = gaps[0] if model.depth == 2 else np.moveaxis(gaps, 0, -2)
        return _of_product(layers, moved), C

    def doubling_time(self, model: UFM, start: Spectrum) -> float:
        """In which the largest layer grows by about itself; zero where all are zero."""
        layers, moved = self._moving(model, start)
        fastest = float(np.abs(moved).max())
        return float(layers.max()) / fastest if fastest > 0 else 0.0

    def last_time(self, model: UFM, start: Spectrum) -> float:
        """Up to which singular values and the squares of layers are doubles, or move at all."""
        _, moved = self._moving(model, start)
        free = _largest_layer(model) / max(float(np.abs(moved).max()), 1e-300)
        decay = self._scaled_decay(model)
        return min(free, 800.0 / decay) if decay else free

    def settles(self, model: UFM, start: Spectrum) -> bool:
        """Does the flow come to rest, at layers whose squares are doubles?"""
        _, push = self._begun(model, start)
        return self.decay > 0 and push.max() < _largest_layer(model) * self._scaled_decay(model)

    def _scaled_decay(self, model: UFM) -> float:
        return self.decay / model.time_scale

    def _begun(self, model: UFM, state: Spectrum) -> tuple[np.ndarray, np.ndarray]:
        """Layers of a state and what pushes them. A mode that is zero in two of them is not pushed."""
        layers = np.asarray(layer_values(model.depth, state.a, state.C))
        unit = model.singular_value_scale ** (1 / model.depth)
        own = np.array(self.speeds(model)) / (unit * model.time_scale)
        pushed = np.sum(layers == 0, axis=0) < 2
        return layers, own.reshape(-1, *(1,) * (layers.ndim - 1)) * pushed

    def _moving(self, model: UFM, state: Spectrum) -> tuple[np.ndarray, np.ndarray]:
        """Layers of a state and their velocities."""
        layers, push = self._begun(model, state)
        return layers, push - self._scaled_decay(model) * layers

    def _at(self, model: UFM, start: Spectrum, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Layers and their velocities at times `t`: layers first, then times."""
        begun, push = (x[:, None] for x in self._begun(model, start))
        decay, t = self._scaled_decay(model), t[:, None]
        with np.errstate(over="ignore"):  # long after the flow has settled
            left = np.exp(-decay * t)
            gone = t if decay == 0 else -np.expm1(-decay * t) / decay
        return begun * left + push * gone, (push - decay * begun) * left


def _largest_layer(model: UFM) -> float:
    return math.exp(_LARGEST_LOG / max(model.depth, 2))


def _of_product(layers: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """The velocity of a product whose factors have these."""
    if len(layers) == 1:
        return moved[0]
    return np.sum(moved * np.array(others(list(layers))), axis=0)


class SignGeometry(Geometry):
    """Of the largest entry: sign descent with small steps."""

    name = "sign"

    def speeds(self, model: UFM) -> list[float]:
        if model.depth == 1:
            return [2 * math.sqrt(model.samples)]
        return [math.sqrt(model.classes), math.sqrt(model.total_samples)]

    def check(self, model: UFM, start: Any) -> None:
        super().check(model, start)
        if model.depth > 2 or (model.depth == 2 and model.basis.paired):
            raise InputError(
                'Argument `geometry` = "sign" needs depth 1, or depth 2 and the group Z_2 × … × Z_2, '
                "whose characters are signs, but the model has depth "
                f"{model.depth} and the group {group_name(model.basis.group)}."
            )


class SpectralGeometry(Geometry):
    """Of the largest singular value: spectral descent, or Muon, with small steps."""

    name = "spectral"

    def speeds(self, model: UFM) -> list[float]:
        return [1.0] * model.depth


GEOMETRIES: dict[str, type[Geometry]] = {
    kind.name: kind for kind in (SignGeometry, SpectralGeometry)
}


def make_geometry(name: Any, decay: Any) -> Geometry | None:
    """The geometry of a name, with its decay; None for the Euclidean one, of gradient flow."""
    number = as_number("decay", decay, _DECAYS)
    if number and not _LEAST_DECAY <= number <= _MOST_DECAY:
        raise InputError(f"Argument `decay` must be {_DECAYS}, but is {shown(decay)}.")
    if name == EUCLIDEAN:
        if number:
            raise InputError(
                'Argument `decay` goes with `geometry` = "sign" or "spectral"; the decay of gradient '
                "flow is the model's `weight_decay`."
            )
        return None
    if not isinstance(name, str) or name not in GEOMETRIES:
        allowed = (EUCLIDEAN, *GEOMETRIES)
        near = meant(name, allowed) if isinstance(name, str) else ""
        raise InputError(
            f"Argument `geometry` must be one of {', '.join(allowed)}, but is {shown(name)}{near}."
        )
    return GEOMETRIES[name](number)
