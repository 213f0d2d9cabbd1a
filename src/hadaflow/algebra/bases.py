r"""Bases that diagonalize the softmax: the characters of a finite abelian group on the classes.

Sylvester–Hadamard is the group $Z_2^m$, with a transform of its own. For any other group the
characters come in conjugate pairs, which share one singular value: a *free mode* with multiplicity
two.
"""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np

from hadaflow.algebra.padding import modes_first, modes_last, pad
from hadaflow.algebra.rader import PrimeConvolution
from hadaflow.algebra.transforms import LARGEST, odd_sums, sylvester_matrix, transform
from hadaflow.base.checks import as_numbers, check_whole_number
from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import jnp
from hadaflow.base.memory import in_words
from hadaflow.base.precision import float64
from hadaflow.base.words import counted, group_name

DENSE_LIMIT = 2**12
# Up to here one product with the folded matrix is faster than a Fourier transform (one CPU core: 3.0
# against 4.0 µs at 192 modes, 5.4 against 4.9 at 256; lengths with large primes cost more).
_DENSE_MODES = 192
# So small a matrix times many columns is faster than any transform of them.
_DENSE_COLUMNS = 64


class Basis:
    """What diagonalizes the softmax of a number of classes: characters, and how to transform by them.

    Arrays of modes have them last, but for the functions of compiled code, `padded_psi` and
    `positive_psi`, where they are first, after one entry for the trivial mode.
    """

    classes: Any
    paired: ClassVar[bool] = True  # may a free mode stand for two singular values?
    positive_transforms: ClassVar[int] = 1  # that a `positive_psi` costs

    @property
    def group(self) -> tuple[int, ...]:
        """Orders of the cyclic factors of the group on the classes."""
        raise NotImplementedError

    @property
    def modes(self) -> int:
        """Number of free non-trivial modes."""
        raise NotImplementedError

    @property
    def modes_in_words(self) -> str:
        return f"free modes of {group_name(self.group)}"

    @functools.cached_property
    def multiplicity(self) -> np.ndarray:
        """How many singular values each free mode stands for."""
        raise NotImplementedError

    @property
    def representatives(self) -> np.ndarray:
        """The element of the group at which each free mode stands, the trivial one first."""
        raise NotImplementedError

    @functools.cached_property
    def weights(self) -> np.ndarray | None:
        """How often each margin and each mode counts, the trivial one in front; None: once each."""
        raise NotImplementedError

    def expand(self, a: Any, axis: int = -1) -> Any:
        """The $K-1$ singular values of the free modes, each as often as its multiplicity."""
        raise NotImplementedError

    def fold(self, values: Any) -> Any:
        """Free modes from $K-1$ values in the order of `expand`: the mean of each pair."""
        raise NotImplementedError

    def psi(self, v: Any) -> Any:
        r"""$(\Psi v)_\chi = \sum_{g\ne0} (1 - \mathrm{Re}\,\chi(g))\,v_g$."""
        raise NotImplementedError

    def padded_psi(self, v: Any) -> Any:
        """`psi` of an array with a zero in front for the trivial mode; so has the result."""
        raise NotImplementedError

    def positive_psi(self, v: Any) -> Any:
        """`padded_psi` of entries that are not negative, as accurate as can be."""
        raise NotImplementedError

    @property
    def exact_psi(self) -> bool:
        """Does `positive_psi` keep full relative accuracy, however far the entries are apart?"""
        raise NotImplementedError

    @functools.cached_property
    def dense_psi(self) -> np.ndarray:
        """The matrix of `psi`, modes × modes; for tests and small K."""
        raise NotImplementedError

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        r"""The real orthonormal basis, dense, $K\times K$, trivial mode first; for full views."""
        raise NotImplementedError

    turns: ClassVar[bool] = False  # has every state angles?

    @property
    def angles(self) -> int:
        """Of a state that has them: one for every free mode."""
        return self.modes

    def right_vectors(self, samples: int, angles: np.ndarray | None = None) -> np.ndarray:
        r"""Vectors of the samples, one column for each of the K modes, trivial first.

        $U\otimes 1/\sqrt n$, each pair of conjugate characters turned by its phase.
        """
        U = self.vectors if angles is None else self._turned(angles)
        return np.repeat(U, samples, axis=-2) / np.sqrt(samples)

    def _turned(self, angles: np.ndarray) -> np.ndarray:
        """Columns of U with the planes of conjugate pairs turned, the real ones with their sign.

        One more angle than free modes is that of the constant one, in front.
        """
        constant, angles = angles[..., : -self.modes], angles[..., -self.modes :]
        phases, U = self.expand(angles), self.vectors
        turned = np.array(np.broadcast_to(U, (*angles.shape[:-1], *U.shape)))
        turned[..., : constant.shape[-1]] *= np.cos(constant[..., None, :]).round()
        starts = 1 + np.cumsum(self.multiplicity) - self.multiplicity
        singles, pairs = starts[self.multiplicity == 1], starts[self.multiplicity == 2]
        turned[..., singles] *= np.cos(phases[..., None, singles - 1]).round()
        cos, sin = np.cos(phases[..., None, pairs - 1]), np.sin(phases[..., None, pairs - 1])
        first, second = U[:, pairs], U[:, pairs + 1]
        # Z takes cos to λ's phase: the right vectors turn the other way.
        turned[..., pairs] = cos * first + sin * second
        turned[..., pairs + 1] = cos * second - sin * first
        return turned

    def read_logits(
        self, Z: np.ndarray, samples: int
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """All K singular values of a Hadamard state, its angles, and the vectors of the samples."""
        V = self.right_vectors(samples)
        inner = self.vectors.T @ Z @ V
        return np.diagonal(inner, axis1=-2, axis2=-1).copy(), None, V

    def describe(self) -> str:
        """The basis in words: group, modes, multiplicities, pairs."""
        return _describe(self)


@dataclasses.dataclass(frozen=True)
class Sylvester(Basis):
    r"""The normalized Sylvester–Hadamard basis $U = \Phi/\sqrt K$ of $K = 2^m$ classes.

    For $Z = U\,\mathrm{diag}(a)\,U^\top$ the columnwise softmax is diagonal in the same basis
    (Theorem 1). The constant column is the trivial mode; the other $K - 1$ are the modes of the flow.
    """

    classes: int
    paired: ClassVar[bool] = False
    positive_transforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        K = check_whole_number("classes", self.classes, least=0)
        object.__setattr__(self, "classes", K)
        if K < 2 or K & (K - 1) or K > LARGEST:
            raise InputError(
                "Argument `classes` must be a power of two from 2 to 2^24 (the Sylvester basis "
                f"needs it; `cyclic` takes any other number), but is {shown(K)}."
            )

    @property
    def modes(self) -> int:
        """Number of non-trivial modes, $K-1$."""
        return self.classes - 1

    @property
    def group(self) -> tuple[int, ...]:
        """Orders of the cyclic factors: (2, 2, …)."""
        return (2,) * (self.classes.bit_length() - 1)

    @functools.cached_property
    def multiplicity(self) -> np.ndarray:
        """How many singular values each free mode stands for: one, in this basis."""
        return np.ones(self.modes, dtype=int)

    @property
    def representatives(self) -> np.ndarray:
        """The element of the group at which each mode stands, the trivial one first."""
        return np.arange(self.classes)

    @functools.cached_property
    def weights(self) -> np.ndarray | None:
        """How often each margin and each mode counts: None, once each."""
        return None

    def expand(self, a, axis: int = -1):
        """The $K-1$ singular values of the modes: here, the modes themselves."""
        return a

    def fold(self, values):
        """Free modes from $K-1$ values: here, the values themselves."""
        return values

    @property
    def modes_in_words(self) -> str:
        return "K − 1 modes"

    @float64
    def psi(self, v):
        r"""$\Psi v$ with $\Psi = 11^\top - X$, $X$ the Hadamard core, by one fast transform.

        $\Psi$ is symmetric; it takes singular values to margins and margin weights to modes. Last
        axis of length $K-1$, leading axes batched.
        """
        if v.ndim == 0 or v.shape[-1] != self.modes:
            raise InputError(
                f"Argument `v` must have last axis {self.modes} (classes − 1), "
                f"but has shape {v.shape}."
            )
        return modes_last(self.padded_psi(pad(modes_first(v)))[1:], v.shape[:-1])

    def padded_psi(self, v):
        """`psi` of an array with a zero in front for the trivial mode; so has the result.

        For compiled code, modes first: without the zero every product would copy its argument and its
        result.
        """
        if v.ndim > 1 and self.classes <= _DENSE_COLUMNS:
            return jnp.asarray(np.pad(self.dense_psi, ((1, 0), (1, 0))), v.dtype) @ v
        w = transform(v) if v.ndim == 1 else transform(v.T).T
        return w[:1] - w

    def positive_psi(self, v):
        """`padded_psi` of entries that are not negative, each sum to full relative accuracy."""
        return 2 * (odd_sums(v) if v.ndim == 1 else odd_sums(v.T).T)

    @property
    def exact_psi(self) -> bool:
        """Does `positive_psi` keep full relative accuracy, however far the entries are apart?"""
        return True

    @functools.cached_property
    def dense_psi(self) -> np.ndarray:
        r"""The matrix $\Psi$ itself, $(K-1)\times(K-1)$; for tests and small $K$."""
        return 1.0 - self._phi()[1:, 1:]

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        r"""$U = \Phi/\sqrt K$ as a dense $K\times K$ matrix, trivial mode first; for full views."""
        return self._phi() / np.sqrt(self.classes)

    def _phi(self) -> np.ndarray:
        _check_dense(self.classes)
        return sylvester_matrix(self.classes)


@dataclasses.dataclass(frozen=True)
class AbelianGroup(Basis):
    r"""The real characters of $Z_{n_1}\times Z_{n_2}\times\dots$ on $K = n_1 n_2\cdots$ classes.

    Logits $Z_{gh} = c_{g-h}$ with $c_g = c_{-g}$ have a softmax of the same form, so both are diagonal
    in the basis $1/\sqrt K$, $\sqrt{2/K}\,\mathrm{Re}\chi$, $\sqrt{2/K}\,\mathrm{Im}\chi$, with one
    singular value for the pair $\chi, \bar\chi$. Free modes are the non-trivial elements of the group
    in lexicographic order, a pair at its first member; so are the margins.

    Args:
        orders: Orders of the cyclic factors, each at least 2.

    Examples:
        >>> AbelianGroup((2, 4)).multiplicity
        array([2, 1, 1, 2, 1])
    """

    orders: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", check_group(self.orders))

    @property
    def group(self) -> tuple[int, ...]:
        """Orders of the cyclic factors."""
        return self.orders

    @functools.cached_property
    def classes(self) -> int:
        """Number of classes K, the order of the group."""
        return math.prod(self.orders)

    @functools.cached_property
    def _classes_of_elements(self) -> tuple[np.ndarray, np.ndarray]:
        """For every element the number of its class {g, −g}, and the first member of every class.

        The trivial element is class 0.
        """
        first = np.minimum(np.arange(self.classes), negatives(self.orders))
        firsts, number = np.unique(first, return_inverse=True)
        return number, firsts

    @property
    def modes(self) -> int:
        """Number of free non-trivial modes."""
        return len(self._classes_of_elements[1]) - 1

    @functools.cached_property
    def multiplicity(self) -> np.ndarray:
        """How many singular values each free mode stands for: 1 for a real character, 2 for a pair."""
        return np.bincount(self._classes_of_elements[0])[1:]

    @property
    def representatives(self) -> np.ndarray:
        """The element of the group at which each free mode stands, the trivial one first."""
        return self._classes_of_elements[1]

    @functools.cached_property
    def weights(self) -> np.ndarray | None:
        """How often each margin and each mode counts, the trivial one in front."""
        return np.concatenate([[1.0], self.multiplicity])

    @functools.cached_property
    def _repeated(self) -> np.ndarray:
        return np.repeat(np.arange(self.modes), self.multiplicity)

    def expand(self, a, axis: int = -1):
        """The $K-1$ singular values of the free modes, each as often as its multiplicity."""
        return a[self._repeated] if axis == 0 else a[..., self._repeated]

    def fold(self, values):
        """Free modes from $K-1$ values in the order of `expand`: the mean of each pair."""
        return mean_of_pairs(values, self.multiplicity)

    @float64
    def psi(self, v):
        r"""$(\Psi v)_\chi = \sum_{g\ne0} (1 - \mathrm{Re}\,\chi(g))\,v_g$ over all elements of the group.

        Takes free modes to margins and weights of margins to modes: the same folded matrix.
        """
        if v.ndim == 0 or v.shape[-1] != self.modes:
            raise InputError(
                f"Argument `v` must have last axis {self.modes} (free modes), "
                f"but has shape {v.shape}."
            )
        return modes_last(self.padded_psi(pad(modes_first(v)))[1:], v.shape[:-1])

    def padded_psi(self, v):
        """`psi` of an array with a zero in front for the trivial mode; so has the result."""
        if self.modes <= _DENSE_MODES:
            return jnp.asarray(self._padded_dense, v.dtype) @ v
        return self._fast_psi(v) if v.ndim == 1 else self._fast_psi(v.T).T

    def _fast_psi(self, v):
        """By Fourier transforms of the last axis."""
        if self._prime_convolution is not None:
            return self._prime_convolution.apply(v)
        number, _ = self._classes_of_elements
        spread = v[..., number].reshape(*v.shape[:-1], *self.orders)
        axes = tuple(range(-len(self.orders), 0))
        w = jnp.fft.rfftn(spread, axes=axes).real
        w = w.reshape(*v.shape[:-1], -1)[..., self._half_index]
        return w[..., :1] - w

    def positive_psi(self, v):
        """`padded_psi`; to full relative accuracy where the product is dense, for the rest as it is."""
        return self.padded_psi(v)

    @property
    def exact_psi(self) -> bool:
        """Does `positive_psi` keep full relative accuracy, however far the entries are apart?"""
        return self.modes <= _DENSE_MODES

    @functools.cached_property
    def _prime_convolution(self) -> PrimeConvolution | None:
        """For a prime number of classes, where a plain Fourier transform is slow."""
        return PrimeConvolution.of(self.classes) if len(self.orders) == 1 else None

    @functools.cached_property
    def _half_index(self) -> np.ndarray:
        """Where each class stands in the half spectrum of a real transform."""
        half = self.orders[-1] // 2 + 1
        elements = np.array(np.unravel_index(self._classes_of_elements[1], self.orders))
        other = (-elements) % np.array(self.orders)[:, None]
        inside = np.where(elements[-1] < half, elements, other)
        return np.asarray(np.ravel_multi_index(tuple(inside), (*self.orders[:-1], half)))

    @functools.cached_property
    def _padded_dense(self) -> np.ndarray:
        """The folded matrix, multiplicities in its columns, with the trivial mode in front."""
        phases = self._characters(self._classes_of_elements[1])
        return (1 - np.cos(phases)) * self.weights

    def _characters(self, elements: np.ndarray) -> np.ndarray:
        """Phases 2π Σ_k h_k g_k/n_k of the characters of `elements` at `elements`."""
        _check_dense(len(elements))
        where = np.array(np.unravel_index(elements, self.orders))
        turns = sum(np.outer(w, w) % n / n for w, n in zip(where, self.orders, strict=True))
        return 2 * np.pi * np.asarray(turns)

    @functools.cached_property
    def dense_psi(self) -> np.ndarray:
        r"""The folded matrix of `psi`, modes × modes; for tests and small K."""
        return self._padded_dense[1:, 1:]

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        r"""The real orthonormal basis, dense, $K\times K$, in the order of `expand`, trivial first."""
        _check_dense(self.classes)
        K, firsts = self.classes, self._classes_of_elements[1]
        everything = np.array(np.unravel_index(np.arange(K), self.orders))
        columns = [np.full(K, K**-0.5)]
        for element, count in zip(firsts[1:], self.multiplicity, strict=True):
            h = np.array(np.unravel_index(element, self.orders))
            turns = sum((x * g) % n / n for x, g, n in zip(h, everything, self.orders, strict=True))
            phase = 2 * np.pi * np.asarray(turns)
            columns.append(np.cos(phase) * np.sqrt(count / K))
            if count == 2:
                columns.append(np.sin(phase) * np.sqrt(2 / K))
        return np.stack(columns, axis=1)


def mean_of_pairs(values, multiplicity: np.ndarray):
    """Free modes from values that stand side by side, as many for each as its multiplicity."""
    starts = np.cumsum(multiplicity) - multiplicity
    return np.add.reduceat(values, starts, axis=-1) / multiplicity


def cyclic(classes: int) -> AbelianGroup:
    """The cyclic group of any number of classes."""
    return AbelianGroup((classes,))


def check_group(orders: Any) -> tuple[int, ...]:
    """The orders of the cyclic factors as whole numbers of at least 2."""
    given = (orders,) if isinstance(orders, int | np.integer) else orders
    try:
        checked = tuple(int(n) for n in given)
        if not checked or any(n != m or n < 2 for n, m in zip(checked, given, strict=True)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            "Argument `group` must list the orders of cyclic factors, each a whole number of at "
            f"least 2, such as (2, 4), but is {shown(orders)}."
        ) from None
    if math.prod(checked) > LARGEST:
        raise InputError(
            f"Argument `group` must have at most 2^24 elements, but {shown(orders)} has more."
        )
    return checked


def negatives(group: tuple[int, ...]) -> np.ndarray:
    """The index of −g for every element g."""
    elements = np.indices(group).reshape(len(group), -1)
    return np.asarray(np.ravel_multi_index(tuple(-elements % np.array(group)[:, None]), group))


def diagonalizes_softmax(U: Any, draws: int = 100, seed: int = 0) -> float:
    r"""How far the softmax is from diagonal in an orthogonal basis: 0 if it always is, up to 1.

    For random spectra $a$ the share of $U^\top P(U\,\mathrm{diag}(a)\,U^\top)\,U$ that is off the
    diagonal (Frobenius norms); the largest of `draws`. Only the characters of $Z_2^m$, up to order and
    signs of columns and order of rows, give 0 for every spectrum.

    Args:
        U: An orthogonal matrix, columns the basis.
        draws: Number of random spectra, normal with standard deviations from 0.1 to 10.
        seed: Seed of the spectra.

    Examples:
        >>> diagonalizes_softmax(Sylvester(8).vectors) < 1e-12
        True
    """
    matrix = as_numbers("U", U)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
        raise InputError(f"Argument `U` must be a square matrix, but has shape {matrix.shape}.")
    if not np.allclose(matrix.T @ matrix, np.eye(len(matrix)), atol=1e-8):
        raise InputError("Argument `U` must be orthogonal: its columns are to be orthonormal.")
    rng, largest = np.random.default_rng(seed), 0.0
    for _ in range(check_whole_number("draws", draws)):
        a = rng.standard_normal(len(matrix)) * 10 ** rng.uniform(-1, 1)
        Z = (matrix * a) @ matrix.T
        e = np.exp(Z - Z.max(axis=0))
        P = matrix.T @ (e / e.sum(axis=0)) @ matrix
        off = np.linalg.norm(P - np.diag(np.diag(P))) / np.linalg.norm(P)
        largest = max(largest, float(off))
    return largest


def _describe(basis: Basis) -> str:
    modes, pairs = basis.modes, int(np.sum(basis.multiplicity == 2))
    text = f"{group_name(basis.group)}: {basis.classes} classes, {counted(modes, 'free mode')}"
    if not pairs:
        return text + (", one" if modes == 1 else ", each one") + " singular value"
    paired = f"{counted(pairs, 'conjugate pair')} of characters (multiplicity 2)"
    real = f" and {counted(modes - pairs, 'real one')} (multiplicity 1)" if modes > pairs else ""
    return f"{text}: {paired}{real}"


def _check_dense(size: int) -> None:
    if size > DENSE_LIMIT:
        raise InputError(
            f"A dense {size}×{size} matrix ({in_words(8.0 * size * size)}) was asked for; dense forms "
            f"stop at `classes` = {DENSE_LIMIT}. Use the reduced view."
        )
