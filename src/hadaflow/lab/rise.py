r"""How bad does it get: the largest rise of a metric along a trajectory, over starts.

The rise of a start is $\max_t m(t) - m(0)$, read off the solver's trajectory. Starts in a box are
improved by a cross-entropy search: draw around the best, solve all, keep the best, narrow.
"""

import dataclasses
import os
import textwrap
import time
from typing import Any

import numpy as np

from hadaflow.base.checks import as_number, check_seconds, check_whole_number
from hadaflow.base.errors import InputError, shown
from hadaflow.base.notebooks import shown_in_notebook
from hadaflow.base.precision import double_precision
from hadaflow.base.progress import Progress, Report, Rest, check_progress
from hadaflow.base.words import counted
from hadaflow.flow.solver import solve
from hadaflow.lab.quarry import Quarry
from hadaflow.metrics.measures import Metric
from hadaflow.model.states import spectrum
from hadaflow.model.ufm import UFM
from hadaflow.results.plotting import COLORS, DASHES, canvas, house_style, write_picture
from hadaflow.results.trajectory import Trajectory

_POPULATION, _ELITE, _RESTARTS, _PATIENCE = 64, 16, 3, 5
_POINTS = 400  # of the trajectory that is kept
_LATEST, _END = 300.0, 1e4  # log10 of the last time, in the search and of what is kept
_TOLERANCE = 1e-6  # of the solver, in the search
_ACCURACY = 1e-6  # below so much of its value a rise may be error


@dataclasses.dataclass(frozen=True, eq=False)
class Rise:
    """The largest rise that was found, with its trajectory; there may be larger ones.

    `rise` = `peak` − `low`, the metric's value at the start; for a metric that should rise, the
    largest fall.
    """

    metric: str
    model: UFM
    a: np.ndarray
    rise: float
    low: float
    peak: float
    log10_peak: float
    starts: int
    seed: int
    interrupted: bool
    values: np.ndarray
    run: Trajectory

    def to_document(self) -> dict[str, Any]:
        """The result as plain data."""
        return {
            "metric": self.metric,
            "model": self.model.to_document(),
            "classes": self.model.classes,
            "group": list(self.model.basis.group),
            "a": self.a,
            "rise": self.rise,
            "low": self.low,
            "peak": self.peak,
            "log10_time_of_peak": self.log10_peak,
            "starts": self.starts,
            "seed": self.seed,
            "interrupted": self.interrupted,
        }

    def __str__(self) -> str:
        model, starts = self.model.describe(short=True), counted(self.starts, "start")
        if not self.rise > 0:
            return f"No rise of {self.metric} found in {starts} (seed {self.seed})\n  model {model}"
        shown = ", ".join(f"{v:.4g}" for v in self.a)
        failed = f"\n  run   {self.run.message}" if self.run.status == "failed" else ""
        return (
            f"{self.metric} moves by {self.rise:.6g} the wrong way, from {self.low:.6g} to "
            f"{self.peak:.6g} at log10 t = {self.log10_peak:.4g}: the most in {starts} "
            f"(seed {self.seed})\n  model {model}\n  a     ({shown}){failed}"
        )

    def _repr_html_(self) -> str:
        return shown_in_notebook(self, self.plot)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trajectory to a NetCDF file."""
        self.run.save(path)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The metric and the direction against log time, start and peak marked."""
        with house_style():
            figure, (above, below) = canvas(2, 1, (8, 6.4))
            norm, shares = self.run.log_norm / np.log(10.0), self.run.a_hat
            above.plot(norm, self.values, color=COLORS[0])
            if self.rise > 0:
                top = int(np.nanargmin(np.abs(self.values - self.peak)))
                above.plot(norm[[0, top]], self.values[[0, top]], "o", color=COLORS[1])
                sign = "+" if self.peak >= self.low else "−"
                above.annotate(
                    f"{sign}{self.rise:.4g}", (norm[top], self.values[top]), xytext=(0, -18),
                    textcoords="offset points", color=COLORS[1], ha="center",
                )  # fmt: skip
            above.set_ylabel(self.metric)
            words = self.model.describe(short=True)
            above.set_title(
                textwrap.fill(f"The largest rise of {self.metric} found: {words}", 80), fontsize=11
            )
            for i in range(shares.shape[1]):
                style = {"color": COLORS[i % len(COLORS)], "ls": DASHES[i % len(DASHES)]}
                below.plot(norm, shares[:, i], label=str(i + 1), **style)
            if shares.shape[1] <= 8:
                below.legend(
                    title="mode", title_fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5)
                )
            below.set_ylabel(r"normalized $\hat a_i$")
            below.set_xlabel(r"$\log_{10}\|a\|_1$ (scaled units)")
        if path is not None:
            write_picture(figure, path)
        return figure


def worst_rise(
    metric: Metric,
    model: UFM,
    *,
    C: Any = None,
    low: float = 1e-4,
    high: float = 10.0,
    starts: int = 8192,
    seconds: float = 60.0,
    seed: int = 0,
    progress: str | Report | None = "auto",
) -> Rise:
    """The largest increase of `metric` along a trajectory, by optimizing its start through the solver.

    Args:
        metric: A name, `module:function` or your own function of `a`, as in `hunt`.
        model: The problem whose flow moves the state.
        C: Differences of the squared layer singular values, scaled; zero (balanced) if left out.
        low: Smallest singular value of a start: rises past saddles grow as it falls.
        high: Largest one.
        starts: How many starts to solve at most.
        seconds: How long to search at most.
        seed: Seed of the search.
        progress: As in `solve`.

    Returns:
        A `Rise`, with the trajectory as `run`; interrupted, the best so far.
    """
    began = time.monotonic()
    quarry = Quarry.make(metric, model, C, None)
    starts = check_whole_number("starts", starts, _POPULATION, most=10**9)
    check_seconds(seconds)
    check_progress(progress)
    low, high = as_number("low", low), as_number("high", high)
    if not (0 < low < high < np.inf and low >= 1e-100):
        raise InputError(
            "Arguments `low` and `high` must have 1e-100 ≤ low < high, but are "
            f"{shown(low)}, {shown(high)}."
        )
    search = _Search(quarry, np.log(low), np.log(high), check_whole_number("seed", seed, least=0))
    interrupted, rest = False, Rest({"": 1.0}, seconds=seconds)
    with Progress(progress, f"worst rise of {quarry.name}") as bar:

        def going() -> bool:
            rest.hear("", search.tried / starts)
            told = f"{search.tried} of {starts} starts, {search.best:.4g}"
            bar.report(f"{told}{rest.in_words('at most')}", rest.done())
            return search.tried < starts and time.monotonic() - began < seconds

        try:
            with double_precision():
                quarry.check_value()
            search.run(going)
        except KeyboardInterrupt:
            interrupted = True
    if search.place is None:
        raise KeyboardInterrupt
    return _followed(quarry, search, interrupted)


class _Search:
    """Cross-entropy search for the start with the largest rise."""

    def __init__(self, quarry: Quarry, low: float, high: float, seed: int) -> None:
        self.quarry, self.low, self.high, self.seed = quarry, low, high, seed
        self.rng = np.random.default_rng(seed)
        self.tried, self.best = 0, -np.inf
        self.place: np.ndarray | None = None
        self.seen: tuple[Trajectory, np.ndarray] | None = None  # from there, and the metric on it

    def run(self, going: Any) -> None:
        """A first population, then a search around each of its best, until they no longer improve."""
        with double_precision():
            drawn = self.quarry.draw(self.rng, 4 * _POPULATION)
            climbed = self.quarry.climb(drawn)[: _POPULATION // 2]
        first = np.concatenate([climbed, drawn])[:_POPULATION]
        first = self._canonical(np.clip(first, self.low, self.high))
        rises = self._rises(first)
        for chosen in np.argsort(-rises)[:_RESTARTS]:
            if not going():
                return
            self._narrow(first[chosen], going)

    def _narrow(self, mean: np.ndarray, going: Any) -> None:
        spread, best, waited = np.diag(np.full(len(mean), 0.5)), -np.inf, 0
        kept, kept_rises = np.zeros((0, len(mean))), np.zeros(0)
        while waited < _PATIENCE and going():
            drawn = self.rng.multivariate_normal(mean, spread, _POPULATION, method="cholesky")
            drawn = np.clip(drawn, self.low, self.high)
            everyone = np.concatenate([kept, drawn])
            rises = np.concatenate([kept_rises, self._rises(drawn)])
            order = np.argsort(-rises)[:_ELITE]
            kept, kept_rises = everyone[order], rises[order]
            waited = 0 if kept_rises[0] > best * (1 + 1e-4) + 1e-12 else waited + 1
            best = max(best, kept_rises[0])
            mean = kept.mean(axis=0)
            spread = 1.5 * np.cov(kept.T) + 1e-6 * np.eye(len(mean))

    def _canonical(self, z: np.ndarray) -> np.ndarray:
        """States that symmetry maps to each other as one."""
        return np.array([row[self.quarry.order(np.exp(row))] for row in z])

    def _rises(self, z: np.ndarray) -> np.ndarray:
        model, quarry = self.quarry.model, self.quarry
        times = _times(model, 64, _LATEST)
        start = spectrum(np.exp(z), _tiled(quarry.given_C, len(z)))
        run = solve(model, start, log10_times=times, rtol=_TOLERANCE, progress=None)
        measured = np.asarray(run.measure(quarry.metric))
        values = quarry.sign * measured
        with np.errstate(invalid="ignore"):
            rises = np.nan_to_num(np.nanmax(values, axis=1) - values[:, 0], nan=-np.inf)
        self.tried += len(z)
        if rises.max() > self.best:
            self.best, first = float(rises.max()), int(np.argmax(rises))
            self.place, self.seen = z[first], (_row(run, first), measured[first])
        if "interrupted" in run.diagnostics["statuses"]:  # the solver keeps what it has
            raise KeyboardInterrupt
        return rises


def _row(run: Trajectory, i: int) -> Trajectory:
    """One run of a batch."""
    clocks = ("log10_time", "log10_log10_time", "path_length", "log_path_length")
    return dataclasses.replace(
        run,
        arrays={name: values[i] for name, values in run.arrays.items()},
        status=run.diagnostics["statuses"][i],
        message=run.diagnostics["messages"][i],
        diagnostics={"method": run.diagnostics["method"]},
        **{name: getattr(run, name)[i] for name in clocks},
    )


def _times(model: UFM, count: int, latest: float) -> np.ndarray:
    """log10 of the times that are looked at: early ones evenly, late ones geometrically.

    Penalties decide all, on one layer alone too, long before the times at which their flow is too stiff.
    """
    if model.settles or model.penalized:
        return np.linspace(-2, 5, count)
    return np.concatenate([np.linspace(-2, 3, count // 2), np.geomspace(3.2, latest, count // 2)])


def _tiled(C: Any, count: int) -> Any:
    if C is None or np.ndim(C) == 0:
        return C
    return np.tile(np.asarray(C, dtype=float), (count, *(1,) * np.ndim(C)))


def _followed(quarry: Quarry, search: _Search, interrupted: bool) -> Rise:
    """The best start once more, at the solver's own accuracy and at many points.

    After an interruption as the search has seen it.
    """
    assert search.place is not None and search.seen is not None
    a = np.exp(search.place)
    run, values = search.seen
    if not interrupted:
        times = _times(quarry.model, _POINTS, _END)
        again = solve(
            quarry.model, spectrum(a, quarry.given_C), log10_times=times, progress=None
        )  # fmt: skip
        interrupted = again.status == "interrupted"
        if not interrupted:
            run, values = again, np.asarray(again.measure(quarry.metric))
    top = int(np.nanargmax(quarry.sign * values))
    if quarry.sign * (values[top] - values[0]) < _ACCURACY * max(1e-3, abs(values[0])):
        top = 0  # no more than the solver's own error
    return Rise(
        metric=quarry.name, model=quarry.model, a=a,
        rise=float(quarry.sign * (values[top] - values[0])), low=float(values[0]),
        peak=float(values[top]), log10_peak=float(run.log10_time[top]), starts=search.tried,
        seed=search.seed, interrupted=interrupted, values=values, run=run,
    )  # fmt: skip
