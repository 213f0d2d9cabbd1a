"""The regularization path: where the flow with L2 penalties settles, and the threshold at which it dies.

At depth 2 all modes settle at a* = √n log(K/λ̄ − K + 1), λ̄ = √(λ_Wλ_H/n), which goes to zero
continuously at λ_Wλ_H = n. Deeper models jump: they have a second, unstable point, and zero attracts.
"""

import sys

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import COLORS, canvas, house_style

CLASSES = 4


def settled(depth: int, decay: float) -> float:
    """Raw value of the modes at the end of the flow, from a large start."""
    model = hf.UFM(classes=CLASSES, depth=depth, weight_decay=decay)
    start = hf.spectrum([3.0, 2.8, 3.3], units="raw")
    run = hf.solve(model, start, points=20, method="tsit5", progress=None)
    return float(run.a[-1].mean())


def main(path: str = "regularization_path.png") -> dict[int, float]:
    thresholds = {}
    with house_style():
        figure, axis = canvas(1, 1, (7.5, 4.4))
        for depth, color in zip((1, 2, 3), COLORS, strict=False):
            decays = np.geomspace(0.02, 1.6, 400)
            formula = [
                hf.fixed_point(hf.UFM(CLASSES, depth=depth, weight_decay=d), "raw")[0]
                for d in decays
            ]
            axis.plot(decays, formula, color=color, label=f"depth {depth}")
            alive = decays[np.array(formula) > 0]
            if depth > 1:
                thresholds[depth] = float(alive.max())
            checks = [0.2, 0.8]
            axis.plot(checks, [settled(depth, d) for d in checks], "o", color=color, ms=5)
        axis.axvline(1.0, color="0.5", lw=0.8, ls=":")
        axis.set(
            xscale="log", xlabel=r"weight decay $\lambda$ of every layer", ylabel="$a^*$ (raw)"
        )
        axis.set_title(
            r"Lines: fixed point. Dots: where the flow settles. Dotted: $\lambda_W\lambda_H = n$"
        )
        axis.legend()
    figure.savefig(path, dpi=130)
    print("all modes die from", {depth: round(t, 3) for depth, t in thresholds.items()})
    return thresholds


if __name__ == "__main__":
    main(*sys.argv[1:])
