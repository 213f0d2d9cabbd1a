"""Progress of long work: nothing for the first second, then one live line in log10 time."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hadaflow.base.errors import InputError, shown
from hadaflow.base.interruption import answer_held_back

Report = Callable[[str, float | None], None]
_QUIET_SECONDS = 1.0
_PACE_SECONDS = 0.25
_COMPILING = "compiling, once"


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
