"""The result of a run: states, clocks, what was asked, and how far to trust it."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import textwrap
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from hadaflow.base.checks import check_whole_number
from hadaflow.base.errors import InputError
from hadaflow.base.lazy import xr
from hadaflow.base.notebooks import shown_in_notebook
from hadaflow.base.words import counted
from hadaflow.metrics import measures as metrics
from hadaflow.model.geometries import make_geometry
from hadaflow.model.layers import layer_axes
from hadaflow.model.starts import log_singular_values
from hadaflow.model.states import RAW, Parameters, Spectrum
from hadaflow.model.ufm import UFM
from hadaflow.results import plotting
from hadaflow.results.axes import AUTO, check_axis
from hadaflow.results.files import CLOCKS, RECORD, write_run
from hadaflow.results.statistics import Statistics, statistics_of
from hadaflow.saddles.itineraries import Visit, between_points, check_scope, itinerary

if TYPE_CHECKING:
    from hadaflow.flow.places import Place

# Metrics that are not functions of the direction, where ‖a‖ has no number.
_LARGEST_LOG = 700.0
# Of a picture, and of a table or a comparison, if nothing is said: those of them that a run has.
PANELS, TABLED = ("a", "a_hat", "kl", "l2"), ("kl", "l2")
_AT_INFINITY = {"margin": np.inf, "log_energy": -np.inf, "log_loss": -np.inf}


@functools.cache
def package_versions() -> dict[str, str]:
    """Versions of everything that computes, for the record."""
    names = ("hadaflow", "jax", "jaxlib", "diffrax", "optax", "numpy", "scipy")
    return {"python": platform.python_version()} | {n: _version(n) for n in names}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # run from its sources, without being installed
        return "not installed"


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """What one simulation produced; metrics, plots and reports read only this.

    Arrays are in `units`. `arrays` holds the states, time first and after any batch axis of runs:
    `log_a` and `C` for the reduced view, the parameter matrices for the full view.
    """

    model: UFM
    view: str
    arrays: dict[str, np.ndarray]
    log10_time: Any  # None of a descent by iterations alone, whose steps have no time
    status: str
    message: str
    units: str = "scaled"
    path_length: np.ndarray | None = None
    # Left out they follow from the two above; given where those overflow.
    log10_log10_time: Any = None
    log_path_length: Any = None
    iterations: np.ndarray | None = None
    steps: int = 0
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    diagnostics: dict[str, Any] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=package_versions)

    def __post_init__(self) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.log10_log10_time is None and self.log10_time is not None:
                known = np.where(self.log10_time > 0, self.log10_time, np.nan)
                object.__setattr__(self, "log10_log10_time", np.log10(known))
            if self.log_path_length is None and self.path_length is not None:
                object.__setattr__(self, "log_path_length", np.log(self.path_length))

    # --- clocks and states -----------------------------------------------------------------------

    def __len__(self) -> int:
        return self.points

    @property
    def points(self) -> int:
        """Number of saved points, the start included."""
        behind = 2 if self.view == "full" else 1
        name = self.model.factor_names[0] if self.view == "full" else "log_a"
        return self.arrays[name].shape[-1 - behind]

    @property
    def reached_iteration(self) -> Any:
        """The first iteration of a descent that met its target, or None; of a batch a list."""
        return self.diagnostics.get("reached_iteration")

    @property
    def steepest(self) -> dict[str, Any]:
        """The geometry of steepest descent and its decay; nothing for gradient flow."""
        return {n: self.settings[n] for n in ("geometry", "decay") if "geometry" in self.settings}

    @property
    def time(self) -> Any:
        """Time itself; infinite where it exceeds 1e308, so prefer `log10_time`. None where that is."""
        if self.log10_time is None:
            return None
        with np.errstate(over="ignore"):
            return np.power(10.0, self.log10_time)

    @functools.cached_property
    def log_a(self) -> np.ndarray:
        """Natural log of the logit singular values, (…, times, modes)."""
        if self.view == "reduced":
            return self.arrays["log_a"]
        scale = 1.0 if self.units == RAW else self.model.singular_value_scale
        return log_singular_values(self.model, self.parameters, self._shown_values) - np.log(scale)

    @property
    def a(self) -> np.ndarray:
        """Logit singular values: by mode in the reduced view, descending in the full view.

        Infinite beyond 1e308: prefer `log_a`, or `a_hat` and `log_norm`.
        """
        with np.errstate(over="ignore"):
            return np.exp(self.log_a)

    @property
    def C(self) -> np.ndarray:
        r"""Differences $\alpha^2 - \beta^2$ of the reduced view, conserved unless penalties act.

        At depth $N\ge3$ with one more axis, for the layers 2 to $N$, before the modes.
        """
        return self._reduced("C")

    @property
    def angles(self) -> np.ndarray:
        """Phases of the modes of a circulant start, or the angle between two blocks of classes."""
        if "angles" not in self.arrays:
            raise InputError("This trajectory has no angles: its modes are real.")
        return self.arrays["angles"]

    @property
    def a_hat(self) -> np.ndarray:
        """Non-trivial singular values divided by their sum; NaN where all are zero."""
        with np.errstate(invalid="ignore"):
            return np.exp(self._log_nontrivial - self.log_norm[..., None])

    @property
    def log_norm(self) -> np.ndarray:
        r"""Natural log of $\|a\|_1$ over the non-trivial modes, each as often as its multiplicity."""
        logs = self._log_nontrivial
        if self.view == "reduced":
            logs = self.model.modes_of_view.expand(logs)
        largest = np.max(logs, axis=-1, keepdims=True)
        largest = np.where(np.isfinite(largest), largest, 0.0)
        with np.errstate(divide="ignore"):
            return np.log(np.sum(np.exp(logs - largest), axis=-1)) + largest[..., 0]

    @property
    def parameters(self) -> Parameters:
        """All states of a full view as one batch of parameter matrices."""
        if self.view != "full":
            raise InputError("This trajectory is a reduced one: `lift` its states for matrices.")
        factors = tuple(self.arrays[name] for name in self.model.factor_names)
        return Parameters(factors, units=self.units)

    def state(self, index: int) -> Spectrum | Parameters:
        """The state at one saved point, ready to start another run from."""
        index = check_whole_number("index", index, -self.points, self.points - 1)
        if self.view == "full":
            factors = tuple(f[..., index, :, :] for f in self.parameters.factors)
            return Parameters(factors, units=self.units)
        layers = (slice(None),) * layer_axes(self.model.depth)
        angles = self.arrays.get("angles")
        turned = None if angles is None else angles[..., index, :]
        largest = self.model.largest_value
        if not np.all(self.a[..., index, :] <= largest):
            raise InputError(
                f"Saved point {index} lies at log‖a‖₁ = {in_range(self.log_norm[..., index])}, with "
                f"singular values beyond {largest:.3g}: no run can start from there."
            )
        return Spectrum(self.a[..., index, :], self.C[(..., index, *layers)], self.units, turned)

    @property
    def _log_nontrivial(self) -> np.ndarray:
        if self.view == "full":
            return self.log_a[..., : self.model.classes - 1]
        return self.log_a[..., -self.model.modes_of_view.modes :]

    @property
    def _shown_values(self) -> int:
        """Singular values of a full state that are kept: K − 1, or all for MSE."""
        return self.model.classes - (not self.model.has_constant_mode)

    def _reduced(self, name: str) -> np.ndarray:
        if self.view != "reduced":
            raise InputError(
                f"`{name}` belongs to the reduced view; `project` a full state for it."
            )
        return self.arrays[name]

    # --- readings --------------------------------------------------------------------------------

    def measure(self, metric: metrics.Metric) -> np.ndarray:
        r"""`metric` (a name or your own function) at every saved point.

        Where $\|a\|$ itself is beyond 1e308, the metrics of the direction are exact, margins infinite,
        and the rest is what it tends to; your own function sees infinities.
        """
        values = metrics.measure(metric, self.model, self._states(metric), units=self.units)
        if metric in _AT_INFINITY:
            return np.where(self.log_norm > _LARGEST_LOG, _AT_INFINITY[str(metric)], values)
        return values

    def statistics(self, metric: metrics.Metric) -> Statistics:
        """Mean of `metric` over the runs of a batch, and its standard error, at every saved point.

        Of runs with times of their own: at their ends, as `quantiles`.
        """
        values = np.atleast_2d(self.measure(metric))
        return statistics_of(values[:, -1:] if self.own_clocks else values)

    def rate(self, metric: metrics.Metric, flow: str = "gradient") -> np.ndarray:
        """Exact derivative of `metric` along the flow at every saved point."""
        return metrics.rate(
            metric, self.model, self._states(), flow=flow, units=self.units, **self.steepest
        )

    def extremes(self, metric: metrics.Metric) -> list[Place]:
        """Maxima and minima of `metric` between the ends, located by following the run again.

        Of a descent: among the iterations that were kept.
        """
        from hadaflow.flow import places

        return places.extremes(self, metric)

    def crossings(self, metric: metrics.Metric, value: float) -> list[Place]:
        """Where `metric` passes `value`, located likewise."""
        from hadaflow.flow import places

        return places.crossings(self, metric, value)

    def itinerary(self, tolerance: float = 0.05) -> list[Visit]:
        """The saddles the run lingers near: within `tolerance` of the limit on a support, in order.

        The distance is total variation of the direction. Times between saved points are interpolated:
        more `points` make them sharper. For one reduced run whose layers are balanced, of up to 64 free
        modes, that tends to collapse.
        """
        check_scope(self.model)
        if self.log10_time is None:
            raise InputError(
                "An itinerary is one in time, but this trajectory has iterations alone: follow the flow "
                "with `solve`, or plain descent."
            )
        if self.steepest:
            raise InputError(
                f"An itinerary is one of gradient flow, but this is a run in the {self._flow_in_words()}."
            )
        if self.view != "reduced" or self.log_a.ndim != 2:
            kind = "a batch" if self.view == "reduced" else "of the full view"
            raise InputError(f"An itinerary needs one reduced run, but this trajectory is {kind}.")
        if np.any(self.C) or "angles" in self.arrays:
            raise InputError(
                "An itinerary needs balanced layers (`C` = 0) and modes without phases: in other runs "
                "modes do not stay zero, or turn."
            )
        raw = self.units == RAW
        log_a = self.log_a - (np.log(self.model.singular_value_scale) if raw else 0.0)
        shift = np.log10(self.model.time_scale) if raw else 0.0
        log_a, times = between_points(self.model, log_a, self.log10_time + shift)
        norm = np.logaddexp.reduce(self.model.nontrivial(log_a), axis=-1)
        return itinerary(
            self.model.basis, np.exp(log_a - norm[:, None]), times - shift, tolerance
        )  # fmt: skip

    def _states(self, metric: metrics.Metric = "") -> Spectrum | Parameters:
        if self.view == "full":
            return self.parameters
        a = np.exp(self._bounded_log_a) if isinstance(metric, str) else self.a
        return Spectrum(a, self.C, self.units, self.arrays.get("angles"))

    @property
    def _bounded_log_a(self) -> np.ndarray:
        """`log_a` of the same direction, where ‖a‖ itself is too large for a double."""
        beyond = np.maximum(self.log_norm - _LARGEST_LOG, 0.0)
        return self.log_a - beyond[..., None] if np.any(beyond) else self.log_a

    def __repr__(self) -> str:
        points = counted(self.points, "point")
        return f"<{type(self).__name__} {self.status}: {points}, {self.model.describe(short=True)}>"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return shown_in_notebook(self, self.plot)

    def summary(self) -> str:
        """A readable account of the run."""
        m = self.model
        runs = f", {counted(self.log_a.shape[0], 'run')}" if self.log_a.ndim == 3 else ""
        lines = [
            f"hadaflow trajectory · {self.status}",
            f"  {self.message}",
            f"  model       {m.describe()}, {self.view} view{runs}",
            f"  points      {self.points} from t = 0, {counted(self.steps, 'step')}{self._how()}",
        ]
        if start := self._start_in_words():
            lines.insert(3, f"  start       {start}")
        if self.steepest:
            lines.insert(3, f"  flow        {self._flow_in_words()}")
        if self.view == "reduced" and m.modes_of_view.paired:
            lines.insert(3, f"  basis       {m.modes_of_view.describe()}")
        if self.iterations is not None:
            counts = in_range(self.iterations[..., -1])
            lines.append(f"  iterations  {counts}, {self._steps_in_words()}")
        lines.append(self._end_in_words())
        start, end = self.a_hat[..., 0, :], self.a_hat[..., -1, :]
        lines.append(
            f"  â           {in_range(start)} at the start, {in_range(end)} at the end"
            + ("" if m.imbalance else f" (collapse: {1 / (m.classes - 1):.6g})")
        )
        kl = self.measure("kl")
        why = " (infinite where a singular value is zero)" if np.any(np.isinf(kl)) else ""
        lines.append(f"  KL          {in_range(kl[..., 0])} → {in_range(kl[..., -1])}{why}")
        return "\n".join(lines)

    def _how(self) -> str:
        """By which method, and how accurately."""
        method, rtol = self.diagnostics.get("method"), self.settings.get("rtol")
        if method is None or rtol is None or (self.steps == 0 and self.points <= 1):
            return ""  # nothing was to be done
        return f" ({method}, rtol {rtol:g})"

    def _steps_in_words(self) -> str:
        """The numbers of a descent, or its optimizer and, in the reduced view, on which matrices."""
        if self.log10_time is None:
            circulant = self.settings.get("rotation") == "circulant" and self.view == "reduced"
            return f"{self.settings.get('optimizer')}{' on circulant matrices' * circulant}"
        names = {"learning_rate": "learning rate", "momentum": "momentum"}
        given = {name: self.settings.get(name) for name in names}
        return ", ".join(
            f"{names[name]} {value:g}" if isinstance(value, float) else f"{names[name]} {value}"
            for name, value in given.items()
            if value
        )

    def _flow_in_words(self) -> str:
        """The geometry of steepest descent; nothing for gradient flow."""
        return str(make_geometry(*self.steepest.values())) if self.steepest else ""

    def _start_in_words(self) -> str:
        """What a start has beside its singular values."""
        if self.view == "full":
            return ""
        layers = (slice(None),) * layer_axes(self.model.depth)
        told = ["unbalanced layers (C)"] if np.any(self.C[(..., 0, *layers)]) else []
        if "angles" in self.arrays and not self.model.modes_of_view.turns:
            told.append("modes with phases")
        return ", ".join(told)

    def _end_in_words(self) -> str:
        if self.log10_time is None:
            when = "the last iteration"
        elif np.all(np.isneginf(self.log10_time[..., -1])):
            when = "t = 0"
        elif not np.any(np.isposinf(self.log10_time[..., -1])):
            when = f"log10 t = {in_range(self.log10_time[..., -1])}"
        else:
            when = f"log10 log10 t = {in_range(self.log10_log10_time[..., -1])}"
        line = f"  end         {when} ({self.units} units), log‖a‖₁ = {in_range(self.log_norm[..., -1])}"
        if self.path_length is None:
            return line
        of = " of the matrices" if self.view == "full" else ""
        if np.all(np.isfinite(self.path_length[..., -1])):
            return f"{line}, path{of} {in_range(self.path_length[..., -1])}"
        return f"{line}, log path{of} {in_range(self.log_path_length[..., -1])}"

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        metrics: Sequence[metrics.Metric] | metrics.Metric | None = None,
        x: str = AUTO,
        spread: str = AUTO,
        ax: Any = None,
    ) -> Any:
        """Singular values, their direction, KL and M, or other quantities; written to `path` if given.

        Args:
            path: A picture to write: png, pdf, svg or jpg.
            metrics: What to draw: "a", "a_hat", names of metrics or functions of your own. Left out:
                "a", "a_hat", "kl" and "l2", without M where the run has none.
            x: The axis: "log10_time", "log_norm", "log10_log10_time", "time", "path_length", and of a
                descent "log10_iteration" and "iteration". "auto" takes the one on which the whole story
                shows.
            spread: How runs of a batch are drawn: "standard error" (mean and its error), "quantiles"
                (median, 5–95 %) or "all"; "auto" takes quantiles where each run has its own times.
            ax: Axes of your own to draw on, one for each of the metrics.

        Returns the matplotlib figure, or None where it is your own.
        """
        names, data = self.curves(self.defined(PANELS) if metrics is None else metrics)
        figure = plotting.draw(
            {"": data}, names, x=check_axis(x, data), title=self._title(),
            spread=plotting.check_spread(spread), axes=plotting.check_axes(ax, names),
        )  # fmt: skip
        if path is not None:
            plotting.write_picture(figure or np.ravel(ax)[0].figure, path)
        return figure

    def curves(
        self, wanted: Sequence[metrics.Metric] | metrics.Metric
    ) -> tuple[list[str], xr.Dataset]:
        """Names of quantities and a dataset with them, for a picture."""
        several: Any = wanted if isinstance(wanted, tuple | list) else [wanted]
        found, data = {}, self.to_xarray()
        for metric in several:
            name = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
            if metric in ("a", "a_hat"):
                found[name] = data[name]
            else:
                found[name] = (self._dims("time"), self.measure(metric))
        data = data.assign(found)
        if self.log10_time is not None:
            clock = {"log10_log10_time": (data["log10_time"].dims, self.log10_log10_time)}
            data = data.assign_coords(clock)
        if self.model.has_constant_mode and self.view == "reduced":
            data = data.isel(mode=slice(1, None))
        data.attrs["values"] = self.model.classes - 1
        data.attrs["by_size"] = self.view == "full"
        return list(found), data

    @property
    def own_clocks(self) -> bool:
        """Is it a batch whose runs were kept at other times each?"""
        times = self.clock
        return times.ndim > 1 and not np.array_equal(times, np.broadcast_to(times[:1], times.shape))

    def defined(self, names: Sequence[str]) -> list[str]:
        """Those of the quantities that this run has; M is not told by modes with phases, for one."""
        turns = "angles" in self.arrays
        return [
            name
            for name in names
            if name in ("a", "a_hat") or metrics.applies(name, self.view, self.model, turns)
        ]

    @property
    def clock(self) -> Any:
        r"""What saved points are counted by: $\log_{10}t$, or iterations where there is no time."""
        return self.iterations if self.log10_time is None else self.log10_time

    def _title(self) -> str:
        told = [self.model.describe(short=True), self._flow_in_words(), self._start_in_words()]
        told += [self._steps_in_words()] if self.iterations is not None else []
        if self.model.has_constant_mode and self.view == "reduced":
            told.append("without the constant mode")
        return textwrap.fill(f"{', '.join(filter(None, told))}: {self.status}", 100)

    # --- labelled arrays and files ---------------------------------------------------------------

    def _dims(self, *last: str) -> tuple[str, ...]:
        return (*(("run",) if self.log_a.ndim == 3 else ()), *last)

    def to_xarray(self) -> xr.Dataset:
        """Everything as a labelled dataset, in the units of the run; modes numbered from 1."""
        variables = {
            "log_norm": (self._dims("time"), self.log_norm),
            "log_a": (self._dims("time", "mode"), self.log_a),
            "a": (self._dims("time", "mode"), self.a),
        }
        directions = self._log_nontrivial.shape[-1]
        if self.log_a.shape[-1] == directions:
            variables["a_hat"] = (self._dims("time", "mode"), self.a_hat)
            first = 1
        else:  # all K modes: the constant one is number 0 and has no share of the direction
            padded = np.full(self.log_a.shape, np.nan)
            padded[..., -directions:] = self.a_hat
            variables["a_hat"] = (self._dims("time", "mode"), padded)
            first = 0
        for name, values in self.arrays.items():
            if name != "log_a":
                variables[name] = (self._dims("time", *self._last_dims(name)), values)
        if self.path_length is not None:
            variables["path_length"] = (self._dims("time"), self.path_length)
        coords: dict[str, Any] = {
            "mode": np.arange(first, first + self.log_a.shape[-1], dtype=np.int32),
        }
        clocks = {"log10_time": self.log10_time, "iteration": self.iterations}
        for name, values in clocks.items():
            if values is not None:
                coords[name] = (("run", "time")[-values.ndim :], values)
        attributes = {"units": self.units, "status": self.status, "message": self.message}
        return xr.Dataset(variables, coords, attributes)

    def to_dataframe(self, metrics: Sequence[metrics.Metric] | None = None) -> Any:
        """Clocks, singular values, directions and metrics, a row for each saved point (pandas).

        Left out, `metrics` are KL and M, the latter where the run has one. The constant mode of the
        squared error, which has no share of the direction, is `a_0`.
        """
        import pandas

        names, data = self.curves(self.defined(TABLED) if metrics is None else list(metrics))
        clocks = {"iteration": self.iterations, "log10_time": self.log10_time}
        columns: dict[str, Any] = {n: v for n, v in clocks.items() if v is not None}
        columns["log_norm"] = self.log_norm
        if self.model.has_constant_mode and self.view == "reduced":
            columns["a_0"] = self.a[:, 0]
        for kind in ("a", "a_hat"):
            for i in data["mode"].values:
                columns[f"{kind}_{i}"] = data[kind].sel(mode=i).values
        columns |= {name: data[name].values for name in names}
        return pandas.DataFrame(columns).rename_axis("point")

    def _last_dims(self, name: str) -> tuple[str, ...]:
        if self.view == "full":
            return f"{name}_row", f"{name}_column"
        if name == "angles" and self.model.modes_of_view.turns:
            return ("between",)
        return ("layer", "mode") if name == "C" and self.model.depth > 2 else ("mode",)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a NetCDF file; all of it or, if anything fails, nothing."""
        record = {name: getattr(self, name) for name in RECORD if name != "model"}
        model = self.model.to_document()
        write_run(path, {"model": model, **record}, self._stored_arrays())

    def _stored_arrays(self) -> dict[str, np.ndarray]:
        extra = {name: getattr(self, name) for name in CLOCKS}
        if self.iterations is not None:
            extra["iterations"] = self.iterations.astype(float)
        return dict(self.arrays) | {n: v for n, v in extra.items() if v is not None}


def _number(value: float, digits: int) -> str:
    if np.isnan(value):
        return "undefined"
    return f"{value:.{digits}g}".replace("-inf", "−∞").replace("inf", "∞")


def in_range(values: np.ndarray, digits: int = 8) -> str:
    """Values of one run, or of several from the least to the most, with so many `digits` of one."""
    low, high = np.min(values), np.max(values)  # NaN if any is
    if low == high or np.isnan(low):
        return _number(low, digits)
    return f"{_number(low, 6)} … {_number(high, 6)}"
