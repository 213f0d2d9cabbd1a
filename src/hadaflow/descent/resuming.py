"""`resume(run)`: a run that was interrupted, or has failed, from where it was."""

import math
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, shown
from hadaflow.base.progress import Report, check_progress
from hadaflow.descent.descend import descend
from hadaflow.flow.solver import solve
from hadaflow.results.batch import Batch, made_of, said_of
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.targets import PathLength, Time, parse_target

_LN10 = math.log(10.0)
_UNFINISHED = ("interrupted", "failed")
_CLOCKS = ("log10_time", "path_length", "log10_log10_time", "log_path_length")


def resume(run: Trajectory, progress: str | Report | None = "auto") -> Trajectory:
    """Go on with a run that did not come to its end, from its last state, as it was asked for.

    Of a batch the runs that did not. A run that has ended is returned as it is. Saved points of the two
    parts stand one after the other. To follow one further than it was asked to go, start `solve` from
    its `state(-1)`.
    """
    if not isinstance(run, Trajectory):
        raise InputError(f"Argument `run` must be a trajectory, but is {shown(run)}.")
    check_progress(progress)
    if isinstance(run, Batch):
        return _batch(run, progress)
    if run.status not in _UNFINISHED:
        return run
    if run.iterations is not None:
        return _descent(run, progress)
    rest = _rest(run)
    if rest is None:
        return run
    state = run.state(-1)
    onwards = solve(
        run.model, state, units=run.units, rtol=run.settings["rtol"], method=_method(run),
        points=run.settings["points"], progress=progress, **run.steepest, **rest,
    )  # fmt: skip
    return _joined(run, onwards)


def _method(run: Trajectory) -> str:
    """The method, if it was asked for by name."""
    return run.settings["method"] if run.diagnostics.get("reason") == "asked for" else "auto"


def _rest(run: Trajectory) -> dict[str, Any] | None:
    """What is left of what was asked for, on clocks that begin at the last state; None if nothing is."""
    spelled, asked = run.settings["until"], run.settings["log10_times"]
    now = float(run.log10_time[-1])
    until = None if spelled is None else parse_target(spelled)
    if isinstance(until, Time):
        if until.log10_time <= now:
            return None
        until = Time(log10=_since(until.log10_time, now))
    elif isinstance(until, PathLength):
        left = until.value - float(run.path_length[-1])  # pyright: ignore[reportOptionalSubscript]
        until = PathLength(left) if left > 0 else None
    times = None if asked is None else [_since(t, now) for t in asked if t > now]
    if until is None and not times:
        return None
    return {"until": until, "log10_times": times or None}


def _since(log10_time: float, now: float) -> float:
    """log10 of the time from log10 t = `now` on."""
    if math.isinf(now):
        return log10_time
    return log10_time + math.log1p(-math.exp((now - log10_time) * _LN10)) / _LN10


def _joined(first: Trajectory, second: Trajectory) -> Trajectory:
    """One trajectory of two, the second from the last state of the first on."""
    now = float(first.log10_time[-1])
    later = {name: getattr(second, name)[1:] for name in _CLOCKS}
    late = np.isposinf(later["log10_time"])  # where a sum of two times is the later one
    if math.isfinite(now):
        summed = np.logaddexp(later["log10_time"] * _LN10, now * _LN10) / _LN10
        asked = np.array(first.settings["log10_times"] or [np.inf])
        near = asked[np.abs(asked[:, None] - summed).argmin(axis=0)]
        same = np.abs(near - summed) < 1e-9 * (1 + np.abs(summed))
        later["log10_time"] = np.where(same, near, summed)
    before = first.path_length[-1]  # pyright: ignore[reportOptionalSubscript]
    later["path_length"] = later["path_length"] + before
    with np.errstate(divide="ignore", invalid="ignore"):
        known = np.where(later["log10_time"] > 0, later["log10_time"], np.nan)
        later["log10_log10_time"] = np.where(late, later["log10_log10_time"], np.log10(known))
        later["log_path_length"] = np.where(
            np.isfinite(later["path_length"]),
            np.log(later["path_length"]),
            later["log_path_length"],
        )
    # Early on a sum of two times is the first of them, to the last digit: those points are left out.
    times = np.concatenate([[now], later["log10_time"]])
    new = late | (times[1:] > np.maximum.accumulate(times)[:-1])
    clocks = {n: np.concatenate([getattr(first, n), later[n][new]]) for n in _CLOCKS}
    return made_of(
        model=first.model, view=first.view, **clocks, arrays=_states(first, second, new),
        units=first.units, status=second.status, message=_told(first, second),
        steps=first.steps + second.steps, settings=first.settings,
        diagnostics=second.diagnostics | {"resumed_at": now if math.isfinite(now) else None},
    )  # fmt: skip


def _told(first: Trajectory, second: Trajectory) -> str:
    """How the second part ended; its times are those since the first one's end, so they are left out."""
    last = f"log10 t = {_total(first, second):.8g}"
    return f"Resumed, and {second.status} at {last}."


def _total(first: Trajectory, second: Trajectory) -> float:
    now, more = float(first.log10_time[-1]), float(second.log10_time[-1])
    return float(np.logaddexp(now * _LN10, more * _LN10) / _LN10) if math.isfinite(now) else more


def _states(first: Trajectory, second: Trajectory, new: np.ndarray) -> dict[str, np.ndarray]:
    """States one after the other; angles that only one part has are zero in the other."""
    names = {**first.arrays, **second.arrays}
    found = {}
    for name in names:
        one, other = (
            run.arrays.get(name, np.zeros((run.points, *names[name].shape[1:])))
            for run in (first, second)
        )
        found[name] = np.concatenate([one, other[1:][new]])
    return found


def _batch(batch: Batch, progress: str | Report | None) -> Trajectory:
    """The runs of a batch that are not at their ends, and the others as they are."""
    if batch.iterations is not None:
        return _descent(batch, progress) if batch.status in _UNFINISHED else batch
    runs = [resume(run, progress) for run in batch]
    return together(runs, batch)


def together(runs: list[Trajectory], like: Batch) -> Trajectory:
    """One batch of all runs; shorter ones repeat their last state."""
    length = max(run.points for run in runs)

    def lengthened(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.repeat(values[-1:], length - len(values), axis=0)])

    arrays = {n: np.stack([lengthened(r.arrays[n]) for r in runs]) for n in runs[0].arrays}
    clocks = {n: np.stack([lengthened(getattr(r, n)) for r in runs]) for n in _CLOCKS}
    statuses = [run.status for run in runs]
    status, message = said_of(statuses, like.settings)
    said = {"statuses": statuses, "messages": [run.message for run in runs]}
    return made_of(
        model=like.model, view=like.view, arrays=arrays, **clocks, units=like.units, status=status,
        message=message, steps=sum(run.steps for run in runs), settings=like.settings,
        diagnostics=like.diagnostics | said,
    )  # fmt: skip


def _descent(run: Trajectory, progress: str | Report | None) -> Trajectory:
    """The iterations that are left. Momentum has a memory that a trajectory does not hold."""
    asked, done = run.settings, run.iterations
    assert done is not None
    if done.ndim > 1:
        raise InputError(
            "A batch of descents that stop for themselves cannot be resumed as one: resume its runs."
        )
    if run.status == "failed" or done[-1] >= asked["steps"]:
        return run
    if run.log10_time is None:
        raise InputError(
            f"A descent by {asked['optimizer']} cannot be resumed from its states alone, as what the "
            "optimizer remembers is not among them: run it again."
        )
    if asked["momentum"]:
        raise InputError(
            "A descent with `momentum` cannot be resumed from its states alone: run it again."
        )
    onwards = descend(
        run.model, run.state(-1), asked["steps"] - int(done[-1]), learning_rate=asked["learning_rate"],
        until=asked.get("until"), points=asked["points"], units=run.units, progress=progress,
    )  # fmt: skip
    axis = int(isinstance(run, Batch))
    last = (slice(None),) * axis + (slice(1, None),)
    arrays = {
        n: np.concatenate([v, onwards.arrays[n][last]], axis=axis) for n, v in run.arrays.items()
    }
    iterations = np.concatenate([done, done[-1] + onwards.iterations[1:]])  # pyright: ignore
    with np.errstate(divide="ignore"):
        log10_time = np.log10(iterations * asked["learning_rate"])
    if run.units != "raw":
        log10_time = log10_time + math.log10(run.model.time_scale)
    return made_of(
        model=run.model, view=run.view, arrays=arrays, log10_time=log10_time, iterations=iterations,
        status=onwards.status, message=f"Resumed; {int(iterations[-1])} iterations done.",
        units=run.units, steps=int(iterations[-1]), settings=asked,
        diagnostics=onwards.diagnostics | _reached(onwards, int(done[-1])),
    )  # fmt: skip


def _reached(onwards: Trajectory, before: int) -> dict[str, Any]:
    """Where it went on, and the iteration that met its target, counted from the first start on."""
    at = onwards.reached_iteration
    met = {} if at is None else {"reached_iteration": before + at}
    return met | {"resumed_at": before}
