"""The figures drawn from single orbits: 1 (non-monotone), 3 (logits) and 10 (normalized flow)."""

import functools
from typing import Any

import numpy as np
import xarray as xr
from scipy.interpolate import PchipInterpolator

from hadaflow.flow.solver import solve
from hadaflow.metrics.measures import measure
from hadaflow.model.starts import lift
from hadaflow.model.ufm import UFM
from hadaflow.paper.drawing import blank
from hadaflow.paper.settings import Settings
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.targets import Collapse

START = (1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3)
_PAPER_END = 6.0  # log10 of the time at which the paper's drawing stops
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "0.45"
_SHOWN = {0: ("modes 1–3", _BLUE), 3: ("mode 4", _ORANGE), 4: ("modes 5–7", _GREEN)}


@functools.cache
def _to_collapse(start: tuple[float, ...]) -> Trajectory:
    """The orbit to collapse, saved so that every stage of log time is seen."""
    model = UFM(classes=len(start) + 1)
    end = solve(model, start, Collapse(1e-6), progress=None).log10_time[-1]
    early = np.linspace(-2.0, 1.0, 100, endpoint=False)
    late = np.geomspace(1.0, end, 300)
    return solve(model, start, log10_times=np.concatenate([early, late]), progress=None)


def orbit_data(start: tuple[float, ...] = START) -> xr.Dataset:
    """One orbit to collapse: directions, KL and M with its exact rate."""
    run = _to_collapse(start)
    return xr.Dataset(
        {
            "a_hat": (("time", "mode"), run.a_hat[1:]),
            "a": (("time", "mode"), run.a[1:]),
            "kl": ("time", run.measure("kl")[1:]),
            "l2": ("time", run.measure("l2")[1:]),
            "l2_rate_per_path_length": ("time", run.rate("l2", flow="normalized")[1:]),
            "path_length": ("time", run.path_length[1:]),  # pyright: ignore
        },
        {
            "log10_time": ("time", run.log10_time[1:]),
            "mode": np.arange(1, len(start) + 1, dtype=np.int32),
        },
        {"l2_at_start": float(run.measure("l2")[0])},
    )


def compute_nonmonotone(settings: Settings, report: Any) -> xr.Dataset:
    """The data of Figures 1 and 10."""
    return orbit_data()


def turning_points(data: xr.Dataset) -> dict[str, float]:
    """log10 t at which M has its dip and its peak, and falls to half of its peak and of M(0).

    Dip and peak are where the exact rate of M changes sign, between two saved points. The rest is
    read off a monotone interpolant in log log t.
    """
    x, M = data["log10_time"].values, data["l2"].values
    rate = data["l2_rate_per_path_length"].values
    up = int(np.flatnonzero((rate[:-1] < 0) & (rate[1:] > 0))[0])
    down = int(np.flatnonzero((rate[:-1] > 0) & (rate[1:] < 0))[0])
    cross = {}
    for name, i in (("dip", up), ("peak", down)):
        cross[name] = float(x[i] - rate[i] * (x[i + 1] - x[i]) / (rate[i + 1] - rate[i]))
    falling = np.arange(len(x)) > down
    curve = PchipInterpolator(np.log(x[falling]), M[falling])
    fine = np.linspace(np.log(x[falling][0]), np.log(x[-1]), 20_000)
    levels = {"half of peak": M.max() / 2, "half of start": data.attrs["l2_at_start"] / 2}
    for name, level in levels.items():
        cross[name] = float(np.exp(np.interp(-level, -curve(fine), fine)))
    return cross


def draw_nonmonotone(data: xr.Dataset, title: str) -> Any:
    """â, KL and M: above as in the paper, below the same orbit continued to collapse."""
    figure, axes = blank(2, 3, (11.5, 6.4))
    x = data["log10_time"].values
    for row, part in enumerate((x <= _PAPER_END, x > 0.1)):
        direction, kl, l2 = axes[row]
        for mode, (name, color) in _SHOWN.items():
            direction.plot(x[part], data["a_hat"].values[part, mode], color=color, label=name)
        direction.axhline(1 / 7, color=_GREY, ls=":", lw=1)
        kl.plot(x[part], data["kl"].values[part], color=_BLUE)
        l2.plot(x[part], data["l2"].values[part], color=_BLUE)
        titles = (r"$\hat a_i$", r"$D_{\mathrm{KL}}$", "$M$")
        for axis, name in zip(axes[row], titles, strict=True):
            axis.set_title(name)
            axis.set_xlabel(r"$\log_{10} t$" + (" (log scale)" if row else ""))
            if row:
                axis.set_xscale("log")
    axes[1, 1].set_yscale("log")
    axes[0, 0].legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.72))
    _mark(axes[0, 2], data, "dip", (-12, 30))
    _mark(axes[1, 2], data, "peak", (-32, -24))
    _mark(axes[1, 2], data, "half of peak", (-96, -6))
    figure.suptitle(title, fontsize=11)
    return figure


def _mark(axis: Any, data: xr.Dataset, name: str, offset: tuple[int, int]) -> None:
    where = turning_points(data)[name]
    height = float(np.interp(where, data["log10_time"].values, data["l2"].values))
    axis.plot(where, height, "o", color=_ORANGE, ms=5)
    exponent = f"{where:.3g}"
    axis.annotate(
        f"{name}: $10^{{{exponent}}}$",
        (where, height),
        xytext=offset,
        textcoords="offset points",
        fontsize=9,
    )


# --- Figure 3 ------------------------------------------------------------------------------------

_DIRECTIONS = {"uniform": (1, 1, 1, 1, 0, 0, 0), "non-uniform": (1, 1, 1, 2, 0, 0, 0)}


def compute_logits(settings: Settings, report: Any) -> xr.Dataset:
    """Normalized logit matrices of a* and a_conv, and their smallest normalized margins."""
    model = UFM(classes=8)
    matrices, margins = [], []
    for direction in _DIRECTIONS.values():
        a = np.array(direction, dtype=float) / sum(direction)
        matrices.append(lift(model, a).Z)
        margins.append(measure("margin", model, a))
    return xr.Dataset(
        {
            "logit": (("direction", "row", "column"), np.array(matrices)),
            "margin": ("direction", np.array(margins)),
        },
        {"direction": list(_DIRECTIONS)},
    )


def draw_logits(data: xr.Dataset, title: str) -> Any:
    """Two heat maps on one colour scale, with the smallest margin written above each."""
    figure, axes = blank(1, 2, (9.4, 5.0))
    names = ("$a^* = (1,1,1,1,0,0,0)$", r"$a_{\mathrm{conv}} = (1,1,1,2,0,0,0)$")
    high = float(np.abs(data["logit"]).max())
    image = None
    for i, axis in enumerate(axes[0]):
        image = axis.imshow(data["logit"].values[i], cmap="RdBu_r", vmin=-high, vmax=high)
        axis.grid(False)
        axis.set_title(f"{names[i]}\nsmallest margin {float(data['margin'][i]):.4g}", fontsize=10)
        axis.set_xlabel("sample")
        axis.set_ylabel("class")
        axis.set_xticks(range(8), [str(k) for k in range(1, 9)])
        axis.set_yticks(range(8), [str(k) for k in range(1, 9)])
    figure.colorbar(image, ax=axes[0].tolist(), shrink=0.85, label=r"normalized logit")
    figure.suptitle(title, fontsize=11)
    return figure


# --- Figure 10 -----------------------------------------------------------------------------------


def draw_normalized(data: xr.Dataset, title: str) -> Any:
    """Solid against path length (normalized flow), dashed against time up to 10^6 (regular flow)."""
    figure, axes = blank(2, 2, (10, 6.8))
    tau, t = data["path_length"].values, data["log10_time"].values
    regular = t <= _PAPER_END
    panels = (("a", "$a_i$"), ("a_hat", r"$\hat a_i$"), ("kl", r"$D_{\mathrm{KL}}$"), ("l2", "$M$"))
    for axis, (name, label) in zip(axes.flat, panels, strict=True):
        values = data[name].values
        for mode, (shown, color) in _SHOWN.items() if values.ndim == 2 else [(None, ("", _BLUE))]:
            y = values if mode is None else values[:, mode]
            axis.plot(tau, y, color=color, label=shown or "normalized flow")
            axis.plot(10.0 ** t[regular], y[regular], color=color, ls="--", lw=1.3, alpha=0.8)
        axis.set_title(label)
        axis.set_xscale("log")
        axis.set_xlabel(r"path length $\tau$ (solid), time $t$ (dashed)")
        axis.set_xlim(1e-2, 1e6)
    axes[0, 0].set_yscale("log")
    axes[0, 1].axhline(1 / 7, color=_GREY, ls=":", lw=1)
    axes[0, 0].legend(frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure
