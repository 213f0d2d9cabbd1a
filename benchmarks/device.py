"""The same code on an accelerator: U starts to NC(1e-3) at rtol 1e-4, `python benchmarks/device.py`.

Prints a table and, with `--json FILE`, writes it. Times are those of a second run, after compilation.
"""

import argparse
import json
import time
from datetime import date

import jax
import numpy as np

import hadaflow as hf

SIZES = (2**10, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24)


def measure(K: int) -> dict[str, object]:
    model = hf.UFM(K)
    a0 = 1e-3 * np.random.default_rng(0).uniform(0.5, 1.5, K - 1)
    seconds, run = [], None
    for _ in range(3):
        began = time.perf_counter()
        run = hf.solve(model, a0, hf.Collapse(1e-3), rtol=1e-4, points=2, progress=None)
        seconds.append(time.perf_counter() - began)
    assert run is not None
    return {
        "classes": K,
        "status": run.status,
        "seconds": min(seconds[1:]),
        "first_seconds": seconds[0],
        "log_norm": float(run.log_norm[-1]),
        "log10_log10_time": float(run.log10_log10_time[-1]),
        "steps": run.steps,
        "transforms": run.diagnostics["transforms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--json", metavar="FILE", help="also write the table to FILE")
    asked = parser.parse_args()
    device = jax.devices()[0]
    versions = {"jax": jax.__version__, "numpy": np.__version__}
    print(f"{device.device_kind}, {date.today()}, {versions}")
    print(f"{'K':>9} {'seconds':>9} {'first':>7} {'log‖a‖₁':>12} {'steps':>6} {'transforms':>10}")
    rows = []
    for K in (K for K in SIZES if asked.largest >= K):
        row = measure(K)
        rows.append(row)
        print(
            f"{K:>9} {row['seconds']:>9.3f} {row['first_seconds']:>7.1f} {row['log_norm']:>12.6f} "
            f"{row['steps']:>6} {row['transforms']:>10}  {row['status']}",
            flush=True,
        )
    if asked.json:
        with open(asked.json, "w") as file:
            record = {"device": device.device_kind, "date": str(date.today()), "versions": versions}
            json.dump(record | {"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
