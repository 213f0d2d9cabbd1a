r"""An atlas of the saddles: every support of modes up to symmetry, its limit, and the ways out of it.

On a support $S$ the flow tends to the limit of `hadaflow.saddles.supports`. A mode $k$ outside grows
faster than the norm, and leaves for $S\cup\{k\}$, where its exit ratio $b_k/\bar b$ exceeds 1.
"""

import dataclasses
import functools
import math
import os
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from hadaflow.algebra.bases import Basis, Sylvester
from hadaflow.algebra.symmetries import generators
from hadaflow.base.checks import check_seconds, check_whole_number
from hadaflow.base.errors import InputError
from hadaflow.base.notebooks import shown_in_notebook
from hadaflow.base.progress import Progress, Report, check_progress
from hadaflow.base.words import counted, group_name
from hadaflow.model.fitting import check_all_modes
from hadaflow.model.ufm import UFM, check_model
from hadaflow.results import plotting
from hadaflow.saddles.games import IllConditioned
from hadaflow.saddles.itineraries import check_scope, in_runs
from hadaflow.saddles.supports import Limit, Number, limit_on, turns

_COMPLETE_MODES = 16  # up to here all 2^modes supports are sorted into orbits
_MOST_MODES = 255
_LABELLED = 20  # nodes of a picture that are described where they stand


@dataclasses.dataclass(frozen=True)
class Support:
    """One orbit of supports under the symmetries; modes are numbered from 1.

    `orbit_size` is None where the atlas is a sample; `rank` is the least number of characters that
    generate those of the support. The numbers inside `limit` count from 0.
    """

    representative: tuple[int, ...]
    orbit_size: int | None
    rank: int
    limit: Limit
    name: str


@dataclasses.dataclass(frozen=True)
class Transition:
    """A way out: `mode` (from 1) joins the support number `source`, which makes it `target`."""

    source: int
    target: int
    mode: int


@dataclasses.dataclass(frozen=True, eq=False)
class Atlas:
    """Supports up to symmetry, smallest first, and the transitions among them.

    `left_out` counts supports whose linear programmes are too ill-conditioned to be solved.
    """

    model: UFM
    supports: list[Support]
    transitions: list[Transition]
    complete: bool
    interrupted: bool
    left_out: int = 0

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return shown_in_notebook(self, self.plot)

    def to_document(self) -> dict[str, Any]:
        """Everything as plain data for JSON: modes and ties from 1, null for an infinite exit."""
        return {
            "model": self.model.to_document(),
            "classes": self.model.classes,
            "group": list(self.model.basis.group),
            "complete": self.complete,
            "left_out": self.left_out,
            "supports": [
                {
                    "index": index,
                    "representative": list(s.representative),
                    "name": s.name,
                    "orbit_size": s.orbit_size,
                    "rank": s.rank,
                    "unique": s.limit.unique,
                    "exact": s.limit.exact,
                    "directions": [[_text(x) for x in v] for v in s.limit.vertices],
                    "margin": None if s.limit.margin is None else _text(s.limit.margin),
                    "ties": [j + 1 for j in s.limit.ties],
                    "exits": {str(k + 1): _finite(r) for k, r in sorted(s.limit.exits.items())},
                }
                for index, s in enumerate(self.supports)
            ],
            "transitions": [
                {"from": t.source, "to": t.target, "mode": t.mode} for t in self.transitions
            ],
        }

    def table(self) -> str:
        """One line for each support, in aligned columns; the direction as a ratio over its modes."""
        rows = [("#", "name", "support", "orbit", "rank", "direction", "margin", "ties", "exits")]
        for index, s in enumerate(self.supports):
            rows.append(
                (
                    str(index),
                    s.name,
                    in_runs(s.representative),
                    "?" if s.orbit_size is None else str(s.orbit_size),
                    str(s.rank),
                    _direction(s),
                    "–" if s.limit.margin is None else _short(s.limit.margin),
                    str(len(s.limit.ties)),
                    _exits(s.limit),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        if not self.complete:
            found = counted(len(self.supports), "support")
            lines.append(f"not complete: {found}, {self.left_out} left out")
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The transitions as a graph, supports by size from left to right; written to `path` if given.

        Returns the matplotlib figure.
        """
        figure = _draw(self)
        if path is not None:
            plotting.write_picture(figure, path)
        return figure


def atlas(
    model: UFM,
    *,
    starts: int = 200,
    seconds: float = 60.0,
    seed: int = 0,
    progress: str | Report | None = "auto",
) -> Atlas:
    """The saddles of a model: supports up to symmetry, the limit on each, and the ways out.

    Complete up to 16 free modes. Beyond that, random supports of every size, and no two that agree in
    size, rank and pattern of margins.

    Args:
        model: Cross-entropy at depth 2, hard labels, balanced classes, no penalty.
        starts: How many random supports are drawn, where there are too many for all.
        seconds: No new support is begun after this time; the atlas is then not complete.
        seed: Seed of the random supports.
        progress: "auto" for a line on a terminal, None, or a function of (text, fraction).
    """
    check_model(model)
    check_scope(model)
    check_all_modes(model)
    check_progress(progress)
    starts = check_whole_number("starts", starts, most=10**9)
    seed = check_whole_number("seed", seed, 0)
    check_seconds(seconds)
    basis = model.basis
    if basis.modes > _MOST_MODES:
        raise InputError(
            f"An atlas goes to {_MOST_MODES} free modes, but the model has {basis.modes}."
        )
    complete = basis.modes <= _COMPLETE_MODES
    orbits = _Orbits(basis) if complete else _Sample(basis, starts, seed)
    found: list[Support] = []
    interrupted, left_out, began = False, 0, time.monotonic()
    with Progress(progress, "atlas") as shown:
        try:
            for representative, size, done in orbits:
                if time.monotonic() - began > seconds:
                    complete = False
                    break
                try:
                    found.append(_support(basis, representative, size))
                except IllConditioned:
                    complete, left_out = False, left_out + 1
                shown.report(f"{len(found)} supports", done)
        except KeyboardInterrupt:  # what is finished is kept
            interrupted = True
    found.sort(key=lambda s: (len(s.representative), s.representative))
    transitions = _transitions(orbits, found)
    return Atlas(model, found, transitions, complete and not interrupted, interrupted, left_out)


def _support(basis: Basis, representative: tuple[int, ...], size: int | None) -> Support:
    rank = _rank(basis, representative)
    modes = tuple(i + 1 for i in representative)
    return Support(modes, size, rank, limit_on(basis, representative), _name(basis, modes, rank))


def _transitions(orbits: "_Orbits | _Sample", found: list[Support]) -> list[Transition]:
    index = {orbits.key(tuple(i - 1 for i in s.representative)): n for n, s in enumerate(found)}
    transitions = []
    for source, support in enumerate(found):
        inside = support.limit.support
        for k, ratio in sorted(support.limit.exits.items()):
            target = index.get(orbits.key((*inside, k))) if ratio > 1 + 1e-9 else None
            if target is not None:
                transitions.append(Transition(source, target, k + 1))
    return transitions


class _Orbits:
    """All supports up to symmetry: subsets as bit masks, joined where a generator takes one to another.

    Mode 0 has the highest bit, so that the largest mask of an orbit is its first support in
    lexicographic order.
    """

    def __init__(self, basis: Basis) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        self._bits = np.arange(basis.modes)[::-1]
        masks = np.arange(1 << basis.modes)
        images = [masks]
        for perm in generators(basis):
            moved = [(masks >> self._bits[perm[i]] & 1) << b for i, b in enumerate(self._bits)]
            images.append(np.bitwise_or.reduce(moved))
        edges = np.concatenate(images), np.tile(masks, len(images))
        graph = coo_array((np.ones(len(edges[0])), edges), shape=(len(masks),) * 2)
        _, self._orbit = connected_components(graph, directed=False)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], int, float]]:
        sizes = np.bincount(self._orbit)
        largest = np.zeros(len(sizes), dtype=int)
        np.maximum.at(largest, self._orbit, np.arange(len(self._orbit)))
        for n, mask in enumerate(largest):
            members = np.flatnonzero(mask >> self._bits & 1)
            yield tuple(members.tolist()), int(sizes[n]), (n + 1) / len(sizes)

    def key(self, support: tuple[int, ...]) -> int:
        return int(self._orbit[sum(1 << int(self._bits[i]) for i in support)])


class _Sample:
    """Random supports, one for each value of an invariant of the symmetries."""

    def __init__(self, basis: Basis, samples: int, seed: int) -> None:
        self._basis, self._samples, self._seed = basis, samples, seed
        k, n = turns(basis)
        hashes = np.random.default_rng(0).integers(0, 2**63, n // 2 + 1, dtype=np.uint64)
        self._hashes = hashes[k]  # sums of these tell apart the entries of a margin, in any order

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], None, float]]:
        modes = self._basis.modes
        rng, seen = np.random.default_rng(self._seed), set()
        sizes = rng.permutation(modes + 1)
        for n in range(self._samples):
            size = sizes[n % len(sizes)]
            support = tuple(sorted(rng.permutation(modes)[:size].tolist()))
            if self.key(support) not in seen:
                seen.add(self.key(support))
                yield support, None, (n + 1) / self._samples

    def key(self, support: tuple[int, ...]) -> tuple[int, int, bytes]:
        pattern = np.sort(self._hashes[:, list(support)].sum(axis=1, dtype=np.uint64))
        return len(support), _rank(self._basis, support), pattern.tobytes()


@functools.lru_cache(maxsize=4096)
def _rank(basis: Basis, support: tuple[int, ...]) -> int:
    """The least number of generators of the subgroup that the characters of a support generate.

    Invariant factors other than 1 of the lattice spanned by them and the orders, over the orders.
    """
    from flint import fmpq_mat, fmpz_mat  # heavy import, used here alone

    if not support:
        return 0
    orders = np.diag(basis.group)
    firsts = basis.representatives[1:][list(support)]
    vectors = np.array(np.unravel_index(firsts, basis.group)).T
    lattice = fmpz_mat(np.vstack([vectors, orders]).tolist()).hnf()
    rows = lattice.tolist()[: len(orders)]
    quotient = fmpq_mat(fmpz_mat(orders.tolist())) * fmpq_mat(fmpz_mat(rows)).inv()
    factors = fmpz_mat([[int(x.p) for x in row] for row in quotient.tolist()]).snf()
    return sum(abs(int(factors[i, i])) != 1 for i in range(len(orders)))


def _name(basis: Basis, modes: tuple[int, ...], rank: int) -> str:
    size = len(modes)
    if not size or size == basis.modes:
        return "all" if size else "none"
    if not isinstance(basis, Sylvester) or basis.classes != 8:
        return f"{size} mode{'s' * (size > 1)}"
    if size == 3:
        return "line" if rank == 2 else "triangle"
    if size == 4:
        has_line = any(i ^ j in modes for i in modes for j in modes if i != j)
        return "line+point" if has_line else "line complement"
    return {1: "point", 2: "pair"}.get(size, f"{size} points")


# --- in words ----------------------------------------------------------------------------------------


def _text(x: Number) -> str:
    return str(x) if isinstance(x, Fraction) else f"{x:.15g}"


def _short(x: Number) -> str:
    return str(x) if isinstance(x, Fraction) else f"{x:.4f}"


def _finite(x: Number) -> float | None:
    return None if x == math.inf else float(x)


def _direction(support: Support) -> str:
    """The limit as a ratio over the modes of the support; the first corner where there are several."""
    limit = support.limit
    if not limit.vertices:
        return "–"
    values = [limit.vertices[0][i] for i in limit.support]
    fractions = [x for x in values if isinstance(x, Fraction)]
    if len(fractions) == len(values):
        common = math.lcm(*(x.denominator for x in fractions))
        numbers = [int(x * common) for x in fractions]
        text = ":".join(str(x // math.gcd(*numbers)) for x in numbers)
    else:
        text = ":".join(f"{float(x):.3f}" for x in values)
    corners = f"{len(limit.vertices)}{'' if limit.all_vertices else '+'} corners"
    return text if limit.unique else f"{text} ({corners})"


def _exits(limit: Limit) -> str:
    """Ratios in order, each with the number of modes that have it."""
    order = {"∞" if r == math.inf else _short(r): float(r) for r in limit.exits.values()}
    counts = Counter("∞" if r == math.inf else _short(r) for r in limit.exits.values())
    ordered = sorted(order, key=order.__getitem__)
    return ", ".join(t if counts[t] == 1 else f"{t}×{counts[t]}" for t in ordered) or "–"


# --- as a picture ------------------------------------------------------------------------------------


def _draw(atlas: Atlas) -> Any:
    with plotting.house_style():
        few = len(atlas.supports) <= _LABELLED
        places = _places(atlas)
        columns = atlas.model.basis.modes + 1
        tallest = max((abs(y) for _, y in places), default=0.0)
        size = (min(max(1.55 * columns if few else 0.9 * columns, 6.0), 18.0), 2.6 + 1.9 * tallest)
        height = size[1] if few else min(2.0 + 1.5 * tallest, 14.0)
        figure, axis = plotting.canvas(1, 1, (size[0], height))
        _draw_edges(figure, axis, atlas, places)
        _draw_nodes(axis, atlas, places, few)
        axis.grid(False)
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
        axis.set_xlim(-0.6, columns - 0.4)
        axis.set_ylim(-tallest - 0.7, tallest + 0.7)
        axis.set_xticks(range(0, columns, max(1, columns // 20)))
        axis.set_xlabel("modes in the support")
        handles, _ = axis.get_legend_handles_labels()
        axis.legend(
            loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(handles), markerscale=0.6
        )
        sampled = atlas.model.basis.modes > _COMPLETE_MODES
        kind = "of random choice" if sampled else "up to symmetry"
        kind += "" if sampled or atlas.complete else ", not all"
        words = atlas.model.describe(short=True)
        if atlas.model.group is None:
            words += f", group {group_name(atlas.model.basis.group)}"
        count = counted(len(places), "support")
        figure.suptitle(textwrap.fill(f"{count} {kind}: {words}", 80), fontsize=11)
    return figure


def _places(atlas: Atlas) -> list[tuple[float, float]]:
    """Where the supports stand: by size, and in each column near those they are linked to."""
    sizes = [len(s.representative) for s in atlas.supports]
    columns = {n: [i for i, size in enumerate(sizes) if size == n] for n in sorted(set(sizes))}
    linked: dict[int, set[int]] = {i: set() for i in range(len(sizes))}
    for t in atlas.transitions:
        linked[t.source].add(t.target)
        linked[t.target].add(t.source)
    y = [0.0] * len(sizes)
    for sweep in range(9):  # alternately from left and right; the first only spreads them
        for members in columns.values() if sweep % 2 else reversed(columns.values()):

            def middle(i: int) -> float:
                return float(np.mean([y[j] for j in linked[i]])) if linked[i] else 0.0

            ordered = sorted(members, key=middle) if sweep else members
            for rank, i in enumerate(ordered):
                y[i] = rank - (len(members) - 1) / 2
    return list(zip(map(float, sizes), y, strict=True))


def _draw_edges(figure: Any, axis: Any, atlas: Atlas, places: list[tuple[float, float]]) -> None:
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    ratios: dict[tuple[int, int], float] = {}
    for t in atlas.transitions:
        ratio = float(atlas.supports[t.source].limit.exits[t.mode - 1])
        ends = t.source, t.target
        ratios[ends] = max(ratio, ratios.get(ends, 0.0))
    finite = [r for r in ratios.values() if r < math.inf]
    scale = Normalize(1.0, max([2.0, *finite]))
    shade = matplotlib.colormaps["viridis_r"]
    for (source, target), ratio in ratios.items():
        x, y = zip(places[source], places[target], strict=True)
        if ratio == math.inf:
            axis.plot(x, y, color="0.65", ls=(0, (2, 2)), lw=1.0, zorder=1)
        else:
            axis.plot(x, y, color=shade(scale(ratio)), lw=1.4, zorder=2)
    axis.plot([], [], color="0.65", ls=(0, (2, 2)), lw=1.0, label="exit ratio ∞ (outside the span)")
    if finite:
        mappable = ScalarMappable(scale, shade)
        figure.colorbar(mappable, ax=axis, pad=0.01, shrink=0.8, label=r"exit ratio $b_k/\bar b$")


def _draw_nodes(axis: Any, atlas: Atlas, places: list[tuple[float, float]], few: bool) -> None:
    kinds = {
        "one limit": (plotting.COLORS[5], lambda v: v.unique and not v.dying),
        "modes die": (plotting.COLORS[4], lambda v: v.unique and v.dying),
        "family of limits": (plotting.COLORS[3], lambda v: not v.unique),
    }
    area = 330 * min(1.0, 100 / max(len(places), 1))
    for label, (color, belongs) in kinds.items():
        points = [p for p, s in zip(places, atlas.supports, strict=True) if belongs(s.limit)]
        if points:
            x, y = zip(*points, strict=True)
            axis.scatter(x, y, s=area, color=color, edgecolor="0.2", lw=0.8, zorder=3, label=label)
    for index, ((x, y), support) in enumerate(zip(places, atlas.supports, strict=True)):
        if len(places) <= 100:
            axis.annotate(str(index), (x, y), ha="center", va="center", fontsize=8, zorder=4)
        if few:
            # Above in the upper half, so that lines to the middle pass by.
            side = 1 if y > 0 else -1
            axis.annotate(
                f"{support.name}\n{_direction(support).replace(' (', chr(10) + '(')}",
                (x, y), xytext=(0, 13 * side), textcoords="offset points",
                ha="center", va="bottom" if y > 0 else "top", fontsize=8, zorder=4,
                bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85},
            )  # fmt: skip
