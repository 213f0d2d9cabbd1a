"""What the commands print: JSON documents and their readable forms."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hadaflow.base.errors import InputError, printable, visible
from hadaflow.base.interruption import asked, exit_code, held_back, let_through

if TYPE_CHECKING:
    from hadaflow.results.trajectory import Trajectory

    Document = Callable[[Trajectory, list[str]], dict[str, Any]]

_PATIENCE = 3e8  # multiplications of one product of all states, a second or two of decompositions


def strict(value: Any) -> Any:
    """NaN and infinities as null, NumPy as Python, text in UTF-8: what strict JSON can say."""
    if isinstance(value, dict):
        return {k: strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    if hasattr(value, "tolist"):
        return strict(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):  # names of files may hold bytes that are no text
        return value.encode("utf-8", "backslashreplace").decode()
    return value


_ZERO = "a singular value is zero"
_BEYOND = "it is beyond what a double can hold"
_WHY_INFINITE = {"kl": _ZERO, "log_ratio": _ZERO, "label_divergence": _ZERO}


def _notes(values: dict[str, Any]) -> dict[str, str]:
    """What is null, and why, for each of the named arrays that has such entries."""
    import numpy as np

    found = {}
    for name, array in values.items():
        points = array.shape[-1] if name != "a_hat" else array.shape[-2]
        flat = np.moveaxis(np.asarray(array), -1 if name != "a_hat" else -2, 0).reshape(points, -1)
        infinite, undefined = np.isinf(flat).any(axis=1), np.isnan(flat).any(axis=1)
        if infinite.any():
            why = _WHY_INFINITE.get(name, _BEYOND)
            found[name] = f"infinite (null) at {infinite.sum()} of {points} points, where {why}"
        elif undefined.any():
            found[name] = (
                f"undefined (null) at {undefined.sum()} of {points} points, where the logits have no "
                "direction or the metric no value"
            )
    return found


def solve_document(run: Trajectory, names: list[str]) -> dict[str, Any]:
    metrics = {name: run.measure(name) for name in names}
    return {
        "classes": run.model.classes,
        "units": run.units,
        "status": run.status,
        "message": run.message,
        "log10_time": run.log10_time,
        "log10_log10_time": run.log10_log10_time,
        "log_norm": run.log_norm,
        "path_length": run.path_length,
        "log_path_length": run.log_path_length,
        "a_hat": run.a_hat,
        "metrics": metrics,
        "notes": _notes({**metrics, "a_hat": run.a_hat}),
        "steps": run.steps,
        "settings": run.settings,
        "diagnostics": run.diagnostics,
        "version": run.versions["hadaflow"],
        "multiplicity": run.model.modes_of_view.multiplicity
        if run.view == "reduced"
        else [1] * run.a_hat.shape[-1],
    } | ({"angles": run.angles} if "angles" in run.arrays else {})


def train_document(run: Trajectory, names: list[str]) -> dict[str, Any]:
    import numpy as np

    from hadaflow.results.statistics import statistics_of

    values = {name: np.atleast_2d(run.measure(name)) for name in names}
    return {
        "classes": run.model.classes,
        "units": run.units,
        "status": run.status,
        "message": run.message,
        "iterations": run.iterations,
        "log10_time": run.log10_time,
        "metrics": {name: statistics_of(v)._asdict() for name, v in values.items()},
        "notes": _notes(values),
        "steps": run.steps,
        "settings": run.settings,
        "version": run.versions["hadaflow"],
    }


def finish(
    run: Trajectory, describe: Document, names: list[str], out: Path | None, as_json: bool
) -> None:
    """Save a run, say it with the metrics asked for, and exit with what its status means."""
    with held_back(firmly=False):  # what is saved is said
        trouble = try_to(run.save, out)
        document, short = _described(run, describe, names)
        if as_json:
            say(json.dumps(strict(document), allow_nan=False))
        elif short:
            say(f"hadaflow trajectory · {run.status}\n  {run.message}")
        else:
            say(run.summary())
            for name, values in document["metrics"].items():
                shown = values["mean"] if isinstance(values, dict) else values
                say(f"  {name:<11} {shown[0]:.6g} → {shown[-1]:.6g}")
        if trouble is not None:
            raise trouble
        if out is not None and not as_json:
            say(f"wrote {out}")
    if short and names:
        complain("interrupted; the metrics of so large a model are left to `hadaflow show`")
    statuses = {run.status, *run.diagnostics.get("statuses", [])}
    if "interrupted" in statuses or asked():
        raise typer.Exit(exit_code())
    if "failed" in statuses:
        raise typer.Exit(1)


def _described(
    run: Trajectory, describe: Document, names: list[str]
) -> tuple[dict[str, Any], bool]:
    """The document of a run, and whether an interruption has cut it short."""
    if not _long_to_measure(run):
        return describe(run, names), False
    if asked():  # by what has ended the run already
        return describe(run, []), True
    try:
        with let_through():
            return describe(run, names), False
    except KeyboardInterrupt:
        return describe(run, []), True


def try_to(write: Callable[[Path], Any], path: Path | None) -> InputError | None:
    """Write a file before anything is said, whatever signal comes; nothing where no path is given.

    Returns what prevents it, to be raised when the answer has been said.
    """
    if path is None:
        return None
    try:
        with held_back():
            write(path)
    except InputError as error:
        return error
    return None


def _long_to_measure(run: Trajectory) -> bool:
    """Would metrics take many seconds? Those of matrices rest on singular value decompositions."""
    states = next(iter(run.arrays.values())).shape[:-2]
    return run.view == "full" and math.prod(states) * run.model.classes**3 > _PATIENCE


# --- standard streams ----------------------------------------------------------------------------


def say(text: str) -> None:
    """A line on standard output, at once; text from files is shown, never obeyed."""
    try:
        print(visible(text), flush=True)
    except BrokenPipeError:  # nobody reads on
        raise
    except OSError as error:
        raise InputError(f"Cannot write to standard output: {error.strerror}.") from error


def complain(text: str, most: int = 1000) -> None:
    """One line on standard error, if anybody listens."""
    with contextlib.suppress(OSError):
        print(f"hadaflow: {printable(text, most)}", file=sys.stderr, flush=True)


def drop_output() -> None:
    """What could not be written to standard output is not tried again when the process ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def replace_closed_streams() -> None:
    """Streams that the caller has closed lead nowhere; the next file opened must not take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))


# --- claims --------------------------------------------------------------------------------------


def claim_lines(record: dict[str, Any]) -> list[str]:
    """One claim for the reader: status and name, statement, numbers, correction."""
    lines = [
        f"{record['status']:<15} {record['id']}  ({record['where']})",
        f"    {record['statement']}",
    ]
    lines.append(f"    method: {record['method']}")
    lines.append(f"    found: {brief(record['value'])}")
    if record["paper_value"] is not None:
        lines.append(f"    paper: {brief(record['paper_value'])}")
    if record["enclosure"] is not None:
        lines.append(f"    enclosure: {brief(record['enclosure'])}")
    if record["correction"] is not None:
        lines.append(f"    correction: {record['correction']}")
    return lines


def brief(value: Any) -> str:
    """Numbers to four digits, lists and tables on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {brief(v)}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(brief(v) for v in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
