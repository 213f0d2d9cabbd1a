"""What a run is drawn against: the axis on which most of what happens can be seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import xr

AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Axis:
    """What runs are drawn against: (time), or (run, time) where runs have clocks of their own."""

    label: str
    values: Callable[[xr.Dataset], np.ndarray]
    beside: bool = False  # has the start no place on it, and stands beside the rest?


def _log10_time(data: xr.Dataset) -> np.ndarray:
    """Time 0 is drawn a little before the first positive time."""
    values = data["log10_time"].values.astype(float).copy()
    zero = np.isneginf(values)
    later = np.where(zero, np.inf, values)
    first = np.min(later, axis=-1, keepdims=True)
    first = np.where(np.isfinite(first), first, 0.0)
    return np.where(zero, first - 0.5, values)


def _log10_log10_time(data: xr.Dataset) -> np.ndarray:
    """Times up to 1 have none and are left out."""
    return np.where(data["log10_time"].values > 0, data["log10_log10_time"].values, np.nan)


def _iterations(data: xr.Dataset) -> np.ndarray:
    return data["iteration"].values.astype(float)


AXES = {
    "log10_time": Axis(r"$\log_{{10}} t$ ({units} units)", _log10_time, beside=True),
    "log_norm": Axis(r"$\log\,\|a\|_1$", lambda data: data["log_norm"].values),
    "log10_log10_time": Axis(
        r"$\log_{{10}} \log_{{10}} t$ ({units} units, $t > 1$)", _log10_log10_time
    ),
    "time": Axis("$t$ ({units} units)", lambda data: 10.0 ** data["log10_time"].values),
    "path_length": Axis("path length ({units} units)", lambda data: data["path_length"].values),
    "log10_iteration": Axis(
        r"$\log_{{10}}$ iteration",
        lambda data: np.log10(np.maximum(_iterations(data), 0.5)),
        beside=True,
    ),
    "iteration": Axis("iteration", _iterations),
}
_OF_DESCENT, _OF_FLOW = (
    ("log10_iteration", "iteration"),
    ("log10_time", "log_norm", "log10_log10_time"),
)
_OF_TIME = ("log10_time", "log10_log10_time", "time")
_WINDOW, _CROWDED = (
    0.05,
    0.4,
)  # of an axis; share of the story within it from which another is tried
_LOST = 10.0  # what cannot be drawn weighs so many times what is crowded


def check_axis(name: str, run: xr.Dataset) -> str:
    """Refuse what is no axis of this run."""
    allowed = [AUTO, *_axes_of(run)]
    if name not in allowed:
        raise InputError(f"Argument `x` must be one of {', '.join(allowed)}, but is {shown(name)}.")
    return name


def _axes_of(run: xr.Dataset) -> list[str]:
    """The axes that a run has."""
    lacking = {"path_length"} - set(run.variables)
    lacking |= set() if "iteration" in run.coords else set(_OF_DESCENT)
    lacking |= set() if "log10_time" in run.coords else set(_OF_TIME)
    return [name for name in AXES if name not in lacking]


def telling(runs: dict[str, xr.Dataset], panels: Sequence[str]) -> str:
    """The axis that shows most of what happens: the first on which no narrow part holds much of it."""
    descent = all("iteration" in data.coords for data in runs.values())
    crowds = {}
    axes = [_axes_of(data) for data in runs.values()]
    for name in _OF_DESCENT if descent else _OF_FLOW:
        if not all(name in known for known in axes):
            continue
        crowds[name] = max(_crowding(data, AXES[name], panels) for data in runs.values())
        if crowds[name] < _CROWDED:
            return name
    return min(crowds, key=lambda name: crowds[name])


def _crowding(data: xr.Dataset, axis: Axis, panels: Sequence[str]) -> float:
    """The largest share of all change that lies within a small part of the axis.

    More where some of it is lost, which no axis should cost that can be read at all.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.atleast_2d(axis.values(data))[0]
    changed = _told(data.isel(run=0) if "run" in data.dims else data, panels)
    hidden = ~np.isfinite(x)
    if np.all(hidden) or np.any(np.diff(x[~hidden]) < 0):  # not an axis, as it turns back
        return np.inf
    first = int(np.argmin(hidden))
    lost, x, told = changed[first] - changed[0], x[~hidden], changed[~hidden]
    width = _WINDOW * (x[-1] - x[0])
    if width <= 0:
        return np.inf
    behind = told[np.searchsorted(x, x + width, side="right") - 1] - told
    return float(_LOST * lost + behind.max())


def _told(data: xr.Dataset, panels: Sequence[str]) -> np.ndarray:
    """How much of all that is drawn has changed by each saved point, from 0 to 1."""
    told = np.zeros(data.sizes["time"])
    for name in {"a_hat", *panels} - {"a"}:
        values = data[name].values.reshape(len(told), -1)
        steps = np.nan_to_num(np.abs(np.diff(values, axis=0)), posinf=0.0).sum(axis=1)
        if steps.sum() > 0:
            told[1:] += np.cumsum(steps) / steps.sum()
    return told / max(told[-1], 1e-300)
