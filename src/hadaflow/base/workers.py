"""Many independent pieces of work on every core, with a live bar for each."""

import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hadaflow.base.cache import use_cache, used_cache
from hadaflow.base.errors import InputError
from hadaflow.base.progress import Rest

_LOOK_SECONDS = 0.5  # after which the estimate of the rest is told anew
_ENDING = {
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
}


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
    cost: Callable[[str], float] = lambda name: 1.0,
) -> None:
    """Call `work(name, *arguments, report)` for every name of every piece, each piece in one process.

    `report(text, fraction)` moves the piece's bar; `finished(name, result)` is called here, as soon as
    each name is done, so that what is finished survives an interruption. `cost` is how much work a name
    is, in any unit: by it the rest is judged, and the largest pieces are begun first.
    """
    keep = finished or (lambda name, result: None)
    ordered = sorted(pieces.items(), key=lambda piece: -sum(map(cost, piece[1])))
    team: list[_Worker] = []
    with _Bars(dict(ordered), cost, workers, progress) as bars:

        def done(name: str, result: Any) -> None:
            keep(name, result)
            bars.finished(name)

        try:
            for _ in range(min(workers, len(pieces))):
                team.append(_Worker(work, arguments))
            _share_out(ordered, team, bars, done)
        finally:  # they have nothing left to do; what they sent last is kept
            for worker in team:
                for kind, *message in worker.end():
                    if kind == "result":
                        keep(*message)


def _share_out(
    waiting: list[tuple[str, list[str]]],
    team: "list[_Worker]",
    bars: "_Bars",
    keep: Callable[[str, Any], None],
) -> None:
    while waiting or any(worker.label is not None for worker in team):
        for worker in team:
            if worker.label is None and waiting:
                worker.begin(*waiting.pop(0))
        for worker in _with_news(team):
            kind, *message = worker.receive()
            if kind == "progress":
                bars.update(*message)
            elif kind == "result":
                keep(*message)
            elif kind == "failed":
                raise message[0]
            else:
                worker.label = None
        bars.tell()


def _with_news(team: "list[_Worker]") -> "list[_Worker]":
    """Workers that have sent something, or died; waits a little for one."""
    busy = {worker.pipe: worker for worker in team if worker.label is not None}
    news = multiprocessing.connection.wait(list(busy), _LOOK_SECONDS)
    return [busy[pipe] for pipe in news]  # pyright: ignore


class _Worker:
    """A process with a pipe to it; `label` is the piece it works on.

    It ends when this process does, however that ends, and by nothing else: Ctrl-C, and a signal to the
    whole group, are for this process to answer.
    """

    def __init__(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        # Fresh processes: a forked one would inherit JAX's threads half-alive.
        context = multiprocessing.get_context("spawn")
        self.label: str | None = None
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _blocked_signals():
            self.process.start()
        theirs.close()
        self.pipe.send((used_cache(), work, arguments))

    def begin(self, label: str, names: list[str]) -> None:
        self.label = label
        self.pipe.send((label, names))

    def receive(self) -> tuple[Any, ...]:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            raise InputError(
                f"The process that worked on {self.label!r} was ended from outside (exit code "
                f"{self.process.exitcode}), perhaps for lack of memory; what is finished is kept."
            ) from None

    def end(self) -> list[tuple[Any, ...]]:
        """Stop the process; returns what it had sent and was not read."""
        self.process.kill()
        self.process.join()
        left = []
        # A message that was being sent or read just then is lost.
        with self.pipe, contextlib.suppress(Exception):
            while True:
                left.append(self.pipe.recv())
        return left


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """A process begun meanwhile does not hear them until it says so, nor do we miss one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # else begun inside, which unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the other process ------------------------------------------------------------------------


def _serve(pipe: Any) -> None:
    """Work through the pieces that come along the pipe."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Notices about matplotlib's folders and fonts would tear the bars on the terminal.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        cache, work, arguments = pipe.recv()
        use_cache(cache)
        while True:
            _work_through(pipe, work, arguments, *pipe.recv())
    except EOFError:
        return
    except Exception as error:
        pipe.send(("failed", _sendable(error)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work_through(
    pipe: Any, work: Callable[..., Any], arguments: tuple[Any, ...], label: str, names: list[str]
) -> None:
    last = 0.0
    for name in names:

        def report(text: str, fraction: float | None = None, name: str = name) -> None:
            nonlocal last
            if time.monotonic() - last > 0.2:
                last = time.monotonic()
                shown = text if len(names) == 1 else f"{name}: {text}"
                pipe.send(("progress", label, name, shown, fraction or 0.0))

        report("begun")
        pipe.send(("result", name, work(name, *arguments, report)))
    pipe.send(("done",))


def _sendable(error: Exception) -> Exception:
    """The error with the place where it happened; in words where it cannot travel itself."""
    place = "".join(traceback.format_exception(error))
    error.add_note(place)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(place)
    return error


# --- on the terminal -----------------------------------------------------------------------------


class _Bars:
    """One live bar per piece of work on stderr, and one for all with an estimate of the rest."""

    def __init__(
        self,
        pieces: dict[str, list[str]],
        cost: Callable[[str], float],
        workers: int,
        shown: bool,
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        width = max(18, *(len(n) for n in pieces))
        self._bars = Progress(
            TextColumn(f"{{task.fields[piece]:<{width}}}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            disable=not (shown and sys.stderr.isatty()),
        )
        self._pieces, self._finished = pieces, set[str]()
        names = [name for piece in pieces.values() for name in piece]
        self._rest = Rest({n: cost(n) for n in names}, min(workers, len(pieces)))
        self._tasks = {
            n: self._bars.add_task("waiting", total=1.0, piece=n, start=False) for n in pieces
        }
        self._all = self._bars.add_task("", total=1.0, piece="all", visible=len(pieces) > 1)

    def __enter__(self) -> "_Bars":
        self._bars.start()
        return self

    def update(self, piece: str, name: str, text: str, share: float) -> None:
        """So much of one name is done."""
        self._rest.hear(name, share)
        self._bars.start_task(self._tasks[piece])
        part = self._rest.done(self._pieces[piece])
        self._bars.update(self._tasks[piece], description=text, completed=part)

    def finished(self, name: str) -> None:
        self._finished.add(name)
        piece = next(p for p, names in self._pieces.items() if name in names)
        whole = self._finished.issuperset(self._pieces[piece])
        self.update(piece, name, "done" if whole else f"{name}: done", 1.0)

    def tell(self) -> None:
        """The line of all, whose estimate goes down while nothing is heard."""
        left = self._rest.in_words("about") if self._rest.done() < 1 else ""
        names = sum(map(len, self._pieces.values()))
        text = f"{len(self._finished)} of {names}{left}"
        self._bars.update(self._all, description=text, completed=self._rest.done())

    def __exit__(self, *_: object) -> None:
        if (
            not self._bars.disable
        ):  # older versions of rich end even a bar that never was with a line
            self._bars.stop()
