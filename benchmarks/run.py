"""Speed as ratios to named rivals, all measured in this run: `make bench`.

Prints a table and, with `--json FILE`, writes it. Every time is the best of several repetitions,
after compilation; every ratio divides a rival's time by ours.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.console import Console
from rich.table import Table
from scipy.integrate import solve_ivp
from scipy.linalg import hadamard
from threadpoolctl import threadpool_info, threadpool_limits

import hadaflow as hf
from hadaflow import transforms
from hadaflow.flows import ReducedFlow

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


def best(function: Callable[[], Any], repeat: int = 15) -> float:
    """Shortest of several wall times; the first call, which compiles, does not count."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return min(times)


def row(what: str, ours: float, rival: str, theirs: float, target: float | None) -> dict[str, Any]:
    return {
        "what": what,
        "ours_us": ours * 1e6,
        "rival": rival,
        "rival_us": theirs * 1e6,
        "ratio": theirs / ours,
        "target_ratio": target,
    }


def solver_field(model: hf.UFM, a: np.ndarray, u: float, count: int, repeat: int = 15) -> float:
    """Seconds of one evaluation of the field as the solver runs it, from spectrum `a`."""
    flow = ReducedFlow(model, balanced=True, target=None)
    with jax.enable_x64(True):
        args = jax.tree.map(jnp.asarray, flow.arguments(model, a, np.zeros_like(a), 1.0))

        @jax.jit
        def loop(y):
            return lax.fori_loop(0, count, lambda _, y: y + 1e-9 * flow.velocity(u, y, args), y)

        return best(lambda: loop(jnp.zeros(len(a) + 1)), repeat) / count


def group_fields() -> list[dict[str, Any]]:
    """Cyclic fields, primes among them, against the Walsh field at the next power of two.

    The target is a third of its speed; none for the primes, whose transforms are the hardest.
    """
    rows = []
    for power, sizes in ((2**10, (1000, 997, 1009)), (2**17, (10**5, 99_991, 100_003))):
        count, repeat = max(20, 2_000_000 // power), 7
        rng = np.random.default_rng(0)
        walsh = solver_field(
            hf.UFM(power), rng.uniform(0.5, 1.5, power - 1) / power, 3.0, count, repeat
        )
        for K in sizes:
            model = hf.UFM(K, group=(K,))
            ours = solver_field(model, rng.uniform(0.5, 1.5, model.modes) / K, 3.0, count, repeat)
            target = None if K % 2 else 1 / 3
            rows.append(row(f"cyclic field, K = {K}", ours, f"Walsh, K = {power}", walsh, target))
    return rows


def vector_field(K: int, target: float) -> list[dict[str, Any]]:
    """The field as the solver runs it, path length included, against the same in NumPy, dense Ψ."""
    z = np.log(np.random.default_rng(0).uniform(0.5, 1.5, K - 1))
    psi, u, count = 1.0 - hadamard(K)[1:, 1:], 3.0, max(100, 200_000 // K)
    # Ours first: the threads of a BLAS go on spinning for a while after a product.
    ours = solver_field(hf.UFM(K), np.exp(z), u, count)

    def numpy_field() -> np.ndarray:
        a = np.exp(z)
        x = psi @ a
        smallest = x.min()
        e = np.exp(smallest - x)
        total = e.sum()
        slowness = np.logaddexp(0.0, smallest - np.log(total))
        force = psi @ (e / total) * np.exp(u - slowness)
        return np.append(np.linalg.norm(a * force), force)

    theirs, threads = np.inf, 0
    for limit in (1, None):
        with threadpool_limits(limits=limit, user_api="blas"):
            now = best(lambda: [numpy_field() for _ in range(100)] and None) / 100
            if now < theirs:
                theirs, threads = now, max(i["num_threads"] for i in threadpool_info())
    rival = f"NumPy, dense Ψ, {threads} BLAS thread{'s' * (threads > 1)}"
    return [row(f"vector field, K = {K}", ours, rival, theirs, target)]


def orbit() -> list[dict[str, Any]]:
    """Figure 1's start to t = 1e6, 200 saved points, rtol 1e-8, against LSODA on the textbook form."""
    Phi = hadamard(8)

    def textbook(t: float, a: np.ndarray) -> np.ndarray:
        logits = Phi[:, 1:] @ a
        p = np.exp(logits - logits.max())
        return a * (1 - Phi[1:] @ (p / p.sum()))

    times = np.concatenate([[0.0], np.geomspace(1e-2, 1e6, 199)])
    model = hf.UFM(8)
    ours = best(lambda: hf.solve(model, FIGURE_1, times=times, progress=None) and None, 200)
    lsoda = best(
        lambda: solve_ivp(
            textbook, (0, 1e6), FIGURE_1, "LSODA", t_eval=times, rtol=1e-8, atol=1e-12
        ) and None
    )  # fmt: skip
    collapse = best(
        lambda: hf.solve(model, FIGURE_1, hf.Collapse(1e-6), progress=None) and None, 10
    )
    return [
        row("orbit to t = 1e6, K = 8", ours, "SciPy LSODA, textbook form", lsoda, 10),
        row("Figure 1 to collapse:1e-6", collapse, "the 50 ms asked for", 0.05, 1),
    ]


def descent() -> list[dict[str, Any]]:
    """Gradient descent at K = 4, 20 runs, against NumPy one run at a time and batched."""
    model, steps, rate = hf.UFM(4), 100_000, 0.01
    start = hf.gaussian(model, np.exp(-6) / 2, range(20))

    def plain(iterations: int) -> None:
        for W, H in zip(start.W, start.H, strict=True):
            for _ in range(iterations):
                Z = W @ H
                e = np.exp(Z - Z.max(axis=0))
                R = np.eye(4) - e / e.sum(axis=0)
                W, H = W + rate * R @ H.T, H + rate * W.T @ R

    def batched(iterations: int) -> None:
        W, H = start.W, start.H
        for _ in range(iterations):
            Z = W @ H
            e = np.exp(Z - Z.max(axis=1, keepdims=True))
            R = np.eye(4) - e / e.sum(axis=1, keepdims=True)
            W, H = W + rate * R @ H.swapaxes(1, 2), H + rate * W.swapaxes(1, 2) @ R

    ours = best(lambda: hf.descend(model, start, steps, rate, progress=None) and None, 3) / steps
    one_by_one = best(lambda: plain(100)) / 100
    together = best(lambda: batched(1000)) / 1000
    return [
        row("descend, K = 4, 20 runs", ours, "NumPy, one run at a time", one_by_one, 50),
        row("descend, K = 4, 20 runs", ours, "NumPy, batched", together, 8),
    ]


def transform_forms() -> list[dict[str, Any]]:
    """The form chosen for each size against the other two, inside a compiled loop."""
    forms = {
        "radix 4": transforms._radix4,
        "constant geometry": transforms._constant_geometry,
        "Kronecker": transforms._kronecker,
    }
    rows = []
    with jax.enable_x64(True):
        for n in (2**3, 2**6, 2**10, 2**14, 2**18):
            x, count = jnp.asarray(np.random.default_rng(0).standard_normal(n)), max(3, 10**6 // n)

            def timed(form, x=x, count=count, n=n):
                loop = jax.jit(lambda v: lax.fori_loop(0, count, lambda _, v: form(v) * n**-0.5, v))
                return best(lambda: loop(x)) / count

            chosen = transforms._choose_form(n, 1)
            ours = timed(chosen)
            for name, form in forms.items():
                if form is not chosen:
                    rows.append(row(f"transform, n = {n}", ours, name, timed(form), None))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="also write the table to FILE")
    arguments = parser.parse_args()
    rows = [
        *vector_field(8, 15),
        *vector_field(64, 8),
        *vector_field(1024, 15),
        *group_fields(),
        *orbit(),
        *descent(),
        *transform_forms(),
    ]
    table = Table("what", "hadaflow", "rival", "its time", "ratio", "target")
    for r in rows:
        target = "" if r["target_ratio"] is None else f"≥ {r['target_ratio']:.3g}"
        table.add_row(
            r["what"], f"{r['ours_us']:.2f} µs", r["rival"], f"{r['rival_us']:.2f} µs",
            f"{r['ratio']:.2f}×", target,
        )  # fmt: skip
    Console(width=120).print(table)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
