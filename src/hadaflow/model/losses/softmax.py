r"""What losses of a softmax have in common: $p = \mathrm{softmax}(z/\tau)$, and functions of $p_y$ alone.

Let $\ell$ be cross-entropy of one sample. All samples of a symmetric state have the same loss, so the
flow of an increasing function $F = G(\ell)$ is that of $\ell$ with the clock $dt_F = dt_\ell/G'(\ell)$,
$G'(\ell) = -F'(p)p$: the same orbit, for every group, depth and unbalance, as long as nothing else
pulls.
"""

from typing import Any, ClassVar

from hadaflow.algebra.padding import row
from hadaflow.algebra.shapes import Margins, Number, One
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import MarginLoss, counted, log_sum


class SoftmaxLoss(MarginLoss):
    """Of the probabilities, with a temperature."""

    temperature: Any
    takes_temperature: ClassVar[bool] = True

    @property
    def inverse(self) -> Any:
        """1/τ, since products are several times as fast as quotients; of tiny ones a finite number."""
        return row(1 / jnp.maximum(self.temperature, 1e-307))

    def log_wrong(self, x: Margins, counts: Any) -> Number:
        """L = log Σ e^{−x/τ} over the wrong classes: p = 1/(1 + e^L)."""
        return log_sum(-x * self.inverse, counts)

    def shares(self, x: Margins, counts: Any) -> tuple[Margins, One]:
        """How the wrong probability is shared by the classes, and L."""
        smallest = jnp.min(x, axis=0, keepdims=True)
        e = jnp.exp((smallest - x) * self.inverse)
        total = jnp.sum(counted(e, counts), axis=0, keepdims=True)
        return e / total, jnp.log(total) - smallest * self.inverse


class ProbabilityLoss(SoftmaxLoss):
    """A decreasing function F of the probability of the right class, for hard labels."""

    of_probability: ClassVar[bool] = True

    def log_pace(self, L: Number) -> Number:
        """log(−F′(p)p), which cross-entropy has zero: how much faster the flow is than its flow."""
        raise NotImplementedError

    def log_value(self, L: Number) -> Number:
        """Log F."""
        raise NotImplementedError

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        shares, L = self.shares(x, counts)
        return shares * self.inverse, jax.nn.softplus(-L) - self.log_pace(L)

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        return self.log_value(self.log_wrong(x, counts))


def log_wrong_share(L: Number) -> Number:
    """log(1 − p)."""
    return -jax.nn.softplus(-L)
