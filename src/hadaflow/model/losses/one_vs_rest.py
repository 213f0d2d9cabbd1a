"""One-vs-rest: a logistic loss of every class by itself (BCE)."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.padding import column
from hadaflow.algebra.shapes import Logits, Margins, Number, One, Samples
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import counted
from hadaflow.model.losses.siglip import SigmoidLoss


@dataclasses.dataclass(frozen=True)
class OneVsRest(SigmoidLoss):
    r"""$\sum_j\log(1 + e^{\mp z_j})$, minus for the right class.

    Of soft labels $\sum_j\log(1+e^{z_j}) - q_jz_j$.
    """

    labels: Any = None  # q, None for hard labels
    name: ClassVar[str] = "one_vs_rest"
    numbers: ClassVar[tuple[str, ...]] = ("labels",)
    takes_soft_labels: ClassVar[bool] = True
    scale: ClassVar[Any] = 1.0
    bias: ClassVar[Any] = 0.0

    def _labels_of(self, c: Margins, counts: Any) -> Any:
        """Of all classes, the right one first, from those of the wrong ones."""
        wrong = column(self.labels, c) + jnp.zeros_like(c[1:])
        rest = None if counts is None else counts[1:]
        return jnp.concatenate([1 - jnp.sum(counted(wrong, rest), axis=0, keepdims=True), wrong])

    def pull(self, c: Margins, counts: Any = None) -> tuple[Margins, One]:
        if self.labels is None:
            return super().pull(c, counts)
        return self._labels_of(c, counts) - jax.nn.sigmoid(c), jnp.zeros_like(c[:1])

    def log_energy_of_logits(self, c: Margins, counts: Any = None) -> Number:
        if self.labels is None:
            return super().log_energy_of_logits(c, counts)
        terms = jax.nn.softplus(c) - self._labels_of(c, counts) * c
        return jnp.log(jnp.sum(counted(terms, counts), axis=0))

    def matrix_drive(self, Z: Logits, one_hot: Any) -> tuple[Logits, Number]:
        if self.labels is None:
            return super().matrix_drive(Z, one_hot)
        return self.labels - jax.nn.sigmoid(Z), jnp.zeros_like(Z[..., 0, 0])

    def residual_of_runs(self, Z: Any, one_hot: Any) -> Any:
        if self.labels is None:
            return super().residual_of_runs(Z, one_hot)
        return self.labels[:, :, None] - jax.nn.sigmoid(Z)

    def log_losses(self, Z: Logits, one_hot: Any) -> Samples:
        if self.labels is None:
            return super().log_losses(Z, one_hot)
        return jnp.log(jnp.sum(jax.nn.softplus(Z) - self.labels * Z, axis=-2))
