"""Gaussian against Hadamard starts with the same singular values: what it costs to turn the vectors.

From Hadamard starts KL falls; from Gaussian ones it rises by almost a half first.
"""

import sys

import hadaflow as hf


def main(path: str = "two_starts.png") -> dict[str, hf.Trajectory]:
    model = hf.UFM(classes=8)
    gaussian = hf.gaussian(model, 0.25, seed=range(20))
    paired = hf.hadamard(model, hf.matched_spectrum(model, gaussian))
    runs = {
        "Gaussian start": hf.descend(model, gaussian, 100_000, 0.01, progress=None),
        "Hadamard start": hf.descend(model, paired, 100_000, 0.01, progress=None),
    }
    hf.compare(runs, metrics=("kl", "off_diagonal"), path=path)
    return runs


if __name__ == "__main__":
    main(*sys.argv[1:])
