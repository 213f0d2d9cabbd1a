"""What the commands print: strict JSON, readable text, and one line for what goes wrong."""

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

    Document = Callable[[Trajectory, dict[str, Any] | None], dict[str, Any]]

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


def finish(
    run: Trajectory, describe: Document, names: list[str], out: Path | None, as_json: bool
) -> None:
    """Save a run, say it with the metrics asked for, and exit with what its status means."""
    with held_back(firmly=False):  # what is saved is said
        trouble = try_to(run.save, out)
        values, document, short = _described(run, describe, names)
        if as_json:
            say(json.dumps(strict(document), allow_nan=False))
        elif short:
            say(f"hadaflow trajectory · {run.status}\n  {run.message}")
        else:
            say("\n".join([run.summary(), *_lines(run, values)]))
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


def _lines(run: Trajectory, values: dict[str, Any]) -> list[str]:
    """First and last value of each metric, of a batch from the least to the most, as KL above them."""
    from hadaflow.results.trajectory import in_range

    return [
        f"  {name:<11} {in_range(of_runs[..., 0], 6)} → {in_range(of_runs[..., -1], 6)}"
        for name, of_runs in values.items()
        if name != "kl"
    ]


def _described(
    run: Trajectory, describe: Document, names: list[str]
) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """The metrics and the document of a run, and whether an interruption has cut them short."""

    def described() -> tuple[dict[str, Any], dict[str, Any]]:
        values = {name: run.measure(name) for name in names}
        return values, describe(run, values)

    if not _long_to_measure(run):
        return *described(), False
    if asked():  # by what has ended the run already
        return {}, describe(run, None), True
    try:
        with let_through():
            return *described(), False
    except KeyboardInterrupt:
        return {}, describe(run, None), True


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
