"""What runs are answered with as JSON: all of them, or a summary without arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hadaflow.base.words import counted

if TYPE_CHECKING:
    from hadaflow.results.trajectory import Trajectory

    # Of the metrics asked for, by name; None where not even the states are to be looked at.
    Values = dict[str, np.ndarray] | None

_ZERO = "a singular value is zero"
_BEYOND = "it is beyond what a double can hold"
_WHY_INFINITE = {"kl": _ZERO, "log_ratio": _ZERO, "label_divergence": _ZERO}
_LEVELS = {
    "min": 0.0,
    "q05": 0.05,
    "q25": 0.25,
    "median": 0.5,
    "q75": 0.75,
    "q95": 0.95,
    "max": 1.0,
}
_CLOCKS = ("log10_time", "log10_log10_time", "path_length", "log_path_length")


def solve_document(run: Trajectory, values: Values) -> dict[str, Any]:
    """A run with its arrays; of a batch one entry for each run, with its seed."""
    arrays = _clocks(run, values)
    if values is not None:
        arrays["a_hat"] = run.a_hat
    if "angles" in run.arrays:
        arrays["angles"] = run.angles
    if is_batch(run):
        told: dict[str, Any] = {"counts": _counts(run), "runs": _runs(run, arrays, values)}
    else:
        told = {**arrays, **_told(values or {}, arrays)}
    reduced = run.view == "reduced"
    own = run.model.modes_of_view.multiplicity if reduced else [1] * (run.model.classes - 1)
    return _head(run) | told | {"diagnostics": _diagnostics(run), "multiplicity": own}


def train_document(run: Trajectory, values: Values) -> dict[str, Any]:
    """Descent: means and standard errors over the runs of the metrics."""
    from hadaflow.results.statistics import statistics_of

    of_runs = {name: np.atleast_2d(v) for name, v in (values or {}).items()}
    return (
        _head(run)
        | _trained(run, of_runs)
        | {
            "iterations": run.iterations,
            "log10_time": run.log10_time,
            "metrics": {name: statistics_of(v)._asdict() for name, v in of_runs.items()},
            "notes": _notes(of_runs),
        }
    )


def _trained(run: Trajectory, of_runs: dict[str, np.ndarray]) -> dict[str, Any]:
    """What descents say beside other runs: the optimizer, and when a target was met."""
    told = {
        "optimizer": run.settings.get("optimizer"),
        "reached_iteration": run.reached_iteration,
    }
    rates = run.settings.get("learning_rate")
    if not is_batch(run) or not isinstance(rates, list):
        return told
    batch: Any = run
    each = [
        {"learning_rate": rate, "status": status, "message": message}
        | {name: values[i] for name, values in of_runs.items()}
        for i, (rate, status, message) in enumerate(
            zip(rates, batch.statuses, batch.messages, strict=True)
        )
    ]
    return told | {"runs": each}


def race_document(race: Any) -> dict[str, Any]:
    """A race: for each optimizer steps to every level, KL at the end, and by how much it rises."""
    found = []
    for name, runner in race.runners.items():
        run = runner.run
        found.append(
            {"name": name, "optimizer": run.settings["optimizer"], "status": run.status,
             "message": run.message, "reached_iteration": run.reached_iteration,
             "steps_to": {f"{level:g}": at for level, at in runner.first.items()},
             "steps": run.steps, "kl": runner.kl, "kl_rise": runner.kl_rise,
             "kl_rises": runner.kl_rises}
        )  # fmt: skip
    first = next(iter(race.runs.values()))
    return {
        "classes": race.model.classes, "model": race.model.to_document(), "view": first.view,
        "units": first.units, "until": race.until, "steps": race.steps, "optimizers": found,
        "version": first.versions["hadaflow"],
    }  # fmt: skip


def summary_document(run: Trajectory, values: Values) -> dict[str, Any]:
    """Where a run ended; of a batch how many ended how, and quantiles of where."""
    clocks = {name: v for name, v in _clocks(run, values).items() if v is not None}
    if run.iterations is not None:
        clocks["iterations"] = run.iterations
    ends = {name: _end(v) for name, v in clocks.items()}
    metrics = {name: _end(v) for name, v in (values or {}).items()}
    last = {name: np.atleast_1d(v[..., -1]) for name, v in (values or {}).items()}
    counts = {"counts": _counts(run)} if is_batch(run) else {}
    told = {"end": {**ends, "metrics": metrics}, "notes": _notes(last, "runs")}
    settings = {name: _in_short(value) for name, value in run.settings.items()}
    single = {n: v for n, v in run.diagnostics.items() if isinstance(v, str | int | float)}
    trained = {} if run.iterations is None else _trained(run, {})
    return _head(run) | {"settings": settings} | counts | trained | told | {"diagnostics": single}


def _in_short(value: Any) -> Any:
    """A list by its ends."""
    if not isinstance(value, list) or not value:
        return value
    return {"count": len(value), "first": value[0], "last": value[-1]}


def is_batch(run: Trajectory) -> bool:
    """Are they several runs?"""
    from hadaflow.results.batch import Batch

    return isinstance(run, Batch)


def document_of(run: Trajectory, summary: bool) -> Callable[..., dict[str, Any]]:
    """How a saved run is told."""
    if summary:
        return summary_document
    return train_document if run.iterations is not None else solve_document


def _size(run: Trajectory) -> int:
    """Runs of a batch."""
    return len(next(iter(run.arrays.values())))


def _clocks(run: Trajectory, values: Values) -> dict[str, Any]:
    """The clocks, and the norm where states are looked at."""
    found = {name: getattr(run, name) for name in _CLOCKS}
    return found if values is None else found | {"log_norm": run.log_norm}


def _told(values: dict[str, np.ndarray], arrays: dict[str, Any]) -> dict[str, Any]:
    directions = {"a_hat": arrays["a_hat"]} if "a_hat" in arrays else {}
    clocks = {}
    if arrays["log10_time"] is not None and np.isneginf(arrays["log10_time"].flat[0]):
        clocks["log10_time"] = "−∞ (null) at the start, where t = 0"
        if arrays["log_path_length"] is not None:
            clocks["log_path_length"] = "−∞ (null) at the start, where the path is 0"
    early = int(np.sum(np.isnan(arrays["log10_log10_time"])))
    if early:
        clocks["log10_log10_time"] = f"undefined (null) at {counted(early, 'point')}, up to t = 1"
    return {"metrics": values, "notes": clocks | _notes({**values, **directions})}


def _end(values: np.ndarray) -> Any:
    """The last of the values, or quantiles of those of several runs."""
    last = values[..., -1]
    return _spread(last) if last.ndim else last


def _head(run: Trajectory) -> dict[str, Any]:
    """What every document of a run has."""
    return {
        "classes": run.model.classes,
        "model": run.model.to_document(),
        "view": run.view,
        "units": run.units,
        "status": run.status,
        "message": run.message,
        "steps": run.steps,
        "settings": run.settings,
        "version": run.versions["hadaflow"],
    }


def _diagnostics(run: Trajectory) -> dict[str, Any]:
    """Those of the whole; what is said of each run of a batch stands with it."""
    if not is_batch(run):
        return run.diagnostics
    return {n: v for n, v in run.diagnostics.items() if not isinstance(v, list)}


def _counts(run: Any) -> dict[str, int]:
    """How many runs of a batch ended how."""
    return dict(Counter(run.statuses).most_common())


def _runs(run: Any, arrays: dict[str, Any], values: Values) -> list[dict[str, Any]]:
    """Each run of a batch by itself: its number, its seed, how it ended, its arrays and metrics."""
    count, said = _size(run), run.diagnostics
    lists = {n: v for n, v in said.items() if isinstance(v, list) and len(v) == count}
    statuses, messages = run.statuses, run.messages
    lists = {n: v for n, v in lists.items() if n not in ("statuses", "messages")}
    seeds = _seeds(run)
    found = []
    for i in range(count):
        metrics = {name: v[i] for name, v in (values or {}).items()}
        own = {n: v if v is None or v.ndim < 2 else v[i] for n, v in arrays.items()}
        found.append(
            {"run": i, "seed": seeds[i], "status": statuses[i], "message": messages[i]}
            | own
            | _told(metrics, own)
            | {name: v[i] for name, v in lists.items()}
        )
    return found


def _seeds(run: Trajectory) -> list[int | None]:
    """What each run of a batch was drawn with."""
    seed, count = run.settings.get("seed"), _size(run)
    if isinstance(seed, list) and len(seed) == count:
        return seed
    if isinstance(seed, int) and run.settings.get("seeds") == count:
        return list(range(seed, seed + count))
    return [None] * count


def _spread(values: np.ndarray) -> dict[str, Any]:
    """Quantiles of the runs of a batch, interpolated between neighbours where both are finite."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return dict.fromkeys(_LEVELS)
    found = {}
    for name, level in _LEVELS.items():
        place = level * (len(known) - 1)
        low, high = known[int(place)], known[min(int(place) + 1, len(known) - 1)]
        share = place - int(place)
        found[name] = low if share == 0 or low == high else low + (high - low) * share
    return found


def _notes(values: dict[str, Any], kind: str = "points") -> dict[str, str]:
    """What is null, and why, for each of the named arrays that has such entries."""

    def where(which: Any) -> str:
        if kind == "points":
            return f"at {which.sum()} of {len(which)} points"
        return (
            "at the end" if len(which) == 1 else f"at the end of {which.sum()} of {len(which)} runs"
        )

    found = {}
    for name, array in values.items():
        points = array.shape[-1] if name != "a_hat" else array.shape[-2]
        flat = np.moveaxis(np.asarray(array), -1 if name != "a_hat" else -2, 0).reshape(points, -1)
        infinite, undefined = np.isinf(flat).any(axis=1), np.isnan(flat).any(axis=1)
        if infinite.any():
            why = _WHY_INFINITE.get(name, _BEYOND)
            found[name] = f"infinite (null) {where(infinite)}, where {why}"
        elif undefined.any():
            found[name] = (
                f"undefined (null) {where(undefined)}, where the logits have no direction or the "
                "metric no value"
            )
    return found
