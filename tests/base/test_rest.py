"""How long work still takes: against work whose pace is known."""

import io
import math
import sys

import pytest

import hadaflow as hf
from hadaflow.base import progress as reporting
from hadaflow.base.progress import Rest
from hadaflow.base.words import lasting
from hadaflow.base.workers import run_all


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes only when it is told to."""
    now = [100.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_one_part_at_a_steady_pace(clock):
    rest = Rest({"all": 7.0})
    rest.hear("all", 0.0)
    assert rest.seconds() == math.inf and rest.in_words("about") == ""
    clock(10)
    rest.hear("all", 0.25)
    assert rest.seconds() == pytest.approx(30) and rest.done() == 0.25
    assert rest.in_words("about") == ", about 30 s left"
    clock(30)
    rest.hear("all", 1.0)
    assert rest.seconds() == 0 and rest.done() == 1


def test_no_longer_than_it_may(clock):
    rest = Rest({"all": 1.0}, seconds=60)
    assert rest.in_words("at most") == ", at most 60 s left"
    rest.hear("all", 0.0)
    clock(20)
    rest.hear("all", 0.1)
    assert rest.seconds() == pytest.approx(40)  # and not 180
    clock(50)
    assert rest.seconds() == 0


def test_parts_of_known_costs_by_two_workers(clock):
    """Four parts of 10, 20, 30 and 40 units at 2 s each unit: 200 s of work, 100 with two workers."""
    rest = Rest({"a": 10, "b": 20, "c": 30, "d": 40}, workers=2)
    rest.hear("d", 0.0)
    rest.hear("a", 0.0)
    clock(20)
    rest.hear("a", 1.0)
    rest.hear("b", 0.0)
    assert rest.done() == pytest.approx(0.1)
    # Of d 20 s are over although nothing was heard of it.
    assert rest.seconds() == pytest.approx((40 + 60 + 80 - 20) / 2)
    clock(40)
    assert rest.seconds() == pytest.approx((0 + 60 + 80 - 60) / 2)
    rest.hear("b", 1.0)
    rest.hear("c", 0.0)
    clock(15)
    rest.hear("c", 0.25)
    assert rest.seconds() == pytest.approx((0.75 * 60 + 80 - 75) / 2)
    assert rest.done(["b", "c"]) == pytest.approx((20 + 7.5) / 50)


@pytest.mark.parametrize(("seconds", "words"), [(12, "10 s"), (89, "90 s"), (91, "2 min")])
def test_words_of_an_estimate(seconds, words):
    assert lasting(seconds) == words


def test_a_hunt_says_how_far_it_is_and_how_long_it_may_take():
    told = []
    hf.hunt("kl", hf.UFM(4), starts=512, progress=lambda *said: told.append(said))
    told = [said for said in told if said[0] != "compiling, once"]
    texts, shares = zip(*told, strict=True)
    assert texts[0].startswith("0 of 512 starts, at most ") and texts[0].endswith(" left")
    assert any(text.startswith("256 of 512 starts, at most ") for text in texts)
    assert texts[-1] == "512 of 512 starts, refining"
    assert shares[0] == 0 and shares[-1] == 1 and list(shares) == sorted(shares)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def doubled(name, report):
    return 2 * int(name)


def test_the_largest_pieces_come_first_and_the_line_of_all_counts_them(monkeypatch):
    screen, order = Terminal(), []
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    pieces = {"1": ["1", "2"], "3": ["3"], "4": ["4"]}
    run_all(pieces, doubled, workers=1, cost=int, finished=lambda name, _: order.append(name))
    assert order == ["4", "1", "2", "3"]  # of cost 4, 1 + 2 and 3, the first of equals first
    assert "4 of 4" in screen.getvalue()
