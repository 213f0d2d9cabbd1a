"""The full view: parameter matrices, in raw units, and the gradient flow of the loss (Eqs. 1 and 2)."""

import functools
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.shapes import Logits, Number, Samples
from hadaflow.model.losses import Loss
from hadaflow.model.views.pytrees import Traced, static, traced

if TYPE_CHECKING:
    from hadaflow.model.ufm import UFM


class FullView(Traced):
    """Logits Z, the product of the factors, and what moves them. Leading axes batched."""

    samples_by_class: tuple[int, ...] = static()
    largest_rank: int = static()  # of the logits
    basis: Any = static()  # of balanced classes; None of others
    loss: Loss
    decays: Any  # λ of every layer; None without penalties
    loss_divisor: Any
    time_scale: Any
    singular_value_scale: Any

    @classmethod
    def of(cls, model: "UFM") -> "FullView":
        decays = np.array(model.decays) if model.penalized else None
        return cls(
            tuple(model.samples_by_class.tolist()), model.largest_rank,
            model.basis if model.imbalance is None else None, traced(model.loss_of_matrices), decays,
            np.float64(model.loss_divisor), np.float64(model.time_scale),
            np.float64(model.singular_value_scale),
        )  # fmt: skip

    @property
    def classes(self) -> int:
        return len(self.samples_by_class)

    @property
    def samples(self) -> int:
        """Of every class, where they are balanced."""
        return self.samples_by_class[0]

    @property
    def total_samples(self) -> int:
        return sum(self.samples_by_class)

    @property
    def mean_samples(self) -> float:
        return self.total_samples / self.classes

    @property
    def rounding_of_logits(self) -> float:
        """Singular values of the logits below this share of the largest are rounding."""
        return max(self.classes, self.total_samples) * float(np.finfo(float).eps)

    @property
    def loss_per_energy(self) -> Any:
        """What turns the loss of one sample into the loss: Kn for a sum, 1 for a mean."""
        return self.total_samples / self.loss_divisor

    @property
    def one_hot(self) -> np.ndarray:
        return np.repeat(np.eye(self.classes), self.samples_by_class, axis=1)

    def logits(self, factors: Any) -> Logits:
        return functools.reduce(jnp.matmul, factors)

    def drive(self, Z: Logits) -> tuple[Logits, Number]:
        """Minus the gradient with respect to the logits, as (direction, log slowness)."""
        return self.loss.matrix_drive(Z, jnp.broadcast_to(jnp.asarray(self.one_hot), Z.shape))

    def log_losses(self, Z: Logits) -> Samples:
        """Natural log of the loss of every sample, shape (…, samples)."""
        return self.loss.log_losses(Z, jnp.broadcast_to(jnp.asarray(self.one_hot), Z.shape))

    def pull_back(self, factors: Any, residual: Logits) -> tuple[Any, ...]:
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

    def decayed(self, factors: Any, moved: Any) -> Any:
        """Velocities of the factors with the pull of the penalties added; raw time."""
        if self.decays is None:
            return moved
        return tuple(v - d * f for v, f, d in zip(moved, factors, self.decays, strict=True))

    def velocity(self, factors: Any, normalized: bool = False) -> tuple[Any, ...]:
        """Of the factors, in raw time; `normalized` per unit of path length."""
        direction, slowness = self.drive(self.logits(factors))
        moved = self.pull_back(factors, direction)
        if self.decays is not None:
            slow = jnp.exp(-slowness)
            moved = self.decayed(factors, tuple(v * slow for v in moved))
            slowness = jnp.zeros_like(slowness)
        if normalized:
            length = jnp.sqrt(sum(jnp.sum(v**2) for v in moved))
            return tuple(v / length for v in moved)
        return tuple(v * jnp.exp(-slowness) for v in moved)
