"""Many runs in one result: each of them, what became of them, and how they are spread."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hadaflow.base.checks import as_numbers, is_whole_number
from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import xr
from hadaflow.base.words import counted
from hadaflow.metrics import measures as metrics
from hadaflow.results import plotting
from hadaflow.results.axes import AUTO, check_axis
from hadaflow.results.files import read_run
from hadaflow.results.trajectory import TABLED, Trajectory


class Batch(Trajectory):
    """A trajectory of several runs, which are the first axis of every array.

    `batch[i]` is one run, `batch[2:5]` or `batch[mask]` some of them; `len`, and going through it, are
    of the runs.
    """

    def __len__(self) -> int:
        return len(self.log_a)

    def __repr__(self) -> str:
        return super().__repr__().replace(":", f": {counted(len(self), 'run')},", 1)

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """One run by a whole number, a batch of some by a slice, a list of numbers or a mask."""
        if is_whole_number(index, -len(self), len(self) - 1):
            return self._run(range(len(self))[index])
        try:
            some = np.arange(len(self))[index]
            if some.ndim != 1 or not len(some):
                raise IndexError
        except (IndexError, TypeError, ValueError):
            raise InputError(
                f"A batch of {len(self)} runs is asked for a run from 0 to {len(self) - 1}, a slice, a "
                f"list of numbers or a mask, but with {shown(index)}."
            ) from None
        return self._some(some)

    @property
    def statuses(self) -> list[str]:
        """The status of every run."""
        return list(self.diagnostics.get("statuses") or [self.status] * len(self))

    @property
    def messages(self) -> list[str]:
        """How every run ended, in a sentence."""
        said = self.diagnostics.get("messages") or [self.message] * len(self)
        return [text or self._ended(i) for i, text in enumerate(said)]

    def _ended(self, i: int) -> str:
        """Of runs side by side, which say nothing themselves."""
        last = f"{np.broadcast_to(self.clock, (len(self), self.points))[i, -1]:.8g}"
        where = f"iteration {last}" if self.log10_time is None else f"log10 t = {last}"
        asked = _asked_for(self.settings)
        told = f" ({asked.strip()})" if asked else ""
        return f"{self.statuses[i].capitalize()} at {where}{told}."

    def quantiles(
        self, metric: metrics.Metric, at: Any = (0.05, 0.25, 0.5, 0.75, 0.95)
    ) -> np.ndarray:
        """Quantiles of `metric` over the runs, one row for each of `at`, at every saved point.

        Of runs with times of their own: at their ends.
        """
        wanted = np.atleast_1d(as_numbers("at", at))
        if wanted.ndim != 1 or not np.all((wanted >= 0) & (wanted <= 1)):
            raise InputError(f"Argument `at` must hold numbers from 0 to 1, but is {shown(at)}.")
        values = self.measure(metric)
        return np.nanquantile(values[:, -1:] if self.own_clocks else values, wanted, axis=0)

    def to_dataframe(self, metrics: Sequence[metrics.Metric] | None = None) -> Any:
        """The end of every run, a row for each, as a pandas table; left out, `metrics` are KL and M."""
        import pandas

        names, data = self.curves(self.defined(TABLED) if metrics is None else list(metrics))
        last = data.isel(time=-1)
        ends = {
            "status": self.statuses,
            **{
                name: np.broadcast_to(last[name].values, len(self))
                for name in ("iteration", "log10_time")
                if name in last.coords
            },
            **{name: last[name].values for name in ("log_norm", *names)},
        }
        return pandas.DataFrame(ends).rename_axis("run")

    def to_xarray(self) -> xr.Dataset:
        """As that of one run, with the axis `run` in front and what became of each."""
        return super().to_xarray().assign_coords(status=("run", self.statuses))

    @property
    def only_ends(self) -> bool:
        """Is of every run no more kept than its start and its end? Between them lies no curve."""
        whole = self.iterations is not None and np.max(self.iterations) <= 1
        return self.points <= 2 and not whole

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        metrics: Sequence[metrics.Metric] | metrics.Metric | None = None,
        x: str = AUTO,
        spread: str = AUTO,
        ax: Any = None,
    ) -> Any:
        """As of one run; runs of which only the ends are kept as the shares that have ended by then.

        Keep more of them with `points` for curves.
        """
        if not self.only_ends:
            return super().plot(path, metrics=metrics, x=x, spread=spread, ax=ax)
        names, data = self.curves(() if metrics is None else metrics)
        check_axis(x, data)
        plotting.check_spread(spread)
        for name, given, usual in (("x", x, AUTO), ("spread", spread, AUTO), ("ax", ax, None)):
            if given is not usual and given != usual:
                raise InputError(f"Argument `{name}` is for curves, but {self.without_curves()}")
        figure = plotting.draw_ends(data.isel(time=-1), names, self._title())
        if path is not None:
            plotting.write_picture(figure, path)
        return figure

    def without_curves(self, name: str = "this batch") -> str:
        """Why a batch of ends has none, and how it gets them, for a sentence."""
        call = "solve" if self.iterations is None else "descend"
        return (
            f"of each run of {name} only the start and the end are kept: `{call}` with `points=50` "
            "(`--points 50`) keeps the way between them."
        )

    def _run(self, i: int) -> Trajectory:
        """One run, without the repetitions of its last state."""
        last = self.points
        if self.clock.ndim > 1:
            times = self.clock[i]
            last = 1 + int(np.argmax(times == times[-1])) if np.isfinite(times[-1]) else last
        return Trajectory(
            status=self.statuses[i], message=self.messages[i], **self._fields((i,), slice(last))
        )

    def _some(self, index: np.ndarray) -> Batch:
        statuses, messages = ([names[i] for i in index] for names in (self.statuses, self.messages))
        status, message = said_of(statuses, self.settings)
        picked = Batch(status=status, message=message, **self._fields((index,), slice(None)))
        picked.diagnostics.update(statuses=statuses, messages=messages)
        return picked

    def _fields(self, runs: tuple[Any], points: slice) -> dict[str, Any]:
        """Everything but status and message, of some runs and points."""

        def of(clock: np.ndarray | None) -> Any:
            if clock is None:
                return None
            return clock[runs][..., points] if clock.ndim > 1 else clock[points]

        i = runs[0]
        states = {
            n: v[i][(slice(None),) * (np.ndim(i)) + (points,)] for n, v in self.arrays.items()
        }
        settings = dict(self.settings)
        for name in ("seed", "learning_rate"):
            value = settings.get(name)
            if isinstance(value, list) and len(value) == len(self):
                settings[name] = np.array(value)[i].tolist()
        each = {k: v for k, v in self.diagnostics.items() if _is_for_each(v, len(self))}
        diagnostics = {
            k: v for k, v in self.diagnostics.items() if k not in each and k != "methods"
        }
        for name, value in each.items():
            if name not in ("statuses", "messages"):
                diagnostics[name] = value[i] if np.ndim(i) == 0 else [value[j] for j in i]
        steps = int(np.sum(diagnostics.get("steps", self.steps)))
        return {
            "model": self.model, "view": self.view, "arrays": states,
            "log10_time": of(self.log10_time), "units": self.units,
            "path_length": of(self.path_length), "log10_log10_time": of(self.log10_log10_time),
            "log_path_length": of(self.log_path_length), "iterations": of(self.iterations),
            "steps": steps, "settings": settings, "diagnostics": diagnostics,
            "versions": self.versions,
        }  # fmt: skip


def said_of(statuses: list[str], settings: dict[str, Any]) -> tuple[str, str]:
    """Status and message of a batch from those of its runs, and what they were asked for."""
    kinds = Counter(statuses).most_common()
    status = kinds[0][0] if len(kinds) == 1 else "mixed"
    ended = ", ".join(f"{n} {kind}" for kind, n in kinds)
    return status, f"{counted(len(statuses), 'run')}{_asked_for(settings)}: {ended}."


def _asked_for(settings: dict[str, Any]) -> str:
    until = settings.get("until")
    return f" until {until}" if until else ""


def _is_for_each(value: Any, runs: int) -> bool:
    return isinstance(value, list) and len(value) == runs


def made_of(**fields: Any) -> Trajectory:
    """The trajectory of one run, or of a batch if its states have an axis of runs."""
    arrays, times = fields["arrays"], fields["log10_time"]
    axes = arrays["log_a"].ndim - 1 if fields["view"] == "reduced" else _leading(arrays)
    batch = axes > 1 or np.ndim(times) > 1  # that of no time is 0
    return (Batch if batch else Trajectory)(**fields)


def _leading(arrays: dict[str, np.ndarray]) -> int:
    """Axes of matrices in front of rows and columns."""
    return next(iter(arrays.values())).ndim - 2


def load(path: str | os.PathLike[str], loss: Any = None) -> Trajectory:
    """Read a run, or a batch, that was saved; its checksum, and what it says, are checked.

    `loss`: the loss of your own with which it was made, which is code and in no file.
    """
    return made_of(**read_run(path, loss))
