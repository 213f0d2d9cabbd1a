"""Phase portraits: where the flow turns the direction of the logit singular values, as a picture."""

import dataclasses
import math
import os
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from hadaflow.base.checks import is_whole_number
from hadaflow.base.errors import InputError, failures_told, shown
from hadaflow.base.files import as_path, check_writable
from hadaflow.lab.direction_flow import (
    CORNERS,
    LARGEST,
    SMALLEST,
    SMOOTH,
    Triangle,
    check_field,
    find_walls,
    lattice,
    lifted,
    rising_region,
    stationary,
    trace_orbits,
)
from hadaflow.metrics.measures import Metric, check_metric, measure
from hadaflow.model.ufm import UFM
from hadaflow.results.plotting import COLORS, canvas, check_picture, house_style, write_picture

_TITLE = 70  # characters in a line of the title


def portrait(
    model: UFM,
    *,
    norm: float = 10.0,
    metric: Metric | None = None,
    fixed: Mapping[int, float] | None = None,
    path: str | os.PathLike[str] | None = None,
    title: str | None = None,
) -> Any:
    r"""Phase portrait of the direction of the logit singular values: a triangle of free modes.

    Orbits of `direction_field` at one norm, coloured by speed; stationary directions, filled where
    they attract and open where they do not (saddles and sources; at depth 3 and more also those
    that attract only what cannot be seen, shares below 0.001). $K = 4$, $Z_6$ and $Z_7$ have
    three free modes. Of models with more, a *slice* is drawn: all modes but three stay at the
    shares in `fixed`, and the field is the true one projected on the slice, as the three modes'
    shares of their own sum. An orbit leaves a slice unless the fixed shares are zero; what is
    marked on it is stationary in all modes.

    Args:
        model: A model with balanced classes and a built-in loss of margins that never settles; its
            layers are balanced. One `weight_decay` for all layers shrinks all modes alike and leaves
            the field as it is.
        norm: $\|a\|_1$ in scaled units, up to 300 times the temperature, or inf for the limit
            (hard labels, depth 2), where the field jumps at the walls on which two smallest margins
            tie, and orbits slide along them.
        metric: A name or your own function, as in `rate`: shades where it rises along the flow, and
            draws its level lines. At `norm` = inf it is taken at $\|a\|_1 = 10^5$.
        fixed: Shares $m_i\hat a_i$ of modes (numbered from 1) that are not free.
        path: Where to write the picture (png, pdf, svg or jpg).
        title: Title of the picture instead of the model in words.

    Returns the matplotlib figure.

    Examples:
        >>> portrait(UFM(classes=8, group=(8,)), fixed={4: 0.1}).axes[0].texts[0].get_text()
        'mode 1'
    """
    norm = check_field(model, norm)
    triangle = Triangle(model, norm, *_check_fixed(model, fixed))
    low, high = SMALLEST * model.temperature, LARGEST * model.temperature
    if not low <= norm <= high and norm < math.inf:
        raise InputError(
            f"Argument `norm` must be from {low:g} to {high:g} for a picture at this temperature, "
            f"or inf for the limit, but is {shown(norm)}."
        )
    speeds = np.abs(triangle.velocity(lattice(24))).max(axis=-1)
    if model.soft_labels and np.quantile(speeds, 0.1) < 1e-10:
        raise InputError(
            f"Argument `norm` is {norm:g}, so far beyond the point where these soft labels settle "
            "that all modes sink alike, and the field is lost in rounding: take a smaller one."
        )
    if metric is not None:
        check_metric(metric, "reduced", model)
    _check_title(title)
    target = None if path is None else as_path(path)
    if target is not None:
        check_picture(target)
        check_writable(target)
    with house_style():
        figure, axis = canvas(1, 1, (6.4, 5.4))
        _draw_frame(axis, triangle)
        handles = [] if metric is None else _draw_metric(axis, triangle, metric)
        handles = _draw_field(figure, axis, triangle) + handles
        handles = _draw_points(axis, triangle) + handles
        if handles:
            axis.legend(handles=handles, loc="upper left", bbox_to_anchor=(-0.02, 1.0))
        axis.set_title(_in_words(triangle) if title is None else title, fontsize=11)
    if target is not None:
        write_picture(figure, target)
    return figure


def _check_title(title: str | None) -> None:
    """Refuse what matplotlib could not set."""
    if title is None:
        return
    if not isinstance(title, str):
        raise InputError(f"Argument `title` must be text, but is {shown(title)}.")
    from matplotlib.mathtext import MathTextParser

    with failures_told(lambda _: f"Argument `title` must be text or math, but is {shown(title)}."):
        MathTextParser("path").parse(title)


def _check_fixed(
    model: UFM, fixed: Mapping[int, float] | None
) -> tuple[tuple[int, ...], tuple[tuple[int, float], ...]]:
    """Free modes, and fixed ones with their shares; counted from 0."""
    fixed = {} if fixed is None else fixed
    modes = model.modes
    if not isinstance(fixed, Mapping) or not all(is_whole_number(k, 1, modes) for k in fixed):
        raise InputError(
            f"Argument `fixed` must give shares of modes numbered from 1 to {modes}, "
            f"such as {{{modes}: 0.1}}, but is {shown(fixed)}."
        )
    if modes - len(fixed) != 3:
        raise InputError(
            f"Argument `fixed` must leave exactly three of the {modes} free modes of this model, "
            f"but leaves {modes - len(fixed)}."
        )
    numbers = all(isinstance(v, int | float | np.integer | np.floating) for v in fixed.values())
    if not numbers or any(not v >= 0 for v in fixed.values()) or not sum(fixed.values()) < 1:
        raise InputError(
            "Argument `fixed` must have shares of at least 0 with a sum below 1, "
            f"but has {shown(list(fixed.values()))}."
        )
    free = tuple(i for i in range(modes) if i + 1 not in fixed)
    return free, tuple((int(mode) - 1, float(share)) for mode, share in sorted(fixed.items()))


def _in_words(triangle: Triangle) -> str:
    norm = r"\infty" if triangle.norm == math.inf else f"{triangle.norm:g}"
    words, place = triangle.model.describe(short=True), rf"$\|a\|_1 = {norm}$"
    if triangle.fixed:
        place += ", slice " + ", ".join(f"$s_{{{i + 1}}} = {v:g}$" for i, v in triangle.fixed)
    return textwrap.fill(words, _TITLE) + (", " if len(words) < _TITLE // 2 else ",\n") + place


def _draw_frame(axis: Any, triangle: Triangle) -> None:
    axis.set_aspect("equal")
    axis.axis("off")
    axis.set_xlim(-0.08, 1.08)
    axis.set_ylim(-0.08, CORNERS[2, 1] + 0.07)
    outline = np.concatenate([CORNERS, CORNERS[:1]])
    axis.plot(*outline.T, color="0.25", lw=1.1, zorder=4, solid_joinstyle="miter")
    places = [((0, -9), "top"), ((0, -9), "top"), ((0, 8), "bottom")]
    for mode, corner, (offset, side) in zip(triangle.free, CORNERS, places, strict=True):
        axis.annotate(
            f"mode {mode + 1}",
            corner,
            xytext=offset,
            textcoords="offset points",
            ha="center",
            va=side,
        )


def _draw_field(figure: Any, axis: Any, triangle: Triangle) -> list[Any]:
    """Orbits coloured by speed, with arrowheads; in the limit, the walls."""
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import LogNorm
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    limit = triangle.norm == math.inf
    walls = find_walls(triangle) if limit else []
    if limit:
        triangle = dataclasses.replace(triangle, norm=SMOOTH * triangle.model.temperature)
    orbits = [orbit for orbit in trace_orbits(triangle) if len(orbit) > 3]
    if not orbits:  # a norm so small that nothing turns
        return []
    segments = [np.stack([o[:-1], o[1:]], axis=1) for o in orbits]
    middles = np.concatenate(segments).mean(axis=1)
    u = np.linalg.solve(lifted(CORNERS).T, lifted(middles).T).T
    speed = np.linalg.norm(triangle.velocity(u) @ CORNERS, axis=-1)
    low, high = np.quantile(speed, [0.03, 0.97])
    low = max(low, high / 100, 1e-12)
    colors: Any = {"cmap": _speed_colors(), "norm": LogNorm(low, max(high, 2 * low), clip=True)}
    lines = LineCollection(
        list(np.concatenate(segments)),
        array=speed,
        linewidths=1.0,
        capstyle="round",
        zorder=2,
        **colors,
    )
    axis.add_collection(lines)
    firsts = np.cumsum([0, *(len(s) for s in segments)])
    heads, at = [], []
    for part in (0.3, 0.62):
        for orbit, first in zip(orbits, firsts[:-1], strict=True):
            along = np.cumsum(np.linalg.norm(np.diff(orbit, axis=0), axis=-1))
            k = int(np.searchsorted(along, part * along[-1]))
            # Where orbits have come together one arrowhead is enough.
            if all(np.linalg.norm(orbit[k] - head.mean(axis=0)) > 0.025 for head in heads):
                heads.append(_arrowhead(orbit[k], orbit[k + 1]))
                at.append(speed[first + k])
    axis.add_collection(PolyCollection(heads, array=np.array(at), lw=0, zorder=2.5, **colors))
    bar = figure.colorbar(lines, ax=axis, shrink=0.5, aspect=28, pad=0.01)
    bar.set_label(r"speed per unit of $\log\|a\|_1$", fontsize=8)
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_linewidth(0.5)
    style: Any = {"color": "0.1", "lw": 0.8, "ls": (0, (4, 3))}
    for wall in walls:
        axis.plot(*(wall @ CORNERS).T, zorder=3, **style)
    return [Line2D([], [], label="smallest margins tie", **style)] if limit else []


def _arrowhead(tail: np.ndarray, tip: np.ndarray, size: float = 0.011) -> np.ndarray:
    """A triangle that points from `tail` to `tip`."""
    along = (tip - tail) / np.linalg.norm(tip - tail) * size
    across = np.array([-along[1], along[0]]) * 0.75
    return np.array([tail + along, tail - along + across, tail - along - across])


def _speed_colors() -> Any:
    """Pale to dark blue, without the palest: thin lines on white must be seen."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    return ListedColormap(matplotlib.colormaps["YlGnBu"](np.linspace(0.3, 1.0, 256)))


def _draw_metric(axis: Any, triangle: Triangle, metric: Metric) -> list[Any]:
    """The region where the metric rises, and level lines."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.tri import Triangulation

    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "<lambda>")
    name = "metric" if name == "<lambda>" else name
    u, rates, rising = rising_region(triangle, metric)
    grid = Triangulation(*(u @ CORNERS).T)
    values = np.asarray(measure(metric, triangle.model, triangle.states(u)))
    handles = []
    if np.all(np.isfinite(values)) and np.ptp(values) > 0:
        levels = np.unique(np.quantile(values, np.linspace(0.06, 0.96, 7)))
        axis.tricontour(grid, values, levels=levels, colors="0.78", linewidths=0.7, zorder=1)
        handles = [Line2D([], [], color="0.78", lw=0.7, label=f"level lines of {name}")]
    if not rising.any():
        return [*handles, Patch(facecolor="none", label=f"{name} rises nowhere on the grid")]
    # Scaled to equal sizes, so that the border between two grid points is where the sign changes.
    top = float(rates[rising].max())
    axis.tricontourf(
        grid,
        np.clip(rates, -top, top),
        levels=[1e-12 * top, 2 * top],
        colors=[COLORS[1]],
        alpha=0.4,
        zorder=1.5,
    )
    return [*handles, Patch(facecolor=COLORS[1], alpha=0.4, lw=0, label=f"{name} rises")]


def _draw_points(axis: Any, triangle: Triangle) -> list[Any]:
    from matplotlib.lines import Line2D

    points, handles = stationary(triangle), []
    for attracts, label in ((True, "attracting direction"), (False, "saddle or source")):
        style: Any = {
            "marker": "o",
            "ls": "none",
            "ms": 7,
            "mec": "0.1",
            "mew": 1.2,
            "mfc": "0.1" if attracts else "white",
        }
        some = [u for u, attracting in points if attracting == attracts]
        if some:
            axis.plot(*(np.array(some) @ CORNERS).T, clip_on=False, zorder=6, **style)
            handles.append(Line2D([], [], label=label, **style))
    return handles
