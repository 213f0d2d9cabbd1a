"""What a command takes as a process of its own, against importing JAX, which all of them must do."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from table import Row, row

SOLVE = ("-m", "hadaflow", "solve", "--classes", "8", "--start")
STARTS = ("1,1,1,1.25,.01,.01,.01", "uniform:0.5:1:7")
RIVAL = 'python -c "import jax"'
MOST = 3  # times as long as importing JAX, for a second command
REPEATED = 7


def latency_rows() -> Iterator[Row]:
    """Wall times of whole processes; the best of several, of cold ones of fewer."""
    jax = _best(REPEATED, "off", "-c", "import jax")

    def against_jax(what: str, seconds: float, target: float | None = None) -> Row:
        note = f"{seconds / jax:.2f} times as long"
        return row(what, seconds, RIVAL, jax, target, note)

    with tempfile.TemporaryDirectory() as folder:
        for name, more in (
            ("K = 8", ()),
            ("label smoothing", ("--label-smoothing", "0.1")),
            ("dual steps", ("--method", "dual", "--rtol", "1e-4")),
        ):
            colds = [_seconds(f"{folder}/{name}{i}", *SOLVE, STARTS[0], *more) for i in range(3)]
            yield against_jax(f"hadaflow solve, {name}, cold", min(colds))
            warm = _best(REPEATED, f"{folder}/{name}0", *SOLVE, STARTS[1], *more)
            yield against_jax(f"hadaflow solve, {name}, from the cache", warm, 1 / MOST)
    without = _best(3, "off", *SOLVE, STARTS[0])
    yield against_jax("hadaflow solve, K = 8, without a cache", without)
    yield against_jax("hadaflow --help", _best(REPEATED, "off", "-m", "hadaflow", "--help"))


def _best(count: int, cache: str, *arguments: str) -> float:
    _seconds(cache, *arguments)  # files are read once
    return min(_seconds(cache, *arguments) for _ in range(count))


def _seconds(cache: str, *arguments: str) -> float:
    surroundings = os.environ | {"HADAFLOW_CACHE": cache}
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], env=surroundings, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began
