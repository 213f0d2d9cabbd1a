"""Many starts at once: small ones side by side in lanes, the others one by one on every core."""

import dataclasses
import math
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from hadaflow.base.interruption import held_back
from hadaflow.base.precision import double_precision
from hadaflow.base.progress import Progress
from hadaflow.flow.choice import carry_out, choose
from hadaflow.flow.following import NORM_LIMIT, reduced_flow
from hadaflow.flow.kinds.flow import Course, SpectrumFlow
from hadaflow.flow.lanes import Ends, Fleet, beside, cores
from hadaflow.flow.methods import DUAL, TSIT5
from hadaflow.flow.methods.dual import EXPLICIT_CLASSES, LONG_WAY, PATIENCE, knows, log_norm_ahead
from hadaflow.model.clock import log10_from_u
from hadaflow.model.states import Spectrum, check_batch
from hadaflow.results.batch import Batch, said_of
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.outcomes import Ending
from hadaflow.runs.recording import add_angles, record_start, status_of
from hadaflow.runs.requests import AUTO, Request

_LOOKED_AT = 16  # runs of a batch that are asked what they take
_COMPILATION = 5.0  # seconds, roughly, of lanes
_MOST_STEPS = 5000  # in a lane, where the way is not foreseen; what takes more is looked at alone
_CLOCKS = ("log10_time", "log10_log10_time", "path_length", "log_path_length")


def sample(start: Spectrum) -> list[Spectrum]:
    """Some of the runs of a batch, from its first to its last."""
    some = np.unique(np.linspace(0, len(start.a) - 1, _LOOKED_AT).astype(int))
    return [start.row(i) for i in some]


def check_memory(chosen: Sequence[Request], start: Spectrum) -> float:
    """Bytes that a batch takes, some of whose requests are these; refused if there are not so many."""
    largest = max(chosen, key=lambda c: c.method is DUAL)
    return largest.method.memory(largest, start)


def compile_seconds(chosen: Sequence[Request], rows: Sequence[Spectrum], start: Spectrum) -> float:
    """Of a batch, some of whose requests and starts are these: of lanes, and of what goes alone."""
    fits = _fit_lanes(chosen[0], start)
    alone = 0.0 if fits.all() else max(map(_compile_seconds, chosen, rows))
    if not fits.any():
        return alone
    with double_precision():
        _, fleet = _fleet(chosen[0].by(TSIT5, "side by side"), start.row(np.flatnonzero(fits)))
        return alone + (0.0 if fleet.is_compiled(cores()) else _COMPILATION)


def _compile_seconds(request: Request, start: Spectrum) -> float:
    return request.method.compile_seconds(request, start)


def solve_batch(request: Request, start: Spectrum) -> Trajectory:
    """Every start of a batch, as it would be solved alone; runs are the first axis of the result."""
    check_batch(start)
    check_memory([choose(request, row) for row in sample(start)], start)
    quiet = dataclasses.replace(request, progress=None)
    with Progress(request.progress, "solve") as progress:
        fits = _fit_lanes(quiet, start)
        quick = np.flatnonzero(fits)
        for i in np.flatnonzero(~fits):  # what cannot be done is refused before anything is
            choose(quiet, start.row(i))
        parts, stopped = [], False
        if len(quick):
            part, stopped = _in_lanes(quiet, start.row(quick), quick, progress)
            parts.append(part)
        rest = np.setdiff1d(np.arange(len(start.a)), parts[0].index if parts else [])
        rows = [start.row(i) for i in rest]
        if stopped:  # an interruption leaves the long runs unbegun, too
            alone = [_unbegun(quiet, row) for row in rows]
        else:
            alone = _one_by_one(quiet, rows, progress)
    with held_back():
        parts += [_Part.of(i, run) for i, run in zip(rest, alone, strict=True)]
        return _together(quiet, parts, len(start.a), _foretold(alone))


# --- side by side ----------------------------------------------------------------------------------


def _fit_lanes(request: Request, start: Spectrum) -> np.ndarray:
    """Which runs of the batch are short explicit ones, of which only the end is wanted."""
    model, a, event = request.model, start.a, request.event
    forced = request.asked == TSIT5.name
    explicit = forced or (
        request.asked == AUTO and choose(request, start.row(0)).method in (TSIT5, DUAL)
    )
    short = request.points == 2 and request.log10_times is None
    if not (explicit and short and model.classes <= EXPLICIT_CLASSES):
        return np.zeros(len(a), dtype=bool)
    fits = np.all(a > 0, axis=1)
    if event is not None:
        fits &= ~event.reached_at_start(model.nontrivial(a), request.target_value)
        if event.foretold:
            return np.zeros(len(a), dtype=bool)
    if knows(model, start) and not forced:
        fits &= log_norm_ahead(request, a) <= LONG_WAY
    return fits


def _fleet(request: Request, start: Spectrum) -> tuple[SpectrumFlow, Fleet]:
    """The runs from all these starts, side by side."""
    model = request.model
    foreseen = knows(model, start)
    limit = PATIENCE if foreseen and not request.forced else NORM_LIMIT
    most = math.inf if foreseen else _MOST_STEPS
    flow = reduced_flow(model, start, beside)
    course = Course.towards(flow, request)

    def lost(flow: SpectrumFlow, lanes: Any) -> np.ndarray:
        norms = model.nontrivial(flow.values(lanes.y).a.T).sum(axis=-1)
        return (norms > limit) | (lanes.accepted + lanes.rejected > most)

    end = np.inf if request.end is None else request.end
    tolerance = TSIT5.local_tolerance(request)
    return flow, Fleet(course, len(start.a), TSIT5, tolerance, end, lost)


def _in_lanes(
    request: Request, start: Spectrum, index: np.ndarray, progress: Progress
) -> tuple["_Part", bool]:
    """The runs that ended in lanes, and whether somebody asked to stop.

    What stalls is left out: it is looked at alone.
    """
    count = len(index)
    request = request.by(TSIT5, "explicit: side by side", request.asked == TSIT5.name)
    flow, fleet = _fleet(request, start)
    ends = fleet.run(lambda n: progress.report(f"{n} of {count} runs", n / count), cores())
    sharp = TSIT5.sharpened(request, float(ends.sensitivity.max())) is None or np.array(
        [TSIT5.sharpened(request, s) is None for s in ends.sensitivity]
    )
    kept = np.flatnonzero(ends.ok & sharp | ~ends.ended)
    return _Part.of_lanes(request, start, flow, ends, index, kept), not np.all(ends.ended)


# --- one by one ------------------------------------------------------------------------------------


def _one_by_one(request: Request, rows: list[Spectrum], progress: Progress) -> list[Trajectory]:
    """Runs on every core; after Ctrl-C, those that have begun end where they are."""
    stopped = threading.Event()

    def look(*_: Any) -> None:
        # Ctrl-C is heard by the main thread alone; a run asks after every chunk.
        if stopped.is_set():
            raise KeyboardInterrupt

    watched = dataclasses.replace(request, progress=look)
    jobs: list[Future[Trajectory]] = []
    with ThreadPoolExecutor(cores()) as pool:
        try:
            for row in rows:
                jobs.append(pool.submit(lambda r: carry_out(choose(watched, r), r), row))
            pending = set(jobs)
            while pending:
                _, pending = wait(pending, timeout=0.2)
                done = len(jobs) - len(pending)
                progress.report(f"{done} of {len(jobs)} long runs", done / len(jobs))
        except KeyboardInterrupt:
            stopped.set()
            for job in jobs:
                job.cancel()
    ended = [None if _was_stopped(job) else job.result() for job in jobs]
    ended += [None] * (len(rows) - len(ended))
    return [
        _unbegun(request, row) if run is None else run for run, row in zip(ended, rows, strict=True)
    ]


def _was_stopped(job: Future[Trajectory]) -> bool:
    """Before it began, or where its progress was told while code was compiled."""
    return job.cancelled() or isinstance(job.exception(), KeyboardInterrupt)


def _unbegun(request: Request, row: Spectrum) -> Trajectory:
    request = choose(request, row)
    return record_start(request, row, *status_of(request, Ending.INTERRUPTED, 0.0))


# --- together --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Part:
    """Some runs of a batch, which are the first axis of all arrays; times are the second."""

    index: np.ndarray
    arrays: dict[str, np.ndarray]
    clocks: dict[str, np.ndarray]
    statuses: list[str]
    messages: list[str]
    steps: np.ndarray
    method: str

    @classmethod
    def of(cls, i: int, run: Trajectory) -> "_Part":
        return cls(
            np.array([i]), {n: v[None] for n, v in run.arrays.items()},
            {n: getattr(run, n)[None] for n in _CLOCKS}, [run.status], [run.message],
            np.array([run.steps]), run.diagnostics["method"],
        )  # fmt: skip

    @classmethod
    def of_lanes(
        cls, request: Request, start: Spectrum, flow: SpectrumFlow, ends: Ends, index: np.ndarray,
        kept: np.ndarray,
    ) -> "_Part":  # fmt: skip
        """Start and end of the runs that went in lanes; an interrupted one stays at its start."""
        ok = ends.ok[kept]
        values = flow.values(ends.y)

        def pair(first: np.ndarray, last: Any) -> np.ndarray:
            moved = np.moveaxis(last, -1, 0)[kept]
            stays = ok.reshape(-1, *(1,) * (moved.ndim - 1))
            return np.stack([first[kept], np.where(stays, moved, first[kept])], axis=1)

        arrays = {
            "log_a": np.log(pair(start.a, values.a)) + np.log(request.value_scale),
            "C": pair(start.C, np.moveaxis(start.C, 0, -1) if values.C is None else values.C)
            * request.difference_scale,
        }
        if values.angles is not None:
            add_angles(arrays, start, pair(start.phases, values.angles))
        with np.errstate(divide="ignore"):
            when = np.where(ok, log10_from_u(ends.u[kept]) - request.time_shift, -np.inf)
            log10_time = np.stack([np.full(len(kept), -np.inf), when], axis=1)
            path = np.where(ok, ends.y[0, kept], 0.0) * request.value_scale
            path = np.stack([np.zeros(len(kept)), path], axis=1)
            known = np.where(log10_time > 0, log10_time, np.nan)
            found = (log10_time, np.log10(known), path, np.log(path))
            clocks: dict[str, Any] = dict(zip(_CLOCKS, found, strict=True))
        ending = Ending.DONE if request.event is None else Ending.EVENT
        done = status_of(request, ending, "its end")[0]
        return cls(
            index[kept], arrays, clocks, [done if fine else "interrupted" for fine in ok],
            [""] * len(kept), ends.steps[kept], TSIT5.name,
        )  # fmt: skip


def _together(request: Request, parts: list[_Part], count: int, said: dict[str, Any]) -> Trajectory:
    """One trajectory of all runs; shorter ones repeat their last state."""
    length = max(part.clocks["log10_time"].shape[1] for part in parts)
    # Runs without angles, where others have them, are real: their angles are zero.
    shapes = {n: v.shape[2:] for part in parts for n, v in sorted(part.arrays.items())}
    arrays = {n: np.zeros((count, length, *shape)) for n, shape in shapes.items()}
    clocks: dict[str, Any] = {n: np.zeros((count, length)) for n in _CLOCKS}
    statuses, messages, methods = [""] * count, [""] * count, Counter()
    steps = np.zeros(count, dtype=int)
    for part in parts:
        for n, values in part.arrays.items():
            arrays[n][part.index] = _lengthened(values, length)
        for n, values in part.clocks.items():
            clocks[n][part.index] = _lengthened(values, length)
        for i, status, message in zip(part.index, part.statuses, part.messages, strict=True):
            statuses[i], messages[i] = status, message
        methods[part.method] += len(part.index)
        steps[part.index] = part.steps
    status, message = said_of(statuses, request.settings)
    return Batch(
        model=request.model,
        view="reduced",
        arrays=arrays,
        **clocks,
        status=status,
        message=message,
        units=request.units,
        steps=int(steps.sum()),
        settings=request.settings,
        diagnostics={
            "method": next(iter(methods)) if len(methods) == 1 else "mixed",
            "methods": dict(methods),
            "statuses": statuses,
            "messages": messages,
            "steps": steps.tolist(),
        }
        | said,
    )


def _lengthened(values: np.ndarray, length: int) -> np.ndarray:
    """Runs whose last state is repeated."""
    missing = length - values.shape[1]
    return values if not missing else np.concatenate([values, *[values[:, -1:]] * missing], axis=1)


def _foretold(runs: list[Trajectory]) -> dict[str, Any]:
    """What runs to `PredictedCollapse` say beside their ends, one entry for each."""
    said = {name for run in runs for name in run.diagnostics}
    names = sorted(n for n in said if n.startswith("predicted") or n == "jump")
    return {n: [run.diagnostics.get(n) for run in runs] for n in names}
