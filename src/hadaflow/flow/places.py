"""Where a metric of a run turns or crosses a value, found by following the run again between points."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hadaflow.base.checks import as_number
from hadaflow.base.errors import InputError
from hadaflow.base.notebooks import shown_in_notebook
from hadaflow.flow.solver import solve
from hadaflow.results.trajectory import Trajectory

_PARTS = 31  # of an interval, each time it is looked at more closely
_LOOKS = 4
_FIRST = -3.0  # log10 of the share of the first interval, from time 0 on, that is looked at first
_ROUNDING = 1e-11  # of a metric's range: turns of less are rounding


class Place(NamedTuple):
    """Where a metric of a run turns, or crosses a value."""

    kind: str  # "maximum" or "minimum"; "rises" or "falls" through a value
    value: float
    log10_time: float | None  # None of a descent without a time
    log_norm: float
    iteration: int | None = None  # of a descent

    def __str__(self) -> str:
        if self.log10_time is None:
            when = f"iteration {self.iteration}"
        else:
            when = "t = 0" if self.log10_time == -math.inf else f"log10 t = {self.log10_time:.6g}"
        verb = f"{self.kind} through" if self.kind in ("rises", "falls") else self.kind
        return f"{verb} {self.value:.6g} at {when}, log‖a‖₁ = {self.log_norm:.6g}"

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)


def extremes(run: Trajectory, metric: Any) -> list[Place]:
    """Maxima and minima of `metric` between the ends of one run, in order of time.

    Where its exact rate changes sign between two saved points the run is followed again, closer and
    closer. Of a descent: among the iterations that were kept.
    """
    _check_one(run)
    values = run.measure(metric)
    if run.iterations is not None:
        return _turns(run, values)
    signs = np.sign(run.rate(metric, flow="normalized"))
    found = []
    for i in np.flatnonzero(signs[:-1] * signs[1:] < 0):
        state = _located(run, int(i), lambda r: r.rate(metric, flow="normalized"))
        kind = "maximum" if signs[i] > 0 else "minimum"
        found.append(_place(run, kind, state, metric))
    return _without_rounding(found, values)


def crossings(run: Trajectory, metric: Any, value: float) -> list[Place]:
    """Where `metric` of one run passes `value`, in order of time; of a descent the first point beyond."""
    _check_one(run)
    level = as_number("value", value)
    if not math.isfinite(level):
        raise InputError(f"Argument `value` must be a finite number, but is {level}.")
    values = run.measure(metric)
    above = values > level
    found = []
    for i in np.flatnonzero(above[:-1] != above[1:]):
        kind = "rises" if above[i + 1] else "falls"
        if run.iterations is not None:
            found.append(_saved(run, kind, values, int(i) + 1))
            continue
        state = _located(run, int(i), lambda r: r.measure(metric) - level)
        found.append(_place(run, kind, state, metric))
    return found


def _check_one(run: Trajectory) -> None:
    if run.log_a.ndim != 2:
        raise InputError("Places are those of one run, but this is a batch: take one of its runs.")


def _located(run: Trajectory, i: int, watched: Callable[[Trajectory], np.ndarray]) -> Trajectory:
    """A run to the place between points i and i + 1 where the sign of something changes.

    Each look goes once more from the last point before it, so that nothing is interpolated.
    """
    begin, end = float(run.log10_time[i]), float(run.log10_time[i + 1])
    state, where = run.state(i), begin
    piece = run
    for look in range(_LOOKS):
        low = where if math.isfinite(where) else end + _FIRST - (look > 0)
        times = np.linspace(low, end, _PARTS + 1)[int(math.isfinite(where)) :]
        piece = _onwards(run, state, where, times)
        signs = np.sign(watched(piece))
        changes = np.flatnonzero(signs[:-1] * signs[1:] <= 0)
        if not len(changes):  # rounding of the step there
            break
        j = int(changes[0])
        end = float(times[j])
        if j > 0:
            state, where = piece.state(j), float(times[j - 1])
    return piece if len(piece) < 2 else _onwards(run, state, where, np.array([end]))


def _onwards(run: Trajectory, state: Any, where: float, times: np.ndarray) -> Trajectory:
    """The run from a state that it has at log10 time `where`, kept at later times."""
    later = times.copy()
    if math.isfinite(where):
        with np.errstate(divide="ignore"):
            later = times + np.log1p(-np.exp((where - times) * math.log(10.0))) / math.log(10.0)
    rtol = run.settings.get("rtol", 1e-8)
    found = solve(
        run.model, state, log10_times=later, units=run.units, rtol=rtol, progress=None, **run.steepest
    )  # fmt: skip
    found.log10_time[1:] = times[: len(found) - 1]
    return found


def _place(run: Trajectory, kind: str, state: Trajectory, metric: Any) -> Place:
    value, norm = state.measure(metric)[-1], state.log_norm[-1]
    return Place(kind, float(value), float(state.log10_time[-1]), float(norm))


def _saved(run: Trajectory, kind: str, values: np.ndarray, i: int) -> Place:
    time = None if run.log10_time is None else float(run.log10_time[i])
    assert run.iterations is not None
    return Place(kind, float(values[i]), time, float(run.log_norm[i]), int(run.iterations[i]))


def _turns(run: Trajectory, values: np.ndarray) -> list[Place]:
    """Maxima and minima among the saved points."""
    found = []
    for i, (before, now, after) in enumerate(
        zip(values[:-2], values[1:-1], values[2:], strict=True), 1
    ):
        if (now - before) * (after - now) < 0:
            found.append(_saved(run, "maximum" if now > before else "minimum", values, i))
    return _without_rounding(found, values)


def _without_rounding(found: list[Place], values: np.ndarray) -> list[Place]:
    """Without pairs of turns between which nothing but rounding happens, the smallest pair first."""
    finite = values[np.isfinite(values)]
    least = _ROUNDING * float(np.ptp(finite)) if len(finite) else 0.0
    kept = list(found)
    while len(kept) > 1:
        rises = [abs(b.value - a.value) for a, b in itertools.pairwise(kept)]
        smallest = int(np.argmin(rises))
        if rises[smallest] > least:
            break
        del kept[smallest : smallest + 2]
    return [p for p in kept if min(abs(p.value - values[0]), abs(p.value - values[-1])) > least]
