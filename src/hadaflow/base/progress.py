"""Progress of long work: nothing for the first second, then one live line in log10 time."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hadaflow.base.errors import InputError, shown
from hadaflow.base.interruption import answer_held_back
from hadaflow.base.words import lasting

Report = Callable[[str, float | None], None]
_QUIET_SECONDS = 1.0
_PACE_SECONDS = 0.25
_COMPILING = "compiling, once"
_TELLING = 0.05  # share of work from which on its pace says how long the rest takes


def check_progress(progress: str | Report | None) -> None:
    if progress is not None and progress != "auto" and not callable(progress):
        raise InputError(
            f'Argument `progress` must be "auto", None or a function, but is {shown(progress)}.'
        )


class Pace:
    """How many steps to take at once, so that Python has a word a few times a second.

    Begins with one, since nobody knows how long it takes.
    """

    def __init__(self, most: int) -> None:
        self.steps, self._most = 1, most

    def took(self, steps: int, seconds: float) -> None:
        """Learn from so many steps; the first ones, which are compiled, only seem slow."""
        if steps > 0:
            wanted = steps * _PACE_SECONDS / max(seconds, 1e-9)
            self.steps = int(min(max(wanted, 1), 10 * steps, self._most))


class Rest:
    """How long work still takes, judged by what is done of it and how long that took.

    `costs` are how much work each part is, in any unit; so many `workers` are at it, each on one part,
    for so many `seconds` at most.
    """

    def __init__(
        self, costs: Mapping[str, float], workers: int = 1, seconds: float = math.inf
    ) -> None:
        self._costs, self._workers = costs, workers
        self._began = time.monotonic()
        self._ends = self._began + seconds
        self._begun: dict[str, float] = {}  # when each part was begun, and last heard of
        self._heard: dict[str, float] = {}
        self._shares: dict[str, float] = {}

    def hear(self, part: str, share: float) -> None:
        """So much of a part is done; the first word of it is that it is begun."""
        self._heard[part] = time.monotonic()
        self._begun.setdefault(part, self._heard[part])
        self._shares[part] = max(self._shares.get(part, 0.0), min(share, 1.0))

    def done(self, parts: Iterable[str] | None = None) -> float:
        """The share of all work, or of some parts of it, that is done."""
        costs = {p: self._costs[p] for p in (self._costs if parts is None else parts)}
        return sum(self._shares.get(p, 0.0) * c for p, c in costs.items()) / sum(costs.values())

    def seconds(self) -> float:
        """The time that is left; infinite as long as nobody can tell."""
        now, done = time.monotonic(), self.done()
        most = max(self._ends - now, 0.0)
        if done < _TELLING:
            return most
        moved = [p for p, share in self._shares.items() if share > 0]
        spent = sum(self._heard[p] - self._begun[p] for p in moved)
        pace = spent / sum(self._shares[p] * self._costs[p] for p in moved)
        left = 0.0
        for part, cost in self._costs.items():
            share = self._shares.get(part, 0.0)
            waited = 0.0 if share > 0 else now - self._begun.get(part, now)
            left += max(cost * (1 - share) * pace - waited, 0.0)
        return min(left / self._workers, most)

    def in_words(self, about: str) -> str:
        """The time that is left, behind a comma; nothing where nobody can tell."""
        left = self.seconds()
        return f", {about} {lasting(left)} left" if math.isfinite(left) else ""


class Progress:
    """A live line on stderr that appears after a second and vanishes at the end.

    `report(text, fraction)` updates it; the fraction is None where the end is unknown. Give
    `progress=None` for silence or a function of (text, fraction) to show progress your own way.
    """

    def __init__(self, progress: str | Report | None, title: str) -> None:
        self._own = progress if callable(progress) else None
        self._shown = progress == "auto" and sys.stderr.isatty()
        self._title = title
        self._began = time.monotonic()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Progress":
        answer_held_back()
        _open.append(self)
        return self

    @property
    def heard(self) -> bool:
        """Is there anybody to report to?"""
        return self._own is not None or self._shown

    def report(self, text: str, fraction: float | None = None) -> None:
        if self._own is not None:
            self._own(text, fraction)
        if self._shown and time.monotonic() - self._began >= _QUIET_SECONDS:
            self._show(text, fraction)

    def _show(self, text: str, fraction: float | None) -> None:
        with self._lock:
            if self._bar is None:
                self._bar, self._task = self._start()
            total = None if fraction is None else 1.0
            self._bar.update(self._task, description=f"{self._title}  {text}", total=total)
            if fraction is not None:
                self._bar.update(self._task, completed=min(fraction, 1.0))

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Within it, it says what is going on: at once to a function, after the first second to people.

        By another thread, since this one does not return before the code is compiled.
        """
        if self._own is not None and self._thread == threading.get_ident():
            self._own(_COMPILING, None)
        if not self._shown:
            yield
            return
        left = self._began + _QUIET_SECONDS - time.monotonic()
        timer = threading.Timer(max(left, 0.0), self._show, (_COMPILING, None))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if self._bar is not None:
                self._show("", None)

    def _start(self) -> tuple[Any, Any]:
        from rich import progress as rich_progress
        from rich.console import Console

        bar = rich_progress.Progress(
            rich_progress.SpinnerColumn(),
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=24),
            rich_progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.start()
        return bar, bar.add_task(self._title, total=None)

    def __exit__(self, *_: object) -> None:
        _open.remove(self)
        if self._bar is not None:
            self._bar.stop()


_open: list[Progress] = []  # by whom something is being reported, in all threads


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """While it lasts code is compiled, and all who are reported to may know."""
    with contextlib.ExitStack() as told:
        for progress in [p for p in _open if p.heard]:
            told.enter_context(progress.compiling())
        yield
