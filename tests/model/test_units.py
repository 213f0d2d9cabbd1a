"""One setting of units: what a start was given in stays with it through lift, project and runs."""

import numpy as np
import pytest

import hadaflow as hf

MODELS = [
    hf.UFM(4), hf.UFM(6, samples=3), hf.UFM(4, depth=1, samples=2), hf.UFM(4, depth=3, width=6),
    hf.UFM(4, loss="mse"), hf.UFM(5, imbalance=((3, 3), (2, 1))), hf.UFM(4, weight_decay=0.1),
]  # fmt: skip
SAID = [(None, None), ("scaled", None), ("raw", None), (None, "raw"), ("raw", "scaled"),
        ("scaled", "raw")]  # fmt: skip


def start_of(model, units):
    return hf.spectrum(np.linspace(0.2, 0.9, model.modes), units=units)


@pytest.mark.parametrize(
    "model",
    [pytest.param(m, marks=pytest.mark.slow if m in MODELS[1::2] else ()) for m in MODELS],
    ids=lambda m: m.describe(short=True),
)
@pytest.mark.parametrize(("own", "asked"), SAID)
def test_both_views_answer_in_the_same_units(model, own, asked):
    """Of one start, its lift and the projection of that: the same numbers, whatever was said where."""
    start = start_of(model, own)
    state = hf.lift(model, start, units=asked)
    runs = [
        hf.solve(model, s, times=[0.3, 2.0], units=asked, progress=None)
        for s in (start, state, hf.project(model, state))
    ]
    assert [run.units for run in runs] == [asked or own or "scaled"] * 3
    np.testing.assert_allclose(runs[2].a, runs[0].a, rtol=1e-7)
    np.testing.assert_allclose(
        hf.project(model, runs[1].parameters, units=runs[0].units).a, runs[0].a, rtol=1e-6
    )
    np.testing.assert_allclose(runs[1].log_norm, runs[0].log_norm, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("units", [None, "raw"])
def test_descent_goes_by_the_same_rule(units):
    model = hf.UFM(4, samples=2)
    start = start_of(model, units)
    state = hf.lift(model, start)
    runs = [hf.descend(model, s, 30, 0.1, points=5, progress=None) for s in (start, state)]
    assert [run.units for run in runs] == [units or "scaled"] * 2
    np.testing.assert_allclose(runs[0].log10_time, runs[1].log10_time, rtol=1e-14)
    np.testing.assert_allclose(hf.project(model, runs[1].parameters).a, runs[0].a, rtol=1e-10)


@pytest.mark.parametrize("units", ["scaled", "raw"])
def test_rates_are_per_unit_of_the_clock_of_the_state(units):
    model = hf.UFM(4, samples=2)
    start = start_of(model, units)
    state = hf.lift(model, start)
    expected = hf.rate("kl", model, start)
    for s in (state, hf.project(model, state)):
        assert float(hf.rate("kl", model, s)) == pytest.approx(float(expected), rel=1e-9)
    scale = 1.0 if units == "scaled" else model.time_scale
    assert float(hf.rate("kl", model, start, units="scaled")) == pytest.approx(
        float(expected) / scale, rel=1e-12
    )


@pytest.mark.parametrize("units", ["scaled", "raw"])
@pytest.mark.parametrize("view", ["reduced", "full"])
def test_a_run_goes_on_in_its_units(units, view):
    """A restart midway is the run itself, with nothing said about units the second time."""
    model = hf.UFM(4, samples=2)
    start = start_of(model, units)
    start = start if view == "reduced" else hf.lift(model, start)
    whole = hf.solve(model, start, times=[1.0, 3.0], progress=None)
    again = hf.solve(model, whole.state(1), times=[2.0], progress=None)
    assert again.units == units
    np.testing.assert_allclose(again.a[-1], whole.a[-1], rtol=1e-6)


def test_what_the_library_makes_is_scaled_unless_told_otherwise():
    model = hf.UFM(8, samples=3)
    random = hf.gaussian(model, 0.3, seed=1)
    top = np.linalg.svd(random.Z, compute_uv=False)[:7]
    matched, raw = (
        hf.matched_spectrum(model, random),
        hf.matched_spectrum(model, random, units="raw"),
    )
    assert (matched.units, raw.units) == ("scaled", "raw") and matched.seed == raw.seed == 1
    np.testing.assert_allclose(raw.a, top, rtol=1e-12)
    np.testing.assert_allclose(matched.a * model.singular_value_scale, top, rtol=1e-12)
    pair = [hf.solve(model, s, times=[1.0], progress=None) for s in (random, matched, raw)]
    assert [run.units for run in pair] == ["scaled", "scaled", "raw"]
    drawn = hf.random_hadamard(model, 0.3, seed=2)
    assert hf.solve(model, drawn, times=[1.0], progress=None).units == "scaled" and drawn.seed == 2
    assert np.all(np.abs(hf.project(model, drawn).a / 0.3**2 - 1) <= 0.5 + 1e-12)


def test_collapse_is_foretold_in_the_units_of_the_anchor():
    model = hf.UFM(16, samples=4)
    anchor = np.exp(np.random.default_rng(0).normal(0, 1, 15))
    scaled, raw = (
        hf.predict_collapse(model, hf.spectrum(anchor * s, units=u))
        for s, u in ((1.0, None), (model.singular_value_scale, "raw"))
    )
    assert raw.log_norm - scaled.log_norm == pytest.approx(np.log(model.singular_value_scale))
    projected = hf.project(model, hf.lift(model, anchor))
    projected = hf.spectrum(projected.a, units=projected.units)  # its C is rounding
    assert hf.predict_collapse(model, projected).log_norm == pytest.approx(scaled.log_norm)


def test_an_angle_needs_two_blocks():
    with pytest.raises(hf.InputError, match="`angle` is that of the mode between two blocks"):
        hf.solve(hf.UFM(4), hf.spectrum([1, 2, 3], angle=0.3), hf.Time(1.0))
