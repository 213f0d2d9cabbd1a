"""SigLIP: every class by itself, with a scale and a bias."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.padding import row
from hadaflow.algebra.shapes import Logits, Margins, Number, One, Samples
from hadaflow.base.checks import as_number, check_positive
from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import LogitLoss, log_softplus, log_sum


class SigmoidLoss(LogitLoss):
    r"""$\sum_j\log(1 + e^{\mp(tz_j + b)})$, minus for the right class: forces of two kinds."""

    scale: Any
    bias: Any
    pulls_back = True

    def _shifted(self, z: Any) -> Any:
        return z * self.scale + self.bias

    def pull(self, c: Margins, counts: Any = None) -> tuple[Margins, One]:
        y = row(self.scale) * c + row(self.bias)
        slow = jnp.concatenate([jax.nn.softplus(y[:1]), jax.nn.softplus(-y[1:])])
        least = jnp.min(slow, axis=0, keepdims=True)
        signs = jnp.concatenate([jnp.ones_like(y[:1]), -jnp.ones_like(y[1:])])
        return row(self.scale) * signs * jnp.exp(least - slow), least

    def log_energy_of_logits(self, c: Margins, counts: Any = None) -> Number:
        y = row(self.scale) * c + row(self.bias)
        return log_sum(jnp.concatenate([log_softplus(-y[:1]), log_softplus(y[1:])]), counts)

    def matrix_drive(self, Z: Logits, one_hot: Any) -> tuple[Logits, Number]:
        y = self._shifted(Z)
        slow = jax.nn.softplus(jnp.where(one_hot == 0, -y, y))
        least = jnp.min(slow, axis=(-2, -1), keepdims=True)
        signs = jnp.where(one_hot == 0, -1.0, 1.0)
        return self.scale * signs * jnp.exp(least - slow), least[..., 0, 0]

    def residual_of_runs(self, Z: Any, one_hot: Any) -> Any:
        right, y = one_hot[:, :, None], self._shifted(Z)
        return self.scale * jnp.where(right == 0, -jax.nn.sigmoid(y), jax.nn.sigmoid(-y))

    def log_losses(self, Z: Logits, one_hot: Any) -> Samples:
        y = self._shifted(Z)
        return jax.nn.logsumexp(log_softplus(jnp.where(one_hot == 0, y, -y)), axis=-2)


@dataclasses.dataclass(frozen=True)
class SigLIP(SigmoidLoss):
    r"""$\sum_j\log(1 + e^{-y_j(tz_j + b)})$ with $y_j = \pm1$, scale $t > 0$ and bias $b$."""

    scale: Any = 10.0
    bias: Any = -10.0
    name: ClassVar[str] = "siglip"
    parameters: ClassVar[tuple[str, ...]] = ("scale", "bias")
    numbers: ClassVar[tuple[str, ...]] = ("scale", "bias")

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        if not abs(as_number("bias", self.bias)) < 1e6 or float(self.scale) > 1e6:
            raise InputError(
                "Arguments `scale` and `bias` of siglip must be below 1e6 in size, "
                f"but are {shown(self.scale)} and {shown(self.bias)}."
            )
