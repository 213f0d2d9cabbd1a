"""The squared error."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.base.lazy import jnp
from hadaflow.model.losses.loss import Loss


@dataclasses.dataclass(frozen=True)
class MeanSquaredError(Loss):
    r"""$\frac12\|y - z\|^2$, hard labels: the modes move apart from each other, the constant one too."""

    name: ClassVar[str] = "mse"
    moves_constant: ClassVar[bool] = True

    def drive(self, basis: Any, a: Any) -> tuple[Any, Any]:
        """1 − Ka for every mode, the constant one in front among them."""
        return 1.0 - basis.classes * a, jnp.zeros_like(a[..., 0])

    def matrix_drive(self, Z: Any, one_hot: Any) -> tuple[Any, Any]:
        return one_hot - Z, jnp.zeros_like(Z[..., 0, 0])

    def residual_of_runs(self, Z: Any, one_hot: Any) -> Any:
        return one_hot[:, :, None] - Z

    def log_losses(self, Z: Any, one_hot: Any) -> Any:
        return jnp.log(jnp.sum((one_hot - Z) ** 2, axis=-2) / 2)

    def mode_energy(self, basis: Any, values: Any) -> Any:
        """The loss of one sample from all K singular values."""
        return jnp.sum((1.0 - basis.classes * values) ** 2, axis=-1) / (2 * basis.classes)
