"""`race`: several optimizers from one start, and which of them collapses when."""

import concurrent.futures
import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, shown
from hadaflow.base.notebooks import shown_in_notebook
from hadaflow.base.progress import Progress, Report, check_progress
from hadaflow.descent.descend import follow
from hadaflow.descent.loop import NOT_YET
from hadaflow.model.ufm import UFM
from hadaflow.results.compare import compare
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.targets import Collapse, Target

LEVELS = (0.1, 0.01, 0.001)
_ROUNDING = 1e-12  # a rise of KL of less is none
_THREADS = 2  # beyond that runs of a few modes take each other's memory rather than time
PANELS = ("collapse_deviation", "kl")


@dataclasses.dataclass(frozen=True)
class Runner:
    """One optimizer of a race."""

    run: Trajectory
    first: dict[float, int | None]  # steps until max|(K−1)â − 1| is below each level

    @property
    def kl(self) -> float:
        """At the end."""
        return float(self.run.measure("kl")[-1])

    @property
    def kl_rise(self) -> float:
        """By how much KL rises at most, from one saved point to a later one."""
        values = self.run.measure("kl")
        values = values[np.isfinite(values)]
        if not len(values):
            return 0.0
        return float(np.max(values - np.minimum.accumulate(values)))

    @property
    def kl_rises(self) -> bool:
        return self.kl_rise > _ROUNDING


@dataclasses.dataclass(frozen=True, eq=False)
class Race:
    """What became of each optimizer; `race["adam"]` is one of them."""

    model: UFM
    runners: dict[str, Runner]
    steps: int
    until: str | None

    def __getitem__(self, name: str) -> Runner:
        try:
            return self.runners[name]
        except KeyError:
            raise InputError(
                f"A race has {', '.join(self.runners)}, but is asked for {shown(name)}."
            ) from None

    def __len__(self) -> int:
        return len(self.runners)

    def __iter__(self) -> Any:
        return iter(self.runners)

    @property
    def runs(self) -> dict[str, Trajectory]:
        return {name: runner.run for name, runner in self.runners.items()}

    @property
    def _has_end(self) -> bool:
        """Is there a target that is none of the levels?"""
        return self.until is not None and self.until not in {str(Collapse(x)) for x in LEVELS}

    def to_dataframe(self) -> Any:
        """A row for each optimizer (pandas); steps to a level are missing where it is not reached."""
        import pandas

        rows = []
        for name, runner in self.runners.items():
            run = runner.run
            firsts = {f"steps to {level:g}": at for level, at in runner.first.items()}
            target = {"reached": run.reached_iteration} if self._has_end else {}
            rows.append(
                {"optimizer": name, **firsts, **target, "steps": run.steps, "kl": runner.kl,
                 "kl rises": runner.kl_rises, "kl rise": runner.kl_rise, "status": run.status}
            )  # fmt: skip
        table = pandas.DataFrame(rows).set_index("optimizer")
        for column in table.columns:
            if column == "reached" or column.startswith("steps to"):
                table[column] = table[column].astype("Int64")
        return table

    def summary(self) -> str:
        r"""The table in words: steps until $\max_i|(K-1)\hat a_i - 1|$ is below each level."""
        levels = list(next(iter(self.runners.values())).first)
        ends = [self.until] if self._has_end else []
        head = ["", *(f"{level:g}" for level in levels), *ends, "final KL", "KL rises"]
        rows = [head]
        for name, runner in self.runners.items():
            reached = [_count(runner.run.reached_iteration)] if self._has_end else []
            rises = f"by {runner.kl_rise:.2g}" if runner.kl_rises else "no"
            counts = [_count(at) for at in runner.first.values()]
            rows.append([name, *counts, *reached, f"{runner.kl:.3g}", rises])
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(row))
            for row in (list(zip(r, widths, strict=True)) for r in rows)
        ]
        title = f"hadaflow race · {self.model.describe(short=True)}, {self.steps} steps at most"
        return "\n".join([title, "  steps until max|(K−1)â − 1| is below", *lines])

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"<Race of {', '.join(self.runners)}>"

    def _repr_html_(self) -> str:
        return shown_in_notebook(self, self.plot)

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, metrics: Any = PANELS,
        x: str = "log10_iteration", ax: Any = None,
    ) -> Any:  # fmt: skip
        """All of them in one picture: distance from collapse and KL, or other metrics, by the step."""
        return compare(
            self.runs, metrics, x=x, title=self.model.describe(short=True), ax=ax, path=path
        )


def race(
    model: UFM,
    start: Any,
    optimizers: Any,
    until: Target | str | None = "collapse:0.001",
    steps: int = 200_000,
    *,
    rotation: str | None = None,
    points: int = 200,
    units: str | None = None,
    progress: str | Report | None = "auto",
) -> Race:
    """Train with each of several optimizers from one start, two at a time.

    Args:
        model: The problem.
        start: As in `descend`, a single one.
        optimizers: Names with optimizers, as `descend` takes them; or a list of spellings, which are
            their own names.
        until: Where each stops before its last step, as in `descend`; None for nowhere.
        steps: Iterations at most.
        rotation: As in `descend`.
        points: About how many iterations to keep of each; a rise of KL is looked for among them.
        units: As in `descend`.
        progress: As in `solve`.

    Examples:
        >>> import hadaflow as hf
        >>> runners = ["adam:0.01", "adamw:0.01:weight_decay=0.01"]
        >>> found = race(hf.UFM(8), "figure1", runners, steps=10_000)
        >>> [runner.first[0.1] for runner in found.runners.values()]
        [8270, 1993]
    """
    named = _named(optimizers)
    check_progress(progress)
    stopped, done = threading.Event(), []

    def one(name: str) -> tuple[str, Runner]:
        def reported(text: str, fraction: float | None = None) -> None:
            if stopped.is_set():
                raise KeyboardInterrupt

        run, reached = follow(
            model, start, steps, named[name], until=until, rotation=rotation, points=points,
            units=units, progress=reported, levels=_levels(model),
        )  # fmt: skip
        if run.log_a.ndim != 2:
            raise InputError(
                "Arguments `start` and `optimizers` must be one start and one learning rate each in a "
                f"race, but {shown(name)} has several runs."
            )
        firsts = [int(at) if at != NOT_YET else None for at in np.ravel(reached)]
        return name, Runner(run, dict(zip(LEVELS, firsts, strict=False)))

    found: dict[str, Runner] = {}
    with (
        Progress(progress, "race") as bar,
        concurrent.futures.ThreadPoolExecutor(min(_THREADS, len(named))) as pool,
    ):
        tasks = {pool.submit(one, name): name for name in named}
        try:
            for task in concurrent.futures.as_completed(tasks):
                name, runner = task.result()
                found[name] = runner
                done.append(name)
                bar.report(f"{name}", len(done) / len(named))
        except KeyboardInterrupt:  # what is finished, and how far the others have come
            stopped.set()
            found |= dict(task.result() for task in tasks if not task.cancel())
            if not found:
                raise
        except BaseException:
            stopped.set()
            for task in tasks:
                task.cancel()
            raise
    target = next(iter(found.values())).run.settings["until"]
    return Race(model, {name: found[name] for name in named if name in found}, steps, target)


def _levels(model: UFM) -> tuple[float, ...]:
    """Imbalanced classes do not become uniform."""
    return LEVELS if model.imbalance is None else ()


def _named(optimizers: Any) -> dict[str, Any]:
    if isinstance(optimizers, Mapping):
        named = {str(name): optimizer for name, optimizer in optimizers.items()}
    elif isinstance(optimizers, list | tuple):
        check_different([str(optimizer) for optimizer in optimizers])
        named = {str(optimizer): optimizer for optimizer in optimizers}
    else:
        named = {}
    if not named:
        raise InputError(
            "Argument `optimizers` must be names with optimizers, or a list of spellings, but is "
            f"{shown(optimizers)}."
        )
    return named


def check_different(names: Sequence[str]) -> None:
    """Refuse a runner that is named twice, of which there would be one."""
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise InputError(
            f"Argument `optimizers` must be different ones, but has {shown(twice[0])} twice."
        )


def _count(at: Any) -> str:
    return "–" if at is None else f"{at:,}".replace(",", " ")
