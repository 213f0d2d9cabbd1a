"""Neural collapse, seen: three classes with twenty samples each, and free features in the plane.

Gradient flow of cross-entropy from small random matrices. The samples of a class come together (NC1),
the class means become the corners of an equilateral triangle (NC2), and the rows of W, the arrows,
point at them (NC3). Every panel has its own scale: the features grow for ever, only their shape settles.
"""

import sys

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import COLORS, canvas, house_style

CLASSES, SAMPLES = 3, 20
TIMES = (0.0, 10.0, 100.0, 1e12)
NAMES = ("0", "10", "100", "10^{12}")


def main(path: str = "neural_collapse.png") -> hf.Trajectory:
    model = hf.UFM(classes=CLASSES, samples=SAMPLES, width=2)
    start = hf.gaussian(model, scale=0.3, seed=0)
    run = hf.solve(model, start, times=TIMES[1:], progress=None)
    with house_style():
        figure, axes = canvas(1, len(TIMES), (12, 3.4))
        for axis, state, name in zip(axes, map(run.state, range(len(TIMES))), NAMES, strict=True):
            features = state.H.reshape(2, CLASSES, SAMPLES)
            size = np.linalg.norm(features, axis=0).max()
            arrows = state.W / np.linalg.norm(state.W, axis=1).max()
            for k, (color, marker) in enumerate(zip(COLORS, "o^s", strict=False)):
                x, y = features[:, k] / size
                axis.scatter(x, y, s=26, color=color, marker=marker, label=f"class {k + 1}")
                axis.annotate(
                    "", arrows[k], (0, 0), arrowprops={"arrowstyle": "->", "color": "0.25"}
                )
            axis.set(title=f"$t = {name}$", aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
            axis.set_axis_off()
        axes[-1].legend(loc="upper left")  # where no point is
        figure.suptitle("Features (points) and rows of W (arrows), each panel in its own scale")
    figure.savefig(path, dpi=130)
    spread = run.measure("nc1_cdnv")
    print(f"within-class variability (cdnv): {', '.join(f'{v:.2g}' for v in spread)}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
