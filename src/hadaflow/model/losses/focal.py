"""Focal loss: easy samples count less."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.shapes import Number
from hadaflow.base.checks import as_number
from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import jnp
from hadaflow.model.losses.loss import log_softplus
from hadaflow.model.losses.softmax import ProbabilityLoss, log_wrong_share


@dataclasses.dataclass(frozen=True)
class Focal(ProbabilityLoss):
    r"""$-(1 - p_y)^\gamma\log p_y$ with $\gamma\ge0$: cross-entropy's orbit with another clock."""

    gamma: Any = 2.0
    temperature: Any = 1.0
    name: ClassVar[str] = "focal"
    parameters: ClassVar[tuple[str, ...]] = ("gamma",)
    numbers: ClassVar[tuple[str, ...]] = ("gamma", "temperature")

    def __post_init__(self) -> None:
        if not 0 <= as_number("gamma", self.gamma) <= 100:
            raise InputError(
                f"Argument `gamma` of the focal loss must be from 0 to 100, but is {shown(self.gamma)}."
            )

    @property
    def steepness(self) -> Any:
        return 1.0 + self.gamma

    def log_pace(self, L: Number) -> Number:
        r"""$(1-p)^\gamma(1 + \gamma\ell e^{-L})$ with $\ell = -\log p$, as $p/(1-p) = e^{-L}$."""
        return self.gamma * log_wrong_share(L) + jnp.log1p(
            self.gamma * jnp.exp(log_softplus(L) - L)
        )

    def log_value(self, L: Number) -> Number:
        return self.gamma * log_wrong_share(L) + log_softplus(L)
