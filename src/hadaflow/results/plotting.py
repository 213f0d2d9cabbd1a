"""Labelled arrays to matplotlib axes. Computes nothing about the flow, knows nothing of solving."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, shown
from hadaflow.base.files import as_path, write_atomically
from hadaflow.base.lazy import xr

# Okabe–Ito, readable with every kind of colour vision; many modes fall back to a gradient.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
# Modes that coincide stay visible through their different dashes.
DASHES: Any = ["-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1))]
_LABELLED_MODES = 7
_PICTURES = ("png", "pdf", "svg", "jpg")
_DRAWN_MODES = 300
_LATEST_TIME = 1e5  # log10 t

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
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns)


def check_picture(path: Path) -> str:
    """The format that the name of a picture asks for."""
    suffix = path.suffix.lower().lstrip(".")
    if suffix not in _PICTURES:
        raise InputError(
            f"A picture must end in one of {', '.join(_PICTURES)}, but is {shown(str(path))}."
        )
    return suffix


def write_picture(figure: Any, path: str | os.PathLike[str]) -> None:
    """A figure in the format that the name asks for; all of it or nothing."""
    target = as_path(path)
    suffix = check_picture(target)
    with np.errstate(all="ignore"):  # of values that no picture can hold
        write_atomically(target, lambda tmp: figure.savefig(tmp, dpi=160, format=suffix))


def draw(data: xr.Dataset, title: str = "") -> Any:
    """The paper's kind of picture: singular values, their direction, KL and M against time.

    `data` has `a` and `a_hat` (time, mode), `kl` and `l2` (time), a coordinate `log10_time` and an
    attribute `values`, how many singular values are equal at collapse; with a `run` axis, means over
    runs are drawn with standard-error bands. Returns the figure.
    """
    with house_style():
        figure, axes = canvas(2, 2, (10, 6.4))
        x, label = _time_axis(data)
        data = _some_modes(data)
        if np.all(np.isfinite(data["a"])):
            _draw_modes(axes[0, 0], x, data["a"], "singular values $a_i$", log=True)
        else:
            logs = data["log_a"] / np.log(10.0)
            _draw_modes(axes[0, 0], x, logs, r"$\log_{10}$ of singular values $a_i$", log=False)
        _draw_modes(axes[0, 1], x, data["a_hat"], r"normalized $\hat a_i$", log=False)
        collapsed = data.attrs["values"]
        axes[0, 1].axhline(1 / collapsed, color="0.4", lw=0.9, ls=":", zorder=0)
        axes[0, 1].annotate(
            f"1/{collapsed}",
            (1.0, 1 / collapsed),
            xycoords=("axes fraction", "data"),
            xytext=(3, -3),
            textcoords="offset points",
            fontsize=8,
            color="0.35",
        )
        _draw_scalar(axes[1, 0], x, data["kl"], "KL divergence from uniform")
        _draw_scalar(axes[1, 1], x, data["l2"], "$M$ (squared L2 distance)/2")
        for axis in axes.flat:
            axis.set_xlabel(label)
            if len(x) > 1 and x[-1] > x[0]:
                axis.set_xlim(x[0], x[-1])
        if data.sizes["mode"] <= _LABELLED_MODES and axes[0, 0].lines:
            axes[0, 0].legend(ncols=2, title="mode", title_fontsize=8)
        if title:
            figure.suptitle(title, fontsize=11)
    return figure


def _time_axis(data: xr.Dataset) -> tuple[np.ndarray, str]:
    """log10 of time, or iterations; time 0 is drawn a little before the first positive time.

    Times so late that all else would be at the left edge give way to log‖a‖₁, which is nearly their log.
    """
    if "iteration" in data.coords:
        name, values = r"$\log_{10}$ iteration", np.log10(np.maximum(data["iteration"].values, 0.5))
        return values, name
    values = data["log10_time"].values.astype(float).copy()
    if np.max(values) > _LATEST_TIME:
        return data["log_norm"].values, r"$\log\,\|a\|_1$"
    positive = values[np.isfinite(values)]
    if positive.size < values.size:
        step = np.diff(positive[:2])[0] if positive.size > 1 else 1.0
        values[~np.isfinite(values)] = (positive[0] if positive.size else 0.0) - min(step, 1.0)
    return values, rf"$\log_{{10}} t$ ({data.attrs.get('units', 'scaled')} units)"


def _some_modes(data: xr.Dataset) -> xr.Dataset:
    """All modes, or so many of them that lines can still be told apart, evenly by their first value."""
    if data.sizes["mode"] <= _DRAWN_MODES:
        return data
    first = data["log_a"].isel(time=0)
    order = np.argsort((first.mean("run") if "run" in first.dims else first).values)
    chosen = order[np.linspace(0, len(order) - 1, _DRAWN_MODES).astype(int)]
    return data.isel(mode=np.sort(chosen))


def _draw_modes(axis: Any, x: np.ndarray, values: xr.DataArray, label: str, log: bool) -> None:
    import matplotlib

    mean = values.mean("run") if "run" in values.dims else values
    count = mean.sizes["mode"]
    many = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, count))
    for i in range(count):
        y = mean.isel(mode=i).values
        if log and not np.any(y > 0):
            continue
        color = COLORS[i] if count <= _LABELLED_MODES else many[i]
        style = DASHES[i % len(DASHES)] if count <= _LABELLED_MODES else "-"
        axis.plot(x, y, color=color, ls=style, label=str(int(mean["mode"].values[i])))
    if log:
        axis.set_yscale("log")
    axis.set_ylabel(label)


def _draw_scalar(axis: Any, x: np.ndarray, values: xr.DataArray, label: str) -> None:
    if "run" in values.dims:
        runs = values.sizes["run"]
        mean, error = values.mean("run").values, values.std("run", ddof=min(1, runs - 1)).values
        band = error / np.sqrt(runs)
        axis.fill_between(x, mean - band, mean + band, color=COLORS[0], alpha=0.2, lw=0)
    else:
        mean = values.values
    positive = mean[np.isfinite(mean) & (mean > 0)]
    axis.plot(x, mean, color=COLORS[0])
    if positive.size and positive.max() > 30 * positive.min():
        axis.set_yscale("log")
    axis.set_ylabel(label)
