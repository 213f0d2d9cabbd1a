"""A basis that diagonalizes the softmax. Here: the Sylvester–Hadamard basis of K = 2^m classes."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.errors import InputError
from hadaflow.precision import float64
from hadaflow.transforms import LARGEST, sylvester_matrix, transform

DENSE_LIMIT = 2**12


@dataclasses.dataclass(frozen=True)
class Sylvester:
    r"""The normalized Sylvester–Hadamard basis $U = \Phi/\sqrt K$ of $K = 2^m$ classes.

    For $Z = U\,\mathrm{diag}(a)\,U^\top$ the columnwise softmax is diagonal in the same basis
    (Theorem 1). The constant column is the trivial mode; the other $K - 1$ are the modes of the flow.
    """

    classes: int

    def __post_init__(self) -> None:
        if self.classes < 2 or self.classes & (self.classes - 1) or self.classes > LARGEST:
            raise InputError(
                "Argument `classes` must be a power of two from 2 to 2^24 (the Sylvester basis "
                f"needs it), but is {self.classes}."
            )

    @property
    def modes(self) -> int:
        """Number of non-trivial modes, K − 1."""
        return self.classes - 1

    @property
    def multiplicity(self) -> np.ndarray:
        """How many singular values each free mode stands for: one, in this basis."""
        return np.ones(self.modes, dtype=int)

    @float64
    def psi(self, v):
        r"""$\Psi v$ with $\Psi = 11^\top - X$, $X$ the Hadamard core, by one fast transform.

        $\Psi$ is symmetric; it takes singular values to margins and margin weights to modes. Last
        axis of length K − 1, leading axes batched.
        """
        if v.ndim == 0 or v.shape[-1] != self.modes:
            raise InputError(
                f"Argument `v` must have last axis {self.modes} (classes − 1), "
                f"but has shape {v.shape}."
            )
        return self.padded_psi(pad(v))[..., 1:]

    def padded_psi(self, v):
        """`psi` of an array with a zero in front for the trivial mode; so has the result.

        For compiled code: without the zero every product would copy its argument and its result.
        """
        w = transform(v)
        return w[..., :1] - w

    @functools.cached_property
    def dense_psi(self) -> np.ndarray:
        r"""The matrix $\Psi$ itself, (K−1)×(K−1); for tests and small K."""
        return 1.0 - self._phi()[1:, 1:]

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        r"""$U = \Phi/\sqrt K$ as a dense K×K matrix, trivial mode first; for full views."""
        return self._phi() / np.sqrt(self.classes)

    def _phi(self) -> np.ndarray:
        if self.classes > DENSE_LIMIT:
            raise InputError(
                f"A dense {self.classes}×{self.classes} matrix was asked for; dense forms stop at "
                f"`classes` = {DENSE_LIMIT}. Use the reduced view."
            )
        return sylvester_matrix(self.classes)


def pad(v):
    """`v` with a zero put in front for the trivial mode."""
    return jnp.concatenate([jnp.zeros_like(v[..., :1]), v], axis=-1)


def with_front(v, value):
    """`v` with its front entry replaced; a selection fuses with what is around it, a write does not."""
    index = lax.broadcasted_iota(int, v.shape, v.ndim - 1)
    return jnp.where(index == 0, value, v)
