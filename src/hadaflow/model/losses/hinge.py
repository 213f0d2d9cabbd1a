"""The hinge over every wrong class: it stops where all margins are one."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.shapes import Margins, Number, One
from hadaflow.base.lazy import jnp
from hadaflow.model.losses.loss import MarginLoss, counted, log_of


@dataclasses.dataclass(frozen=True)
class Hinge(MarginLoss):
    r"""$\sum_{j\ne y}\max(0, 1 + z_j - z_y)$.

    A margin never shrinks, as $\Psi\,\mathrm{diag}(w)\Psi$ has no negative entries: none comes back to
    the kink, and the flow is piecewise smooth.
    """

    name: ClassVar[str] = "hinge"
    settles = True
    kinked: ClassVar[bool] = True

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        return jnp.where(x < 1, 1.0, 0.0), jnp.zeros_like(x[:1])

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        return log_of(jnp.sum(counted(jnp.maximum(1 - x, 0.0), counts), axis=0))
