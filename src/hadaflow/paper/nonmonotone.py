"""Figure 1: the start from which M rises although KL falls, on the paper's times and to collapse."""

from pathlib import Path
from typing import Any

import numpy as np

from hadaflow.model import UFM
from hadaflow.solver import solve
from hadaflow.targets import Collapse
from hadaflow.trajectory import Trajectory, write_atomically

START = (1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3)
_PAPER_END = 6.0  # log10 of the time at which the paper's drawing stops
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "0.45"


def orbit() -> Trajectory:
    """Figure 1's start to collapse, saved evenly in log log time so that every stage is seen."""
    model = UFM(classes=8)
    end = solve(model, START, Collapse(1e-6)).log10_time[-1]
    early = np.linspace(-2.0, 1.0, 100, endpoint=False)
    late = np.geomspace(1.0, end, 300)
    return solve(model, START, log10_times=np.concatenate([early, late]))


def draw(run: Trajectory) -> Any:
    """â, KL and M: above as in the paper, below the same orbit continued to collapse."""
    import matplotlib
    from matplotlib.figure import Figure

    x = run.log10_time
    rows = {
        r"$\hat a_i$": run.a_hat[:, [0, 3, 4]],
        r"$D_{\mathrm{KL}}$": run.measure("kl")[:, None],
        "$M$": run.measure("l2")[:, None],
    }
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 6.2), layout="constrained")
        axes = figure.subplots(2, 3)
        for column, (name, values) in enumerate(rows.items()):
            for row, axis in enumerate(axes[:, column]):
                part = (x >= -2) & (x <= _PAPER_END) if row == 0 else x > 0.1
                _curves(axis, x[part], values[part], labels=column == 0)
                axis.set_title(name)
                axis.grid(alpha=0.25)
                axis.set_xlabel(r"$\log_{10} t$" + ("" if row == 0 else " (log scale)"))
                if row == 1:
                    axis.set_xscale("log")
        for axis in axes[:, 0]:
            axis.axhline(1 / 7, color=_GREY, ls=":", lw=1)
        axes[1, 1].set_yscale("log")
        _mark_turning_points(axes[:, 2], x, rows["$M$"][:, 0])
        axes[0, 0].legend(frameon=False, fontsize=9, loc="center right", bbox_to_anchor=(1.0, 0.72))
        figure.suptitle("K = 8 from a(0) = (1, 1, 1, 1, .001, .001, .001): above, the paper's times; "
                        "below, to collapse", fontsize=11)  # fmt: skip
    return figure


def _curves(axis: Any, x: np.ndarray, values: np.ndarray, labels: bool) -> None:
    names = ("modes 1–3", "mode 4", "modes 5–7") if labels else (None,)
    styles = ((_BLUE, "-"), (_ORANGE, "-"), ("#009E73", "-"))
    for i, name in enumerate(names):
        axis.plot(x, values[:, i], color=styles[i][0], ls=styles[i][1], label=name, lw=1.7)


def _mark_turning_points(axes: Any, x: np.ndarray, M: np.ndarray) -> None:
    """The dip and the peak of M, with their times."""
    dip = int(np.argmin(np.where(x < 2, M, np.inf)))
    peak = int(np.argmax(M))
    for axis, index, name, offset in (
        (axes[0], dip, "dip", (-12, 30)),
        (axes[1], peak, "peak", (-30, -24)),
    ):
        axis.plot(x[index], M[index], "o", color=_ORANGE, ms=5)
        axis.annotate(
            f"{name} at $10^{{{x[index]:.3g}}}$",
            (x[index], M[index]),
            xytext=offset,
            textcoords="offset points",
            fontsize=9,
        )


def write(folder: Path) -> list[Path]:
    """The figure as PNG and PDF, and its data as NetCDF."""
    run = orbit()
    figure = draw(run)
    paths = [folder / f"nonmonotone.{suffix}" for suffix in ("png", "pdf", "nc")]
    for path in paths[:2]:
        write_atomically(
            path, lambda tmp, p=path: figure.savefig(tmp, dpi=160, format=p.suffix[1:])
        )
    run.save(paths[2])
    return paths
