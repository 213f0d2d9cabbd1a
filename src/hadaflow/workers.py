"""Many independent pieces of work on every core, with a live bar for each."""

import concurrent.futures
import multiprocessing
import queue
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def run_all(
    names: Sequence[str],
    work: Callable[..., Any],
    arguments: tuple[Any, ...] = (),
    *,
    workers: int = 2,
    progress: bool = True,
    finished: Callable[[str, Any], None] | None = None,
) -> None:
    """Call `work(name, *arguments, report)` for every name in fresh processes.

    `report(text, fraction)` moves the name's bar; `finished(name, result)` is called here, as soon as
    each is done, so that what is finished survives an interruption.
    """
    # Fresh processes: a forked one would inherit JAX's threads half-alive.
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        pool = concurrent.futures.ProcessPoolExecutor(min(workers, len(names)), mp_context=context)
        try:
            jobs = {pool.submit(_call, work, n, arguments, messages): n for n in names}
            with _Bars(names, progress) as bars:
                pending = set(jobs)
                while pending:
                    done, pending = concurrent.futures.wait(pending, timeout=0.1)
                    _drain(messages, bars)
                    for job in done:
                        result = job.result()
                        bars.update(jobs[job], "done", 1.0)
                        if finished is not None:
                            finished(jobs[job], result)
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()


def _call(work: Callable[..., Any], name: str, arguments: tuple[Any, ...], messages: Any) -> Any:
    last = 0.0

    def report(text: str, fraction: float | None = None) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            messages.put((name, text, fraction))

    report("begun")
    return work(name, *arguments, report)


def _drain(messages: Any, bars: "_Bars") -> None:
    while True:
        try:
            bars.update(*messages.get_nowait())
        except queue.Empty:
            return


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

    def update(self, name: str, text: str, fraction: float | None) -> None:
        self._bars.start_task(self._tasks[name])
        self._bars.update(self._tasks[name], description=text, completed=fraction or 0.0)

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
