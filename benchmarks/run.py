"""Speed as ratios to named rivals, all measured in this run: `make bench`.

    python benchmarks/run.py [--json FILE] [--picture FILE] [--page FILE] [--only WORD ...]
                             [--limit SECONDS] [--again FILE]

Prints a table; `--json`, `--picture` (cost against K) and `--page` (the table between its two marks on a
page of the docs) also write; `--again` shows what an earlier run wrote. Times are the best of several
repetitions, after compilation, but for latencies, which are those of whole processes; every ratio
divides a rival's time by ours. A rival of the orbits that has not arrived after `--limit` seconds is
stopped and shown with how far it got; one that is not installed is named.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy
from jax import lax
from latency import latency_rows
from rich.console import Console
from rivals import RIVALS, TOLERANCE, diffrax_batch, lsoda_one_by_one, textbook_field, u_start
from scipy.integrate import solve_ivp
from scipy.linalg import hadamard
from table import Row, draw, print_table, row, write_page
from threadpoolctl import threadpool_info, threadpool_limits

import hadaflow as hf
from hadaflow.algebra import transforms
from hadaflow.flow.kinds.displacement import DisplacementFlow
from hadaflow.model.views.reduced import SymmetricView

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]
RTOL = 1e-4  # of the orbits to collapse, ours and theirs


def best(function: Callable[[], Any], repeat: int = 15) -> float:
    """Shortest of several wall times; the first call, which compiles, does not count."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return min(times)


def installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# --- transforms ----------------------------------------------------------------------------------


def transform_rows() -> Iterator[Row]:
    """One transform of a vector, as a user calls it."""
    torch, pyfwht = installed("torch"), installed("pyfwht")
    for n in (2**10, 2**14, 2**18):
        x = np.random.default_rng(0).standard_normal(n)
        repeat = 200 if n < 2**18 else 50
        ours, what = best(lambda x=x: hf.walsh_hadamard(x), repeat), f"transform, n = {n}"
        if n <= 2**14:
            matrix = hadamard(n, dtype=np.float64)
            yield row(what, ours, "scipy.linalg.hadamard @ x", best(lambda x=x, m=matrix: m @ x))
            del matrix
        else:
            yield row(what, ours, "scipy.linalg.hadamard @ x", None, note="550 GB of memory")
        if torch is None:
            yield row(what, ours, "hadamard-transform", None, note="not installed")
        else:
            theirs, t = installed("hadamard_transform").hadamard_transform, torch.asarray(x)
            seconds = best(lambda f=theirs, t=t: f(t) is None, repeat)
            yield row(what, ours, "hadamard-transform", seconds)
        if pyfwht is None:
            yield row(what, ours, "pyfwht", None, note="not installed")
        else:
            backend = pyfwht.Backend.CPU
            seconds = best(lambda x=x, b=backend: pyfwht.transform(x.copy(), b), repeat)
            yield row(what, ours, "pyfwht", seconds)


def transform_forms() -> Iterator[Row]:
    """The form chosen for each size against the other two, inside a compiled loop."""
    forms = {
        "radix 4": transforms._radix4,
        "constant geometry": transforms._constant_geometry,
        "Kronecker": transforms._kronecker,
    }
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
                    yield row(f"transform in a loop, n = {n}", ours, f"our {name}", timed(form))


# --- vector fields -------------------------------------------------------------------------------


def solver_field(model: hf.UFM, a: np.ndarray, u: float, count: int, repeat: int = 15) -> float:
    """Seconds of one evaluation of the field as the solver runs it, from spectrum `a`."""
    with jax.enable_x64(True):
        flow = DisplacementFlow.of(SymmetricView.of(model), hf.spectrum(a))
        flow = jax.tree.map(jnp.asarray, flow)

        @jax.jit
        def loop(flow, y):
            return lax.fori_loop(0, count, lambda _, y: y + 1e-9 * flow.velocity(u, y), y)

        return best(lambda: loop(flow, jnp.zeros(len(a) + 1)), repeat) / count


def field_rows() -> Iterator[Row]:
    """The field as the solver runs it, path length included, against the same in NumPy, dense Ψ."""
    for K, target in ((8, 15), (64, 8), (1024, 15)):
        z = np.log(np.random.default_rng(0).uniform(0.5, 1.5, K - 1))
        psi, u, count = 1.0 - hadamard(K)[1:, 1:], 3.0, max(100, 200_000 // K)
        # Ours first: the threads of a BLAS go on spinning for a while after a product.
        ours = solver_field(hf.UFM(K), np.exp(z), u, count)

        def numpy_field(z=z, psi=psi, u=u) -> np.ndarray:
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
                now = best(lambda f=numpy_field: [f() for _ in range(100)] and None) / 100
                if now < theirs:
                    theirs, threads = now, max(i["num_threads"] for i in threadpool_info())
        rival = f"NumPy, dense Ψ, {threads} BLAS thread{'s' * (threads > 1)}"
        yield row(f"vector field, K = {K}", ours, rival, theirs, target)


def group_rows() -> Iterator[Row]:
    """Cyclic fields, primes among them, against the Walsh field at the next power of two.

    The target is a third of its speed; none for the primes, whose transforms are the hardest.
    """
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
            yield row(
                f"cyclic field, K = {K}", ours, f"our Walsh field, K = {power}", walsh, target
            )


# --- orbits --------------------------------------------------------------------------------------


def short_orbits() -> Iterator[Row]:
    """Figure 1's start to t = 1e6, 200 saved points, rtol 1e-8, against LSODA on the textbook form."""
    textbook = textbook_field(8)
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
    yield row("orbit to t = 1e6, K = 8", ours, "NumPy + SciPy LSODA, textbook form", lsoda, 10)
    yield row("Figure 1 to collapse:1e-6", collapse, "the 50 ms asked for", 0.05, 1)


def to_collapse(limit: float) -> Iterator[Row]:
    """A U start to NC(1e-3): ours, then every rival in a process of its own."""
    for K in (8, 64, 256, 1024, 2**14):
        model, a0 = hf.UFM(K), u_start(K)

        def ours_once(rtol, model=model, a0=a0):
            return hf.solve(model, a0, hf.Collapse(TOLERANCE), rtol=rtol, points=2, progress=None)

        ours = best(lambda f=ours_once: f(RTOL) and None, 20 if K <= 1024 else 4)
        mine = float(ours_once(RTOL).log_norm[-1])
        truth = float(ours_once(1e-7 if K <= 1024 else 1e-5).log_norm[-1])
        own = {"classes": K, "log_norm": mine, "truth": truth, "error": abs(mine - truth)}
        yield row(f"collapse, K = {K}", ours, "hadaflow", ours, note=_arrival(mine, truth), **own)
        for name in RIVALS:
            found = race(name, K, limit)
            yield row(
                f"collapse, K = {K}", ours, name, found.get("seconds") if found.get("ok") else None,
                note=_story(found, truth, limit), classes=K, log_norm=found.get("log_norm"),
            )  # fmt: skip


def race(name: str, K: int, limit: float) -> dict[str, Any]:
    """What a rival said last; `ok` where it arrived by itself."""
    script = str(Path(__file__).with_name("rivals.py"))
    command = [sys.executable, script, name, str(K), str(RTOL), str(limit)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    try:
        # Half a minute to import, to compile and to make the matrix; then it ends itself.
        out, _ = process.communicate(timeout=limit + 30)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    last = {"log_norm": next((x["log_norm"] for x in reversed(lines) if "log_norm" in x), None)}
    last |= lines[-1] if lines else {}
    return last | {"ok": bool(last.get("reached"))}


def _arrival(L: float, truth: float) -> str:
    return f"log‖a‖₁ = {L:.5f}, off by {abs(L - truth):.1e}"


def _story(found: dict[str, Any], truth: float, limit: float) -> str:
    if "missing" in found:
        return "not installed"
    if found["ok"]:
        return _arrival(found["log_norm"], truth)
    L = found["log_norm"]
    if L is None:
        return f"nowhere in {limit:g} s{': ' + found['why'] if found.get('why') else ''}"
    if L > truth + 1:
        return f"lost: at log‖a‖₁ = {L:.1f} without collapse, which is at {truth:.2f}"
    ended = found.get("why") or f"stopped after {limit:g} s"
    return f"reached {L:.2f} of {truth:.2f}: {ended}"


# --- the paper's experiment, and batches ---------------------------------------------------------


def experiment_rows() -> Iterator[Row]:
    """The experiment of the paper: descent at K = 4 from 20 Gaussian starts, 100 000 steps."""
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

    ours = best(lambda: hf.descend(model, start, steps, rate, progress=None) and None, 3)
    what, share = "paper's experiment: descent, K = 4, 20 runs", steps // 1000
    one_by_one, together = best(lambda: plain(1000), 2) * share, best(lambda: batched(1000)) * share
    note = "from 1000 of the 100 000 steps"
    yield row(what, ours, "NumPy, one run at a time", one_by_one, 50, note)
    yield row(what, ours, "NumPy, batched", together, 8, note)


def training_rows() -> Iterator[Row]:
    """Optimizers: on matrices, on one row, and ten of them from one start."""
    model, steps, rate = hf.UFM(4), 100_000, 1e-3
    start, adam = hf.gaussian(model, np.exp(-6) / 2, range(20)), hf.optimizers.adam(1e-3)

    def batched(iterations: int) -> None:
        x, m, v = [start.W, start.H], [0.0, 0.0], [0.0, 0.0]
        for k in range(1, iterations + 1):
            W, H = x
            Z = W @ H
            e = np.exp(Z - Z.max(axis=1, keepdims=True))
            R = np.eye(4) - e / e.sum(axis=1, keepdims=True)
            for i, g in enumerate((-R @ H.swapaxes(1, 2), -W.swapaxes(1, 2) @ R)):
                m[i] = 0.9 * m[i] + 0.1 * g
                v[i] = 0.999 * v[i] + 0.001 * g * g
                x[i] = x[i] - rate * m[i] / (1 - 0.9**k) / (np.sqrt(v[i] / (1 - 0.999**k)) + 1e-8)

    ours = best(lambda: hf.descend(model, start, steps, adam, progress=None) and None, 3)
    theirs = best(lambda: batched(1000)) * (steps // 1000)
    note = "from 1000 of the 100 000 steps"
    yield row("Adam on matrices, K = 4, 20 runs", ours, "NumPy, batched", theirs, 8, note)

    eight, steps = hf.UFM(8), 200_000

    def reduced(rule: Any) -> float:
        return best(lambda: hf.descend(eight, "figure1", steps, rule, progress=None) and None, 5)

    step, plain = reduced(adam) / steps, reduced(0.01) / steps
    yield row("a step of Adam on one row, K = 8", step, "a plain step of ours", plain, 1 / 3)

    rules = hf.optimizers
    ten = {
        "sgd": 0.01, "momentum": rules.momentum(0.01), "Adam": adam, "Lion": rules.lion(1e-3),
        "AdamW": rules.adamw(0.01, weight_decay=0.01), "NAdam": rules.nadam(1e-3),
        "RMSProp": rules.rmsprop(1e-3), "Adagrad": rules.adagrad(0.01), "sign": rules.sign(1e-3),
        "Muon": rules.muon(1e-3),
    }  # fmt: skip
    seconds = best(lambda: hf.race(eight, "figure1", ten, steps=steps, progress=None) and None, 2)
    factors = [jnp.asarray(f) for f in hf.hadamard(eight, hf.starts.figure1(eight)).factors]

    def loss(factors: Any) -> Any:
        return -jnp.sum(jnp.diag(jax.nn.log_softmax(factors[0] @ factors[1], axis=0)))

    @jax.jit
    def matrices(factors: Any) -> Any:
        rule = optax.adam(1e-3)

        def one(_: Any, carry: Any) -> Any:
            factors, state = carry
            moved, state = rule.update(jax.grad(loss)(factors), state, factors)
            return optax.apply_updates(factors, moved), state

        return jax.lax.fori_loop(0, 20_000, one, (factors, rule.init(factors)))[0]

    theirs, note = (
        best(lambda: matrices(factors), 3) * 100,
        "theirs ten times Adam, from 20 000 steps",
    )
    yield row(
        "race of ten, 200 000 steps, K = 8", seconds, "optax on W and H, jitted", theirs, note=note
    )


def batch_rows() -> Iterator[Row]:
    """Trajectories at K = 8 to NC(1e-3), rtol 1e-6: seconds for each."""
    model, rng, rtol = hf.UFM(8), np.random.default_rng(0), 1e-6

    def solved(a0: np.ndarray, rtol: float) -> np.ndarray:
        run = hf.solve(model, a0, hf.Collapse(TOLERANCE), rtol=rtol, progress=None)
        return run.log_norm[:, -1]

    uniform = 1e-3 * rng.uniform(0.5, 1.5, (10_000, 7))
    lognormal = np.exp(rng.standard_normal((10_000, 7)))
    for name, a0, target in (("U starts", uniform, None), ("lognormal starts", lognormal, 20)):
        mine = best(lambda a0=a0: solved(a0, rtol), 5) / len(a0)
        few, what = a0[:2000], f"batch of 10 000 {name}, K = 8, each"
        truth = solved(few, 1e-9)
        off = np.abs(solved(few, rtol) - truth).max()
        with jax.enable_x64(True):
            theirs = diffrax_batch(few, rtol)
            seconds, found = best(theirs, 1), np.asarray(theirs())
        note = f"{1 / mine:,.0f} a second, off by {off:.0e} at most; theirs, 2000 starts, by "
        note += f"{np.abs(found - truth).max():.0e}"
        yield row(what, mine, "diffrax Tsit5 under vmap", seconds / len(few), target, note)
        seconds = best(lambda a0=a0: lsoda_one_by_one(a0[:100], rtol), 2)
        yield row(what, mine, "NumPy + SciPy LSODA, one by one", seconds / 100,
                  note="theirs from 100 starts")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="also write the table to FILE")
    parser.add_argument("--picture", metavar="FILE", help="draw cost against K")
    parser.add_argument("--page", metavar="FILE", help="put the table between the marks of a page")
    parser.add_argument("--again", metavar="FILE", help="measure nothing: show this JSON")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="parts to run")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for a rival's orbit")
    asked = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "latency": latency_rows, "fields": field_rows, "groups": group_rows, "orbits": short_orbits,
        "experiment": experiment_rows, "training": training_rows, "batches": batch_rows,
        "forms": transform_forms, "transforms": transform_rows,
        "collapse": lambda: to_collapse(asked.limit),
    }  # fmt: skip
    unknown = set(asked.only) - set(parts)
    if unknown:
        parser.error(f"--only must name some of {', '.join(parts)}, but names {', '.join(unknown)}")
    console = Console(width=190, stderr=False)
    progress = Console(stderr=True)
    machine = {
        "date": str(date.today()), "cores": os.cpu_count(), "python": platform.python_version(),
        "jax": jax.__version__, "diffrax": diffrax.__version__, "numpy": np.__version__,
        "scipy": scipy.__version__,
    }  # fmt: skip
    rows: list[Row] = []
    if asked.again:
        said = json.loads(Path(asked.again).read_text())
        machine, rows, parts = said["machine"], said["rows"], {}
    for name, part in parts.items():
        if asked.only and name not in asked.only:
            continue
        for found in part():
            rows.append(found)
            progress.print(f"{name}: {found['what']} against {found['rival']}", highlight=False)
        if asked.json:  # what is finished stays
            Path(asked.json).write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    where = ", ".join(f"{k} {v}" for k, v in machine.items())
    console.print(where, highlight=False)
    print_table(rows, console)
    if asked.picture:
        draw(rows, asked.picture)
    if asked.page:
        write_page(rows, where, Path(asked.page))


if __name__ == "__main__":
    main()
