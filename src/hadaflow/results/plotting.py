"""Labelled arrays to matplotlib axes. Computes nothing about the flow, knows nothing of solving."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, shown
from hadaflow.base.files import as_path, write_atomically
from hadaflow.base.lazy import xr
from hadaflow.results.axes import AUTO, AXES, Axis, telling

# Okabe–Ito, readable with every kind of colour vision; many modes fall back to a gradient.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07A00", "#3A9AD9", "#000000"]
# Modes that coincide stay visible through their different dashes: later ones, on top, leave more gaps.
DASHES: Any = [
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (5, 3)),
    (0, (2.5, 3.5)),
    (0, (1, 2.5)),
]
_LABELLED_MODES = 7
_PICTURES = ("png", "pdf", "svg", "jpg")
_DRAWN_MODES = 300
_NOTEBOOK_DPI = 90
_DRAWN_RUNS = 200  # of a batch, drawn each by itself
_SQUEEZED = 30.0  # times as large as half of a curve is what lies in sight
_BANDED_MODES = 3  # more bands on top of each other are mud
_LETTERS = 14.0  # of a legend, on an inch
_COMMON_POINTS = 400  # of the axis that runs with clocks of their own are brought to

# How the runs of a batch are drawn together.
QUANTILES, ERRORS, EACH = "quantiles", "standard error", "all"

_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.6,
    "font.size": 10,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def house_style() -> Any:
    """A context in which matplotlib draws as all pictures of the project are drawn."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def canvas(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and its axes; within `house_style`."""
    figure = _picture()(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns)


@functools.cache
def _picture() -> Any:
    """Matplotlib's figure that a notebook shows without its global state, which we leave alone."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            drawn = io.BytesIO()
            self.savefig(drawn, format="png", dpi=_NOTEBOOK_DPI)
            return drawn.getvalue()

    return Picture


def check_picture(path: Path, name: str = "path") -> str:
    """The format that the name of a picture asks for."""
    suffix = path.suffix.lower().lstrip(".")
    if suffix not in _PICTURES:
        raise InputError(
            f"Argument `{name}` must end in one of {', '.join(_PICTURES)} for a picture, but is "
            f"{shown(str(path))}."
        )
    return suffix


def write_picture(figure: Any, path: str | os.PathLike[str]) -> None:
    """A figure in the format that the name asks for; all of it or nothing."""
    target = as_path(path)
    suffix = check_picture(target)
    with np.errstate(all="ignore"):  # of values that no picture can hold
        write_atomically(target, lambda tmp: figure.savefig(tmp, dpi=160, format=suffix))


def draw_ends(ends: xr.Dataset, panels: Sequence[str], title: str = "") -> Any:
    """The shares of the runs of a batch that have ended by a time, by a norm, and below metrics.

    A time, or an iteration, at which all of them have ended is said in the title instead.
    """
    clock = "log10_time" if "log10_time" in ends.coords else "iteration"
    if clock == "log10_time" and np.any(np.isposinf(ends[clock])):
        clock = "log10_log10_time"
    times = np.atleast_1d(ends[clock].values)
    common = bool(np.all(times == times[0]))
    if common:
        where = f"iteration {times[0]:g}" if clock == "iteration" else f"log10 t = {times[0]:.6g}"
        title += f"\nall at {'t = 0' if np.isneginf(times[0]) else where}"
    kinds = [*([] if common else [clock]), "log_norm", *panels]
    with house_style():
        figure, axes = canvas(1, len(kinds), (4 * len(kinds), 3.4))
        for axis, kind in zip(np.ravel(axes), kinds, strict=True):
            _draw_shares(axis, ends, kind)
        figure.suptitle(title, fontsize=11)
    return figure


def _draw_shares(axis: Any, ends: xr.Dataset, kind: str) -> None:
    """The share of the runs whose value at the end is at most so much; of modes, a line for each."""
    from matplotlib.ticker import MaxNLocator

    values = ends[kind].values.reshape(ends.sizes["run"], -1)
    if kind in ("log10_time", "log10_log10_time"):  # the latter has no number up to t = 1
        values = np.where(np.isnan(values), -np.inf, values)
    finite = values[np.isfinite(values)]
    # Offsets beside an axis run into its label: the power of ten is said in there.
    power = 0 if not finite.any() else int(np.floor(np.log10(np.abs(finite).max())))
    power = power if power < -2 or power > 4 else 0
    runs, modes = values.shape
    for i in range(modes):
        ordered = np.sort(values[:, i]) / 10.0**power
        seen = ordered[np.isfinite(ordered)]
        before = int(np.sum(np.isneginf(ordered)))
        shares = (before + np.arange(len(seen) + 1)) / runs
        if len(seen):
            color = COLORS[i % len(COLORS)]
            axis.step(np.append(seen[:1], seen), shares, where="post", color=color)
    notes = []
    if power:
        notes.append(f"in $10^{{{power}}}$")
    if lost := int(np.sum(~np.isfinite(values[:, 0]))):  # beside what is drawn
        what = {"log10_time": "$t = 0$", "log10_log10_time": r"$t \leq 1$"}.get(kind, "infinite")
        notes.append(f"{lost} of {runs} at {what}" if kind in AXES else f"{lost} of {runs}: {what}")
    known = kind in AXES
    label = AXES[kind].label.format(**ends.attrs) if known else _NAMES.get(kind, kind)
    axis.set_xlabel(f"{label} at the end" + (f"\n({', '.join(notes)})" if notes else ""))
    axis.ticklabel_format(axis="x", useOffset=False)
    axis.xaxis.set_major_locator(MaxNLocator(6))
    axis.set_ylabel(f"share of {runs} runs")
    axis.set_ylim(0, 1.02)


# --- what is drawn of a run or a batch -----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A run, or a batch brought to one axis."""

    data: xr.Dataset
    x: np.ndarray
    spread: str
    own: bool = False  # has each run its own times?
    beside: bool = False  # does the start stand beside the curve, which begins at the next point?

    @classmethod
    def of(cls, data: xr.Dataset, axis: Axis, spread: str) -> _Drawn:
        with np.errstate(over="ignore"):
            x = axis.values(data)
        timed = "log10_time" in data.coords  # else iterations are the only clock
        zero = np.isneginf(data["log10_time"].values) if timed else data["iteration"].values == 0
        beside = axis.beside and bool(zero[..., 0].all()) and zero.shape[-1] > 1
        if "run" not in data.dims:
            return cls(data, x, "", beside=beside)
        if x.ndim > 1 and np.array_equal(x, np.broadcast_to(x[:1], x.shape)):
            x = x[0]
        own = x.ndim > 1
        chosen = (QUANTILES if own else ERRORS) if spread == AUTO else spread
        if not own:
            return cls(data, x, chosen, own, beside)
        if beside:  # each begins at its own first time
            x = np.where(zero, np.nan, x)
        if chosen == EACH:
            return cls(data, x, chosen, own)
        ends = np.nanmin(x), np.nanmax(x)
        grid = np.linspace(*ends, _COMMON_POINTS)
        return cls(_on_common(data, x, grid), grid, chosen, own)

    @property
    def runs(self) -> int:
        return self.data.sizes.get("run", 1)

    def says(self) -> str:
        """What the lines and the band of a batch are."""
        if not self.spread:
            return ""
        what = {QUANTILES: "median, 5–95 %", ERRORS: "mean ± standard error", EACH: "each"}
        shown = min(self.runs, _DRAWN_RUNS)
        count = (
            f"{shown} of {self.runs}" if self.spread == EACH and shown < self.runs else self.runs
        )
        stays = "; each stays at its end" if self.own and self.spread == QUANTILES else ""
        return f"{what[self.spread]} of {count} runs{stays}"

    def center_and_band(self, values: xr.DataArray) -> tuple[np.ndarray, Any]:
        """The line of a quantity, and the edges of its band, along the first axis."""
        if not self.spread:
            return values.values, None
        if self.spread == QUANTILES:
            low, middle, high = np.nanquantile(values.values, (0.05, 0.5, 0.95), axis=0)
            return middle, (low, high)
        mean = values.mean("run").values
        error = values.std("run", ddof=min(1, self.runs - 1)).values / np.sqrt(self.runs)
        return mean, (mean - error, mean + error)

    def lines(self, values: xr.DataArray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each run of a batch by itself."""
        some = np.unique(np.linspace(0, self.runs - 1, min(self.runs, _DRAWN_RUNS)).astype(int))
        x = np.broadcast_to(self.x, values.shape[:2])
        return [(x[i], values.values[i]) for i in some]


def _on_common(data: xr.Dataset, x: np.ndarray, grid: np.ndarray) -> xr.Dataset:
    """Runs with clocks of their own on one axis, between saved points along straight lines.

    A run that has ended stays at its end.
    """
    found = {}
    for name, values in data.data_vars.items():
        if values.dims[:2] != ("run", "time"):
            continue
        flat = values.values.reshape(*values.shape[:2], -1)
        rows = np.empty((len(flat), len(grid), flat.shape[2]))
        for i, (places, columns) in enumerate(zip(x, flat, strict=True)):
            seen = np.isfinite(places)
            for j in range(flat.shape[2]):
                rows[i, :, j] = np.interp(grid, places[seen], columns[seen, j])
        shape = (len(flat), len(grid), *values.shape[2:])
        found[name] = (values.dims, rows.reshape(shape))
    return xr.Dataset(found, {"mode": data["mode"]}, data.attrs)


def _some_modes(data: xr.Dataset) -> xr.Dataset:
    """All modes, or so many of them that lines can still be told apart, evenly by their first value."""
    if data.sizes["mode"] <= _DRAWN_MODES:
        return data
    first = data["log_a"].isel(time=0)
    order = np.argsort((first.mean("run") if "run" in first.dims else first).values)
    chosen = order[np.linspace(0, len(order) - 1, _DRAWN_MODES).astype(int)]
    return data.isel(mode=np.sort(chosen))


# --- panels --------------------------------------------------------------------------------------

_NAMES = {
    "a": "singular values $a_i$",
    "a_hat": r"normalized $\hat a_i$",
    "kl": "KL divergence from uniform",
    "l2": "$M$ (squared L2 distance)/2",
    "collapse_deviation": "deviation from collapse",
    "off_diagonal": "share off the diagonal",
}


def check_spread(spread: str) -> str:
    """Refuse what is no way to draw a batch."""
    allowed = (AUTO, QUANTILES, ERRORS, EACH)
    if spread not in allowed:
        raise InputError(
            f"Argument `spread` must be one of {', '.join(allowed)}, but is {shown(spread)}."
        )
    return spread


def check_axes(ax: Any, panels: Sequence[str]) -> Any:
    """As many axes as there are panels, or none."""
    if ax is None:
        return None
    flat = np.ravel(ax)
    if len(flat) != len(panels) or not all(hasattr(one, "plot") for one in flat):
        raise InputError(
            f"Argument `ax` must be matplotlib axes, one for each of {', '.join(panels)}, but is "
            f"{shown(ax)}."
        )
    return flat


def draw(
    runs: dict[str, xr.Dataset],
    panels: Sequence[str],
    *,
    x: str = AUTO,
    spread: str = AUTO,
    title: str = "",
    axes: Any = None,
) -> Any:
    """Quantities of one run, or of several under their names, against one axis.

    Each dataset has what the panels name, (time) or (time, mode), with a `run` axis in front where it
    is a batch; `log_norm`; the coordinates of `AXES`; and an attribute `values`, how many singular values
    are equal at collapse. Draws on `axes`, one for each panel, or on a figure of its own, which it
    returns.
    """
    chosen = AXES[telling(runs, panels) if x == AUTO else x]
    drawn = {name: _Drawn.of(_some_modes(data), chosen, spread) for name, data in runs.items()}
    start = _stand_beside([d.x for d in drawn.values() if d.beside])
    with house_style():
        figure = None
        if axes is None:
            columns = len(panels) if len(panels) < 4 else 2
            rows = -(-len(panels) // columns)
            figure, axes = canvas(rows, columns, (5 * columns, 0.2 + 3.1 * rows))
        flat = np.ravel(axes)
        for axis, panel in zip(flat, panels, strict=False):
            _draw_panel(axis, panel, drawn)
            axis.set_xlabel(chosen.label.format(units=next(iter(runs.values())).attrs["units"]))
            low = min(np.nanmin(d.x) for d in drawn.values())
            high = max(np.nanmax(d.x) for d in drawn.values())
            if high > low:
                axis.set_xlim(low, high)
                if start is not None:
                    _mark_start(axis, start)
        for axis in flat[len(panels) :]:
            axis.set_visible(False)
        _explain(figure, flat, drawn)
        if title and figure is not None:
            figure.suptitle(title, fontsize=11)
    return figure


def _stand_beside(places: list[np.ndarray]) -> float | None:
    """One place for the starts of all runs, left of their other points; written into `places`."""
    if not places:
        return None
    first, last = min(x[1] for x in places), max(x[-1] for x in places)
    start = float(first - max(0.5, 0.04 * (last - first)))
    for x in places:
        x[0] = start
    return start


def _mark_start(axis: Any, start: float) -> None:
    """Say of the left edge that it is no number of the axis."""
    low, high = axis.get_xlim()
    ticks = [t for t in axis.get_xticks() if low + 0.1 * (high - low) < t <= high]
    axis.set_xticks([start, *ticks], ["start", *(f"{t:g}" for t in ticks)])


def _draw_panel(axis: Any, panel: str, drawn: dict[str, _Drawn]) -> None:
    label = _NAMES.get(panel, panel)
    if panel == "a" and not all(np.all(np.isfinite(d.data["a"])) for d in drawn.values()):
        panel, label = "log10_a", r"$\log_{10}$ of singular values $a_i$"
    modes = panel in ("a", "a_hat", "log10_a")
    for index, one in enumerate(drawn.values()):
        values = one.data["log_a"] / np.log(10.0) if panel == "log10_a" else one.data[panel]
        color = COLORS[index % len(COLORS)]
        if modes and len(drawn) == 1:
            _draw_modes(axis, one, values)
        elif modes:
            for i in range(values.sizes["mode"]):
                _draw_values(axis, one, values.isel(mode=i), color, band=False, lw=0.9)
        else:
            _draw_values(axis, one, values, color)
    if panel == "a_hat":
        _mark_collapse(axis, {d.data.attrs["values"] for d in drawn.values()})
    positive = any(np.any(d.data["a"] > 0) for d in drawn.values())
    if (panel == "a" and positive) or (not modes and _squeezed(panel, drawn)):
        axis.set_yscale("log")
    axis.set_ylabel(label)


def _draw_modes(axis: Any, one: _Drawn, values: xr.DataArray) -> None:
    """Every mode in its colour; many of them along a gradient."""
    import matplotlib

    count = values.sizes["mode"]
    many = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, count))
    for i in range(count):
        few = count <= _LABELLED_MODES
        _draw_values(
            axis, one, values.isel(mode=i), COLORS[i] if few else many[i],
            ls=DASHES[i % len(DASHES)] if few else "-", band=count <= _BANDED_MODES,
            label=str(int(values["mode"].values[i])),
        )  # fmt: skip


def _draw_values(
    axis: Any, one: _Drawn, values: xr.DataArray, color: Any, *, band: bool = True, **style: Any
) -> None:
    if one.spread == EACH:
        style["lw"] = 0.6
        for x, y in one.lines(values):
            if one.beside:
                axis.scatter(x[:1], y[:1], s=6, color=color, alpha=0.4, clip_on=False)
                x, y = x[1:], y[1:]
            axis.plot(x, y, color=color, alpha=0.4, **style)
            style.pop("label", None)
        return
    center, edges = one.center_and_band(values)
    if len(center) <= 2 and (
        one.beside or not one.spread
    ):  # between a start and an end lies no curve
        style |= {"ls": "", "marker": "o", "ms": 4, "clip_on": False}
    x = one.x
    if one.beside:
        axis.scatter(x[:1], center[:1], s=10, color=color, clip_on=False)
        if edges is not None and band:
            axis.vlines(x[0], edges[0][0], edges[1][0], color=color, alpha=0.4, lw=3)
        x, center = x[1:], center[1:]
        edges = None if edges is None else (edges[0][1:], edges[1][1:])
    axis.plot(x, center, color=color, **style)
    if edges is not None and band:
        axis.fill_between(x, *edges, color=color, alpha=0.2, lw=0)


def _squeezed(panel: str, drawn: dict[str, _Drawn]) -> bool:
    """Would most of a scalar lie at the bottom of a linear axis? Then its logarithm tells more."""
    found = np.concatenate([d.center_and_band(d.data[panel])[0].ravel() for d in drawn.values()])
    found = found[np.isfinite(found)]
    positive = bool(found.size) and bool(np.all(found >= 0)) and bool(found.max() > 0)
    return positive and float(np.median(found)) < found.max() / _SQUEEZED


def _mark_collapse(axis: Any, values: set[int]) -> None:
    """The share that each of so many singular values has at collapse."""
    for count in values:
        axis.axhline(1 / count, color="0.4", lw=0.9, ls=":", zorder=0)
        axis.annotate(
            f"1/{count}", (1.0, 1 / count), xycoords=("axes fraction", "data"), xytext=(3, -3),
            textcoords="offset points", fontsize=8, color="0.35",
        )  # fmt: skip


def _explain(figure: Any, axes: Any, drawn: dict[str, _Drawn]) -> None:
    """Legends: of the runs where there are several, else of the modes; and what bands are."""
    from matplotlib.lines import Line2D

    says = {name: d.says() for name, d in drawn.items()}
    if len(drawn) > 1:
        # A row of the legend is no wider than the figure.
        room = int(_LETTERS * (figure or axes[0].figure).get_figwidth())
        told = [textwrap.fill(f"{n}: {s}" if s else n, room) for n, s in says.items()]
        handles = [
            Line2D([], [], color=COLORS[i % len(COLORS)], label=text) for i, text in enumerate(told)
        ]
        if figure is not None:
            longest = max(len(line) for text in told for line in text.splitlines())
            columns = max(1, min(room // (longest + 8), len(handles), 3))
            figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        else:
            axes[0].legend(handles=handles)
        return
    (one,), (said,) = drawn.values(), says.values()
    count = one.data.sizes["mode"]
    shown_modes = [axis for axis in axes if axis.get_legend_handles_labels()[0]]
    # In the full view they are told apart by their size alone, and may change places.
    kind = "singular value\n(by size)" if one.data.attrs["by_size"] else "mode"
    if shown_modes and count <= _LABELLED_MODES:
        named = shown_modes[0].get_legend_handles_labels()
        if figure is None:
            shown_modes[0].legend(*named, ncols=2, title=kind, title_fontsize=8)
        else:  # beside the curves, none of which it covers
            figure.legend(*named, loc="outside right upper", title=kind, title_fontsize=8)
    elif shown_modes and figure is not None:
        _color_bar(figure, shown_modes, one.data["mode"].values, kind)
    if said and figure is not None:
        figure.legend(handles=[Line2D([], [], color="0.3", label=said)], loc="outside lower center")


def _color_bar(figure: Any, axes: list[Any], modes: np.ndarray, kind: str) -> None:
    """Which colour is which mode, where there are too many for a legend."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    colors = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.9, 256)))
    scale = ScalarMappable(Normalize(float(modes[0]), float(modes[-1])), colors)
    figure.colorbar(scale, ax=axes, label=kind.replace("\n", " "), pad=0.02, aspect=30)
