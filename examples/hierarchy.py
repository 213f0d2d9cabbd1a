"""A hierarchy of eight classes is learned coarse to fine, and the flow settles at the labels.

Labels q: the class itself 0.7, its sibling 0.15, its two cousins 0.05 each, the other four 0.0125.
Early on a mode grows at the rate 2y, y = 0.9, 0.75 and 0.55 for coarse, middle and fine distinctions.
"""

import sys

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import COLORS, canvas, house_style

LEVELS = {"coarse": 3, "middle": 1, "fine": 0}  # a mode of each level, numbered from 0


def main(path: str = "hierarchy.png") -> dict[str, float]:
    q = hf.hierarchical_labels((0.7, 0.15, 0.1, 0.05), group=(2, 2, 2))
    model = hf.UFM(classes=8, label_distribution=q)
    times = np.linspace(0.05, 14, 280)
    run = hf.solve(model, np.full(7, 1e-4), times=times, units="raw", progress=None)
    goal = hf.fixed_point(model, "raw")
    halves = {}
    with house_style():
        figure, (left, right) = canvas(1, 2, (10, 3.8))
        for (name, mode), color in zip(LEVELS.items(), COLORS, strict=False):
            halves[name] = float(np.interp(goal[mode] / 2, run.a[1:, mode], times))
            left.plot(times, run.a[1:, mode], color=color, label=name)
            left.axhline(goal[mode], color=color, lw=0.8, ls=":")
            left.plot(halves[name], goal[mode] / 2, "o", color=color, ms=5)
        left.set(xlabel="$t$ (raw)", ylabel="singular value $a$")
        left.legend(title="distinction", loc="center left", bbox_to_anchor=(0, 0.7))
        right.plot(times, run.measure("label_divergence")[1:], color=COLORS[0])
        right.set(xlabel="$t$ (raw)", ylabel="divergence from the fixed point", yscale="log")
        figure.suptitle("A hierarchy of eight classes: dots at half of the final value, dotted")
    figure.savefig(path, dpi=130)
    print("half-times", {name: round(t, 2) for name, t in halves.items()})
    return halves


if __name__ == "__main__":
    main(*sys.argv[1:])
