"""The Brier score: the squared error of the probabilities."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.padding import column, pad
from hadaflow.algebra.shapes import Logits, Margins, Number, One
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import counted
from hadaflow.model.losses.softmax import SoftmaxLoss, log_wrong_share


@dataclasses.dataclass(frozen=True)
class Brier(SoftmaxLoss):
    r"""$\sum_g(p_g - q_g)^2$ with $p = \mathrm{softmax}(z/\tau)$."""

    temperature: Any = 1.0
    labels: Any = None  # q of the wrong classes, None for hard labels
    name: ClassVar[str] = "brier"
    numbers: ClassVar[tuple[str, ...]] = ("temperature", "labels")
    takes_soft_labels: ClassVar[bool] = True
    steepness = 2.0

    @property
    def _padded(self) -> "Brier":
        return self if self.labels is None else dataclasses.replace(self, labels=pad(self.labels))

    def _of_samples(self, Z: Logits, one_hot: Any) -> "Brier":
        if self.labels is None:
            return self
        wrong = jnp.broadcast_to(jnp.where(one_hot == 0, self.labels, 0.0), Z.shape)
        return dataclasses.replace(self, labels=jnp.moveaxis(wrong, -2, 0))

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        r"""With shares $e$ of the wrong probability $Q$: $2Q^2e_j(e_j + \sum_ke_k(p_y - p_k))$.

        Soft labels: $2p_j(p_j - q_j - \sum_gp_g(p_g - q_g))$, without slowness.
        """
        e, L = self.shares(x, counts)
        slowness, right = 2 * jax.nn.softplus(-L), jnp.exp(-jax.nn.softplus(L))
        wrong = jnp.exp(log_wrong_share(L))
        if self.labels is None:
            # p_y − p_j from the margin itself: beside margins of zero their sum is as small as the rest.
            ahead = jnp.where(
                x > 0,
                -right * jnp.expm1(-jnp.maximum(x, 0.0) * self.inverse),
                wrong * e * jnp.expm1(jnp.minimum(x, 0.0) * self.inverse),
            )
            mean = jnp.sum(counted(e * ahead, counts), axis=0, keepdims=True)
            return 2 * self.inverse * e * (e + mean), slowness
        p, own, q = self._against_labels(e, right, wrong, counts)
        mean = jnp.sum(counted(p * (p - q), counts), axis=0, keepdims=True) + right * (right - own)
        return 2 * self.inverse * p * (p - q - mean), jnp.zeros_like(slowness)

    def _against_labels(self, e: Any, right: Any, wrong: Any, counts: Any) -> tuple[Any, Any, Any]:
        """Probabilities of the wrong classes, the label of the right one, and theirs."""
        q = column(self.labels, e)
        own = 1 - jnp.sum(counted(q + 0 * e, counts), axis=0, keepdims=True)
        return wrong * e, own, q

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        e, L = self.shares(x, counts)
        if self.labels is None:
            squares = jnp.sum(counted(e * e, counts), axis=0)
            return 2 * log_wrong_share(L[0]) + jnp.log1p(squares)
        right, wrong = jnp.exp(-jax.nn.softplus(L)), jnp.exp(log_wrong_share(L))
        p, own, q = self._against_labels(e, right, wrong, counts)
        return jnp.log(jnp.sum(counted((p - q) ** 2, counts), axis=0) + (right - own)[0] ** 2)
