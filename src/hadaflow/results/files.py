"""Files of trajectories: written whole, and read only if what they say can be a run of this library."""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, reason_of, shown, visible
from hadaflow.base.files import as_path, read_file, write_atomically
from hadaflow.base.lazy import xr
from hadaflow.model.fitting import check_reduced_view, check_width, fitting_angles
from hadaflow.model.layers import layer_axes
from hadaflow.model.losses import Own
from hadaflow.model.states import RAW, SCALED, Spectrum
from hadaflow.model.ufm import UFM

SCHEMA = "hadaflow-trajectory-1"
STATUSES = (
    "reached", "collapsed", "predicted", "steady", "never-collapses", "failed", "interrupted", "mixed",
)  # fmt: skip
_MOST_BYTES = 2**36
_BEGINNINGS = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_EARLIEST = -1e3  # log10 of a time; no run asks for one before 1e-300
CLOCKS = ("log10_time", "path_length", "log10_log10_time", "log_path_length")
# What stands beside the arrays, and of which type.
RECORD: dict[str, type] = {
    "model": dict, "view": str, "status": str, "message": str, "units": str, "steps": int,
    "settings": dict, "diagnostics": dict, "versions": dict,
}  # fmt: skip


class _Unfit(Exception):
    """What a file says cannot be a run; the text completes the sentence "its …"."""


def write_run(
    path: str | os.PathLike[str], record: dict[str, Any], arrays: dict[str, np.ndarray]
) -> None:
    """Record and arrays of a run as a NetCDF file with a checksum."""
    dataset = xr.Dataset({n: ([f"{n}_{i}" for i in range(v.ndim)], v) for n, v in arrays.items()})
    text = json.dumps(record, allow_nan=False)
    dataset.attrs = {"schema": SCHEMA, "record": text, "sha256": _checksum(text, arrays)}
    write_atomically(as_path(path), lambda tmp: dataset.to_netcdf(tmp, engine="scipy"))


def read_run(path: str | os.PathLike[str], loss: Any = None) -> dict[str, Any]:
    """The arguments of the `Trajectory` in a file; `loss`, where it was made with one's own."""
    name = shown(str(as_path(path)), 200)
    content = io.BytesIO(read_file("a run", path, _MOST_BYTES, _BEGINNINGS))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reader warns of what the checksum will refuse
            with xr.open_dataset(content, engine="scipy", decode_cf=False) as dataset:
                dataset = dataset.load()
    except Exception as error:  # whatever the reader meets in a foreign or damaged file
        raise InputError(
            f"Cannot read {name}: not a hadaflow file, or damaged ({type(error).__name__})."
        ) from error
    try:
        return _from_dataset(dataset, loss)
    except _Unfit as error:
        raise InputError(f"Cannot read {name}: {error}.") from None
    except Exception as error:  # a record of the right sum that no writer of ours has written
        raise InputError(
            f"Cannot read {name}: its contents cannot be a run ({reason_of(error)})."
        ) from None


def _from_dataset(dataset: xr.Dataset, loss: Any) -> dict[str, Any]:
    schema = dataset.attrs.get("schema")
    if schema is None:
        raise _Unfit("not a hadaflow file: it names no schema")
    if schema != SCHEMA:
        raise _Unfit(f"its schema is {shown(schema)}, but this version reads {SCHEMA!r}")
    # NetCDF 3 is big-endian; back to the machine's own order.
    arrays = {str(n): v.values.astype(np.float64) for n, v in dataset.variables.items()}
    text = str(dataset.attrs.get("record"))
    if _checksum(text, arrays) != dataset.attrs.get("sha256"):
        raise _Unfit("its contents do not match its checksum")
    record = _checked_record(_without_escapes(json.loads(text)), loss)
    clocks = {name: arrays.pop(name, None) for name in CLOCKS}
    iterations = arrays.pop("iterations", None)
    _check_arrays(record["model"], record["view"], arrays)
    full = record["view"] == "full"
    points = next(iter(arrays.values())).shape[:-2] if full else arrays["log_a"].shape[:-1]
    _check_clocks(clocks, iterations, points)
    _check_statuses(record["status"], record["diagnostics"].get("statuses"), points)
    whole = None if iterations is None else iterations.astype(int)
    return {**record, "arrays": arrays, **clocks, "iterations": whole}


def _without_escapes(value: Any) -> Any:
    """Text from a file as a terminal may show it."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_without_escapes(v) for v in value]
    if isinstance(value, dict):
        return {visible(k): _without_escapes(v) for k, v in value.items()}
    return value


def _checked_record(record: Any, loss: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or set(record) != set(RECORD):
        raise _Unfit("its record does not have the entries of a run")
    for name, kind in RECORD.items():
        if type(record[name]) is not kind:
            raise _Unfit(f"its `{name}` is {shown(record[name])}")
    allowed = {"view": ("reduced", "full"), "status": STATUSES, "units": (SCALED, RAW)}
    for name, values in allowed.items():
        if record[name] not in values:
            raise _Unfit(f"its `{name}` is {shown(record[name])}, none of {', '.join(values)}")
    if record["steps"] < 0:
        raise _Unfit(f"its `steps` is {shown(record['steps'])}")
    versions, statuses = record["versions"], record["diagnostics"].get("statuses", [])
    if "hadaflow" not in versions or not all(isinstance(v, str) for v in versions.values()):
        raise _Unfit("its `versions` are not those of the packages that made it")
    if not isinstance(statuses, list) or not all(s in STATUSES for s in statuses):
        raise _Unfit("its `diagnostics` hold statuses that no run has")
    named = str(record["model"].get("loss"))
    own = named.startswith(f"{Own.name}:")
    if own is (loss is None):
        raise _Unfit(
            f"its loss is {shown(named)}, "
            + (
                "one of its maker's own: give it as `loss`"
                if own
                else "so that none is to be given"
            )
        )
    try:
        model = UFM(**(record["model"] | ({"loss": loss} if own else {})))
    except (InputError, TypeError) as error:
        raise _Unfit(f"its model cannot be used ({reason_of(error)})") from None
    if own and not isinstance(model.loss_kind, Own):
        raise _Unfit(f"its loss is {shown(named)}, a function, but the one given is {model.loss}")
    return {**record, "model": model}


def _check_arrays(model: UFM, view: str, arrays: dict[str, np.ndarray]) -> None:
    """States of the model, all of them there, of one number of points and of values that can be."""
    if view == "full":
        wanted = dict(zip(model.factor_names, model.factor_shapes, strict=True))
    else:
        check_reduced_view(model)
        modes = (model.modes,)
        layers = (model.depth - 1,) if layer_axes(model.depth) == 2 else ()
        wanted = {"log_a": modes, "C": (*layers, *modes)}
        if "angles" in arrays or model.modes_of_view.turns:
            wanted["angles"] = (model.modes_of_view.angles + model.has_constant_mode,)
    if set(arrays) != set(wanted):
        listed = ", ".join(sorted(arrays)) or "none"
        raise _Unfit(f"its arrays must be {', '.join(wanted)}, but are {shown(listed)}")
    points = {values.shape[: values.ndim - len(wanted[n])] for n, values in arrays.items()}
    shapes = all(v.shape[v.ndim - len(wanted[n]) :] == wanted[n] for n, v in arrays.items())
    if not shapes or len(points) != 1 or len(leading := points.pop()) not in (1, 2) or 0 in leading:
        raise _Unfit("the shapes of its arrays do not fit its model")
    for name, values in arrays.items():
        good = np.isfinite(values)
        if name == "log_a":  # the log of zero
            good |= values == -np.inf
        if not np.all(good):
            raise _Unfit(f"its array `{name}` holds {shown(float(values[~good].flat[0]))}")
    if view == "reduced":
        a = np.exp(np.minimum(arrays["log_a"], 0.0))
        check_width(model, a, arrays["C"])
        try:
            fitting_angles(model, Spectrum(a, arrays["C"], angles=arrays.get("angles")))
        except InputError:
            raise _Unfit("its angles are none that its model can have") from None


def _check_statuses(status: str, statuses: Any, points: tuple[int, ...]) -> None:
    """One status for every run of a batch, if any are listed, and a batch where they are mixed."""
    runs = points[0] if len(points) == 2 else None
    if (statuses is not None and len(statuses) != runs) or (status == "mixed" and statuses is None):
        raise _Unfit("its statuses are not as many as its runs")


def _check_clocks(
    clocks: dict[str, Any], iterations: np.ndarray | None, points: tuple[int, ...]
) -> None:
    """Times from zero on that do not fall; clocks of the same shape; iterations that are counted."""
    times = clocks["log10_time"]
    _check_iterations(iterations, points)
    if times is None:
        if iterations is None:
            raise _Unfit("its array `log10_time` is missing")
        if any(values is not None for values in clocks.values()):
            raise _Unfit("its clocks are not those of a run without a time")
        return
    if times.shape not in (points, points[-1:]):
        raise _Unfit("its times are not as many as its states")
    for name in CLOCKS[1:]:
        if clocks[name] is not None and clocks[name].shape != times.shape:
            raise _Unfit(f"its array `{name}` is not as long as its times")
    if not np.all(times[..., 0] == -np.inf):
        raise _Unfit("its first time is not zero")
    later = times[..., 1:]
    if np.any(later < _EARLIEST) and not (
        times.ndim == 2 and np.all(np.isneginf(later[later < _EARLIEST]))
    ):
        raise _Unfit("its times after the first are zero, or too early for any run")
    double = clocks["log10_log10_time"]
    if double is not None and not np.all(np.isfinite(double[times > 0])):
        raise _Unfit("its array `log10_log10_time` holds no number where it should")
    for name in ("log10_time", "path_length", "log_path_length"):
        values = clocks[name]
        if values is not None and (np.any(np.isnan(values)) or not _rises(values)):
            raise _Unfit(f"its array `{name}` falls, or holds no number")
    path = clocks["path_length"]
    if path is not None and np.any(path < 0):
        raise _Unfit("its array `path_length` is negative")


def _check_iterations(iterations: np.ndarray | None, points: tuple[int, ...]) -> None:
    """Counted from zero on; runs of a batch that stop for themselves repeat their last one."""
    if iterations is None:
        return
    counted = np.all(np.isfinite(iterations)) and np.all(iterations == np.floor(iterations))
    fits = iterations.shape in (points, points[-1:])
    if not fits or not counted or np.any(iterations[..., 0] != 0):
        raise _Unfit("its iterations are not counted from zero")
    steps = np.diff(iterations)
    stopped = iterations.ndim > 1 and np.all(steps >= 0) and np.all(steps.max(axis=0) > 0)
    if (np.any(steps <= 0) and not stopped) or np.any(iterations[..., -1] > 2**53):
        raise _Unfit("its iterations do not rise")


def _rises(values: np.ndarray) -> bool:
    """Do the values never fall? Runs of a batch repeat their last one."""
    before, after = values[..., :-1], values[..., 1:]
    slack = 1e-12 * np.where(np.isfinite(after), np.abs(after), 0.0)  # of a clock's last digits
    return bool(np.all(after >= before - slack))


def _checksum(text: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name], dtype="<f8")
        digest.update(f"{name}{values.shape}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
