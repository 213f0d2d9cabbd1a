"""Several runs, or batches of them, in one picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hadaflow.base.errors import InputError, shown
from hadaflow.metrics.measures import Metric
from hadaflow.results import plotting
from hadaflow.results.axes import AUTO, check_axis
from hadaflow.results.batch import Batch
from hadaflow.results.trajectory import TABLED, Trajectory


def compare(
    runs: Mapping[str, Trajectory],
    metrics: Sequence[Metric] | Metric | None = None,
    *,
    x: str = AUTO,
    spread: str = AUTO,
    title: str = "",
    ax: Any = None,
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """One picture of several runs: a panel for each of the `metrics`, a line for each of the runs.

    Args:
        runs: Trajectories by the names they get in the legend; of a batch the middle and a band, which
            the legend explains.
        metrics: "a", "a_hat", names of metrics or functions of your own. Left out: KL and M, or what
            all of the runs have of them.
        x: As in `Trajectory.plot`; "auto" takes the axis on which all of them show.
        spread: How the runs of a batch are drawn, as there.
        title: Above the picture.
        ax: Axes of your own to draw on, one for each of the metrics.
        path: A picture to write.

    Returns the matplotlib figure, or None where it is your own.
    """
    if not isinstance(runs, Mapping) or not runs:
        raise InputError(f"Argument `runs` must be names with trajectories, but is {shown(runs)}.")
    for name, run in runs.items():
        if not isinstance(run, Trajectory):
            raise InputError(
                f"Argument `runs` must hold trajectories, but {shown(name)} is {shown(run)}."
            )
        if isinstance(run, Batch) and run.only_ends:
            raise InputError(
                f"Argument `runs` must hold curves, but {run.without_curves(shown(name))}"
            )
    if metrics is None:
        metrics = [n for n in TABLED if all(run.defined([n]) for run in runs.values())]
    names, data = [], {}
    for name, run in runs.items():
        names, data[str(name)] = run.curves(metrics)
        check_axis(x, data[str(name)])
    if len({one.attrs["units"] for one in data.values()}) > 1:
        raise InputError(
            "Argument `runs` must hold trajectories in the same units, but some are scaled and some raw."
        )
    figure = plotting.draw(
        data, names, x=x, spread=plotting.check_spread(spread), title=title,
        axes=plotting.check_axes(ax, names),
    )  # fmt: skip
    if path is not None and figure is not None:
        plotting.write_picture(figure, path)
    return figure
