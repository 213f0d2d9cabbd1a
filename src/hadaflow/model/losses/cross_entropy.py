"""Cross-entropy, with a temperature and soft labels."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.padding import column, pad
from hadaflow.algebra.shapes import Logits, Margins, Modes, Number, One, Samples
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import counted, log_softplus
from hadaflow.model.losses.softmax import ProbabilityLoss


@dataclasses.dataclass(frozen=True)
class CrossEntropy(ProbabilityLoss):
    r"""$-\sum_g q_g\log p_g$ with $p = \mathrm{softmax}(z/\tau)$."""

    temperature: Any = 1.0
    labels: Any = None  # q, None for hard labels
    name: ClassVar[str] = "cross_entropy"
    numbers: ClassVar[tuple[str, ...]] = ("temperature", "labels")
    takes_soft_labels: ClassVar[bool] = True

    def log_pace(self, L: Number) -> Number:
        return jnp.zeros_like(L)

    def log_value(self, L: Number) -> Number:
        return log_softplus(L)

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        r"""Weights $p = \mathrm{softmax}(-x)$ with slowness $\log(1 + e^M)$, $M = -\log\sum_je^{-x_j}$.

        Soft labels: $\nu - q$ itself, which has no slowness.
        """
        inverse = self.inverse
        smallest = jnp.min(x, axis=0, keepdims=True)
        e = jnp.exp((smallest - x) * inverse)
        total = jnp.sum(counted(e, counts), axis=0, keepdims=True)
        slowness = jax.nn.softplus(smallest * inverse - jnp.log(total))
        if self.labels is None:
            return e * (inverse / total), slowness
        direction = e * (jnp.exp(-slowness) / total) - column(self.labels, x)
        return direction * inverse, jnp.zeros_like(slowness)

    @property
    def _padded(self) -> "CrossEntropy":
        if self.labels is None:
            return self
        return dataclasses.replace(self, labels=pad(self.labels))

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        if self.labels is None:
            return log_softplus(self.log_wrong(x, counts))
        return jnp.log(self.energy(x, counts))

    def energy(self, x: Margins, counts: Any = None) -> Number:
        """The loss itself; of soft labels, whose loss does not underflow."""
        if self.labels is None:
            return jnp.exp(self.log_energy(x, counts))
        pulled = jnp.sum(counted(x * column(self.labels, x), counts), axis=0)
        return jax.nn.softplus(self.log_wrong(x, counts)) + pulled / self.temperature

    def fixed_point(self, basis: Any) -> Modes:
        """Where the softmax equals soft labels: `closed_forms.fixed_point`, traced."""
        counts = jnp.asarray(basis.multiplicity, float)
        logs = jnp.log(self.labels)
        own = jnp.log(1 - jnp.sum(counts * self.labels))
        complement = basis.padded_psi(pad(logs))[1:]
        return self.temperature / basis.classes * (own + jnp.sum(counts * logs) - complement)

    def matrix_drive(self, Z: Logits, one_hot: Any) -> tuple[Logits, Number]:
        """Y − P(Z), without ever forming 1 − p: the right class is pulled by all wrong ones together."""
        log_p = jax.nn.log_softmax(Z / self.temperature, axis=-2)
        if self.labels is not None:
            residual = self.labels - jnp.exp(log_p)
            return residual / self.temperature, jnp.zeros_like(Z[..., 0, 0])
        wrong_log_p = jnp.where(one_hot == 0, log_p, -jnp.inf)
        largest = jnp.max(wrong_log_p, axis=(-2, -1), keepdims=True)
        wrong = jnp.exp(wrong_log_p - largest)
        direction = one_hot * jnp.sum(wrong, axis=-2, keepdims=True) - wrong
        return direction / self.temperature, -largest[..., 0, 0]

    def residual_of_runs(self, Z: Any, one_hot: Any) -> Any:
        """The right class sums the wrong ones, so none cancels."""
        Z = Z / self.temperature
        if self.labels is not None:
            return (self.labels[:, :, None] - jax.nn.softmax(Z, axis=0)) / self.temperature
        wrong_class = jnp.broadcast_to((one_hot == 0)[:, :, None], Z.shape)
        e = jnp.exp(Z - jnp.max(Z, axis=0, keepdims=True))
        share = e / (jnp.sum(e, axis=0, keepdims=True) * self.temperature)
        wrong = jnp.where(wrong_class, share, 0.0)
        return jnp.where(wrong_class, -wrong, jnp.sum(wrong, axis=0, keepdims=True))

    def log_losses(self, Z: Logits, one_hot: Any) -> Samples:
        Z = Z / self.temperature
        if self.labels is not None:
            mean = jnp.sum(self.labels * Z, axis=-2)
            return jnp.log(jax.nn.logsumexp(Z, axis=-2) - mean)
        right = jnp.sum(one_hot * Z, axis=-2, keepdims=True)
        wrong = jnp.where(one_hot == 0, Z - right, -jnp.inf)
        return log_softplus(jax.nn.logsumexp(wrong, axis=-2))
