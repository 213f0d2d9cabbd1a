r"""Two blocks of classes: modes inside each, and one between them, whose right vector turns."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.padding import column, pad, row
from hadaflow.algebra.shapes import Angles, Margins, Modes, Number
from hadaflow.model import layers
from hadaflow.model.blocks import BlockBasis
from hadaflow.model.views.pytrees import traced
from hadaflow.model.views.reduced import ReducedView

if TYPE_CHECKING:
    from hadaflow.model.ufm import UFM


class BlockView(ReducedView):
    """The angle is that of the mode between the blocks."""

    samples: Any  # of a class of each block

    @classmethod
    def of(cls, model: "UFM") -> "BlockView":
        blocks = model.blocks
        counts = tuple((count, 1) for count, _ in blocks.blocks)
        samples = np.array([n for _, n in blocks.blocks], dtype=float)
        structure = BlockBasis(counts, blocks.groups)  # pyright: ignore
        return cls(
            structure, model.depth, traced(model.loss_of_blocks), model.traced_decays,
            model.loss_per_energy, samples,
        )  # fmt: skip

    @property
    def blocks(self) -> BlockBasis:
        return self.modes_of_view

    @property
    def _counts(self) -> tuple[int, int]:
        (K1, _), (K2, _) = self.blocks.blocks
        return K1, K2

    @property
    def _mean_samples(self):
        counts = column(np.array(self._counts, float), self.samples)
        return jnp.sum(self.samples * counts, axis=0) / self.blocks.classes

    def _margins_of_blocks(self, a: Modes, angle: Angles) -> list[tuple[Margins, Margins]]:
        """For each block the margins over its own classes, and the one over the other block."""
        raw = a * row(self.blocks.classes * jnp.sqrt(self._mean_samples))
        (K1, K2), first, found = self._counts, 0, []
        shares = (jnp.cos(angle), jnp.sin(angle))
        for k, (count, basis, share) in enumerate(
            zip((K1, K2), self.blocks.inner, shares, strict=True)
        ):
            root = row(jnp.sqrt(self.samples[k]))
            modes = 0 if basis is None else basis.modes
            inside = raw[first : first + modes] / (count * root)
            first += modes
            across = np.sqrt((K1 + K2) / (K1 * K2 * count)) / root * raw[-1:] * share
            if basis is None:
                found.append((inside, across))
            else:
                total = jnp.sum(basis.expand(inside, 0), axis=0, keepdims=True)
                found.append((basis.padded_psi(pad(inside))[1:], across + total))
        return found

    def _seen(self, a: Modes, angle: Angles) -> list[tuple[Margins, Any]]:
        """For a sample of each block all its margins, and for how many classes each stands."""
        seen = []
        for k, (own, other) in enumerate(self._margins_of_blocks(a, angle)):
            basis, strangers = self.blocks.inner[k], self._counts[1 - k]
            inside = np.zeros(0) if basis is None else basis.multiplicity
            counts = np.concatenate([inside, [strangers]]).astype(float)
            seen.append((jnp.concatenate([own, other]), counts))
        return seen

    def margins(self, a: Modes, angles: Any = None) -> list[Margins]:
        return [x for x, _ in self._seen(a, angles)]

    def log_energy(self, a: Modes, angles: Any = None) -> Number:
        """Of the mean over all samples."""
        logs = jnp.stack([self.loss.log_energy(x, counts) for x, counts in self._seen(a, angles)])
        counts = column(np.array(self._counts, float), self.samples)
        shares = self.samples * counts / row(self._mean_samples * self.blocks.classes)
        return jax.nn.logsumexp(logs + column(jnp.log(shares), logs), axis=0)

    def force(self, a: Modes, angles: Any = None) -> tuple[Modes, Angles, Modes]:
        r"""Inside block b $g_\chi = (\sum_{g\ne0}(1 - \chi(g))e^{-x_g} + K_{b'}e^{-y})/D_b$ times
        $\sqrt{n_b}$; between the blocks $B_1\cos\varphi + |B_2|\sin\varphi$ along the right vector and
        $|B_2|\cos\varphi - B_1\sin\varphi$ across it, $B_1 = \sqrt{n_1KK_2}\,p_{2|1}$.
        """
        K, parts, slownesses, pulls, pull_logs = self.blocks.classes, [], [], [], []
        for k, (x, counts) in enumerate(self._seen(a, angles)):
            basis, strangers = self.blocks.inner[k], self._counts[1 - k]
            weights, slowness = self.loss.push(x, counts)
            root = row(jnp.sqrt(self.samples[k]))
            if basis is not None:
                inside = basis.padded_psi(pad(weights[:-1]))[1:] + strangers * weights[-1:]
                parts.append(root * inside)
                slownesses.append(jnp.broadcast_to(slowness, inside.shape))
            pulls.append(root * np.sqrt(K * strangers) * weights[-1:])
            pull_logs.append(slowness)
        # The between-block mode feels both blocks: their common factor is the larger one.
        slow = jnp.minimum(*pull_logs)
        B1, B2 = (pull * jnp.exp(slow - log) for pull, log in zip(pulls, pull_logs, strict=True))
        along = B1 * jnp.cos(angles) + B2 * jnp.sin(angles)
        across = B2 * jnp.cos(angles) - B1 * jnp.sin(angles)
        root = row(jnp.sqrt(self._mean_samples))
        radial = jnp.concatenate([*parts, along]) / root
        return radial, across / root, jnp.concatenate([*slownesses, slow])

    def turn(self, a: Modes, C: Any, w: Modes) -> Angles:
        """The last layer alone."""
        last = layers.layer_values(self.depth, a, C)[-1, -1:]
        return a[-1:] / last**2 / self.depth

    def swept(self, moved: Angles) -> Modes:
        return moved
