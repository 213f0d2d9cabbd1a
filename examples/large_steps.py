"""Gradient descent with steps beyond the stability limit: it stays near the fixed point, or cannot.

Label smoothing 0.1 at K = 8: below η = 2.554 descent settles where the flow does; beyond, the fixed
point repels, and the singular values swing about it for ever.
"""

import sys

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import COLORS, canvas, house_style


def main(path: str = "large_steps.png") -> dict[float, float]:
    model = hf.UFM(classes=8, label_smoothing=0.1)
    limit, goal = hf.stability_limit(model), hf.fixed_point(model)
    rng = np.random.default_rng(0)
    start = goal * (1 + 0.02 * rng.standard_normal(model.modes))
    ends = {}
    with house_style():
        figure, (left, right) = canvas(1, 2, (10, 3.8))
        for share, color in zip((0.9, 1.02, 1.15), COLORS, strict=False):
            run = hf.descend(model, start, 400, share * limit, points=4000, progress=None)
            distance = np.abs(run.a / goal - 1).max(axis=1)
            ends[share] = float(distance[-50:].max())
            left.plot(
                run.iterations, distance, color=color, label=rf"$\eta = {share:g}\times$ limit"
            )
            right.plot(run.iterations[-40:], run.a[-40:, 0], ".-", color=color, lw=0.8)
        left.set(xlabel="iteration", ylabel=r"largest $|a/a^* - 1|$", yscale="log", ylim=(1e-16, 3))
        left.legend()
        right.axhline(goal[0], color="0.4", lw=0.9, ls=":")
        right.set(xlabel="iteration", ylabel="mode 1, the last forty steps")
        figure.suptitle(rf"$K = 8$, smoothing 0.1: stable up to $\eta = {limit:.3f}$")
    figure.savefig(path, dpi=130)
    print(
        f"limit {limit:.4f}; distance at the end", {s: float(f"{d:.2g}") for s, d in ends.items()}
    )
    return ends


if __name__ == "__main__":
    main(*sys.argv[1:])
