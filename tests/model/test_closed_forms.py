import mpmath as mp
import numpy as np
import pytest
import scipy.integrate
from hypothesis import given, strategies as st

import hadaflow as hf


@given(st.sampled_from([1, 2]), st.integers(0, 10**6), st.booleans(), st.integers(1, 3))
def test_mse_solution_solves_its_equation(depth, seed, balanced, n):
    """Against DOP853 on α̇ = (√n − a)β, β̇ = (√n − a)α in raw units."""
    model, rng = hf.UFM(4, samples=n, depth=depth, loss="mse"), np.random.default_rng(seed)
    a = rng.uniform(0, 3, 4)
    C = np.zeros(4) if balanced or depth == 1 else rng.normal(size=4)
    times = np.array([0.0, 0.1, 1.0, 4.0])
    got = hf.mse_exact(model, hf.spectrum(a, C=C, units="raw"), times)
    if depth == 1:
        exact = np.sqrt(n) + (a - np.sqrt(n)) * np.exp(-times[:, None])
    else:
        size = np.hypot(C, 2 * a)
        y0 = np.concatenate([np.sqrt((size + C) / 2), np.sqrt((size - C) / 2)])

        def field(t, y):
            alpha, beta = np.split(y, 2)
            g = np.sqrt(n) - alpha * beta
            return np.concatenate([g * beta, g * alpha])

        y = scipy.integrate.solve_ivp(field, (0, 4), y0, "DOP853", times, rtol=1e-12, atol=1e-14).y
        exact = (y[:4] * y[4:]).T
    np.testing.assert_allclose(got, exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e-10, 3.0])
def test_mse_from_any_size_at_any_time(size):
    """The logistic curve in 60 digits, where 1 − (1 − e^{−t}) would have no digits left."""
    model, times = hf.UFM(4, loss="mse"), [1.0, 20.0, 40.0, 700.0, 1e6]
    got = hf.mse_exact(model, np.full(4, size), times)[:, 0]
    with mp.workdps(60):
        start = mp.mpf(1) / 4 / mp.mpf(size) - 1
        exact = [float(mp.mpf(1) / 4 / (1 + start * mp.exp(-mp.mpf(t)))) for t in times]
    np.testing.assert_allclose(got, exact, rtol=1e-12)


@pytest.mark.parametrize("C", [1e-6, 1.0, 1e4, 1e8])
def test_mse_unbalanced_against_the_riccati_equation(C):
    """da/dt = √(C²/4 + a²)(1 − Ka) in 40 digits, over the time scale 2/(KC + 2)."""
    model = hf.UFM(4, loss="mse")
    end = 3 / np.hypot(1, 2 * C)
    got = hf.mse_exact(model, hf.spectrum([0.01] * 4, C=C), [end / 3, end])[:, 0]
    with mp.workdps(40):
        solution = mp.odefun(
            lambda t, a: [mp.sqrt(mp.mpf(C) ** 2 / 4 + a[0] ** 2) * (1 - 4 * a[0])],
            0,
            [mp.mpf(0.01)],
        )
        exact = [float(solution(mp.mpf(t))[0]) for t in (end / 3, end)]
    np.testing.assert_allclose(got, exact, rtol=1e-11)


@pytest.mark.parametrize(
    ("model", "a", "C", "length"),
    [
        (hf.UFM(4, loss="mse"), np.full(4, 1e-20), 0.0, 0.5),
        (hf.UFM(4, loss="mse"), np.full(4, 1e-100), 0.0, 0.5),
        (hf.UFM(4, loss="mse"), np.ones(4), 1e4, 1.5),
        (hf.UFM(1024, depth=1, loss="mse"), np.zeros(1024), 0.0, 1024**-0.5),
    ],
)
def test_mse_path_length_of_straight_paths(model, a, C, length):
    """Equal modes move along a line to 1/K each: the length is √K·|1/K − a|."""
    run = hf.solve(model, hf.spectrum(a, C=C), times=[5000.0], progress=None)
    assert run.path_length[-1] == pytest.approx(length, rel=1e-9)


def test_mse_balanced_form_of_the_paper():
    model = hf.UFM(8, samples=4, loss="mse")
    a0, t = np.geomspace(1e-6, 3, 8), np.array([0.3, 2.0])
    expected = 2.0 / (1 + (2.0 / a0 - 1) * np.exp(-2 * 2.0 * t[:, None]))
    np.testing.assert_allclose(hf.mse_exact(model, a0, t, units="raw"), expected, rtol=1e-13)


def test_mse_solves_by_closed_form_at_every_time():
    model = hf.UFM(4, loss="mse")
    run = hf.solve(model, [0.1, 0.01, 0.2, 1e-5], log10_times=[0.0, 1.0, 4000.0], progress=None)
    np.testing.assert_allclose(run.a[1:3], hf.mse_exact(model, run.a[0], [1.0, 10.0]), rtol=1e-13)
    np.testing.assert_allclose(run.a[-1], 0.25, rtol=1e-15)
    fine = hf.solve(model, run.a[0], hf.Time(50.0), points=20_000, progress=None)
    chords = np.linalg.norm(np.diff(fine.a, axis=0), axis=1).sum()
    assert fine.path_length[-1] == pytest.approx(chords, rel=1e-7)


def test_mse_targets():
    model, a = hf.UFM(4, loss="mse"), [0.1, 0.01, 0.2, 1e-5]
    steady = hf.solve(model, a, progress=None)
    assert steady.status == "steady"
    v = model.velocity(steady.a[-1])
    assert np.max(np.abs(v) / steady.a[-1]) == pytest.approx(1e-8, rel=1e-6)
    collapse = hf.solve(model, a, hf.Collapse(1e-6), progress=None)
    assert collapse.measure("collapse_deviation")[-1] == pytest.approx(1e-6, rel=1e-6)
    path = hf.solve(model, a, hf.PathLength(0.2), progress=None)
    assert path.path_length[-1] == pytest.approx(0.2, rel=1e-9)
    never = hf.solve(model, a, hf.Norm(5.0), progress=None)
    assert never.status == "failed" and "settles" in never.message
    zero = hf.solve(model, [0.1, 0.0, 0.2, 0.3], hf.Collapse(1e-6), progress=None)
    assert zero.status == "never-collapses"


def test_linearized_solution_is_right_to_second_order():
    """Theorem 5: the relative error falls like the square of the start, since cubes were dropped."""
    model, shape, errors = hf.UFM(8), np.linspace(0.5, 1.5, 7), []
    for size in (1e-2, 1e-3):
        exact = hf.solve(model, size * shape, times=[1.0], rtol=1e-12, progress=None).a[1]
        errors.append(np.abs(hf.linearized(model, size * shape, [1.0])[0] / exact - 1).max())
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.1)
    raw = hf.linearized(model, 8e-3 * shape, [0.5], units="raw")
    np.testing.assert_allclose(raw, 8 * hf.linearized(model, 1e-3 * shape, [1.0]), rtol=1e-13)


def test_bad_closed_forms():
    with pytest.raises(hf.InputError, match="cross-entropy at depth 2"):
        hf.linearized(hf.UFM(4, depth=1), [1.0] * 3, [1.0])
    with pytest.raises(hf.InputError, match="balanced"):
        hf.linearized(hf.UFM(4), hf.spectrum([1.0] * 3, C=1.0), [1.0])
    with pytest.raises(hf.InputError, match="one spectrum"):
        hf.linearized(hf.UFM(4), np.ones((2, 3)), [0.0, 1.0])
    with pytest.raises(hf.InputError, match='loss="mse"'):
        hf.mse_exact(hf.UFM(4), [1.0] * 3, [1.0])


@pytest.mark.parametrize("start", [1e-300, 1e-9, 0.249, 0.25, 3.0, 1e9, 1e20, 1e148])
def test_mse_from_any_size(start):
    """The textbook form in many digits; it cancels in doubles where the start is large."""
    times = [1e-250, 1e-20, 1e-3, 1.0, 30.0, 500.0]
    found = hf.mse_exact(hf.UFM(4, loss="mse"), [start] * 4, times)[:, 2]
    for t, value in zip(times, found, strict=True):
        with mp.workdps(700):
            want = 1 / (4 * (1 + (1 / (4 * mp.mpf(start)) - 1) * mp.exp(-mp.mpf(t))))
            assert abs(value / want - 1) < 1e-13, (start, t)
    run = hf.solve(hf.UFM(4, loss="mse"), [start, 1.0, 1.0, 1e-5], hf.Steady(), progress=None)
    assert run.status == "steady" and run.a[-1] == pytest.approx(np.full(4, 0.25), rel=1e-6)


def test_an_mse_event_at_a_tiny_time_is_relative_to_itself():
    model, start = hf.UFM(4, loss="mse"), [0.1, 0.02, 0.02, 0.02]
    for grown in (1e-12, 1e-9, 1e-4):
        run = hf.solve(model, start, hf.Norm(0.06 * (1 + grown)), progress=None)
        with mp.workdps(60):
            a, goal = mp.mpf(0.02), mp.mpf(0.06 * (1 + grown)) / 3
            t = -mp.log((1 / (4 * goal) - 1) / (1 / (4 * a) - 1))
        assert run.time[-1] == pytest.approx(float(t), rel=1e-15 / grown + 1e-12)
