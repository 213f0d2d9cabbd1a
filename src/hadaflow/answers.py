"""What the commands print: JSON documents and their readable forms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hadaflow.errors import visible

if TYPE_CHECKING:
    from hadaflow.trajectory import Trajectory


def strict(value: Any) -> Any:
    """NaN and infinities as null, NumPy as Python: what strict JSON can say."""
    if isinstance(value, dict):
        return {k: strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    if hasattr(value, "tolist"):
        return strict(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def solve_document(run: Trajectory, names: list[str]) -> dict[str, Any]:
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
        "metrics": {name: run.measure(name) for name in names},
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

    values = {name: np.atleast_2d(run.measure(name)) for name in names}

    def error(v: Any) -> Any:
        if len(v) < 2:
            return [None] * v.shape[1]
        with np.errstate(invalid="ignore"):  # an infinite value has no error, and becomes null
            return v.std(axis=0, ddof=1) / math.sqrt(len(v))

    return {
        "classes": run.model.classes,
        "units": run.units,
        "status": run.status,
        "message": run.message,
        "iterations": run.iterations,
        "log10_time": run.log10_time,
        "metrics": {
            n: {"mean": v.mean(axis=0), "standard_error": error(v)} for n, v in values.items()
        },
        "steps": run.steps,
        "settings": run.settings,
        "version": run.versions["hadaflow"],
    }


def finish(run: Trajectory, document: dict[str, Any], out: Path | None, as_json: bool) -> None:
    if out is not None:
        run.save(out)
    if as_json:
        say(json.dumps(strict(document), allow_nan=False))
    else:
        say(run.summary())
        for name, values in document["metrics"].items():
            shown = values["mean"] if isinstance(values, dict) else values
            say(f"  {name:<11} {shown[0]:.6g} → {shown[-1]:.6g}")
        if out is not None:
            say(f"wrote {out}")
    if run.status == "interrupted":
        raise typer.Exit(130)


def say(text: str) -> None:
    """A line on standard output, at once; text from files is shown, never obeyed."""
    print(visible(text), flush=True)


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
