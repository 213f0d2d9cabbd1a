"""Saved points lie where the state changes; times of one's own go with any end."""

import itertools

import numpy as np
import pytest

import hadaflow as hf
from hadaflow import solve

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


def random_start(seed: int) -> np.ndarray:
    """Mild ones, spread ones and small ones of seven modes."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        return np.exp(rng.normal(0, rng.choice([0.3, 1, 2, 3]), 7))
    return 10 ** rng.uniform(-4, 1) * rng.uniform(0.2, 1.8, 7)


def finer(run, start) -> hf.Trajectory:
    """The same with 20 000 points; of dual steps, whose number is their own, with ten between two."""
    if run.diagnostics["method"] == "tsit5":
        return solve(run.model, start, hf.Collapse(1e-3), points=20_000)
    ends = np.maximum(run.log10_time, -2.0)
    between = [np.linspace(a, b, 12) for a, b in itertools.pairwise(ends) if b > a]
    return solve(run.model, start, log10_times=np.unique(np.concatenate(between)))


def check_extremes(seed: int) -> None:
    """Largest and smallest value of every metric, within 0.5 % of its range (and far within)."""
    model, start = hf.UFM(8), random_start(seed)
    run = solve(model, start, hf.Collapse(1e-3))
    fine = finer(run, start)
    assert len(fine) > 9 * len(run)
    for metric in hf.metric_names("reduced", model):
        some, all_of_them = run.measure(metric), fine.measure(metric)
        for extreme in (np.max, np.min):
            off = abs(extreme(some) - extreme(all_of_them))
            assert off <= 0.005 * np.ptp(all_of_them), (metric, off)


@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_points_see_every_extreme(seed):
    check_extremes(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 30))
def test_two_hundred_points_see_every_extreme_of_more_starts(seed):
    check_extremes(seed)


def test_two_hundred_points_draw_figure_1_within_a_pixel():
    """Of a panel 400 pixels high: lines between saved points against a hundred times as many."""
    run = solve(hf.UFM(8), FIGURE_1, hf.Collapse(1e-6))
    fine = solve(hf.UFM(8), FIGURE_1, hf.Collapse(1e-6), points=20_000)
    curves = {metric: (run.measure(metric), fine.measure(metric)) for metric in ("kl", "l2")}
    for i in range(7):
        curves[f"a{i}"] = run.log_a[:, i], fine.log_a[:, i]
        curves[f"a_hat{i}"] = run.a_hat[:, i], fine.a_hat[:, i]
    for name, (some, wanted) in curves.items():
        drawn = np.interp(fine.log_norm, run.log_norm, some)
        assert np.abs(drawn - wanted).max() < np.ptp(wanted) / 400, name
    # The rise of M, which the paper is about: its peak at 10^6.9 among them.
    assert run.measure("l2").max() == pytest.approx(fine.measure("l2").max(), rel=1e-4)
    assert np.sum((run.log10_time > 0) & (run.log10_time < 16)) > 30


@pytest.mark.parametrize(
    ("model", "start", "until"),
    [
        (hf.UFM(4), [0.1, 0.2, 0.3], hf.Time(1e8)),
        (hf.UFM(4), [0.1, 0.2, 0.3], hf.Time(1e-3)),
        (hf.UFM(4, loss="mse"), [0.1, 0.1, 0.2, 0.3], hf.Time(50.0)),
        (hf.UFM(4, label_smoothing=0.1), [0.1, 0.2, 0.3], hf.Time(1e5)),
        (hf.UFM(4), hf.hadamard(hf.UFM(4), [0.1, 0.2, 0.3], rotation=0), hf.Time(1e3)),
        (hf.UFM(4), [0.1, 0.2, 0.3], hf.Norm(30.0)),
    ],
)
def test_points_rise_from_the_start_to_the_end(model, start, until):
    run = solve(model, start, until, points=50)
    assert run.time[0] == 0 and np.all(np.diff(run.log10_time) > 0)
    assert 45 <= len(run) <= 50 and len(run) == len(run.log_norm)
    if isinstance(until, hf.Time):
        assert run.log10_time[-1] == until.log10_time
    assert run.log10_time[1] <= -2.0 + 1e-9


def test_a_run_at_rest_keeps_its_way_and_its_end():
    run = solve(hf.UFM(4, label_smoothing=0.1), [0.1, 0.2, 0.3], hf.Time(log10=300), points=20)
    assert run.status == "reached" and run.log10_time[-1] == 300 and len(run) == 20
    assert np.sum(np.abs(np.diff(run.log_norm)) > 1e-6) > 10


@pytest.mark.parametrize("method", ["tsit5", "dual"])
@pytest.mark.parametrize(
    "until",
    [hf.Collapse(1e-3), pytest.param(hf.Norm(40.0), marks=pytest.mark.slow), hf.Time(log10=20)],
)
def test_times_of_ones_own_go_with_any_end(method, until):
    """States at those before the end, which are those of a run to these times, and the end."""
    model, asked = hf.UFM(8), [0.0, 1.0, 3.5, 900.0]
    run = solve(model, [*FIGURE_1[:4], 0.1, 0.2, 0.3], until, log10_times=asked, method=method)
    plain = solve(model, [*FIGURE_1[:4], 0.1, 0.2, 0.3], until, method=method)
    alone = solve(model, [*FIGURE_1[:4], 0.1, 0.2, 0.3], log10_times=asked[:3], method=method)
    assert run.status == plain.status
    np.testing.assert_array_equal(run.log10_time[:4], [-np.inf, 0.0, 1.0, 3.5])
    assert len(run) == 5
    assert run.log10_time[-1] == pytest.approx(plain.log10_time[-1], rel=1e-8)
    np.testing.assert_allclose(run.a[:4], alone.a, rtol=1e-7)
    np.testing.assert_allclose(run.a[-1], plain.a[-1], rtol=1e-7)


def test_times_of_ones_own_in_closed_form_in_batches_and_for_matrices():
    mse = hf.UFM(4, loss="mse")
    run = solve(mse, [0.1, 0.1, 0.2, 0.3], hf.Steady(1e-6), times=[0.5, 1.0, 1e9])
    assert run.status == "steady" and len(run) == 4
    np.testing.assert_allclose(run.time[1:3], [0.5, 1.0], rtol=1e-15)
    model, starts = hf.UFM(4), np.array([[0.1, 0.2, 0.3], [0.3, 0.3, 0.1]])
    both = solve(model, starts, hf.Norm(20.0), times=[1.0, 10.0])
    for i, start in enumerate(starts):
        one = solve(model, start, hf.Norm(20.0), times=[1.0, 10.0])
        np.testing.assert_allclose(both.a[i], one.a, rtol=1e-9)
    full = solve(model, hf.hadamard(model, starts[0]), hf.Norm(20.0), times=[1.0, 10.0])
    one = solve(model, starts[0], hf.Norm(20.0), times=[1.0, 10.0])
    np.testing.assert_allclose(np.sort(full.a), np.sort(one.a), rtol=1e-7)


def test_dual_steps_that_are_kept_are_those_where_something_happens():
    run = solve(hf.UFM(8), FIGURE_1, method="dual", points=40)
    fine = solve(hf.UFM(8), FIGURE_1, points=20_000)
    peak, all_of_them = run.measure("l2").max(), fine.measure("l2")
    assert 30 < len(run) <= 40 and abs(peak - all_of_them.max()) < 0.005 * np.ptp(all_of_them)
