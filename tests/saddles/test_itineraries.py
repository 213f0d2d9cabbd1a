"""Runs read against the saddles they pass."""

import dataclasses
from fractions import Fraction as F

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.algebra.bases import Sylvester
from hadaflow.saddles.itineraries import Visit, itinerary
from hadaflow.saddles.supports import face_on


def test_itinerary_of_the_figure_1_start():
    model = hf.UFM(8)
    run = hf.solve(model, [1, 1, 1, 1, 0.001, 0.001, 0.001], hf.Collapse(1e-6), progress=None)
    visits = run.itinerary()
    first, last = visits[0], visits[-1]
    assert first.support == (1, 2, 3, 4)
    assert first.direction == (F(1, 5), F(1, 5), F(1, 5), F(2, 5), 0, 0, 0)
    assert last.support == tuple(range(1, 8)) and set(last.direction) == {F(1, 7)}
    assert last.log10_departure is None and last.closest < 1e-6
    # Saved points lie 18 decades apart; the times between them are as a run at many points has them.
    times = np.concatenate([np.linspace(0.5, 4, 200), np.linspace(4.5, 100, 200)])
    dense = hf.solve(model, run.state(0), log10_times=times, progress=None)
    saddle = np.array([0.2, 0.2, 0.2, 0.4, 0, 0, 0])
    distance = np.abs(dense.a_hat - saddle).sum(axis=1) / 2
    inside = dense.log10_time[distance <= 0.05]
    assert first.log10_arrival == pytest.approx(inside[0], abs=0.1)
    assert first.log10_departure == pytest.approx(inside[-1], abs=0.6)
    assert first.closest == pytest.approx(distance.min(), rel=0.3)
    (again,) = (v for v in dense.itinerary() if v.support == first.support)
    assert again.log10_arrival == pytest.approx(inside[0], abs=0.02)
    assert again.closest == pytest.approx(distance.min(), rel=1e-3)
    assert first.log10_departure < last.log10_arrival
    assert "modes 1–4 at (1/5, 1/5, 1/5, 2/5)" in str(first) and "to the end" in str(last)
    assert run.itinerary(0.001)[-1].support == last.support and len(run.itinerary(0.001)) == 1


def test_itinerary_through_a_family_and_dying_modes():
    """Directions made by hand: near (¼, ¼, ¼, ¼) on 2–5 with mode 1 dying, then in the family."""
    basis = Sylvester(8)
    dying = np.array([0.02, 0.245, 0.245, 0.245, 0.245, 0, 0])
    other = np.array([0, 0.249, 0.249, 0.249, 0.249, 0.004, 0])  # mode 6 is next, not 1
    away = np.array([1.0, 1, 0, 0.5, 0, 0, 0]) / 2.5
    family = np.array([0.1, 0.2, 0.2, 0.2, 0.2, 0.1, 0])
    late = [-np.inf, 1.0, 2.0, 3.0, 4.0]
    found = itinerary(basis, np.array([dying, other, away, family, family]), np.array(late), 0.05)
    assert [v.support for v in found] == [(2, 3, 4, 5), (1, 2, 3, 4, 5, 6)]
    first, second = found
    assert first.direction == (0, F(1, 4), F(1, 4), F(1, 4), F(1, 4), 0, 0)
    assert first.closest == pytest.approx(0.004) and first.log10_arrival == -np.inf
    assert second.closest == pytest.approx(0, abs=1e-9) and second.log10_departure is None
    np.testing.assert_allclose(np.array(second.direction, dtype=float), family, atol=1e-9)
    # From `away` to the family the distance falls linearly, as drawn.
    out = face_on(basis, range(6)).nearest(away)[0]
    # Mode 3 … 6 of `away` have too little: its pairs (1,6), (2,5), (3,4) are to be equal inside.
    assert out == pytest.approx(0.5 * (0.2 + 0.2 + 0.2 + 0.2 + 0.1 + 0.1), abs=1e-9)
    assert second.log10_arrival == pytest.approx(3 - 0.05 / out, abs=1e-9)
    seen = Visit((3,), (0, 0, F(1), 0, 0, 0, 0), -np.inf, 2.0, 0.01)
    assert str(seen) == "mode 3 at 1: log10 t from the start to 2, within 0.01"


def test_what_has_no_itinerary():
    run = hf.solve(hf.UFM(4), [1.0, 1, 1], times=[0.1], progress=None)
    arrays = run.arrays
    with pytest.raises(hf.InputError, match="full view"):
        dataclasses.replace(
            run, view="full", arrays={"W": np.eye(4)[None], "H": np.eye(4)[None]}
        ).itinerary()
    with pytest.raises(hf.InputError, match="a batch"):
        dataclasses.replace(run, arrays={n: v[None] for n, v in arrays.items()}).itinerary()
    with pytest.raises(hf.InputError, match="balanced layers"):
        dataclasses.replace(run, arrays=arrays | {"C": arrays["C"] + 1}).itinerary()
    with pytest.raises(hf.InputError, match="attract"):
        dataclasses.replace(run, model=hf.UFM(4, depth=3)).itinerary()
    for tolerance in (0.0, 1.0, "near", True):
        with pytest.raises(hf.InputError, match="`tolerance`"):
            run.itinerary(tolerance)
    with pytest.raises(hf.InputError, match="at most 64 free modes"):
        itinerary(Sylvester(128), np.ones((1, 127)) / 127, np.zeros(1), 0.05)


def test_itinerary_beyond_the_largest_double():
    """At norms that have no number the direction still does; modes that are zero stay out."""
    run = hf.solve(hf.UFM(4), [1.0, 1, 1], times=[0.1], progress=None)
    log_a = np.array([[1.0, 1, -np.inf], [1e4, 1e4, -np.inf], [1e5, 1e5, -np.inf]])
    late = dataclasses.replace(
        run, arrays={"log_a": log_a, "C": np.zeros((3, 3))},
        log10_time=np.array([-np.inf, np.inf, np.inf]), path_length=None,
        log10_log10_time=np.zeros(3), log_path_length=None,
    )  # fmt: skip
    (visit,) = late.itinerary()
    assert visit.support == (1, 2) and visit.direction == (F(1, 2), F(1, 2), 0)
    assert visit.log10_arrival == -np.inf and visit.log10_departure is None
