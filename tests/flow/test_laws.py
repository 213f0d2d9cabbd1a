"""Laws of the flow, drawn by hypothesis."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hadaflow as hf


@st.composite
def spectra(draw, sizes=(4, 8, 16), unbalanced=False):
    K = draw(st.sampled_from(sizes))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    a = np.exp(rng.uniform(np.log(1e-3), np.log(3.0), K - 1))
    C = rng.normal(size=K - 1) * draw(st.sampled_from([0.1, 3.0])) if unbalanced else None
    return hf.UFM(K), hf.spectrum(a, C=C)


def solve(*args, **kwargs):
    return hf.solve(*args, progress=None, **kwargs)


@given(spectra(), st.floats(-2, 40))
def test_singular_values_grow_and_the_energy_falls(problem, log10_time):
    model, start = problem
    run = solve(model, start, hf.Time(log10=log10_time), points=40)
    assert np.all(run.a > 0)
    assert np.all(np.diff(run.log_a, axis=0) > 0)
    assert np.all(np.diff(run.measure("log_energy")) < 0)
    assert np.all(np.diff(run.path_length) > 0)


@given(spectra(unbalanced=True))
@settings(max_examples=5)
def test_full_flow_conserves_the_differences(problem):
    """C_i = α_i² − β_i² from Noether's theorem, watched on the matrices themselves."""
    model, start = problem
    full = solve(model, hf.hadamard(model, start, rotation=1), times=[1.0, 50.0])
    for i in range(3):
        C = hf.project(model, full.state(i)).C
        np.testing.assert_allclose(C, start.C, atol=1e-8 * np.abs(full.a[i]).max())


@given(spectra(), st.integers(0, 10**6))
def test_linear_maps_of_the_index_permute_trajectories(problem, seed):
    """GL(m, 2): an invertible linear map of F_2^m acts on modes and leaves the flow alone."""
    model, start = problem
    m, random = model.classes.bit_length() - 1, np.random.default_rng(seed)
    while True:
        columns = random.integers(1, model.classes, m).tolist()
        image = [0] * model.classes
        for i in range(model.classes):
            for bit in range(m):
                if i >> bit & 1:
                    image[i] ^= columns[bit]
        if len(set(image)) == model.classes:
            break
    index = np.array(image[1:]) - 1
    times = [0.5, 1e3]
    plain = solve(model, start, times=times)
    permuted = solve(model, hf.spectrum(start.a[index]), times=times)
    np.testing.assert_allclose(permuted.a, plain.a[:, index], rtol=1e-8)


def test_other_permutations_do_not_leave_the_flow_alone():
    """The law above is no triviality: four large modes end differently elsewhere (FORMULAS §11)."""
    model, a = hf.UFM(8), np.array([1.0, 1.0, 1.0, 1.0, 1e-9, 1e-9, 1e-9])
    line_and_point = np.sort(solve(model, a, times=[1e20]).a_hat[1])
    line_complement = np.sort(solve(model, a[::-1], times=[1e20]).a_hat[1])
    np.testing.assert_allclose(line_and_point[3:], [0.2, 0.2, 0.2, 0.4], atol=0.01)
    np.testing.assert_allclose(line_complement[3:], 0.25, atol=0.01)


@pytest.mark.slow
@given(spectra(unbalanced=True), st.floats(-1, 4))
@settings(max_examples=5)
def test_restart_midway_equals_one_run(problem, log10_middle):
    model, start = problem
    middle = 10**log10_middle
    whole = solve(model, start, times=[middle, 3 * middle])
    second = solve(model, whole.state(1), times=[2 * middle])
    np.testing.assert_allclose(second.a[1], whole.a[2], rtol=2e-8)


@given(spectra(sizes=(4, 8)), st.integers(1, 3))
@settings(max_examples=5)
def test_scaled_and_raw_units_describe_one_run(problem, n):
    model, start = hf.UFM(problem[0].classes, samples=n), problem[1]
    scaled = solve(model, start, times=[2.0, 100.0])
    raw = solve(
        model,
        start.a * model.singular_value_scale,
        times=np.array([2.0, 100.0]) / model.time_scale,
        units="raw",
    )
    np.testing.assert_allclose(raw.a / model.singular_value_scale, scaled.a, rtol=1e-10)
    np.testing.assert_allclose(raw.a_hat, scaled.a_hat, rtol=1e-10)
    for metric in ("energy", "kl", "margin"):
        np.testing.assert_allclose(raw.measure(metric), scaled.measure(metric), rtol=1e-9)
    np.testing.assert_allclose(raw.rate("kl"), scaled.rate("kl") * model.time_scale, rtol=1e-8)


@given(st.integers(1, 4), st.sampled_from([2, 4]), st.integers(1, 2))
@settings(max_examples=6)
def test_a_batch_of_descents_equals_one_by_one(runs, K, n):
    model = hf.UFM(K, samples=n, width=3)
    batch = hf.descend(
        model,
        hf.gaussian(model, 0.5, list(range(runs))),
        40,
        0.1,
        momentum=0.3,
        points=6,
        progress=None,
    )
    for seed in range(runs):
        alone = hf.descend(
            model, hf.gaussian(model, 0.5, seed), 40, 0.1, momentum=0.3, points=6, progress=None
        )
        np.testing.assert_allclose(
            batch.arrays["W"][seed], alone.arrays["W"], rtol=1e-12, atol=1e-14
        )
        np.testing.assert_allclose(batch.measure("loss")[seed], alone.measure("loss"), rtol=1e-12)


@given(st.integers(0, 1000))
@settings(max_examples=5)
def test_a_batch_of_reduced_descents_and_metrics_equals_one_by_one(seed):
    model = hf.UFM(8)
    a = np.random.default_rng(seed).uniform(0.01, 1, (3, 7))
    batch = hf.descend(model, a, 100, 0.05, points=5, progress=None)
    for i in range(3):
        alone = hf.descend(model, a[i], 100, 0.05, points=5, progress=None)
        np.testing.assert_allclose(batch.a[i], alone.a, rtol=1e-13)
        np.testing.assert_allclose(batch.rate("kl")[i], alone.rate("kl"), rtol=1e-12)


def test_descent_follows_the_flow_with_an_error_of_the_order_of_the_step():
    model, start = hf.UFM(4), hf.spectrum([0.2, 0.5, 0.9])
    exact = solve(model, start, times=[10.0]).a[1]
    gaps = []
    for steps in (100, 200, 400):
        rate = 10.0 / model.time_scale / steps
        run = hf.descend(model, start, steps, rate, points=2, progress=None)
        assert run.log10_time[-1] == pytest.approx(1.0)
        gaps.append(np.abs(run.a[-1] - exact).max())
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.1)
    assert gaps[1] / gaps[2] == pytest.approx(2, rel=0.1)


def test_diverging_descent_keeps_the_finite_part():
    model = hf.UFM(4, loss="mse")
    run = hf.descend(model, hf.gaussian(model, 1.0, [0, 1]), 1000, 10.0, progress=None)
    assert run.status == "failed" and "overshoot" in run.message
    assert all(np.isfinite(v).all() for v in run.arrays.values()) and 1 <= len(run) < 20
    assert np.isfinite(run.measure("loss")).all()


def test_the_last_iteration_is_always_kept():
    run = hf.descend(hf.UFM(4), [0.1, 0.2, 0.3], 1000, 0.01, points=1, progress=None)
    assert run.iterations.tolist() == [0, 1, 1000]
    with pytest.raises(hf.InputError, match="one start or a list"):
        hf.descend(hf.UFM(4), np.ones((2, 2, 3)), 10, 0.01)


@pytest.mark.slow
@given(
    spectra(sizes=(4, 8), unbalanced=True), st.floats(-2, 30), st.sampled_from(["scaled", "raw"])
)
@settings(max_examples=15)
def test_saving_and_loading_changes_nothing(tmp_path_factory, problem, log10_time, units):
    model, start = problem
    run = solve(model, start, hf.Time(log10=log10_time), units=units, points=7)
    path = tmp_path_factory.mktemp("law") / "run.nc"
    run.save(path)
    back = hf.load(path)
    for name in ("log_a", "C"):
        np.testing.assert_array_equal(back.arrays[name], run.arrays[name])
    np.testing.assert_array_equal(back.log10_time, run.log10_time)
    np.testing.assert_array_equal(back.path_length, run.path_length)
    assert (back.model, back.units, back.settings) == (run.model, run.units, run.settings)
