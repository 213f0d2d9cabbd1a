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
_IMPORT_SECONDS = 10.0  # an import that takes longer does something else


class _Received:
    """The signal that asked to stop, and when."""

    number: int | None = None
    when = -float("inf")
    holding = False
    firmly = False  # also against one who asks again
    waiting = False  # for the end of what holds it back


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def asked() -> bool:
    """Has a signal asked this process to stop?"""
    return _Received.number is not None


def exit_code() -> int:
    """What a command that was interrupted exits with: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (_Received.number or signal.SIGINT)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Within it, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, unless the caller ignores them."""
    if not _in_main_thread():
        yield
        return
    _Received.number, _Received.when, _Received.waiting = None, -float("inf"), False
    heard = [n for n in _ENDING if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _hear) for number in heard}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, _rescue
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _Received.waiting = False  # nobody is left to be stopped
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held_back(firmly: bool = True) -> Iterator[None]:
    """A signal that comes meanwhile raises nothing: what is finished is put together, or saved, first.

    `asked` tells of it afterwards, and so does `answer_held_back`. Not `firmly`, one who asks again,
    seconds later, is heard: as where nobody reads what is said.
    """
    if not _in_main_thread():  # where alone signals are answered
        yield
        return
    before = _Received.holding, _Received.firmly
    _Received.holding, _Received.firmly = True, firmly
    try:
        yield
    finally:
        _Received.holding, _Received.firmly = before


@contextlib.contextmanager
def let_through() -> Iterator[None]:
    """Within `held_back`: what takes long is interrupted all the same, also by what came before."""
    before, _Received.holding = _Received.holding, False
    try:
        answer_held_back()
        yield
    finally:
        _Received.holding = before


def answer_held_back() -> None:
    """Raise KeyboardInterrupt for a signal that was held back: before anything long is begun."""
    if _Received.waiting and _in_main_thread():
        _Received.waiting = False
        raise KeyboardInterrupt


def stop_listening() -> None:
    """From now on nothing interrupts: all is done but for the last words."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def _hear(number: int, frame: Any) -> None:
    if time.monotonic() - _Received.when > _REPEATED:
        _Received.number, _Received.when = number, time.monotonic()
        _interrupt(number, frame)


def _interrupt(_: int, frame: Any) -> None:
    """Raise KeyboardInterrupt, now or as soon as it does no harm."""
    if _importing(frame) and time.monotonic() - _Received.when < _IMPORT_SECONDS:
        _ask_again()  # compiled modules crash if their import is torn
    elif _Received.holding and (_Received.firmly or not _Received.waiting):
        _Received.waiting = True
    else:
        raise KeyboardInterrupt


def _importing(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _ask_again() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def _rescue(lost: Any) -> None:
    """An interruption that hits a destructor is dropped by Python: it comes once more, a little later."""
    if lost.exc_type and issubclass(lost.exc_type, KeyboardInterrupt):
        _ask_again()
    else:
        sys.__unraisablehook__(lost)
