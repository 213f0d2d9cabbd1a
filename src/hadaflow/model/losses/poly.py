"""Poly-1: cross-entropy with its first coefficient changed."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.shapes import Number
from hadaflow.base.checks import as_number
from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import log_softplus
from hadaflow.model.losses.softmax import ProbabilityLoss, log_wrong_share


@dataclasses.dataclass(frozen=True)
class Poly(ProbabilityLoss):
    r"""$-\log p_y + \varepsilon(1 - p_y)$, $\varepsilon > -1$: cross-entropy's orbit, another clock."""

    epsilon: Any = 1.0
    temperature: Any = 1.0
    name: ClassVar[str] = "poly"
    parameters: ClassVar[tuple[str, ...]] = ("epsilon",)
    numbers: ClassVar[tuple[str, ...]] = ("epsilon", "temperature")

    def __post_init__(self) -> None:
        if not -1 < as_number("epsilon", self.epsilon) < 1e6:
            raise InputError(
                "Argument `epsilon` of the poly loss must be above -1 and below 1e6, "
                f"but is {shown(self.epsilon)}."
            )

    def log_pace(self, L: Number) -> Number:
        return jnp.log1p(self.epsilon * jnp.exp(-jax.nn.softplus(L)))

    def log_value(self, L: Number) -> Number:
        of_log = log_softplus(L)
        return of_log + jnp.log1p(self.epsilon * jnp.exp(log_wrong_share(L) - of_log))
