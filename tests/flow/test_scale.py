"""Dual steps and predictions: from three modes to collapse beyond 10^(10^15)."""

import json

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special

import hadaflow as hf
import references
from hadaflow.cli.answers import strict
from hadaflow.cli.documents import solve_document
from hadaflow.flow.predictions import collapse_log_norms, joining_log_norms
from hadaflow.flow.stages import Operator, Weights, solve_stage, wright_omega

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


def solve(*args, **options):
    return hf.solve(*args, progress=None, **options)


def u_start(K, seed=0, modes=None):
    return 1e-3 * np.random.default_rng(seed).uniform(0.5, 1.5, modes or K - 1)


def orbit_field(psi):
    """D log a/dL = b/b̄ in L = log‖a‖₁, with a dense matrix."""

    def field(L, z):
        a = np.exp(z - L)
        x = psi @ a
        e = np.exp(-(x - x.min()) * np.exp(L))
        b = psi @ e
        return b / (a @ b / a.sum())

    return field


def independent_orbit(a0, ends, psi, rtol, method):
    """SciPy's log a at the values `ends` of log‖a‖₁."""
    found = scipy.integrate.solve_ivp(
        orbit_field(psi), (np.log(np.sum(a0)), ends[-1]), np.log(a0), method, t_eval=ends, rtol=rtol,
        atol=rtol,
    )  # fmt: skip
    assert found.success
    return found.y.T


def collapse_of(a0, psi, tolerance, low, high):
    """log‖a‖₁ at collapse, by SciPy's events."""

    def event(L, z):
        a = np.exp(z - L)
        return np.log(np.max(np.abs(a / a.mean() - 1)) / tolerance)

    event.terminal = True
    found = scipy.integrate.solve_ivp(
        orbit_field(psi), (np.log(a0.sum()), high), np.log(a0), "LSODA", events=event, rtol=1e-10,
        atol=1e-11,
    )  # fmt: skip
    assert found.t_events[0][0] > low
    return found.t_events[0][0]


# --- parts ---------------------------------------------------------------------------------------


def test_wright_omega_against_scipy():
    theta = np.concatenate([np.linspace(-60, 60, 4001), [-1e25, -800.0, -300.0, 1e5, 1e25]])
    with jax.enable_x64(True):
        w, log_w = map(np.asarray, wright_omega(jnp.asarray(theta)))
    expected = scipy.special.wrightomega(theta)
    np.testing.assert_allclose(w, expected, rtol=2e-13, atol=1e-300)
    ordinary = np.abs(theta) < 1e3
    np.testing.assert_allclose(
        log_w[ordinary], theta[ordinary] - expected[ordinary], rtol=1e-12, atol=1e-11
    )
    np.testing.assert_allclose(log_w[-2:], np.log(expected[-2:]), rtol=1e-6)


@hypothesis.given(st.lists(st.floats(-280, 3), min_size=15, max_size=15))
def test_positive_product_keeps_every_digit(exponents):
    from fractions import Fraction

    a = 10.0 ** np.array(exponents)
    with jax.enable_x64(True):
        padded = jnp.asarray(np.concatenate([[0.0], a]))
        ours = np.asarray(hf.Sylvester(16).positive_psi(padded))[1:]
    psi = hf.Sylvester(16).dense_psi
    for i in range(15):
        exact = sum(Fraction(psi[i, j]) * Fraction(a[j]) for j in range(15))
        assert abs(Fraction(ours[i]) / exact - 1) < 1e-15


@pytest.mark.parametrize("size", [-3.0, 2.0, 40.0, 500.0])
def test_a_stage_satisfies_its_equation(size):
    """Ψe^{z+Ψq} + log q is constant where q is positive and at least that elsewhere; Σq = h."""
    rng, psi, h = np.random.default_rng(1), references.dense_psi(8), 0.7
    z = size + rng.normal(0, 0.7, 7)
    with jax.enable_x64(True):
        p, log_p = np.full(8, 1 / 7), np.full(8, -np.log(7))
        guess = Weights(jnp.asarray(p), jnp.asarray(log_p))
        stage = solve_stage(
            Operator(hf.Sylvester(8), False),
            jnp.asarray(np.r_[0.0, z]),
            jnp.asarray(h),
            guess,
            1e-10,
        )
    assert bool(stage.solved)
    q = np.asarray(stage.q)[1:]
    assert q.sum() == pytest.approx(h, rel=1e-12)
    new = z + psi @ q
    margins = psi @ np.exp(new - size)
    slack = margins + np.exp(-size) * np.log(np.maximum(q, 1e-300))
    active = q > 1e-9
    level = slack[active].mean()
    np.testing.assert_allclose(slack[active], level, rtol=1e-8)
    assert np.all(margins[~active] > level * (1 - 1e-8) - 700 * np.exp(-size))


# --- the orbit against other solvers -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("until", [hf.Time(log10=3000), hf.PathLength(200.0), hf.Collapse(1e-6)])
def test_dual_and_explicit_steps_agree(until):
    ours = solve(hf.UFM(8), FIGURE_1, until, method="dual", points=5)
    other = solve(hf.UFM(8), FIGURE_1, until, method="tsit5", points=5)
    assert ours.status == other.status and ours.diagnostics["method"] == "dual"
    np.testing.assert_allclose(ours.log_a[-1], other.log_a[-1], rtol=0, atol=3e-8)
    np.testing.assert_allclose(ours.log10_time[-1], other.log10_time[-1], rtol=5e-8)
    np.testing.assert_allclose(ours.path_length[-1], other.path_length[-1], rtol=3e-8)
    assert ours.log10_log10_time[-1] == pytest.approx(np.log10(other.log10_time[-1]))
    assert len(ours) <= 5 and np.all(np.diff(ours.log_norm) > 0)


@pytest.mark.slow
def test_requested_times_agree_also_with_a_temperature_and_in_raw_units():
    model, times = hf.UFM(8, samples=3, temperature=2.0), [-3.0, 0.0, 1.0, 5.0, 100.0]
    start = 30 * np.array(FIGURE_1)
    ours = solve(model, start, log10_times=times, method="dual", units="raw", rtol=1e-6)
    other = solve(model, start, log10_times=times, method="tsit5", units="raw")
    np.testing.assert_allclose(ours.log_a, other.log_a, atol=3e-6)
    np.testing.assert_allclose(ours.path_length, other.path_length, rtol=3e-6)
    np.testing.assert_array_equal(ours.log10_time[1:], times)


@pytest.mark.slow
def test_collapse_of_sixty_four_classes_against_lsoda():
    a0 = u_start(64)
    expected = collapse_of(a0, references.dense_psi(64), 1e-3, 6.0, 12.0)
    for rtol in (1e-4, 1e-6):
        run = solve(hf.UFM(64), a0, hf.Collapse(1e-3), method="dual", rtol=rtol, points=2)
        assert run.log_norm[-1] == pytest.approx(expected, abs=2 * rtol)


@pytest.mark.slow
@pytest.mark.parametrize("K", [256, 1024])
def test_many_classes_against_lsoda_up_to_a_norm_of_a_million(K):
    a0, ends = u_start(K), np.log([30.0, 1e3, 1e6])
    expected = independent_orbit(a0, ends, references.dense_psi(K), 1e-8, "LSODA")
    for end, log_a in zip(ends, expected, strict=True):
        run = solve(hf.UFM(K), a0, hf.Norm(np.exp(end)), rtol=1e-5, points=2, method="dual")
        np.testing.assert_allclose(run.log_a[-1], log_a, atol=2e-5)


@pytest.mark.slow
def test_a_thousand_classes_collapse_where_the_hard_margins_say():
    """log‖a‖₁ agrees across tolerances, and with the prediction; time has no number any more."""
    a0, found = u_start(1024), {}
    for rtol in (1e-4, 1e-6):
        run = solve(hf.UFM(1024), a0, hf.Collapse(1e-3), rtol=rtol)
        assert run.status == "collapsed" and run.diagnostics["method"] == "dual"
        found[rtol] = run.log_norm[-1]
    assert found[1e-4] == pytest.approx(found[1e-6], abs=1e-4)
    # 35.593981 is what an independent prototype found, too.
    assert found[1e-6] == pytest.approx(35.593981, abs=2e-6)
    foretold = solve(hf.UFM(1024), a0, hf.PredictedCollapse(1e-3), rtol=1e-4)
    assert foretold.status == "predicted"
    assert foretold.log_norm[-1] == pytest.approx(found[1e-6], abs=5e-3)
    assert foretold.log10_log10_time[-1] == pytest.approx(15.096, abs=2e-3)
    assert len(run) <= 200 and run.measure("kl")[-1] < 1e-6
    assert run.diagnostics["transforms"] > 1000
    # Stages of this one have forces below the tolerance that move log a by more than it.
    lognormal = np.exp(np.random.default_rng(0).normal(0, 1, 1023))
    loose, tight = (
        solve(hf.UFM(1024), lognormal, hf.Collapse(1e-3), rtol=rtol, points=2)
        for rtol in (1e-4, 1e-6)
    )
    assert tight.status == "collapsed" and tight.steps < 2000
    assert loose.log_norm[-1] == pytest.approx(tight.log_norm[-1], abs=1e-4)


@pytest.mark.slow
def test_tolerance_and_work_up_to_many_classes():
    a0 = u_start(1024)
    tight = solve(hf.UFM(1024), a0, hf.Collapse(1e-3), rtol=1e-8, points=2)
    assert tight.log_norm[-1] == pytest.approx(35.593981, abs=1e-6)
    work = {}
    for K in (2**8, 2**12, 2**16):
        runs = [
            solve(hf.UFM(K), u_start(K, s), hf.Collapse(1e-3), rtol=1e-4, points=2)
            for s in range(3)
        ]
        work[K] = np.median([run.diagnostics["transforms"] for run in runs])
    assert work[2**16] <= 2 ** (8 * 0.1) * work[2**8]


WIDE = {
    "log-uniform": lambda K: 10 ** np.random.default_rng(0).uniform(-12, 1, K - 1),
    "one small": lambda K: np.r_[1e-12, np.ones(K - 2)],
    "far apart": lambda K: 10 ** np.random.default_rng(0).uniform(-300, 1, K - 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("K", [4, 64])
def test_wide_starts_collapse_at_the_same_norm_for_every_tolerance(name, K):
    if name == "far apart" and K == 64:
        pytest.skip("minutes; the honest stop is tested elsewhere")
    a0 = WIDE[name](K)
    loose, tight = (
        solve(hf.UFM(K), a0, hf.Collapse(1e-3), rtol=rtol, points=2) for rtol in (1e-4, 1e-6)
    )
    assert loose.status == tight.status == "collapsed"
    assert loose.log_norm[-1] == pytest.approx(tight.log_norm[-1], abs=1e-3)


def test_a_wide_start_against_an_independent_solver():
    a0 = WIDE["one small"](8)
    ends = np.log([10.0, 1e3, 1e6])
    expected = independent_orbit(a0, ends, references.dense_psi(8), 1e-10, "Radau")
    for end, log_a in zip(ends, expected, strict=True):
        run = solve(hf.UFM(8), a0, hf.Norm(np.exp(end)), method="dual", rtol=1e-7, points=2)
        np.testing.assert_allclose(run.log_a[-1], log_a, atol=5e-7)


@pytest.mark.slow
def test_equal_and_tiny_and_zero_values():
    run = solve(hf.UFM(4), np.full(3, 1000.0), hf.Norm(1e6), method="dual", rtol=1e-7)
    np.testing.assert_allclose(run.a_hat[-1], 1 / 3, rtol=1e-12)
    # Below 1e-12 the phase in which all grow alike is skipped in closed form.
    tiny = 1e-290 * np.array([1.0, 2.0, 3.0])
    ours = solve(hf.UFM(4), tiny, hf.Norm(3.0), method="dual", rtol=1e-7, points=2)
    other = solve(hf.UFM(4), tiny, hf.Norm(3.0), method="tsit5", points=2)
    np.testing.assert_allclose(ours.log_a[-1], other.log_a[-1], atol=1e-6)
    np.testing.assert_allclose(ours.time[-1], other.time[-1], rtol=1e-6)
    np.testing.assert_allclose(ours.path_length[-1], other.path_length[-1], rtol=1e-6)
    dead = solve(hf.UFM(4), [1.0, 0.0, 0.5], hf.Norm(1e5), rtol=1e-7, points=2)
    assert dead.diagnostics["method"] == "dual" and dead.log_a[-1, 1] == -np.inf
    np.testing.assert_allclose(dead.a_hat[-1, [0, 2]], 0.5, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("group", [(12,), (2, 6)])
def test_groups_by_dual_steps(group):
    model = hf.UFM(12, group=group)
    a0 = np.random.default_rng(3).uniform(0.1, 1.0, model.modes)
    ours = solve(model, a0, hf.Collapse(1e-3), method="dual", rtol=1e-6, points=2)
    other = solve(model, a0, hf.Collapse(1e-3), method="tsit5", points=2)
    assert ours.log_norm[-1] == pytest.approx(other.log_norm[-1], abs=3e-6)
    np.testing.assert_allclose(ours.log_a[-1], other.log_a[-1], atol=3e-6)
    assert ours.path_length[-1] == pytest.approx(other.path_length[-1], rel=3e-6)


@pytest.mark.slow
def test_a_fourier_transform_stops_honestly_where_margins_are_rounding():
    model = hf.UFM(1000, group=(1000,))
    a0 = np.full(model.modes, 1e-40)
    a0[-1] = 1.0  # the character of ±1: half of the margins come from the tiny values alone
    run = solve(model, a0, hf.Collapse(1e-3), rtol=1e-4, points=2)
    assert run.status == "failed" and "rounding of the Fourier transform" in run.message


def test_beyond_the_largest_double():
    """Norms beyond 1e308: the orbit goes on, and JSON has null where a number has no double."""
    a0 = 10 ** np.random.default_rng(0).uniform(-300, 1, 7)
    run = solve(hf.UFM(8), a0, hf.Collapse(1e-3), rtol=1e-4)
    assert run.status == "collapsed" and run.log_norm[-1] > 709
    assert run.log10_time[-1] == np.inf == run.path_length[-1] == run.measure("margin")[-1]
    assert run.measure("log_loss")[-1] == -np.inf
    margin = run.log_norm[-1] + np.log(8 / 7)
    expected = (margin - np.log(np.log(10))) / np.log(10)
    assert run.log10_log10_time[-1] == pytest.approx(expected, abs=1e-3)
    assert run.log_path_length[-1] == pytest.approx(run.log_norm[-1] - np.log(7) / 2, abs=0.2)
    assert 0 <= run.measure("kl")[-1] < 1e-6 and "log10 log10 t" in run.summary()
    said = json.loads(
        json.dumps(strict(solve_document(run, {"kl": run.measure("kl")})), allow_nan=False)
    )
    assert said["log10_time"][-1] is None and said["path_length"][-1] is None
    for name in ("log10_log10_time", "log_norm", "log_path_length"):
        assert said[name][-1] == getattr(run, name)[-1]
    with pytest.raises(hf.InputError, match="singular values beyond"):
        run.state(-1)


# --- choosing, foretelling -----------------------------------------------------------------------


@pytest.mark.slow
def test_the_method_is_chosen_with_a_reason():
    short = solve(hf.UFM(8), FIGURE_1, hf.Time(1e6), points=2)
    assert short.diagnostics["method"] == "tsit5" and "short" in short.diagnostics["reason"]
    forced = solve(hf.UFM(8), FIGURE_1, hf.Time(1e6), points=2, method="dual", rtol=1e-6)
    assert (forced.diagnostics["method"], forced.diagnostics["reason"]) == ("dual", "asked for")
    settles = solve(hf.UFM(4, label_smoothing=0.1), [0.1, 0.2, 0.3], points=2)
    assert settles.diagnostics["method"] == "kvaerno5"
    far = solve(hf.UFM(4), [1e-12, 1.0, 1.0], hf.Collapse(1e-3), points=2, rtol=1e-4)
    assert far.diagnostics["method"] == "dual" and "e^" in far.diagnostics["reason"]


def test_explicit_steps_give_way_when_the_road_is_longer_than_foreseen(monkeypatch):
    monkeypatch.setattr("hadaflow.flow.methods.dual.LONG_WAY", 1e9)
    run = solve(hf.UFM(4), [1e-12, 1.0, 1.0], hf.Collapse(1e-3), points=2, rtol=1e-4)
    assert run.status == "collapsed" and "too many" in run.diagnostics["reason"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: solve(hf.UFM(4, depth=3), [1.0] * 3, method="dual"), '"dual" needs cross-entropy'),
        (lambda: solve(hf.UFM(4), hf.spectrum([1.0] * 3, C=1.0), method="dual"), '"dual" needs'),
        (lambda: solve(hf.UFM(4, depth=3), [1, 2, 3], hf.PredictedCollapse()), "needs cross-entropy"),
        (lambda: solve(hf.UFM(4), [1, 2, 3], hf.PredictedCollapse(), method="dopri8"), "must be"),
        (lambda: solve(hf.UFM(4), [1, 2, 3], hf.Time(1.0), method="dual", rtol=1e-11), "at least 1e-09"),
        (lambda: hf.PredictedCollapse(0.0), "`tolerance` must be a positive number"),
        (lambda: solve(hf.UFM(128), u_start(128), rtol=1e-10), "at least 1e-09"),
        (lambda: solve(hf.UFM(4), np.zeros((0, 3))), "must be a list of singular values"),
    ],
)  # fmt: skip
def test_refusals(call, message):
    with pytest.raises(hf.InputError, match=message):
        call()


def test_water_filling_against_its_definition():
    K, rng = 16, np.random.default_rng(0)
    log_a = rng.normal(0, 1, K - 1)
    X = 1 - references.dense_psi(K)
    joins = np.log(K - 1) + log_a.mean() - X @ (log_a - log_a.mean())
    np.testing.assert_allclose(joining_log_norms(hf.Sylvester(K), log_a), joins)
    level, uniform = collapse_log_norms(hf.Sylvester(K), log_a, 1e-2)
    assert uniform == pytest.approx(joins.max())
    left = np.abs(X @ np.maximum(joins - level, 0)).max() / K
    assert left == pytest.approx(1e-2, rel=1e-6)


@pytest.mark.slow
def test_a_prediction_that_does_not_hold_is_integrated_instead():
    soft = solve(hf.UFM(8), u_start(8), hf.PredictedCollapse(1e-3), rtol=1e-6)
    known = solve(hf.UFM(8), u_start(8), hf.Collapse(1e-3), rtol=1e-6)
    assert soft.status == "collapsed" and "not foretold" in soft.message
    assert soft.log_norm[-1] == pytest.approx(known.log_norm[-1], abs=3e-6)


@pytest.mark.slow
def test_a_weight_that_returns_to_zero_ends_the_foretelling():
    """From a start at hard margins, eleven orders of magnitude wide; the jump sees it and gives way."""
    a0 = np.exp(np.random.default_rng(4).normal(0, 8, 15))
    assert a0.max() / a0.min() > 1e8 and a0.sum() > 1e5
    fallen_back = solve(hf.UFM(16), a0, hf.PredictedCollapse(1e-3), rtol=1e-4, points=2)
    assert fallen_back.status == "collapsed" and "returns to zero" in fallen_back.message
    known = solve(hf.UFM(16), a0, hf.Collapse(1e-3), rtol=1e-6, points=2)
    assert fallen_back.log_norm[-1] == pytest.approx(known.log_norm[-1], abs=1e-4)
    assert fallen_back.diagnostics["predicted_log_norm"] < known.log_norm[-1] - 1e-3


@pytest.mark.parametrize("size", [1e-30, 1.0])
def test_small_times_and_paths_by_dual_steps(size):
    """Targets before the end of the phase that is skipped, and far below a step."""
    start, asked = size * np.array(FIGURE_1), [-40.0, -30.0, -12.0, 0.0]
    ours = solve(hf.UFM(8), start, log10_times=asked, method="dual", rtol=1e-6)
    other = solve(hf.UFM(8), start, log10_times=asked, method="tsit5")
    np.testing.assert_allclose(ours.log_a, other.log_a, atol=1e-6)
    np.testing.assert_allclose(ours.path_length[1:], other.path_length[1:], rtol=1e-6)
    assert solve(hf.UFM(8), start, times=[0.0], method="dual", rtol=1e-6).status == "reached"


@pytest.mark.slow
def test_huge_starts():
    """At hard margins only the direction counts: the way to collapse is the same from every norm."""
    ways = []
    for size in (1e17, 1e20, 1e100, 1e300):
        run = solve(hf.UFM(8), size * np.arange(1, 8), hf.Collapse(1e-3), rtol=1e-4, points=2)
        assert run.status == "collapsed"
        ways.append(run.log_norm[-1] - run.log_norm[0])
    np.testing.assert_allclose(ways, ways[0], atol=2e-5)
    # Nothing has moved yet at a time that is late elsewhere.
    early = solve(hf.UFM(8), 1e6 * np.arange(1, 8), hf.Time(log10=1e5), rtol=1e-6)
    np.testing.assert_allclose(early.log_a[-1], early.log_a[0], atol=1e-6)


@pytest.mark.slow
def test_a_prediction_in_raw_units_and_as_a_function():
    model, a0 = hf.UFM(256, samples=5), u_start(256)
    raw = model.singular_value_scale
    run = solve(model, raw * a0, hf.PredictedCollapse(1e-3), rtol=1e-4, units="raw", points=4)
    assert run.status == "predicted" and len(run) == 4
    expected = run.diagnostics["predicted_log_norm"]
    assert run.log_norm[-1] == pytest.approx(expected, abs=1e-4)
    anchor = solve(model, raw * a0, hf.Norm(raw * 12 * 16), rtol=1e-4, units="raw", points=2)
    found = hf.predict_collapse(model, anchor.state(-1))  # which knows its units
    assert found.log_norm == pytest.approx(expected, abs=1e-3)
    assert found.log_norm < found.log_norm_uniform
    assert found.log10_log10_time == pytest.approx(run.log10_log10_time[-1], abs=1e-3)
    with pytest.raises(hf.InputError, match="`anchor` must be one balanced spectrum"):
        hf.predict_collapse(hf.UFM(4, depth=3), [1.0, 2.0, 3.0])


@pytest.mark.slow
def test_four_thousand_classes_at_the_default_tolerance():
    runs = [
        solve(hf.UFM(4096), u_start(4096), hf.Collapse(1e-3), points=2, rtol=rtol)
        for rtol in (1e-8, 1e-6)
    ]
    assert [run.status for run in runs] == ["collapsed"] * 2
    assert runs[0].log_norm[-1] == pytest.approx(runs[1].log_norm[-1], abs=1e-6)


def test_a_prediction_for_a_group_of_pairs():
    """Water filling counts a pair of modes twice: the same for its cyclic group written out."""
    anchor = np.exp(np.random.default_rng(1).normal(0, 1, 5))
    found = hf.predict_collapse(hf.UFM(10), anchor, 1e-2)
    z = np.log(hf.UFM(10).basis.expand(anchor))
    angles = 2 * np.pi * np.outer(np.arange(10), np.arange(10)) / 10
    values = np.zeros(10)
    values[[1, 9, 2, 8, 3, 7, 4, 6, 5]] = z - z.mean()
    joins = np.log(9) + z.mean() - (np.cos(angles) @ values)[1:]
    assert found.log_norm_uniform == pytest.approx(joins.max(), rel=1e-12)

    def deviation(level):
        left = np.concatenate([[0.0], np.maximum(joins - level, 0.0)])
        return np.abs(np.cos(angles) @ left)[1:].max() / 10

    assert deviation(found.log_norm) == pytest.approx(1e-2, rel=1e-6)
