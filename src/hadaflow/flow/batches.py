"""Many starts at once: small ones side by side in lanes, the others one by one on every core."""

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from hadaflow.base.progress import Progress
from hadaflow.flow.lanes import Ends, LaneFlow, cores, run_lanes
from hadaflow.flow.marching import NORM_LIMIT, PATIENCE, local_tolerance
from hadaflow.flow.orbit_runs import EXPLICIT_CLASSES, LONG_WAY, choose, log_norm_ahead, supports
from hadaflow.model.states import Spectrum, check_batch
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.methods import AUTO_METHOD
from hadaflow.runs.outcomes import Ending
from hadaflow.runs.recording import deviation, status_of
from hadaflow.runs.requests import Request, log10_from_u
from hadaflow.runs.targets import Collapse, Norm, PathLength, PredictedCollapse, Time

Alone = Callable[[Request, Spectrum], Trajectory]


def solve_batch(request: Request, start: Spectrum, alone: Alone) -> Trajectory:
    """Every start of a batch, as `alone` would solve it; runs are the first axis of the result."""
    check_batch(start)
    quiet = dataclasses.replace(request, progress=None)
    with Progress(request.progress, "solve") as progress:
        quick = np.flatnonzero(_fit_lanes(quiet, start))
        lanes, stopped = None, False
        if len(quick):
            lanes = _in_lanes(quiet, start.a[quick], progress)
            stopped = not np.all(lanes.ended)
            settled = lanes.ok | ~lanes.ended  # what stalls is looked at alone
            quick, lanes = quick[settled], Ends(*(x[settled] for x in lanes))
        rest = np.setdiff1d(np.arange(len(start.a)), quick)
        if stopped:  # an interruption leaves the long runs unbegun, too
            alone_runs = [_unbegun(quiet, start.row(i)) for i in rest]
        else:
            alone_runs = _one_by_one(quiet, start, rest, alone, progress)
    return _together(quiet, start, quick, lanes, rest, alone_runs)


def _fit_lanes(request: Request, start: Spectrum) -> np.ndarray:
    """Which runs of the batch are short explicit ones, of which only the end is wanted."""
    model, a, event = request.model, start.a, request.event
    asked = request.choice.forced
    if (
        request.method != AUTO_METHOD
        or not supports(model, start)
        or model.temperature != 1
        or model.classes > EXPLICIT_CLASSES
        or request.points != 2
        or request.log10_times is not None
        or isinstance(event, PredictedCollapse)
    ):
        return np.zeros(len(a), dtype=bool)
    fits = np.all(a > 0, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        if isinstance(event, Collapse):
            fits &= deviation(model.nontrivial(a)) > event.tolerance
        if isinstance(event, Norm):
            fits &= model.nontrivial(a).sum(axis=1) < request.target_value
    return fits if asked else fits & (log_norm_ahead(request, a) <= LONG_WAY)


def _in_lanes(request: Request, a: np.ndarray, progress: Progress) -> Ends:
    goals = request.goals
    target: Any = Time if goals is not None else type(request.event)
    assert target in (Time, Collapse, Norm, PathLength)
    value = request.target_value if goals is None else float(goals[-1])
    limit = NORM_LIMIT if request.choice.forced else PATIENCE
    return run_lanes(
        LaneFlow(request.model.basis, target), a, local_tolerance(request), value, limit,
        lambda n: progress.report(f"{n} of {len(a)} runs", n / len(a)), cores(),
    )  # fmt: skip


def _one_by_one(
    request: Request, start: Spectrum, index: np.ndarray, alone: Alone, progress: Progress
) -> list[Trajectory]:
    """Runs on every core; after Ctrl-C, those that have begun end where they are."""
    rows = [start.row(i) for i in index]
    stopped = threading.Event()

    def look(*_: Any) -> None:
        # Ctrl-C is heard by the main thread alone; a run asks after every chunk.
        if stopped.is_set():
            raise KeyboardInterrupt

    watched = dataclasses.replace(request, progress=look)
    with ThreadPoolExecutor(cores()) as pool:
        jobs = [pool.submit(lambda r: alone(choose(watched, r), r), row) for row in rows]
        try:
            pending = set(jobs)
            while pending:
                _, pending = wait(pending, timeout=0.2)
                done = len(jobs) - len(pending)
                progress.report(f"{done} of {len(jobs)} long runs", done / len(jobs))
        except KeyboardInterrupt:
            stopped.set()
            for job in jobs:
                job.cancel()
    return [
        _unbegun(request, row) if job.cancelled() else job.result()
        for job, row in zip(jobs, rows, strict=True)
    ]


def _unbegun(request: Request, row: Spectrum) -> Trajectory:
    status, message = status_of(request, Ending.INTERRUPTED, 0.0)
    with np.errstate(divide="ignore"):
        log_a = (np.log(row.a) + np.log(request.value_scale))[None]
    arrays = {"log_a": log_a, "C": row.C[None] * request.difference_scale}
    if row.angles is not None:
        arrays["angles"] = row.angles[None]
    return Trajectory(
        model=request.model, view="reduced", arrays=arrays,
        log10_time=np.array([-np.inf]), path_length=np.zeros(1), status=status, message=message,
        units=request.units, settings=request.settings,
        diagnostics={"method": request.choice.method, "reason": request.choice.reason},
    )  # fmt: skip


def _together(
    request: Request, start: Spectrum, quick: np.ndarray, lanes: Ends | None, rest: np.ndarray,
    alone: list[Trajectory],
) -> Trajectory:  # fmt: skip
    """One trajectory of all runs; shorter ones repeat their last state."""
    count, length = len(start.a), max([2 if len(quick) else 1, *map(len, alone)])
    # Runs without angles, where others have them, are real: their angles are zero.
    shapes = {n: v.shape[1:] for run in alone for n, v in sorted(run.arrays.items())}
    shapes = shapes or {n: start.a.shape[1:] for n in ("C", "log_a")}
    arrays = {n: np.zeros((count, length, *shape)) for n, shape in shapes.items()}
    clocks = {n: np.zeros((count, length)) for n in _CLOCKS}
    statuses, messages, steps = [""] * count, [""] * count, 0
    methods = Counter(run.diagnostics["method"] for run in alone)
    for i, run in zip(rest, alone, strict=True):
        for n, values in run.arrays.items():
            _fill(arrays[n][i], values)
        for n in _CLOCKS:
            _fill(clocks[n][i], getattr(run, n))
        statuses[i], messages[i], steps = run.status, run.message, steps + run.steps
    if lanes is not None and len(quick):
        ended = Trajectory(**_lane_arrays(request, start.a[quick], lanes, length))  # pyright: ignore
        arrays["log_a"][quick] = ended.log_a
        for n in _CLOCKS:
            clocks[n][quick] = getattr(ended, n)
        ending = Ending.DONE if request.event is None else Ending.EVENT
        done = status_of(request, ending, "its end")[0]
        for i, ok in zip(quick, lanes.ok, strict=True):
            statuses[i] = done if ok else "interrupted"
        steps += int(lanes.accepted.sum() + lanes.rejected.sum())
        methods[request.method] += len(quick)
    kinds = Counter(statuses).most_common()
    return Trajectory(
        model=request.model,
        view="reduced",
        arrays=arrays,
        log10_time=clocks["log10_time"],
        log10_log10_time=clocks["log10_log10_time"],
        path_length=clocks["path_length"],
        log_path_length=clocks["log_path_length"],
        status=kinds[0][0] if len(kinds) == 1 else "mixed",
        message=f"{count} runs: " + ", ".join(f"{n} {status}" for status, n in kinds) + ".",
        units=request.units,
        steps=steps,
        settings=request.settings,
        diagnostics={
            "method": next(iter(methods)) if len(methods) == 1 else "mixed",
            "methods": dict(methods),
            "statuses": statuses,
            "messages": messages,
        }
        | _foretold(alone),
    )


def _foretold(runs: list[Trajectory]) -> dict[str, Any]:
    """What runs to `PredictedCollapse` say beside their ends, one entry for each."""
    said = {name for run in runs for name in run.diagnostics}
    names = sorted(n for n in said if n.startswith("predicted") or n == "jump")
    return {n: [run.diagnostics.get(n) for run in runs] for n in names}


_CLOCKS = ("log10_time", "log10_log10_time", "path_length", "log_path_length")


def _fill(rows: np.ndarray, values: np.ndarray) -> None:
    rows[: len(values)] = values
    rows[len(values) :] = values[-1]


def _lane_arrays(request: Request, a: np.ndarray, ends: Ends, length: int) -> dict[str, Any]:
    """States and clocks of the runs that went in lanes; an interrupted one stays at its start."""
    shape = (len(a), length)
    first = np.log(a) + np.log(request.value_scale)
    last = np.where(ends.ok[:, None], ends.log_a + np.log(request.value_scale), first)
    log_a = np.repeat(last[:, None], length, axis=1)
    log_a[:, 0] = first
    log10_time, path = np.full(shape, -np.inf), np.zeros(shape)
    with np.errstate(divide="ignore"):
        when = np.where(ends.ok, log10_from_u(ends.u) - request.time_shift, -np.inf)
    log10_time[:, 1:] = when[:, None]
    path[:, 1:] = np.where(ends.ok, ends.path, 0.0)[:, None] * request.value_scale
    return {
        "model": request.model, "view": "reduced", "arrays": {"log_a": log_a},
        "log10_time": log10_time, "path_length": path, "status": "", "message": "",
    }  # fmt: skip
