"""The squared error."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.shapes import Logits, Margins, Modes, Number, One, Padded, Samples
from hadaflow.base.lazy import jnp
from hadaflow.model.losses.loss import LogitLoss, counted, log_of


@dataclasses.dataclass(frozen=True)
class MeanSquaredError(LogitLoss):
    r"""$\frac12\|y - z\|^2$, hard labels: the modes move apart from each other, the constant one too."""

    name: ClassVar[str] = "mse"
    settles = True
    largest: ClassVar[float] = 1e150  # forces grow with the values, and their squares are taken

    def pull(self, c: Margins, counts: Any = None) -> tuple[Margins, One]:
        return jnp.concatenate([1 - c[:1], -c[1:]]), jnp.zeros_like(c[:1])

    def drive(self, basis: Any, a: Padded) -> tuple[Padded, One]:
        """1 − Ka for every mode, the constant one in front among them."""
        return 1.0 - basis.classes * a, jnp.zeros_like(a[:1])

    def matrix_drive(self, Z: Logits, one_hot: Any) -> tuple[Logits, Number]:
        return one_hot - Z, jnp.zeros_like(Z[..., 0, 0])

    def residual_of_runs(self, Z: Any, one_hot: Any) -> Any:
        return one_hot[:, :, None] - Z

    def log_losses(self, Z: Logits, one_hot: Any) -> Samples:
        return log_of(jnp.sum((one_hot - Z) ** 2, axis=-2) / 2)

    def log_energy_of_logits(self, c: Margins, counts: Any = None) -> Number:
        gaps = jnp.concatenate([(1 - c[:1]) ** 2, c[1:] ** 2])
        return log_of(jnp.sum(counted(gaps, counts), axis=0) / 2)

    def log_energy_of_modes(self, basis: Any, a: Modes) -> Number:
        values = jnp.concatenate([a[:1], basis.expand(a[1:], 0)])
        return log_of(jnp.sum((1.0 - basis.classes * values) ** 2, axis=0) / (2 * basis.classes))
