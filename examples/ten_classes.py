"""Ten classes, like digits, to neural collapse: the cyclic group Z_10 in place of a power of two.

Four pairs of conjugate characters share a singular value each, and one real character has its own.
KL falls all the way; M, the squared distance, rises at first. Collapse to 1e-6 comes at t ≈ 10^1105.
"""

import sys

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import COLORS, canvas, house_style

START = (0.02, 1.0, 0.01, 0.9, 1.5)  # one for each free mode


def main(path: str = "ten_classes.png") -> hf.Trajectory:
    model = hf.UFM(classes=10)
    end = hf.solve(model, START, hf.Collapse(1e-6), points=2, progress=None).log10_time[-1]
    # Denser at the beginning, where most happens.
    times = -1 + (end + 1) * np.linspace(0, 1, 600) ** 4
    run = hf.solve(model, START, log10_times=times, progress=None)
    with house_style():
        figure, (left, right) = canvas(1, 2, (10, 3.8))
        for mode, (color, count) in enumerate(zip(COLORS, model.basis.multiplicity, strict=False)):
            name = f"mode {mode + 1}" + (", a pair" if count == 2 else ", real")
            left.plot(run.log_norm, run.a_hat[:, mode], color=color, label=name)
        left.axhline(1 / 9, color="0.4", lw=0.9, ls=":")
        left.set(xlabel=r"$\log\,\|a\|_1$", ylabel=r"normalized $\hat a$, one for each free mode")
        left.legend()
        for name, metric, color in (("KL", "kl", COLORS[0]), ("M", "l2", COLORS[1])):
            values = run.measure(metric)
            right.plot(run.log_norm, values / values[0], color=color, label=name)
        right.set(
            xlabel=r"$\log\,\|a\|_1$",
            ylabel="distance from collapse, over its first value",
            ylim=(0, 1.4),
        )
        right.legend()
        figure.suptitle(f"$K = 10$: collapsed to 1e-6 at $t = 10^{{{run.log10_time[-1]:.0f}}}$")
    figure.savefig(path, dpi=130)
    M = run.measure("l2")
    print(f"collapsed at log10 t = {end:.2f}; M rises to {M.max() / M[0]:.3f} of its first value")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
