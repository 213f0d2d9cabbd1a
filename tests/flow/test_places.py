"""Turns and crossings of metrics against SciPy's integration and roots of the exact rate."""

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

import hadaflow as hf
from references import stable_velocity

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


def squared_distance(a):
    """M: half the squared distance of the direction from uniform, K = 8."""
    return np.sum((a / a.sum(axis=-1, keepdims=True) - 1 / 7) ** 2, axis=-1) / 2


def reference_turns() -> list[tuple[float, float]]:
    """log10 t and M where dM/dt = 0 on the way from Figure 1's start, by SciPy alone."""

    def field(u, y):
        return np.exp(u) * stable_velocity(y, 8)

    run = scipy.integrate.solve_ivp(
        field, (0, 20), FIGURE_1, "DOP853", rtol=1e-12, atol=1e-14, dense_output=True
    )

    def slope(u):
        a = run.sol(u)
        v, share = stable_velocity(a, 8), a / a.sum()
        return float(np.sum((share - 1 / 7) * (v - share * v.sum())) / np.linalg.norm(v))

    us = np.linspace(1e-4, 20, 4000)
    slopes = np.array([slope(u) for u in us])
    roots = [
        scipy.optimize.brentq(slope, us[i], us[i + 1], xtol=1e-13)
        for i in np.flatnonzero(slopes[:-1] * slopes[1:] < 0)
    ]
    return [(float(np.log10(np.expm1(u))), float(squared_distance(run.sol(u)))) for u in roots]


def test_turns_of_m_from_the_start_of_figure_1():
    run = hf.solve(hf.UFM(8), FIGURE_1, hf.Collapse(1e-6))
    found, wanted = run.extremes("l2"), reference_turns()
    assert [p.kind for p in found] == ["minimum", "maximum"]
    assert len(wanted) == 2
    for place, (log10_time, value) in zip(found, wanted, strict=True):
        assert place.log10_time == pytest.approx(log10_time, abs=2e-4)
        assert place.value == pytest.approx(value, rel=1e-8)
    assert found[1].value > run.measure("l2").max()
    assert run.extremes("kl") == [] and run.extremes("margin") == []


def test_the_same_turns_in_raw_units_and_on_matrices():
    model = hf.UFM(8, samples=2)
    run = hf.solve(model, FIGURE_1, hf.Time(1e9))
    peak = run.extremes("l2")[-1]
    raw = hf.solve(
        model, np.array(FIGURE_1) * model.singular_value_scale, hf.Time(1e9), units="raw"
    )
    same = raw.extremes("l2")[-1]
    assert same.log10_time + np.log10(model.time_scale) == pytest.approx(peak.log10_time, abs=1e-6)
    assert same.value == pytest.approx(peak.value, rel=1e-10)
    full = hf.solve(model, hf.hadamard(model, FIGURE_1, rotation=0), hf.Time(1e9))
    assert full.extremes("l2")[-1].value == pytest.approx(peak.value, rel=1e-7)


def test_a_turn_in_the_first_interval_and_a_metric_of_ones_own():
    """KL leaves zero with unequal differences; its maximum is 5.45e-4 at a mean value of 1.69."""
    run = hf.solve(hf.UFM(4), hf.spectrum([1.0, 1.0, 1.0], [0.0, 1.0, 2.0]), hf.Time(1e6))
    (peak,) = run.extremes("kl")
    assert peak.value == pytest.approx(5.45e-4, rel=1e-3)
    assert np.exp(peak.log_norm) / 3 == pytest.approx(1.69, abs=0.01)

    def first_share(a):
        return a[0] / a.sum()

    early = hf.solve(hf.UFM(4), [1.0, 1.2, 0.1], times=[5.0, 50.0, 1e4])
    fine = hf.solve(hf.UFM(4), [1.0, 1.2, 0.1], times=np.geomspace(1e-3, 1e4, 4000))
    shares = fine.measure(first_share)
    (turn,) = early.extremes(first_share)
    assert turn.value == pytest.approx(shares.max(), rel=1e-6)


def test_crossings_are_where_the_value_is():
    run = hf.solve(hf.UFM(8), FIGURE_1, hf.Collapse(1e-6))
    rises, falls = run.crossings("l2", 0.06)
    assert (rises.kind, falls.kind) == ("rises", "falls")
    for place in (rises, falls):
        there = hf.solve(hf.UFM(8), FIGURE_1, log10_times=[place.log10_time])
        assert there.measure("l2")[-1] == pytest.approx(0.06, rel=1e-8)
    # FORMULAS: M falls to half of its value at the start at log10 t = 410.95.
    (half,) = run.crossings("l2", run.measure("l2")[0] / 2)
    assert half.log10_time == pytest.approx(410.95, abs=0.01)
    assert run.crossings("kl", 100.0) == []


def test_turns_of_a_descent_are_kept_iterations():
    run = hf.descend(hf.UFM(4), hf.spectrum([1.0, 1.0, 1.0], [0.0, 1.0, 2.0]), 20_000, 0.05)
    (peak,) = run.extremes("kl")
    values = run.measure("kl")
    assert peak.kind == "maximum" and peak.value == values.max() == pytest.approx(5.45e-4, rel=0.02)
    (half,) = run.crossings("l2", run.measure("l2").max() / 2)[-1:]
    assert half.kind == "falls" and half.value <= run.measure("l2").max() / 2


def test_places_are_refused_for_batches_and_odd_values():
    batch = hf.solve(hf.UFM(4), [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], hf.Norm(20.0))
    with pytest.raises(hf.InputError, match="take one of its runs"):
        batch.extremes("l2")
    with pytest.raises(hf.InputError, match="`value` must be a finite number"):
        batch[0].crossings("l2", np.nan)
    with pytest.raises(hf.InputError, match="Unknown metric"):
        batch[0].extremes("l3")
