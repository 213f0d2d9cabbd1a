"""`reproduce`: every figure as PNG, PDF and data, in parallel, resumable, with a report page."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from hadaflow.base.errors import InputError, shown
from hadaflow.base.files import Drafts, locked, remove_stale
from hadaflow.base.workers import group, run_all
from hadaflow.paper.figures import FIGURES, PaperFigure
from hadaflow.paper.report import write_report
from hadaflow.paper.settings import Settings
from hadaflow.results.trajectory import package_versions

SUFFIXES = ("png", "pdf", "nc", "csv")


def check_names(names: list[str] | None) -> list[str]:
    """The figures asked for, all of them if none is named."""
    for name in names or []:
        if name not in FIGURES:
            raise InputError(f"Unknown figure {shown(name)}; allowed are {', '.join(FIGURES)}.")
    return list(dict.fromkeys(names or FIGURES))


def reproduce(
    names: list[str] | None,
    folder: Path,
    settings: Settings,
    *,
    fresh: bool = False,
    workers: int = 2,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Draw the figures into `folder` and write its report; returns one record per figure.

    A figure that is there already with the same settings is kept unless `fresh`. Every file is
    written whole or not at all, and a figure counts as done only when its record, the last of its
    files, is there: whatever ends a run, the next one continues. Several runs may write to one folder.
    """
    names = check_names(names)
    for name in names:
        FIGURES[name].validate(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write to {shown(str(folder))}: {error.strerror}.") from error
    kept = {} if fresh else {n: finished(n, folder, settings) for n in names}
    records = {n: r for n, r in kept.items() if r is not None}
    missing = [n for n in names if n not in records]
    missing.sort(key=lambda n: -FIGURES[n].weight)
    try:
        if missing:
            run_all(
                group(missing, lambda n: FIGURES[n].shares), make, (folder, settings),
                workers=workers, progress=progress, finished=records.__setitem__,
                cost=lambda n: FIGURES[n].weight,
            )  # fmt: skip
    finally:
        remove_stale(folder)  # what processes that were killed, ours included, left half-written
    done = [records[n] for n in names]
    write_report(folder, done)
    return done


def finished(name: str, folder: Path, settings: Settings) -> dict[str, Any] | None:
    """The record of a figure made with these settings whose files are all as they were written."""
    path = folder / f"{name}.json"
    try:
        record = json.loads(path.read_text())
        files = record["files"]
        same = record["settings"] == settings.record() and record["version"] == _version()
        if not same or set(files) != {f"{name}.{s}" for s in SUFFIXES}:
            return None
        if any(_digest(folder / file) != digest for file, digest in files.items()):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record


def failed_checks(record: dict[str, Any]) -> list[str]:
    """What a figure's numbers should say and do not, each with the number."""
    checks = record["checks"]
    return [f"{c['statement']} ({c['value']:.6g})" for c in checks if not c["holds"]]


def _version() -> str:
    return package_versions()["hadaflow"]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- one figure ----------------------------------------------------------------------------------


def make(name: str, folder: Path, settings: Settings, report: Any) -> dict[str, Any]:
    """Compute one figure and write its files, the record last; returns the record."""
    figure, began = FIGURES[name], time.perf_counter()
    data = figure.compute(settings, report)
    data.attrs = {**settings.plain(), **data.attrs}
    picture = figure.draw(data, figure.title)
    writers = {
        "png": lambda tmp: picture.savefig(tmp, dpi=150, format="png"),
        "pdf": lambda tmp: picture.savefig(tmp, format="pdf"),
        "nc": lambda tmp: data.to_netcdf(tmp, engine="scipy"),
        "csv": lambda tmp: _drawn(data).to_csv(tmp, index=False),
    }
    paths = {s: folder / f"{name}.{s}" for s in SUFFIXES}
    with Drafts() as drafts:
        digests = {p.name: _digest(drafts.write(p, writers[s])) for s, p in paths.items()}
        record = _record(figure, settings, data, time.perf_counter() - began, digests)
        text = json.dumps(record, indent=1)
        drafts.write(folder / f"{name}.json", lambda tmp: Path(tmp).write_text(text))
        with locked(folder):  # another run may be making the same figure
            drafts.publish()
    return record


def _record(
    figure: PaperFigure, settings: Settings, data: xr.Dataset, seconds: float, files: dict[str, str]
) -> dict[str, Any]:
    return {
        "name": figure.name,
        "where": figure.where,
        "title": figure.title,
        "settings": settings.record(),
        "version": _version(),
        "versions": package_versions(),
        "seconds": seconds,
        "checks": [
            {"statement": c.statement, "value": float(c.value), "holds": bool(c.holds)}
            for c in figure.check(data)
        ],
        "files": files,
    }


def _drawn(data: xr.Dataset) -> Any:
    """What is drawn, as one tidy table: variable, coordinates, value and standard error."""
    import pandas as pd

    tables = []
    for name, values in data.data_vars.items():
        error = None
        if "run" in values.dims:
            runs = values.sizes["run"]
            error = values.std("run", ddof=min(1, runs - 1)) / np.sqrt(runs)
            values = values.mean("run")
        table = values.to_dataframe(name="value").reset_index()
        if error is not None:
            table["standard_error"] = error.to_dataframe(name="e").reset_index()["e"]
        table.insert(0, "variable", str(name))
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
