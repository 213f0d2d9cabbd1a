"""Who is told that code is being compiled, and when."""

import io
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

import hadaflow as hf
from hadaflow.base import progress
from hadaflow.base.compiling import let_go
from hadaflow.base.progress import Progress, compiling

HANG = 60  # seconds; nothing here is about speed


@pytest.fixture
def nothing_kept():
    hf.disable_cache()
    let_go()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch):
    """What is written to stderr from now on, as if it were a terminal."""
    written = Terminal()
    monkeypatch.setattr("sys.stderr", written)
    monkeypatch.setenv("TERM", "xterm")
    return written


def test_a_function_is_told_before_what_it_is_told_later(nothing_kept):
    heard = []
    model = hf.UFM(4)
    for _ in range(2):
        heard.append([])
        hf.solve(model, [0.1, 0.2, 0.3], hf.Time(1e3), progress=lambda *x: heard[-1].append(x))
    first, second = heard
    assert first[0] == ("compiling, once", None)
    assert any(text.startswith("log10 t = ") for text, _ in first)
    assert second and all(text.startswith("log10 t = ") for text, _ in second)


def test_a_function_is_called_by_its_own_thread_alone():
    heard = []
    with Progress(lambda *x: heard.append(threading.get_ident()), "work"):
        thread = threading.Thread(target=lambda: compiling().__enter__())
        thread.start()
        thread.join()
        assert heard == []
        with compiling():
            assert heard == [threading.get_ident()]
    with compiling():  # nobody is there any more
        assert len(heard) == 1


def test_a_terminal_is_told_after_the_first_second_while_this_thread_waits(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with Progress("auto", "work") as line:
        with compiling():  # over before anybody has to wait
            pass
        assert terminal.getvalue() == ""
        monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.05)
        with compiling():
            shown(terminal, "work  compiling, once")
        line.report("half of it", 0.5)
        shown(terminal, "work  half of it")
    last_frame = terminal.getvalue().rsplit("work", 1)[-1]
    assert last_frame.startswith("  half of it") and last_frame.rstrip().endswith("\x1b[2K")


def shown(terminal, text):
    """Wait for what another thread writes soon."""
    end = time.monotonic() + HANG
    while text not in terminal.getvalue():
        assert time.monotonic() < end, f"not said, but {terminal.getvalue()!r}"
        time.sleep(0.01)


def test_what_fails_to_compile_leaves_nobody_waiting(monkeypatch):
    on_terminal(monkeypatch)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.05)
    before = threading.active_count()
    with Progress("auto", "work"), pytest.raises(ZeroDivisionError), compiling():
        raise ZeroDivisionError
    assert threading.active_count() <= before and progress._open == []


def test_silence_is_silent(monkeypatch, nothing_kept):
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    run = hf.solve(hf.UFM(4), [0.1, 0.2, 0.3], hf.Time(1.0), progress=None)
    assert hf.measure(lambda a: jnp.sum(a), run.model, run.a[-1]) == pytest.approx(
        np.sum(run.a[-1])
    )
    assert terminal.getvalue() == ""
