r"""Two blocks of classes: modes inside each, and one between them, whose right vector turns."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.model import layers
from hadaflow.model.blocks import BlockBasis
from hadaflow.model.ufm import UFM
from hadaflow.model.views.reduced import ReducedView


class BlockView(ReducedView):
    """The angle is that of the mode between the blocks."""

    samples: Any  # of a class of each block

    @classmethod
    def of(cls, model: UFM) -> "BlockView":
        blocks = model.blocks
        counts = tuple((count, 1) for count, _ in blocks.blocks)
        samples = np.array([n for _, n in blocks.blocks], dtype=float)
        structure = BlockBasis(counts, blocks.groups)  # pyright: ignore
        return cls(
            structure, model.depth, model.loss_of_blocks, model.traced_decays, model.loss_per_energy,
            samples,
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
        return jnp.sum(self.samples * np.array(self._counts)) / self.blocks.classes

    def _margins_of_blocks(self, a, angle) -> list[tuple[Any, Any]]:
        """For each block the margins over its own classes, and the one over the other block."""
        raw = a * (self.blocks.classes * jnp.sqrt(self._mean_samples))
        (K1, K2), first, found = self._counts, 0, []
        shares = (jnp.cos(angle[..., 0]), jnp.sin(angle[..., 0]))
        for k, (count, basis, share) in enumerate(
            zip((K1, K2), self.blocks.inner, shares, strict=True)
        ):
            root = jnp.sqrt(self.samples[k])
            modes = 0 if basis is None else basis.modes
            inside = raw[..., first : first + modes] / (count * root)
            first += modes
            across = np.sqrt((K1 + K2) / (K1 * K2 * count)) / root * raw[..., -1] * share
            if basis is None:
                found.append((inside, across))
            else:
                total = jnp.sum(basis.expand(inside), axis=-1)
                found.append((jnp.asarray(basis.psi(inside)), across + total))
        return found

    def _seen(self, a, angle) -> list[tuple[Any, Any]]:
        """For a sample of each block all its margins, and for how many classes each stands."""
        seen = []
        for k, (own, other) in enumerate(self._margins_of_blocks(a, angle)):
            basis, strangers = self.blocks.inner[k], self._counts[1 - k]
            inside = np.zeros(0) if basis is None else basis.multiplicity
            counts = np.concatenate([inside, [strangers]]).astype(float)
            x = jnp.concatenate([own, other[..., None]], axis=-1)
            seen.append((x, np.broadcast_to(counts, x.shape)))
        return seen

    def margins(self, a, angles=None) -> list[Any]:
        return [x for x, _ in self._seen(a, angles)]

    def log_energy(self, a, angles=None):
        """Of the mean over all samples."""
        K1, K2 = self._counts
        shares = self.samples * np.array([K1, K2]) / (self._mean_samples * (K1 + K2))
        logs = [self.loss.log_energy(x, counts) for x, counts in self._seen(a, angles)]
        stacked = jnp.stack(logs, axis=-1) + jnp.log(shares)
        return jax.nn.logsumexp(stacked, axis=-1)

    def force(self, a, angles=None) -> tuple[Any, Any, Any]:
        r"""Inside block b $g_\chi = (\sum_{g\ne0}(1 - \chi(g))e^{-x_g} + K_{b'}e^{-y})/D_b$ times
        $\sqrt{n_b}$; between the blocks $B_1\cos\varphi + |B_2|\sin\varphi$ along the right vector and
        $|B_2|\cos\varphi - B_1\sin\varphi$ across it, $B_1 = \sqrt{n_1KK_2}\,p_{2|1}$.
        """
        K, parts, slownesses, pulls, pull_logs = self.blocks.classes, [], [], [], []
        for k, (x, counts) in enumerate(self._seen(a, angles)):
            basis, strangers = self.blocks.inner[k], self._counts[1 - k]
            weights, slowness = self.loss.push(x, counts)
            slowness, root = slowness[..., None], jnp.sqrt(self.samples[k])
            if basis is not None:
                inside = jnp.asarray(basis.psi(weights[..., :-1])) + strangers * weights[..., -1:]
                parts.append(root * inside)
                slownesses.append(jnp.broadcast_to(slowness, inside.shape))
            pulls.append(root * np.sqrt(K * strangers) * weights[..., -1:])
            pull_logs.append(slowness)
        # The between-block mode feels both blocks: their common factor is the larger one.
        slow = jnp.minimum(*pull_logs)
        B1, B2 = (pull * jnp.exp(slow - log) for pull, log in zip(pulls, pull_logs, strict=True))
        along = B1 * jnp.cos(angles) + B2 * jnp.sin(angles)
        across = B2 * jnp.cos(angles) - B1 * jnp.sin(angles)
        root = jnp.sqrt(self._mean_samples)
        radial = jnp.concatenate([*parts, along], axis=-1) / root
        return radial, across / root, jnp.concatenate([*slownesses, slow], axis=-1)

    def turn(self, a, C, w):
        """The last layer alone."""
        last = layers.layer_values(self.depth, a, C)[-1, ..., -1:]
        return a[..., -1:] / last**2 / self.depth

    def swept(self, moved):
        return moved
