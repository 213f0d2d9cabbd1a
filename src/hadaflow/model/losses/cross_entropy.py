"""Cross-entropy, with a temperature and soft labels."""

import dataclasses
from typing import Any, ClassVar

from hadaflow.algebra.padding import pad, with_front
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import Loss


@dataclasses.dataclass(frozen=True)
class CrossEntropy(Loss):
    r"""$-\sum_g q_g\log p_g$ with $p = \mathrm{softmax}(z/\tau)$."""

    temperature: Any = 1.0
    labels: Any = None  # q, None for hard labels
    name: ClassVar[str] = "cross_entropy"

    def push(self, x: Any, counts: Any = None) -> tuple[Any, Any]:
        r"""Weights $p = \mathrm{softmax}(-x)$ with slowness $\log(1 + e^M)$, $M = -\log\sum_je^{-x_j}$.

        Soft labels: $\nu - q$ itself, which has no slowness.
        """
        x = x / self.temperature
        smallest = jnp.min(x, axis=-1, keepdims=True)
        e = jnp.exp(smallest - x)
        total = jnp.sum(e if counts is None else e * counts, axis=-1, keepdims=True)
        slowness = jax.nn.softplus((smallest - jnp.log(total))[..., 0])
        direction = e / total
        if self.labels is not None:
            direction = direction * jnp.exp(-slowness)[..., None] - self.labels
            slowness = jnp.zeros_like(slowness)
        return direction / self.temperature, slowness

    def drive(self, basis: Any, a: Any) -> tuple[Any, Any]:
        padded = self if self.labels is None else dataclasses.replace(self, labels=pad(self.labels))
        margins = with_front(basis.padded_psi(a), jnp.inf)
        direction, slowness = padded.push(margins, basis.weights)
        return basis.padded_psi(with_front(direction, 0.0)), slowness

    def _log_wrong(self, x: Any, counts: Any) -> Any:
        """Log Σ e^{−x} over the wrong classes."""
        exponents = -x / self.temperature
        return jax.nn.logsumexp(
            exponents if counts is None else exponents + jnp.log(counts), axis=-1
        )

    def log_energy(self, x: Any, counts: Any = None) -> Any:
        if self.labels is None:
            return log_softplus(self._log_wrong(x, counts))
        return jnp.log(self.energy(x, counts))

    def energy(self, x: Any, counts: Any = None) -> Any:
        """The loss itself; of soft labels, whose loss does not underflow."""
        if self.labels is None:
            return jnp.exp(self.log_energy(x, counts))
        weighted = self.labels if counts is None else self.labels * counts
        return jax.nn.softplus(self._log_wrong(x, counts)) + x @ weighted / self.temperature

    def matrix_drive(self, Z: Any, one_hot: Any) -> tuple[Any, Any]:
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

    def log_losses(self, Z: Any, one_hot: Any) -> Any:
        Z = Z / self.temperature
        if self.labels is not None:
            mean = jnp.sum(self.labels * Z, axis=-2)
            return jnp.log(jax.nn.logsumexp(Z, axis=-2) - mean)
        right = jnp.sum(one_hot * Z, axis=-2, keepdims=True)
        wrong = jnp.where(one_hot == 0, Z - right, -jnp.inf)
        return log_softplus(jax.nn.logsumexp(wrong, axis=-2))


def log_softplus(x):
    """log(log(1 + eˣ)), which is x itself where eˣ is below rounding."""
    tiny = x < -40.0
    return jnp.where(tiny, x, jnp.log(jax.nn.softplus(jnp.where(tiny, 0.0, x))))
