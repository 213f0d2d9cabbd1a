"""The exponential loss."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.shapes import Number
from hadaflow.base.lazy import jax
from hadaflow.model.losses.softmax import ProbabilityLoss


@dataclasses.dataclass(frozen=True)
class Exponential(ProbabilityLoss):
    r"""$\sum_{j\ne y}e^{z_j - z_y} = 1/p_y - 1$: cross-entropy's orbit, $b$ without $D$."""

    temperature: Any = 1.0
    name: ClassVar[str] = "exponential"
    numbers: ClassVar[tuple[str, ...]] = ("temperature",)

    def log_pace(self, L: Number) -> Number:
        return jax.nn.softplus(L)

    def log_value(self, L: Number) -> Number:
        return L
