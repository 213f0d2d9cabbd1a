"""From lazy to rich: the differences C = α² − β² of the two layers as a dial.

With C far above a the layers hardly change and every mode learns at its own, linear pace; balanced
layers (C = 0) learn their modes one after the other, in steps. Equal C keep KL falling; with C = 0, 1
and 2 for three equal modes it rises from zero.
"""

import sys

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import COLORS, canvas, house_style

START = np.array([1e-2, 1e-3, 1e-4])


def main(path: str = "lazy_to_rich.png") -> hf.Trajectory:
    model = hf.UFM(classes=4)
    with house_style():
        figure, axes = canvas(1, 4, (14, 3.5))
        for axis, C in zip(axes, (0.0, 0.05, 2.0), strict=False):
            run = hf.solve(model, hf.spectrum(START, C=C), hf.Norm(4.0), points=400, progress=None)
            t = run.time / run.time[-1]
            for mode, color in zip(range(3), COLORS, strict=False):
                axis.plot(t, run.a[:, mode], color=color, label=f"$a(0) = {START[mode]:g}$")
            kind = "rich" if C == 0 else "lazy" if C > 1 else "between"
            axis.set(
                xlabel="$t$ over the whole time",
                ylabel="singular value $a$",
                title=f"$C = {C:g}$: {kind}",
            )
        axes[0].legend()
        rising = hf.solve(model, hf.spectrum([1, 1, 1], C=[0, 1, 2]), hf.Norm(60), points=400,
                          progress=None)  # fmt: skip
        axes[3].plot(np.exp(rising.log_norm) / 3, rising.measure("kl"), color=COLORS[3])
        axes[3].set(xlabel="mean singular value", ylabel="KL from uniform", xlim=(1, 8),
                    title="$a = (1, 1, 1)$, $C = (0, 1, 2)$")  # fmt: skip
    figure.savefig(path, dpi=130)
    top = rising.measure("kl").argmax()
    print(
        f"largest KL {rising.measure('kl')[top]:.3g} at mean {np.exp(rising.log_norm[top]) / 3:.2f}"
    )
    return rising


if __name__ == "__main__":
    main(*sys.argv[1:])
