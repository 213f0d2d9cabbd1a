"""The collapse-time law: log‖a‖₁ at collapse against the number of classes, for uniform random starts.

Orbits are integrated up to K = 2^16 and foretold from a soft anchor up to 2^20. Two norms are followed:
where max|(K−1)â − 1| has fallen to 1e-3 (NC), and L_unif, where the last margin joins the smallest ones
and the hard-margin direction is exactly uniform. The law L_unif ≈ c·sd(log a₀)·√(2K ln K) comes from an
argument about maxima of K nearly independent Gaussians; it is tested here, not proven.

    python examples/collapse_time.py PICTURE [--largest K] [--seeds N]

Finished sizes are kept beside the picture, as .json, and not computed again.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import hadaflow as hf
from hadaflow.results.plotting import COLORS, canvas, house_style

TOLERANCE, RTOL = 1e-3, 1e-4
LARGEST_INTEGRATED = 2**16
HARD = 256  # classes from which on collapse happens at hard margins


def starts(K: int, seeds: int) -> np.ndarray:
    """U starts: 10⁻³ times uniform on (0.5, 1.5)."""
    return np.stack(
        [1e-3 * np.random.default_rng(seed).uniform(0.5, 1.5, K - 1) for seed in range(seeds)]
    )


def last_join(K: int, log_a: np.ndarray) -> np.ndarray:
    """L_unif = max_j T_j from hard-margin states, T = log(K−1) + z̄ + Ψ(z − z̄)."""
    mean = log_a.mean(axis=-1, keepdims=True)
    return (math.log(K - 1) + mean + hf.Sylvester(K).psi(log_a - mean)).max(axis=-1)


def study(K: int, seeds: int) -> dict[str, Any]:
    """Norms at collapse of one number of classes."""
    model, a0 = hf.UFM(K), starts(K, seeds)
    found: dict[str, Any] = {"classes": K, "sd": np.log(a0).std(axis=1).tolist()}
    if K <= LARGEST_INTEGRATED:
        run = hf.solve(model, a0, hf.Collapse(TOLERANCE), rtol=RTOL, progress=None)
        found["nc"] = run.log_norm[:, -1].tolist()
        found["unif"] = last_join(K, run.log_a[:, -1]).tolist() if K >= HARD else None
    if K >= HARD:
        norms, uniform, jumps = [], [], []
        for start in a0:
            run = hf.solve(
                model, start, hf.PredictedCollapse(TOLERANCE), rtol=RTOL, points=8, progress=None
            )
            norms.append(run.diagnostics["predicted_log_norm"])
            uniform.append(run.diagnostics["predicted_log_norm_uniform"])
            jumps.append(run.status == "predicted")
        found |= {"predicted_nc": norms, "predicted_unif": uniform, "condition_holds": jumps}
    return found


def extreme_value(K: np.ndarray) -> np.ndarray:
    """Median of the largest of K Gaussians, over √(2 ln K): what finite K does to the law."""
    root = np.sqrt(2 * np.log(K))
    median = root - (np.log(np.log(K)) + math.log(4 * math.pi)) / (2 * root)
    return (median - math.log(math.log(2)) / root) / root


def main(path: str = "collapse_time.png", largest: int = 2**12, seeds: int = 20) -> dict[str, Any]:
    data = Path(path).with_suffix(".json")
    rows = {r["classes"]: r for r in json.loads(data.read_text())} if data.exists() else {}
    for m in range(2, int(math.log2(largest)) + 1):
        K = 2**m
        if K in rows and len(rows[K]["sd"]) >= seeds:
            continue
        rows[K] = study(K, seeds)
        data.write_text(json.dumps([rows[k] for k in sorted(rows)], indent=1))
    law = test_law([rows[k] for k in sorted(rows)])
    draw(path, [rows[k] for k in sorted(rows)], law)
    for K, c, spread in zip(law["classes"], law["median"], law["scatter"], strict=True):
        print(f"K = {K:>7}: c = {c:.3f} (middle half {spread[0]:.3f} … {spread[1]:.3f})")
    return law


def test_law(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """C = L_unif/(sd √(2K ln K)) for K ≥ 256: its median over the seeds, and its scatter."""
    law: dict[str, Any] = {"classes": [], "median": [], "scatter": [], "prediction_error": {}}
    for row in rows:
        K = row["classes"]
        if K < HARD:
            continue
        unif = np.array(row.get("unif") or row["predicted_unif"])
        c = unif / (np.array(row["sd"]) * math.sqrt(2 * K * math.log(K)))
        law["classes"].append(K)
        law["median"].append(float(np.median(c)))
        law["scatter"].append(np.quantile(c, [0.25, 0.75]).tolist())
        if row.get("nc"):
            error = np.abs(np.array(row["predicted_nc"]) - np.array(row["nc"]))
            law["prediction_error"][K] = float(error.max())
    return law


def draw(path: str, rows: list[dict[str, Any]], law: dict[str, Any]) -> None:
    with house_style():
        figure, (norms, ratio, gap) = canvas(1, 3, (14, 4.2))
        for row in rows:
            K = row["classes"]
            integrated, foretold = row.get("nc"), row.get("predicted_nc")
            for values, color, marker in ((foretold, COLORS[1], "x"), (integrated, COLORS[0], ".")):
                if values:
                    norms.plot([K] * len(values), values, marker, color=color, ms=5, alpha=0.7)
        Ks = np.array([r["classes"] for r in rows if r["classes"] >= 16])
        sd = np.median([s for r in rows for s in r["sd"]])
        norms.plot(Ks, sd * np.sqrt(2 * Ks * np.log(Ks)), color="0.4", lw=1, ls=":")
        norms.plot([], [], ".", color=COLORS[0], label="integrated")
        norms.plot([], [], "x", color=COLORS[1], label="foretold from the anchor")
        norms.plot([], [], color="0.4", lw=1, ls=":", label=r"$sd\,\sqrt{2K\ln K}$")
        norms.set(xscale="log", yscale="log", xlabel="classes K", ylabel=r"$\log\|a\|_1$",
                  title="where max|(K−1)â − 1| = 1e-3")  # fmt: skip
        norms.legend()
        if law["classes"]:
            K, c = np.array(law["classes"]), np.array(law["median"])
            low, high = np.array(law["scatter"]).T
            ratio.errorbar(K, c, [c - low, high - c], fmt="o", ms=4, color=COLORS[0], capsize=3,
                           label="median and middle half over seeds")  # fmt: skip
            ratio.plot(K, extreme_value(K), color="0.4", lw=1, ls=":",
                       label="median of the largest of K Gaussians")  # fmt: skip
            ratio.set(xscale="log", xlabel="classes K", ylim=(0.7, 1.15),
                      ylabel=r"$c = L_{unif}\,/\,(sd\,\sqrt{2K\ln K})$", title="the law")  # fmt: skip
            ratio.legend()
            hard = [r for r in rows if r["classes"] >= HARD]
            for row in hard:
                first = np.array(row.get("unif") or row["predicted_unif"])
                second = np.array(row.get("nc") or row["predicted_nc"])
                gap.plot([row["classes"]] * len(first), first - second, ".", color=COLORS[2], ms=5)
            gap.set(xscale="log", yscale="log", xlabel="classes K",
                    ylabel=r"$L_{unif} - L(\mathrm{NC}(10^{-3}))$",
                    title="from NC(1e-3) to uniform")  # fmt: skip
        for axis in (norms, ratio, gap):
            axis.set_xscale("log", base=2)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", default="collapse_time.png")
    parser.add_argument("--largest", type=int, default=2**12)
    parser.add_argument("--seeds", type=int, default=20)
    asked = parser.parse_args()
    main(asked.path, asked.largest, asked.seeds)
