"""Generalized cross-entropy, between cross-entropy and the mean absolute error."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.shapes import Number
from hadaflow.base.checks import as_number
from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import log_softplus
from hadaflow.model.losses.softmax import ProbabilityLoss


@dataclasses.dataclass(frozen=True)
class GeneralizedCrossEntropy(ProbabilityLoss):
    r"""$(1 - p_y^q)/q$ with $0 < q\le1$: cross-entropy's orbit with another clock."""

    q: Any = 0.7
    temperature: Any = 1.0
    name: ClassVar[str] = "generalized_cross_entropy"
    parameters: ClassVar[tuple[str, ...]] = ("q",)
    numbers: ClassVar[tuple[str, ...]] = ("q", "temperature")

    def __post_init__(self) -> None:
        if not 0 < as_number("q", self.q) <= 1:
            raise InputError(
                "Argument `q` of generalized cross-entropy must be above 0 and at most 1, "
                f"but is {shown(self.q)}."
            )

    def log_pace(self, L: Number) -> Number:
        return -self.q * jax.nn.softplus(L)

    def log_value(self, L: Number) -> Number:
        tiny = L < -40.0
        exact = jnp.log(-jnp.expm1(-self.q * jax.nn.softplus(jnp.where(tiny, 0.0, L))) / self.q)
        return jnp.where(tiny, log_softplus(L), exact)
