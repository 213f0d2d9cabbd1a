"""Why a few singular values are enough: from a Hadamard start the singular vectors never move.

The logits of eight classes in the Hadamard basis, |UᵀZU|, as squares of 64 entries. From a Hadamard
start they are diagonal, and stay so for ever: the flow moves the numbers on the diagonal alone. A
random start has entries everywhere; they are gone only at collapse, which is far away.
"""

import sys

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import canvas, house_style

TIMES = (0.0, 5.0, 100.0, 1e12)
NAMES = ("0", "5", "100", "10^{12}")
VALUES = np.array([0.4, 0.1, 0.9, 0.3, 0.7, 0.2, 0.5])  # as in the tutorial, raw


def main(path: str = "frozen_vectors.png") -> dict[str, hf.Trajectory]:
    model = hf.UFM(classes=8)
    U = model.basis.vectors
    starts = {
        "Hadamard start": hf.hadamard(model, VALUES, units="raw"),
        "random start": hf.gaussian(model, scale=0.3, seed=0),
    }
    runs = {
        name: hf.solve(model, start, times=TIMES[1:], progress=None)
        for name, start in starts.items()
    }
    with house_style():
        figure, axes = canvas(2, len(TIMES), (10, 5.2))
        for row, (name, run) in zip(axes, runs.items(), strict=True):
            for i, axis in enumerate(row):
                inner = np.abs(U.T @ run.state(i).Z @ U)
                image = axis.imshow(inner / inner.max(), cmap="Blues", vmin=0, vmax=1)
                axis.set(xticks=[], yticks=[], title=f"$t = {NAMES[i]}$")
                axis.grid(False)
                for side in ("top", "right"):
                    axis.spines[side].set_visible(True)
            row[0].set_ylabel(name)
        figure.colorbar(image, ax=axes, label="$|U^T Z U|$ over its largest entry", shrink=0.8)
    figure.savefig(path, dpi=130)
    for name, run in runs.items():
        print(f"{name}: share off the diagonal {run.measure('off_diagonal').round(3).tolist()}")
    return runs


if __name__ == "__main__":
    main(*sys.argv[1:])
