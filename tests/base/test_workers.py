import multiprocessing
import os

import pytest

from hadaflow.base.errors import InputError
from hadaflow.base.workers import group, run_all


def square(name, offset, report):
    report("working", 0.5)
    if name == "bad":
        raise ZeroDivisionError(name)
    return int(name) ** 2 + offset


def test_pieces_keep_shared_work_together_and_first():
    shares = {"b": "x", "d": "x"}.get
    pieces = group(["a", "b", "c", "d", "e"], shares, size=2)
    assert pieces == {"b": ["b", "d"], "a": ["a", "c"], "e": ["e"]}


def test_every_name_is_worked_on_once_and_reported():
    found = {}
    run_all(
        {"1": ["1", "2"], "3": ["3"]}, square, (10,), progress=False, finished=found.__setitem__
    )
    assert found == {"1": 11, "2": 14, "3": 19}


def test_a_failure_is_raised_after_what_was_finished():
    found = {}
    with pytest.raises(ZeroDivisionError):
        run_all({"1": ["1", "bad"]}, square, (0,), progress=False, finished=found.__setitem__)
    assert found == {"1": 1}


def vanish(name, report):
    if name == "bad":
        os._exit(7)
    return name


class Unsendable(Exception):
    def __init__(self, first, second):
        super().__init__(first)


def refuse(name, report):
    raise Unsendable(name, "more")


def test_a_worker_that_vanishes_is_told_in_one_sentence_and_the_finished_part_is_kept():
    found = {}
    with pytest.raises(InputError, match=r"worked on '1' was ended from outside \(exit code 7\)"):
        run_all({"1": ["1", "bad"]}, vanish, progress=False, finished=found.__setitem__)
    assert found == {"1": "1"}


def test_an_error_that_cannot_travel_is_told_in_words():
    with pytest.raises(RuntimeError, match=r"in refuse\n(.|\n)*Unsendable: 1"):
        run_all({"1": ["1"]}, refuse, progress=False)
    assert multiprocessing.active_children() == []
