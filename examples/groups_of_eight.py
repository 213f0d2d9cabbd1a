"""Eight classes, one spectrum, three groups: Z_8, Z_2 × Z_4 and Z_2³ do not learn alike.

The seven singular values are the same; what differs is which class differences each of them tells
apart, and so how the margins depend on it.
"""

import sys

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import COLORS, canvas, house_style

# The spectrum {p, p, q, q, r, r, s}: pairs stand for two values each.
p, q, r, s = 1.2, 0.3, 0.05, 0.6
STARTS = {(8,): (p, q, r, s), (2, 4): (p, r, s, q, r), (2, 2, 2): (p, p, q, q, r, r, s)}


def main(path: str = "groups_of_eight.png") -> dict[tuple[int, ...], hf.Trajectory]:
    runs = {}
    with house_style():
        figure, axes = canvas(1, 4, (14, 3.6))
        for k, (group, start) in enumerate(STARTS.items()):
            model = hf.UFM(classes=8, group=group)
            end = hf.solve(model, start, hf.Collapse(1e-4), points=2, progress=None).log10_time[-1]
            times = -1 + (end + 1) * np.linspace(0, 1, 500) ** 3  # denser at the beginning
            run = runs[group] = hf.solve(model, start, log10_times=times, progress=None)
            name = "$" + r"\times ".join(f"Z_{n}" for n in group) + "$"
            for mode in range(model.modes):
                double = model.basis.multiplicity[mode] == 2
                axes[k].plot(run.log_norm, run.a_hat[:, mode], color=COLORS[mode % 7],
                             lw=2.6 if double else 1.4)  # fmt: skip
            axes[k].axhline(1 / 7, color="0.4", lw=0.9, ls=":")
            axes[k].set(
                xlabel=r"$\log\,\|a\|_1$", ylabel=r"normalized $\hat a$", title=name, ylim=(0, 0.4)
            )
            axes[3].plot(run.log_norm, run.measure("kl"), color=COLORS[k], label=name)
        axes[3].set(xlabel=r"$\log\,\|a\|_1$", ylabel="KL from uniform", yscale="log")
        axes[3].legend()
        figure.suptitle(
            "One spectrum of seven singular values on three groups; thick lines are pairs"
        )
    figure.savefig(path, dpi=130)
    for group, run in runs.items():
        print(f"{group}: collapsed to 1e-4 at log10 t = {run.log10_time[-1]:.2f}")
    return runs


if __name__ == "__main__":
    main(*sys.argv[1:])
