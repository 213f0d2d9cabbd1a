r"""STEP imbalance: two blocks of classes, each with its own number of samples and its own group.

What survives of the frozen vectors: the modes inside each block keep theirs, and one mode stands
between the blocks. Its left vector $(K_2 1, -K_1 1)/\sqrt{KK_1K_2}$ is fixed, its right vector
$(\cos\varphi\,e_1, -\sin\varphi\,e_2)$ turns, with $e_b$ constant on the samples of block b.
"""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np

from hadaflow.algebra.bases import Basis, check_group, mean_of_pairs
from hadaflow.algebra.making import make_basis
from hadaflow.base.errors import InputError, shown
from hadaflow.base.words import counted

Block = tuple[int, int]


def check_imbalance(blocks: Any, classes: int, samples: int) -> tuple[Block, ...]:
    """Blocks of (classes, samples per class) that make up all classes."""
    try:
        checked = tuple((int(count), int(n)) for count, n in blocks)
        whole = all((c, n) == (C, N) for (c, n), (C, N) in zip(checked, blocks, strict=True))
        if not whole or len(checked) < 2 or any(c < 1 or not 1 <= n <= 10**12 for c, n in checked):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            "Argument `imbalance` must list at least two blocks (classes, samples of each), such as "
            f"((4, 5), (4, 1)), but is {shown(blocks)}."
        ) from None
    if sum(c for c, _ in checked) != classes:
        raise InputError(
            f"Argument `imbalance` must have `classes` = {classes} classes in all, but {checked} has "
            f"{sum(c for c, _ in checked)}."
        )
    if samples != 1:
        raise InputError(
            "Give one of `samples` and `imbalance`, which says the samples of every class, "
            "but not both."
        )
    return checked


@dataclasses.dataclass(frozen=True)
class BlockBasis:
    """Free modes of two blocks: those inside the first, those inside the second, the one between."""

    paired: ClassVar[bool] = True
    turns: ClassVar[bool] = True
    angles: ClassVar[int] = 1  # of the mode between the blocks
    blocks: tuple[Block, Block]
    groups: tuple[tuple[int, ...] | None, ...]

    @classmethod
    def make(cls, blocks: tuple[Block, ...], groups: Any) -> "BlockBasis":
        if len(blocks) != 2:
            raise InputError(
                f"There is no reduced view of {len(blocks)} blocks of classes, and no `group` for "
                "them: two blocks have one. Use the full view."
            )
        first, second = blocks
        if groups is None:
            return cls((first, second), (None, None))
        try:
            checked = tuple(None if g is None else check_group(g) for g in groups)
        except (TypeError, InputError):
            checked = ()
        sizes = tuple(1 if g is None else math.prod(g) for g in checked)
        if len(checked) != 2 or any(
            g is not None and size != count
            for g, size, (count, _) in zip(checked, sizes, blocks, strict=True)
        ):
            raise InputError(
                "Argument `group` must be two groups, of as many elements as the blocks of "
                f"`imbalance` have classes ({first[0]} and {second[0]}), but is {shown(groups)}."
            )
        return cls((first, second), checked)

    @functools.cached_property
    def inner(self) -> tuple[Basis | None, ...]:
        """The basis inside each block; a block of one class has none."""
        return tuple(
            None if count == 1 else make_basis(count, group)
            for (count, _), group in zip(self.blocks, self.groups, strict=True)
        )

    @property
    def classes(self) -> int:
        return self.blocks[0][0] + self.blocks[1][0]

    @property
    def group(self) -> tuple[tuple[int, ...], ...]:
        return tuple(() if basis is None else basis.group for basis in self.inner)

    @property
    def inner_modes(self) -> tuple[int, int]:
        first, second = (0 if basis is None else basis.modes for basis in self.inner)
        return first, second

    @property
    def modes(self) -> int:
        return sum(self.inner_modes) + 1

    @functools.cached_property
    def multiplicity(self) -> np.ndarray:
        """How many singular values each free mode stands for."""
        inside = [basis.multiplicity for basis in self.inner if basis is not None]
        return np.concatenate([*inside, [1]]).astype(int)

    @functools.cached_property
    def _repeated(self) -> np.ndarray:
        return np.repeat(np.arange(self.modes), self.multiplicity)

    def expand(self, a, axis: int = -1):
        """The K − 1 singular values of the free modes, each as often as its multiplicity."""
        return a[self._repeated] if axis == 0 else a[..., self._repeated]

    def fold(self, values):
        """Free modes from K − 1 values in the order of `expand`: the mean of each pair."""
        return mean_of_pairs(values, self.multiplicity)

    @property
    def modes_in_words(self) -> str:
        return "free modes inside the two blocks, then the one between them"

    def describe(self) -> str:
        """The modes in words."""
        parts = [
            f"{counted(count, 'class', 'classes')} of {counted(n, 'sample')}"
            + ("" if basis is None else f" ({basis.describe()})")
            for (count, n), basis in zip(self.blocks, self.inner, strict=True)
        ]
        return "; ".join(parts) + "; one mode between the blocks"

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        """Left vectors as a K×K matrix: the trivial one, those of `expand`."""
        (K1, _), (K2, _) = self.blocks
        K = K1 + K2
        columns = [np.full((K, 1), K**-0.5)]
        for basis, first, count in zip(self.inner, (0, K1), (K1, K2), strict=True):
            if basis is not None:
                inside = np.zeros((K, count - 1))
                inside[first : first + count] = basis.vectors[:, 1:]
                columns.append(inside)
        between = np.concatenate([np.full(K1, K2), np.full(K2, -K1)]) / math.sqrt(K * K1 * K2)
        return np.concatenate([*columns, between[:, None]], axis=1)

    @property
    def balanced_angle(self) -> float:
        """What the mode between the blocks would have without the imbalance."""
        return math.atan2(*(math.sqrt(count) for count, _ in self.blocks))

    def right_vectors(self, samples: int, angles: np.ndarray | None = None) -> np.ndarray:
        """Vectors of the samples, one column for each of the K modes, trivial first."""
        assert angles is not None
        columns = self._sample_vectors
        first, second = columns[:, -2], columns[:, -1]
        between = np.cos(angles) * first + np.sin(angles) * second
        inside = np.broadcast_to(columns[:, :-2], (*angles.shape[:-1], *columns[:, :-2].shape))
        return np.concatenate([inside, between[..., None]], axis=-1)

    def read_logits(
        self, Z: np.ndarray, samples: int
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """All K singular values of a Hadamard state, its angle, and the vectors of the samples."""
        V = self._sample_vectors
        inner = self.vectors.T @ Z @ V
        a = np.diagonal(inner, axis1=-2, axis2=-1).copy()
        between = np.maximum(inner[..., -1, -2:], 0.0)
        a[..., -1] = np.hypot(between[..., 0], between[..., 1])
        return a, np.arctan2(between[..., 1], between[..., 0])[..., None], V

    @functools.cached_property
    def _sample_vectors(self) -> np.ndarray:
        """Right vectors, samples × (K + 1): trivial (unused), inside the blocks, e_1 and −e_2."""
        (K1, n1), (K2, n2) = self.blocks
        counts = np.repeat([n1, n2], [K1, K2])
        left = np.repeat(self.vectors, counts, axis=0) / np.sqrt(np.repeat(counts, counts))[:, None]
        first = np.repeat([1.0, 0.0], [K1 * n1, K2 * n2]) / math.sqrt(K1 * n1)
        second = np.repeat([0.0, -1.0], [K1 * n1, K2 * n2]) / math.sqrt(K2 * n2)
        return np.concatenate([left[:, :-1], first[:, None], second[:, None]], axis=1)
