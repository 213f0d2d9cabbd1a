"""The squared hinge over every wrong class: it settles where all margins are one."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.shapes import Margins, Number, One
from hadaflow.base.lazy import jnp
from hadaflow.model.losses.loss import MarginLoss, counted, log_of


@dataclasses.dataclass(frozen=True)
class SquaredHinge(MarginLoss):
    r"""$\sum_{j\ne y}\max(0, 1 + z_j - z_y)^2$."""

    name: ClassVar[str] = "squared_hinge"
    settles = True

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        return 2 * jnp.maximum(1 - x, 0.0), jnp.zeros_like(x[:1])

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        return log_of(jnp.sum(counted(jnp.maximum(1 - x, 0.0) ** 2, counts), axis=0))
