"""The logistic loss of every pair of the right class and a wrong one."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.shapes import Margins, Number, One
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import MarginLoss, log_softplus, log_sum


@dataclasses.dataclass(frozen=True)
class PairwiseLogistic(MarginLoss):
    r"""$\sum_{j\ne y}\log(1 + e^{z_j - z_y})$."""

    name: ClassVar[str] = "pairwise_logistic"

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        slow = jax.nn.softplus(x)
        least = jnp.min(slow, axis=0, keepdims=True)
        return jnp.exp(least - slow), least

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        return log_sum(log_softplus(-x), counts)
