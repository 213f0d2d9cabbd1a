"""Optimizers race from the start of the paper's Figure 1.

Adam comes near collapse, turns back and stays away. AdamW turns back even further, but not for good: it
is there after 59 440 steps. Lion never turns and takes a million; gradient flow needs a time of 10^3588.
"""

import sys
from typing import Any

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import canvas, house_style

GOAL = 1e-3  # of max|(K−1)â − 1|
RUNNERS = {
    "gradient descent 0.01": 0.01,
    "Adam 0.001": hf.optimizers.adam(0.001),
    "Adam 0.01": hf.optimizers.adam(0.01),
    "AdamW 0.01, decay 0.01": hf.optimizers.adamw(0.01, weight_decay=0.01),
    "Lion 0.001": hf.optimizers.lion(0.001, weight_decay=0),
}


def main(path: str = "race.png") -> hf.Race:
    model = hf.UFM(classes=8)
    until = hf.Collapse(GOAL)
    race = hf.race(model, "figure1", RUNNERS, until, 1_200_000, points=600, progress=None)
    flow = hf.solve(model, "figure1", until, points=600, progress=None)
    with house_style():
        figure, (left, right) = canvas(1, 2, (11, 4.2))
        race.plot(metrics="collapse_deviation", ax=left)
        flow.plot(metrics="collapse_deviation", x="log10_time", ax=right)
        for run, height in ((race["AdamW 0.01, decay 0.01"].run, 4), (race["Lion 0.001"].run, -12)):
            said = f"{run.iterations[-1]:,} steps".replace(",", " ")
            note(left, np.log10(run.iterations[-1]), said, height)
        note(right, flow.log10_time[-1], f"$t = 10^{{{flow.log10_time[-1]:.0f}}}$", 4)
        titles = {left: "Optimizers, by the step", right: "Gradient flow, by the time"}
        for axis, title in titles.items():
            axis.axhline(GOAL, color="0.4", lw=0.9, ls=":")
            axis.set(title=title, ylabel=r"max $|(K-1)\hat a_i - 1|$", yscale="log", ylim=(5e-4, 3))
    figure.savefig(path, dpi=130)
    print(race)
    return race


def note(axis: Any, place: float, text: str, height: float) -> None:
    """What stands at the end of a curve, left of it."""
    axis.annotate(text, (place, GOAL), (-4, height), textcoords="offset points", ha="right")


if __name__ == "__main__":
    main(*sys.argv[1:])
