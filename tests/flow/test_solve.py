import itertools
from unittest import mock

import mpmath as mp
import numpy as np
import pytest

import hadaflow as hf
from hadaflow.flow import integrate
from references import (
    collapse_by_norm,
    radau,
    taylor_flow,
    two_class_clock,
    uniform_log10_time,
)

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


def solve(*args, **kwargs):
    return hf.solve(*args, progress=None, **kwargs)


# --- against independent references --------------------------------------------------------------


def test_two_classes_match_the_exponential_integral():
    """K = 2 integrates by hand: log a + Ei(a) grows at rate 4 (raw units)."""
    ts = np.array([0.0, 1e-3, 1.0, 1e3, 1e6, 1e12, 1e15])
    run = solve(hf.UFM(2), hf.spectrum([1e-3]), times=ts, units="raw")
    a = run.a[:, 0]
    assert a[0] == pytest.approx(1e-3, rel=1e-15)
    clock = two_class_clock(a)
    # An error da in a moves the clock by (e^a/a) da: compare the two in a itself.
    slope = (1 + np.exp(a)) / a
    assert np.abs((clock - clock[0] - 4 * ts) / slope / a).max() < 1e-8


def test_two_classes_far_beyond_double_precision_times():
    run = solve(hf.UFM(2), hf.spectrum([1e-3]), log10_times=[10.0, 1000.0, 5000.0], units="raw")
    with mp.workdps(50):
        for log10_time, a in zip(run.log10_time[1:], run.a[1:, 0], strict=True):
            clock = mp.log(mp.mpf(a)) + mp.ei(mp.mpf(a))
            clock -= mp.log(mp.mpf("1e-3")) + mp.ei(mp.mpf("1e-3"))
            log_time = mp.log(clock / 4)
            error = (log_time - mp.mpf(log10_time) * mp.log(10)) / log_time
            assert abs(error) < 1e-8


def test_equal_singular_values_follow_their_closed_form_to_any_time():
    run = solve(hf.UFM(8), np.full(7, 0.5), log10_times=[-3.0, 0.0, 6.0, 300.0, 4000.0])
    for mu, log10_time in zip(run.a[1:, 3], run.log10_time[1:], strict=True):
        assert uniform_log10_time(mu, 0.5, 8) == pytest.approx(log10_time, rel=1e-8, abs=1e-8)
    np.testing.assert_allclose(run.a_hat, 1 / 7, rtol=1e-12)


@pytest.fixture(scope="module")
def taylor():
    times = [0.1, 3.0, 1e3, 1e6, 1e9]
    return times, taylor_flow(FIGURE_1, times)


def test_eight_classes_match_forty_digit_taylor_integration(taylor):
    times, exact = taylor
    run = solve(hf.UFM(8), FIGURE_1, times=times)
    np.testing.assert_allclose(run.a[1:], exact, rtol=1e-8)


def test_error_falls_with_the_tolerance(taylor):
    times, exact = taylor
    errors = []
    for rtol in (1e-4, 1e-6, 1e-8, 1e-10):
        run = solve(hf.UFM(8), FIGURE_1, times=times, rtol=rtol)
        errors.append(np.abs(run.a[1:] / exact - 1).max())
        assert errors[-1] < rtol
    assert all(later < earlier / 10 for earlier, later in itertools.pairwise(errors))


@pytest.mark.parametrize("method", ["dopri8", "kvaerno5"])
def test_other_methods_agree(taylor, method):
    times, exact = taylor
    run = solve(hf.UFM(8), FIGURE_1, times=times[:4], method=method, rtol=1e-6)
    np.testing.assert_allclose(run.a[1:], exact[:4], rtol=1e-6)


@pytest.mark.parametrize("K", [8, 16])
def test_matches_scipy_radau_in_time(K):
    a0 = np.random.default_rng(K).uniform(0.05, 1.5, K - 1)
    times = np.array([0.01, 1.0, 100.0, 1e5])
    run = solve(hf.UFM(K), a0, times=times)
    np.testing.assert_allclose(run.a[1:], radau(a0, times), rtol=1e-8)


@pytest.mark.parametrize(
    ("K", "tolerance", "sigma"),
    [
        (4, 1e-6, 1.5),
        (8, 1e-3, 1.0),
        pytest.param(16, 1e-5, 0.7, marks=pytest.mark.slow),
        pytest.param(32, 1e-3, 0.4, marks=pytest.mark.slow),
    ],
)
def test_collapse_is_located_to_solver_accuracy(K, tolerance, sigma):
    """Log t and a at collapse against SciPy in another variable (log norm), another clock."""
    a0 = np.exp(np.random.default_rng(K).normal(-1, sigma, K - 1))
    run = solve(hf.UFM(K), a0, hf.Collapse(tolerance), points=2)
    log_norm, log10_time = collapse_by_norm(a0, tolerance)
    assert run.status == "collapsed"
    assert run.log10_time[-1] == pytest.approx(log10_time, rel=1e-8)
    assert run.log_norm[-1] == pytest.approx(log_norm, abs=1e-8)
    assert 0.999999 * tolerance < run.measure("collapse_deviation")[-1] <= tolerance


def test_figure_1_start_reaches_collapse_with_kl_falling():
    run = solve(hf.UFM(8), FIGURE_1, hf.Collapse(1e-6))
    log_norm, log10_time = collapse_by_norm(np.array(FIGURE_1), 1e-6)
    assert run.status == "collapsed" and len(run) == 200
    assert run.log10_time[-1] == pytest.approx(log10_time, rel=1e-8)
    assert run.log_norm[-1] == pytest.approx(log_norm, abs=1e-8)
    kl = run.measure("kl")
    falling = np.diff(kl) < 0
    assert falling[kl[1:] > 1e-14].all() and falling.size == 199
    # M rises first although KL falls (Figure 1), and the rate says so where time is beyond range.
    assert run.measure("l2").max() > 1.15 * run.measure("l2")[0]
    assert (run.rate("kl", flow="normalized")[:-1] < 0).all()


# --- starts at the edges -------------------------------------------------------------------------


def test_starts_near_the_smallest_double():
    """All modes grow like e^t until their sum is of order one, whatever their ratios."""
    shape = np.arange(1.0, 8.0)
    run = solve(hf.UFM(8), 1e-300 * shape, hf.Collapse(1e-6), points=2)
    assert run.status == "collapsed"
    early = solve(hf.UFM(8), 1e-300 * shape, times=[100.0, 600.0])
    np.testing.assert_allclose(
        early.log_a[1:] - early.log_a[0], [[100.0] * 7, [600.0] * 7], rtol=0, atol=1e-8
    )
    # The same orbit as from the point it reaches at t = 600.
    later = solve(hf.UFM(8), early.state(2), hf.Collapse(1e-6), points=2)
    assert run.log10_time[-1] == pytest.approx(later.log10_time[-1], rel=1e-8)


def test_path_length_of_tiny_starts():
    """While all modes grow like e^t the path is straight: ‖a₀‖(e^t − 1)."""
    a0 = 1e-200 * np.arange(1.0, 8.0)
    run = solve(hf.UFM(8), a0, times=[0.1, 5.0])
    scale = 1e-200 * np.linalg.norm(np.arange(1.0, 8.0))
    np.testing.assert_allclose(run.path_length[1:], scale * np.expm1([0.1, 5.0]), rtol=1e-7)


def test_zeros_stay_zero_and_never_collapse():
    run = solve(hf.UFM(8), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    assert run.status == "never-collapses" and "mode 5, 6, 7" in run.message and len(run) == 1
    run = solve(hf.UFM(8), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0], hf.Time(log10=800))
    assert not run.a[:, 4:].any()
    # Appendix B: on these four modes the flow tends to (1, 1, 1, 2).
    np.testing.assert_allclose(run.a_hat[-1, :4], [0.2, 0.2, 0.2, 0.4], atol=2e-4)


def test_huge_starts_do_not_stall_the_clock():
    a0 = 1000.0 * np.linspace(1.0, 1.1, 7)
    run = solve(hf.UFM(8), a0, hf.Collapse(1e-6))
    _, log10_time = collapse_by_norm(a0, 1e-6)
    assert run.log10_time[-1] == pytest.approx(log10_time, rel=1e-8)
    frozen = solve(hf.UFM(8), a0, hf.Time(1e6))
    np.testing.assert_allclose(frozen.a[-1], a0, rtol=1e-14)


def test_unbalanced_modes_leave_zero():
    """α = √C, β = 0 gives a = 0, which moves at once; exactly a = (C/2) sinh δ."""
    C = np.array([1.0, -2.0, 0.5])
    run = solve(hf.UFM(4), hf.spectrum(np.zeros(3), C=C), times=[1e-9, 1e-3, 5.0])
    np.testing.assert_allclose(run.a[1], np.abs(C) / 2 * 1e-9, rtol=1e-8)  # g = 1 at the start
    assert solve(hf.UFM(4), hf.spectrum(np.zeros(3), C=C), points=2).status == "collapsed"


@pytest.mark.slow
def test_unequal_C_makes_kl_rise():
    """FORMULAS §6: from (1, 1, 1) with C = (0, 1, 2) KL rises from 0 to 5.45e-4."""
    run = solve(
        hf.UFM(4), hf.spectrum([1.0, 1.0, 1.0], C=[0.0, 1.0, 2.0]), hf.Norm(20.0), points=2000
    )
    assert run.measure("kl").max() == pytest.approx(5.45e-4, rel=2e-3)
    assert run.a[np.argmax(run.measure("kl"))].mean() == pytest.approx(1.69, abs=0.02)


def test_a_start_that_needs_too_much_says_so_in_bounded_time():
    run = solve(hf.UFM(8), [1e-12, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], method="tsit5")
    assert run.status == "failed" and "‖a‖₁ has reached 1" in run.message
    assert len(run) == 200 and run.log_norm[-1] > np.log(1e6)
    run = solve(hf.UFM(8), FIGURE_1, hf.Time(log10=1e9), method="tsit5")
    assert run.status == "failed" and "steps" in run.message and len(run) >= 2


@pytest.mark.parametrize("K", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_collapse_norms_below_1e5_are_reached(K):
    sigma = {16: 1.1, 64: 0.42}[K]
    a0 = np.exp(np.random.default_rng(0).normal(0, sigma, K - 1))
    run = solve(hf.UFM(K), a0, points=2)
    assert run.status == "collapsed"
    assert 1e3 < np.exp(run.log_norm[-1]) < 1e5


def test_starts_that_need_no_integration():
    assert solve(hf.UFM(2), [1e-3]).message.endswith("at the start.")
    assert solve(hf.UFM(8), np.ones(7)).status == "collapsed"
    assert solve(hf.UFM(8), np.ones(7), hf.Norm(5.0)).status == "reached"
    assert solve(hf.UFM(8), np.zeros(7), hf.PathLength(5.0)).status == "failed"
    assert solve(hf.UFM(8), np.zeros(7), hf.Time(5.0)).status == "reached"


# --- targets, clocks, saved points ---------------------------------------------------------------


def test_targets_are_met_exactly():
    model = hf.UFM(8)
    norm = solve(model, FIGURE_1, hf.Norm(1e3))
    assert norm.status == "reached" and norm.log_norm[-1] == pytest.approx(np.log(1e3), abs=1e-12)
    path = solve(model, FIGURE_1, hf.PathLength(1000.0))
    assert path.path_length[-1] == pytest.approx(1000.0, rel=1e-12)
    time = solve(model, FIGURE_1, hf.Time(1e6), points=17)
    assert time.log10_time[-1] == pytest.approx(6.0, rel=1e-14) and len(time) == 17


def test_path_length_is_the_length_of_the_path():
    run = solve(hf.UFM(4), [0.1, 0.5, 2.0], hf.Time(1e4), points=4000)
    chords = np.linalg.norm(np.diff(run.a, axis=0), axis=1).sum()
    assert run.path_length[-1] == pytest.approx(chords, rel=1e-6)


def test_normalized_flow_is_the_same_orbit_on_another_clock():
    """Eq. (22) integrated by SciPy in path length passes through the same states."""
    import scipy.integrate

    from references import stable_velocity

    run = solve(hf.UFM(8), FIGURE_1, hf.PathLength(20.0), points=2)

    def field(tau, a):
        v = stable_velocity(a, 8)
        return v / np.linalg.norm(v)

    solution = scipy.integrate.solve_ivp(
        field, (0, 20), FIGURE_1, "DOP853", t_eval=[20.0], rtol=1e-12, atol=1e-14
    )
    np.testing.assert_allclose(run.a[-1], solution.y[:, -1], rtol=1e-8)


def test_requested_times_come_back_as_asked_with_the_start_first():
    run = solve(hf.UFM(4), [0.1, 0.2, 0.3], times=[1e-5, 1.0, 7.0])
    np.testing.assert_array_equal(run.log10_time, [-np.inf, -5.0, 0.0, np.log10(7.0)])
    run = solve(hf.UFM(4), [0.1, 0.2, 0.3], times=[0.0, 1.0])
    assert len(run) == 2
    np.testing.assert_allclose(run.a[0], [0.1, 0.2, 0.3], rtol=1e-15)
    assert len(solve(hf.UFM(4), [0.1, 0.2, 0.3], times=[0.0])) == 1


def test_units_govern_start_times_and_results():
    model = hf.UFM(4, samples=3)
    a = np.array([0.3, 0.1, 0.2])
    scaled = solve(model, a, times=[5.0])
    s, t = model.singular_value_scale, model.time_scale
    assert (s, t) == (4 * 3**0.5, 2 * 3**0.5)
    raw = solve(model, a * s, times=[5.0 / t], units="raw")
    np.testing.assert_allclose(raw.a, scaled.a * s, rtol=1e-12)
    np.testing.assert_allclose(raw.path_length, scaled.path_length * s, rtol=1e-12)
    named = solve(model, hf.spectrum(a * s, units="raw"), times=[5.0 / t])
    assert named.units == "raw"
    np.testing.assert_allclose(named.a, raw.a, rtol=1e-13)
    both = solve(model, hf.spectrum(a * s, units="raw"), times=[5.0], units="scaled")
    np.testing.assert_allclose(both.a, scaled.a, rtol=1e-12)
    norm = solve(model, a * s, hf.Norm(50.0), units="raw", points=2)
    assert norm.log_norm[-1] == pytest.approx(np.log(50.0), abs=1e-12)


def test_a_mean_loss_runs_raw_time_slower():
    mean, total = hf.UFM(4, samples=2, reduction="mean"), hf.UFM(4, samples=2)
    a = [0.1, 0.5, 0.9]
    slow = solve(mean, a, times=[8.0], units="raw")
    fast = solve(total, a, times=[1.0], units="raw")
    np.testing.assert_allclose(slow.a, fast.a, rtol=1e-12)


# --- full view -----------------------------------------------------------------------------------


def test_full_view_goes_beyond_the_range_of_doubles():
    """At t = 10^400 neither t nor 1 − p exists as a double; the lifted orbit still agrees."""
    model = hf.UFM(4)
    a0 = [0.5, 1.0, 0.2]
    full = solve(model, hf.hadamard(model, a0, rotation=1), log10_times=[10.0, 400.0])
    reduced = solve(model, a0, log10_times=[10.0, 400.0])
    np.testing.assert_allclose(full.a, -np.sort(-reduced.a), rtol=1e-8)
    assert full.measure("off_diagonal").max() < 1e-10


def test_full_view_targets():
    model = hf.UFM(4)
    start = hf.gaussian(model, 0.1, 0)
    collapsed = solve(model, start, hf.Collapse(1e-2), points=2)
    assert collapsed.status == "collapsed"
    assert collapsed.measure("collapse_deviation")[-1] == pytest.approx(1e-2, rel=1e-6)
    norm = solve(model, start, hf.Norm(5.0), points=2)
    assert norm.log_norm[-1] == pytest.approx(np.log(5.0), abs=1e-9)
    path = solve(model, start, hf.PathLength(3.0))
    assert path.path_length[-1] == pytest.approx(3.0, rel=1e-9)
    flat = np.concatenate([f.reshape(len(path), -1) for f in path.parameters.factors], axis=1)
    assert np.linalg.norm(np.diff(flat, axis=0), axis=1).sum() == pytest.approx(3.0, rel=1e-2)


def test_full_mse_settles():
    model = hf.UFM(4, samples=2, loss="mse")
    run = solve(model, hf.gaussian(model, 0.3, 0), points=2)
    assert run.status == "steady"
    np.testing.assert_allclose(run.state(-1).Z, model.labels, atol=1e-6)


@pytest.mark.parametrize("units", ["scaled", "raw"])
def test_full_path_length_is_of_the_matrices_in_any_units(units):
    model = hf.UFM(4)
    run = solve(model, hf.gaussian(model, 0.1, 0), hf.PathLength(3.0), units=units, points=2)
    assert run.path_length[-1] == pytest.approx(3.0, rel=1e-9)


def test_full_starts_that_need_no_integration():
    model = hf.UFM(4)
    low_rank = solve(model, hf.lift(model, [1.0, 1.0, 0.0]))
    assert low_rank.status == "never-collapses" and "2 feature directions" in low_rank.message
    narrow = hf.UFM(4, width=1)
    assert solve(narrow, hf.gaussian(narrow, 0.1, 0)).status == "never-collapses"
    zero = hf.parameters(np.zeros((4, 4)), np.zeros((4, 4)))
    assert solve(model, zero).status == "never-collapses"
    assert solve(model, zero, hf.Norm(1.0)).status == "failed"
    there = solve(model, hf.lift(model, np.ones(3)))
    assert there.status == "collapsed" and len(there) == 1
    far = solve(model, hf.gaussian(model, 0.1, 0), hf.Norm(1e9))
    assert far.status == "failed" and "steps" in far.message


@pytest.mark.parametrize("a", [[0.1, 0.1, 0.1, 1e-30], [0.25, 0.25, 0.25, 1e-9]])
def test_steady_does_not_stop_at_saddles(a):
    """A mode that has hardly begun to grow is not steady, in either view."""
    model = hf.UFM(4, loss="mse")
    for start in (a, hf.lift(model, a), hf.hadamard(model, a, rotation=1)):
        run = solve(model, start, points=2)
        assert run.status == "steady"
        np.testing.assert_allclose(run.a[-1], 0.25, rtol=1e-6)


@pytest.mark.slow
def test_tiny_unbalanced_starts_collapse():
    run = solve(hf.UFM(4), hf.spectrum(np.zeros(3), C=np.array([1.0, 2.0, 1.0]) * 1e-160))
    assert run.status == "collapsed"
    # With both tiny, late times forget the start: K = 2 against the closed form.
    late = solve(hf.UFM(2), hf.spectrum([1e-300], C=1e-300), log10_times=[20_000.0])
    assert uniform_log10_time(late.a[1, 0], 1e-3, 2) == pytest.approx(20_000.0, rel=1e-8)


# --- progress, interruption, bad input -----------------------------------------------------------


def test_progress_reports_log10_time():
    heard = []
    hf.solve(hf.UFM(8), FIGURE_1, hf.Time(log10=2000), progress=lambda *x: heard.append(x))
    assert heard and heard[-1][0].startswith("log10 t = ") and 0 < heard[-1][1] <= 1


@pytest.mark.parametrize("target", [hf.Collapse(1e-6), hf.Time(log10=3000)])
def test_interruption_keeps_the_finished_part(target):
    original, calls = integrate.chunk_of_few_numbers, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args)

    with mock.patch.object(integrate, "chunk_of_few_numbers", interrupted):
        run = solve(hf.UFM(8), FIGURE_1, target)
    assert run.status == "interrupted" and len(run) > 50
    whole = solve(hf.UFM(8), FIGURE_1, log10_times=run.log10_time[1:])
    np.testing.assert_allclose(run.a, whole.a, rtol=1e-8)


def test_interruption_while_the_event_is_located_keeps_the_last_state():
    with mock.patch.object(integrate, "locate_one", side_effect=KeyboardInterrupt):
        run = solve(hf.UFM(8), FIGURE_1)
    assert run.status == "interrupted" and len(run) == 2
    assert run.measure("collapse_deviation")[-1] > 1e-6


def test_thinned_records_take_a_second_pass():
    """Long ways to an event do not keep every step; the answer is the same."""
    whole = solve(hf.UFM(8), FIGURE_1)
    with mock.patch.object(integrate, "_RECORD_LIMIT", 10_000):
        thinned = solve(hf.UFM(8), FIGURE_1)
    assert thinned.status == "collapsed"
    assert len(thinned) == len(whole) == 200
    again = solve(hf.UFM(8), FIGURE_1, log10_times=thinned.log10_time[1:])
    np.testing.assert_allclose(thinned.a, again.a, rtol=1e-8)
    # Points are spaced by fewer states, but nearly as they were.
    places = np.searchsorted(whole.log_norm, thinned.log_norm)
    assert np.abs(places - np.arange(200)).max() < 10


def test_loose_tolerances_end_too():
    run = solve(hf.UFM(8), FIGURE_1, rtol=1e-2)
    assert run.log10_time[-1] == pytest.approx(3614.8996376, rel=1e-2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: solve("model", [1.0]), "`model` must be a UFM, but is str"),
        (lambda m: solve(m, [1.0, 2.0]), "`start` must have 3 singular values"),
        (lambda m: solve(m, np.ones((2, 2, 3))), "`start` must be one spectrum or a list of them"),
        (lambda m: solve(m, hf.gaussian(m, 1.0, [0, 1])), "must be one state"),
        (lambda m: solve(m, [1.0] * 3, 7.0), "`until` must be Time, Collapse"),
        (lambda m: solve(m, [1.0] * 3, hf.Steady()), "cannot be Steady for cross_entropy"),
        (lambda m: solve(m, [1.0] * 3, times=[1.0], log10_times=[0.0]), "Give one of"),
        (
            lambda m: solve(m, [1.0, 2.0, 3.0], hf.PredictedCollapse(), times=[1.0]),
            "do not go with",
        ),
        (lambda m: solve(m, [1.0] * 3, times=[2.0, 1.0]), "`times` must be strictly increasing"),
        (lambda m: solve(m, [1.0] * 3, times=[-1.0]), "finite times from 0 upwards"),
        (lambda m: solve(m, [1.0] * 3, times=[np.nan]), "finite times from 0 upwards"),
        (lambda m: solve(m, [1.0] * 3, times="soon"), "`times` must hold numbers"),
        (
            lambda m: solve(m, [1.0] * 3, log10_times=[np.inf]),
            "`log10_times` must be a list of numbers from -300",
        ),
        (lambda m: solve(m, [1.0] * 3, log10_times=[1.0, 1.0]), "strictly increasing"),
        (lambda m: solve(m, [1.0] * 3, points=1), "`points` must be a whole number from 2 to"),
        (lambda m: solve(m, [1.0] * 3, rtol=0.0), "`rtol` must be from 1e-12 to 1e-2, but is 0.0"),
        (lambda m: solve(m, [1.0] * 3, method="euler"), "`method` must be one of auto, tsit5"),
        (lambda m: solve(m, [1.0] * 3, units="si"), "`units` must be"),
        (lambda m: hf.solve(m, [1.0] * 3, progress="yes"), "`progress` must be"),
        (lambda m: hf.Time(), "either a time"),
        (lambda m: hf.Time(-1.0), "`t` must be a positive number"),
        (lambda m: hf.Time(log10=np.nan), "`log10` must be a number from -300 to"),
        (lambda m: hf.Collapse(0.0), "`tolerance` must be a positive number"),
        (lambda m: solve(m, [1.0] * 3, hf.Collapse(1e-10)), "cannot be located to `rtol` = 1e-08"),
        (lambda m: hf.Time(10**400), "`t` must be a positive number"),
        (lambda m: hf.Time(1e-310), "`t` must be a positive number of at least 1e-300"),
        (lambda m: solve(m, [1.0] * 3, times=[1e-320]), "times of at least 1e-300"),
        (lambda m: hf.Norm("big"), "`value` must be a positive number"),
        (lambda m: hf.PathLength(np.inf), "`value` must be a positive number"),
    ],
)
def test_bad_requests(call, message):
    with pytest.raises(hf.InputError, match=message):
        call(hf.UFM(4))
