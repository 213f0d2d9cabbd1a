"""Signals that ask a command to stop: each does what Ctrl-C does, and what is finished is kept.

For the command line alone: nothing changes by importing this.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

_ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
# `timeout` and closing terminals send theirs twice; a person who insists takes longer.
_REPEATED = 2.0


class _Received:
    """The signal that asked to stop, and when."""

    number: int | None = None
    when = -float("inf")
    holding = False
    waiting = False  # for the end of what holds it back


def asked() -> bool:
    """Has a signal asked this process to stop?"""
    return _Received.number is not None


def exit_code() -> int:
    """What a command that was interrupted exits with: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (_Received.number or signal.SIGINT)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Within it, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, unless the caller ignores them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Received.number, _Received.when = None, -float("inf")
    heard = [n for n in _ENDING if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in heard}
    hook, sys.unraisablehook = sys.unraisablehook, _ask_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """A signal that comes meanwhile is answered afterwards: what is finished is saved first."""
    _Received.holding, _Received.waiting = True, False
    try:
        yield
    finally:
        _Received.holding = False
    if _Received.waiting:
        raise KeyboardInterrupt


def stop_listening() -> None:
    """From now on nothing interrupts: all is done but for the last words."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, _: Any) -> None:
    repeated = time.monotonic() - _Received.when < _REPEATED
    _Received.number, _Received.when = number, time.monotonic()
    if _Received.holding:
        _Received.waiting = not repeated
    elif not repeated:
        raise KeyboardInterrupt


def _ask_again(lost: Any) -> None:
    """An interruption that hits a destructor is dropped by Python: it comes once more, a little later."""
    if not (lost.exc_type and issubclass(lost.exc_type, KeyboardInterrupt)):
        sys.__unraisablehook__(lost)
        return

    def again() -> None:
        _Received.when = -float("inf")
        main = threading.main_thread().ident
        if main is not None and _Received.number is not None:
            signal.pthread_kill(main, _Received.number)

    threading.Timer(0.05, again).start()
