"""InfoNCE both ways, as CLIP has it: a loss of the whole logit matrix."""

import dataclasses
import math
from typing import Any, ClassVar

from hadaflow.algebra.shapes import Logits, Number, Samples
from hadaflow.base.lazy import jax, jnp
from hadaflow.model.losses.loss import Loss, log_softplus
from hadaflow.model.losses.softmax import ProbabilityLoss


@dataclasses.dataclass(frozen=True)
class InfoNCE(ProbabilityLoss):
    r"""Cross-entropy of the columns of Z plus that of its rows, of which class $y$ has $n$ right entries.

    Of a row: $-\log(n\,p_i)$ for each of the right ones, so that zero is least. Circulant logits have
    the same softmax in rows and columns: there it is twice cross-entropy.
    """

    temperature: Any = 1.0
    name: ClassVar[str] = "infonce"
    numbers: ClassVar[tuple[str, ...]] = ("temperature",)
    alike: ClassVar[bool] = False

    def log_pace(self, L: Number) -> Number:
        return jnp.full_like(L, math.log(2.0))

    def log_value(self, L: Number) -> Number:
        return log_softplus(L) + math.log(2.0)

    def matrix_drive(self, Z: Logits, one_hot: Any) -> tuple[Logits, Number]:
        """Columns first; right entries of a row are pulled by all wrong ones, and level each other."""
        Z = Z / self.temperature
        right = one_hot > 0
        column = jax.nn.log_softmax(Z, axis=-2)
        row = jax.nn.log_softmax(Z, axis=-1)
        count = jnp.sum(one_hot, axis=-1, keepdims=True)
        wrong = jnp.maximum(
            jnp.where(right, -jnp.inf, column), jnp.where(right, -jnp.inf, row + jnp.log(count))
        )
        least = jnp.max(wrong, axis=(-2, -1), keepdims=True)
        by_column = jnp.where(right, 0.0, jnp.exp(column - least))
        by_row = jnp.where(right, 0.0, count * jnp.exp(row - least))
        lifted = one_hot * (
            jnp.sum(by_column, axis=-2, keepdims=True)
            + jnp.sum(by_row, axis=-1, keepdims=True) / count
        )
        # Right entries of one row that differ are drawn to their mean; equal ones not at all.
        share = jnp.where(right, jnp.exp(row), 0.0)
        mean = jnp.sum(share, axis=-1, keepdims=True) / count
        levelled = count * (mean - share) * jnp.exp(jnp.minimum(-least, 700.0))
        levelled = jnp.where(right, levelled, 0.0)
        direction = lifted - by_column - by_row + levelled
        return direction / self.temperature, -least[..., 0, 0]

    residual_of_runs = Loss.residual_of_runs

    def log_losses(self, Z: Logits, one_hot: Any) -> Samples:
        """Of the column of a sample, and its share of its row's."""
        of_column = super().log_losses(Z, one_hot) - math.log(2.0)
        Z, count = Z / self.temperature, jnp.sum(one_hot, axis=-1, keepdims=True)
        mean = jnp.sum(one_hot * Z, axis=-1, keepdims=True) / count
        gaps = jnp.where(one_hot > 0, Z - mean, -jnp.inf)
        spread = jax.nn.logsumexp(gaps, axis=-1, keepdims=True) - jnp.log(count)
        wrong = jnp.where(one_hot > 0, -jnp.inf, Z - mean)
        L = jax.nn.logsumexp(wrong, axis=-1, keepdims=True) - spread - jnp.log(count)
        apart = spread > 0  # do the right entries of a row differ?
        level = jnp.log(jnp.where(apart, spread, 1.0))
        of_row = log_softplus(L)
        of_row = jnp.where(apart, jnp.logaddexp(of_row, level), of_row)
        own = jnp.sum(jnp.where(one_hot > 0, of_row, 0.0), axis=-2)
        return jnp.logaddexp(of_column, own)
