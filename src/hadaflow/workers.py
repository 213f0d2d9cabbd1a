"""Many independent pieces of work on every core, with a live bar for each."""

import concurrent.futures
import multiprocessing
import queue
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def group(
    names: Sequence[str], shares: Callable[[str], str | None], size: int = 1
) -> dict[str, list[str]]:
    """Pieces of work for one process each: names that share a computation, the rest `size` at a time.

    A piece is called by its first name. Shared ones come first, as they take longest.
    """
    together: dict[str, list[str]] = {}
    alone = []
    for name in names:
        if (key := shares(name)) is not None:
            together.setdefault(key, []).append(name)
        else:
            alone.append(name)
    chunks = (alone[i : i + size] for i in range(0, len(alone), size))
    return {piece[0]: piece for piece in (*together.values(), *chunks)}


def run_all(
    pieces: dict[str, list[str]],
    work: Callable[..., Any],
    arguments: tuple[Any, ...] = (),
    *,
    workers: int = 2,
    progress: bool = True,
    finished: Callable[[str, Any], None] | None = None,
) -> None:
    """Call `work(name, *arguments, report)` for every name of every piece, each piece in one process.

    `report(text, fraction)` moves the piece's bar; `finished(name, result)` is called here, as soon as
    each name is done, so that what is finished survives an interruption.
    """
    # Fresh processes: a forked one would inherit JAX's threads half-alive.
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        pool = concurrent.futures.ProcessPoolExecutor(min(workers, len(pieces)), mp_context=context)
        try:
            jobs = {
                pool.submit(_work_through, work, label, names, arguments, messages): label
                for label, names in pieces.items()
            }
            with _Bars(list(pieces), progress) as bars:
                pending = set(jobs)
                while pending:
                    done, pending = concurrent.futures.wait(pending, timeout=0.1)
                    _drain(messages, bars, finished)
                    for job in done:
                        job.result()
                        bars.update(jobs[job], "done", 1.0)
                _drain(messages, bars, finished)
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()


def _work_through(
    work: Callable[..., Any],
    label: str,
    names: list[str],
    arguments: tuple[Any, ...],
    messages: Any,
) -> None:
    last = 0.0
    for i, name in enumerate(names):

        def report(text: str, fraction: float | None = None, i: int = i, name: str = name) -> None:
            nonlocal last
            if time.monotonic() - last > 0.2:
                last = time.monotonic()
                shown = text if len(names) == 1 else f"{name}: {text}"
                messages.put(("progress", label, shown, (i + (fraction or 0.0)) / len(names)))

        report("begun")
        messages.put(("result", name, work(name, *arguments, report)))


def _drain(messages: Any, bars: "_Bars", finished: Callable[[str, Any], None] | None) -> None:
    while True:
        try:
            kind, *message = messages.get_nowait()
        except queue.Empty:
            return
        if kind == "progress":
            bars.update(*message)
        elif finished is not None:
            finished(*message)


class _Bars:
    """One live bar per piece of work on stderr."""

    def __init__(self, names: Sequence[str], shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        width = max(18, *(len(n) for n in names))
        self._bars = Progress(
            TextColumn(f"{{task.fields[piece]:<{width}}}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            disable=not (shown and sys.stderr.isatty()),
        )
        self._tasks = {
            n: self._bars.add_task("waiting", total=1.0, piece=n, start=False) for n in names
        }

    def __enter__(self) -> "_Bars":
        self._bars.start()
        return self

    def update(self, name: str, text: str, fraction: float) -> None:
        self._bars.start_task(self._tasks[name])
        self._bars.update(self._tasks[name], description=text, completed=fraction)

    def __exit__(self, *_: object) -> None:
        if (
            not self._bars.disable
        ):  # older versions of rich end even a bar that never was with a line
            self._bars.stop()
