"""Parameter matrices; the state is (factors, path length)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from hadaflow.flow.kinds.flow import Flow, escape, root
from hadaflow.metrics import matrix_metrics
from hadaflow.model.states import Parameters
from hadaflow.model.views.full import FullView


class MatrixFlow(Flow):
    view: FullView
    factors: Any

    @classmethod
    def of(cls, view: FullView, start: Parameters) -> "MatrixFlow":
        return cls(view, start.factors)

    def begin(self) -> Any:
        return self.factors, np.zeros(())

    def velocity(self, u, y):
        factors, _ = y
        view = self.view
        direction, slowness = view.drive(view.logits(factors))
        rate = jnp.exp(u - slowness) / view.time_scale
        moved = tuple(v * rate for v in view.pull_back(factors, direction))
        if view.decays is not None:
            pull = jnp.exp(u) / view.time_scale
            moved = tuple(
                v - d * pull * f for v, f, d in zip(moved, factors, view.decays, strict=True)
            )
        return moved, root(sum(jnp.sum(v**2) for v in moved))

    def error_scale(self, y):
        factors, path = y
        sizes = [jnp.sqrt(jnp.mean(f**2)) + 1e-290 for f in factors]
        scale = tuple(jnp.full_like(f, s) for f, s in zip(factors, sizes, strict=True))
        return scale, path + sum(sizes)

    def read(self, y) -> "MatrixReading":
        return MatrixReading(self, *y)

    def fastest(self, factors):
        """The largest relative rate of change, per unit of scaled time, in any feature direction.

        The rows of W and columns of H are moved by T' = M T with M made of the residual, so this is
        the norm of M on the range of T: it sees directions that have hardly begun to grow.
        """
        view = self.view
        direction, slowness = view.drive(view.logits(factors))
        residual = direction * jnp.exp(-slowness) / view.loss_divisor / view.time_scale
        if len(factors) != 2:
            return self._fastest_factor(factors, residual)
        W, H = factors
        T = jnp.concatenate([W, H.T])
        if view.decays is None:
            Q, R = jnp.linalg.qr(T)
            Q = jnp.where((jnp.diagonal(R) != 0)[None, :], Q, 0.0)
            first = second = 0.0
        else:
            # A direction that has died, or that is rounding, shrinks for ever and counts no more.
            Q, sizes, _ = jnp.linalg.svd(T, full_matrices=False)
            Q = jnp.where((sizes > 1e-10 * sizes[0])[None, :], Q, 0.0)
            first, second = view.decays / view.time_scale
        moved = jnp.concatenate(
            [
                residual @ Q[len(W) :] - first * Q[: len(W)],
                residual.T @ Q[: len(W)] - second * Q[len(W) :],
            ]
        )
        return jnp.linalg.norm(moved, 2)

    def _fastest_factor(self, factors, residual):
        """The same where no linear map moves all: each factor against its own singular values.

        A pair of directions counts by the larger of its two values; what has died counts no more.
        """
        view = self.view
        moved = view.pull_back(factors, residual * view.loss_divisor)
        decays = jnp.zeros(len(factors)) if view.decays is None else view.decays / view.time_scale
        fastest = jnp.zeros(())
        for factor, push, decay in zip(factors, moved, decays, strict=True):
            U, sizes, Vt = jnp.linalg.svd(factor, full_matrices=False)
            rates = jnp.abs(U.T @ (push - decay * factor) @ Vt.T)
            larger = jnp.maximum(sizes[:, None], sizes[None, :])
            counts = larger > 1e-10 * sizes[0]
            fastest = jnp.maximum(fastest, jnp.max(jnp.where(counts, rates / larger, 0.0)))
        # What grows as a whole leaves in the end, however small it is: it counts by the force along it.
        logits = view.logits(factors)
        lost = jnp.max(jnp.stack([d * jnp.sum(f**2) for f, d in zip(factors, decays, strict=True)]))
        along = jnp.sum(residual * logits) - lost
        size = jnp.maximum(jnp.sqrt(jnp.sum(logits**2)), 1e-300)
        return jnp.maximum(fastest, escape(len(factors), along / size))


@dataclasses.dataclass(frozen=True)
class MatrixReading:
    """Of parameter matrices."""

    flow: MatrixFlow
    factors: Any
    path: Any
    u: Any = None

    def at(self, u: Any) -> "MatrixReading":
        """With the time, which the march knows."""
        return dataclasses.replace(self, u=u)

    @property
    def deviation(self) -> Any:
        return matrix_metrics.full_collapse_deviation(self.flow.view, self.factors)

    @property
    def log_norm(self) -> Any:
        raw = jnp.sum(matrix_metrics.singular_values(self.flow.view, self.factors))
        return jnp.log(raw / self.flow.view.singular_value_scale)

    @property
    def log_path(self) -> Any:
        return jnp.log(self.path)

    @property
    def fastest(self) -> Any:
        return self.flow.fastest(self.factors)
