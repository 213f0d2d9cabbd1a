"""Cross-entropy, with a temperature and soft labels."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from hadaflow.algebra.padding import column, pad, row, with_front
from hadaflow.algebra.shapes import Logits, Margins, Modes, Number, One, Padded, Samples
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import Loss


@dataclasses.dataclass(frozen=True)
class CrossEntropy(Loss):
    r"""$-\sum_g q_g\log p_g$ with $p = \mathrm{softmax}(z/\tau)$."""

    temperature: Any = 1.0
    labels: Any = None  # q, None for hard labels
    name: ClassVar[str] = "cross_entropy"
    numbers: ClassVar[tuple[str, ...]] = ("temperature", "labels")
    softmax: ClassVar[bool] = True

    @classmethod
    def of(cls, temperature: float, labels: Any) -> "CrossEntropy":
        return cls(np.float64(temperature), None if labels is None else np.asarray(labels))

    @property
    def _inverse(self) -> Any:
        """1/τ, since products are several times as fast as quotients; of tiny ones a finite number."""
        return row(1 / jnp.maximum(self.temperature, 1e-307))

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        r"""Weights $p = \mathrm{softmax}(-x)$ with slowness $\log(1 + e^M)$, $M = -\log\sum_je^{-x_j}$.

        Soft labels: $\nu - q$ itself, which has no slowness.
        """
        inverse = self._inverse
        smallest = jnp.min(x, axis=0, keepdims=True)
        e = jnp.exp((smallest - x) * inverse)
        total = jnp.sum(_counted(e, counts), axis=0, keepdims=True)
        slowness = jax.nn.softplus(smallest * inverse - jnp.log(total))
        if self.labels is None:
            return e * (inverse / total), slowness
        direction = e * (jnp.exp(-slowness) / total) - column(self.labels, x)
        return direction * inverse, jnp.zeros_like(slowness)

    def drive(self, basis: Any, a: Padded) -> tuple[Padded, One]:
        padded = self if self.labels is None else dataclasses.replace(self, labels=pad(self.labels))
        margins = with_front(basis.padded_psi(a), jnp.inf)
        direction, slowness = padded.push(margins, basis.weights)
        return basis.padded_psi(with_front(direction, 0.0)), slowness

    def _log_wrong(self, x: Margins, counts: Any) -> Number:
        """Log Σ e^{−x} over the wrong classes."""
        exponents = -x * self._inverse
        if counts is not None:
            exponents = exponents + column(jnp.log(counts), x)
        return jax.nn.logsumexp(exponents, axis=0)

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        if self.labels is None:
            return log_softplus(self._log_wrong(x, counts))
        return jnp.log(self.energy(x, counts))

    def energy(self, x: Margins, counts: Any = None) -> Number:
        """The loss itself; of soft labels, whose loss does not underflow."""
        if self.labels is None:
            return jnp.exp(self.log_energy(x, counts))
        pulled = jnp.sum(_counted(x * column(self.labels, x), counts), axis=0)
        return jax.nn.softplus(self._log_wrong(x, counts)) + pulled / self.temperature

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


def _counted(x: Margins, counts: Any) -> Margins:
    """Entries times the number of classes that each stands for."""
    return x if counts is None else x * column(counts, x)


def log_softplus(x: Number) -> Number:
    """log(log(1 + eˣ)), which is x itself where eˣ is below rounding."""
    tiny = x < -40.0
    return jnp.where(tiny, x, jnp.log(jax.nn.softplus(jnp.where(tiny, 0.0, x))))
