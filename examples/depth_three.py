"""Depth 3 ends in a rank-2 state from one start and in neural collapse from another.

K = 4, two equal large modes and a small third one. At depth 3 the third dies when it starts below
1/8 of the others, for ever: `Collapse` notices and says so. At depth 2 every such start collapses.
"""

import sys

import hadaflow as hf
from hadaflow.results.plotting import COLORS, canvas, house_style


def main(path: str = "depth_three.png") -> list[hf.Trajectory]:
    model = hf.UFM(classes=4, depth=3)
    low, high = (
        hf.solve(model, start, hf.Collapse(1e-6), points=500, progress=None)
        for start in ([8, 8, 0.7], [8, 8, 1.4])
    )
    with house_style():
        figure, axes = canvas(1, 3, (12.5, 3.8))
        for axis, run, third in ((axes[0], low, 0.7), (axes[1], high, 1.4)):
            for mode, style in ((0, "-"), (1, "--"), (2, "-")):
                axis.plot(run.log_norm, run.a_hat[:, mode], ls=style, color=COLORS[mode],
                          label=f"mode {mode + 1}")  # fmt: skip
            axis.axhline(1 / 3, color="0.4", lw=0.9, ls=":")
            axis.set(xlabel=r"$\log\,\|a\|_1$", ylabel=r"normalized $\hat a$", ylim=(0, 0.52),
                     title=f"from (8, 8, {third}): {run.status}")  # fmt: skip
        axes[0].legend()
        for run, color, name in ((low, COLORS[1], "(8, 8, 0.7)"), (high, COLORS[0], "(8, 8, 1.4)")):
            axes[2].plot(run.log_norm, run.measure("kl"), color=color, label=name)
        axes[2].set(xlabel=r"$\log\,\|a\|_1$", ylabel="KL from uniform", ylim=(0, None))
        axes[2].legend()
    figure.savefig(path, dpi=130)
    print(low.message)
    print(high.message)
    return [low, high]


if __name__ == "__main__":
    main(*sys.argv[1:])
