"""Any depth: instability of collapse, low-rank directions, layers of their own, penalties on each."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

import hadaflow as hf
from hadaflow.model.fitting import fitted
from hadaflow.model.layers import differences, layer_values, mobility
from references import dense_psi


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_layers_have_the_product_and_the_differences(depth):
    rng = np.random.default_rng(depth)
    sigma = np.exp(rng.uniform(-8, 3, (depth, 50)))
    a, C = np.prod(sigma, axis=0), differences(sigma)
    np.testing.assert_allclose(layer_values(depth, a, C)[np.argmax(sigma, axis=0), np.arange(50)],
                               sigma.max(axis=0), rtol=1e-12)  # fmt: skip
    np.testing.assert_allclose(np.prod(layer_values(depth, a, C), axis=0), a, rtol=1e-12)
    np.testing.assert_allclose(
        mobility(depth, a, C), np.mean((a / layer_values(depth, a, C)) ** 2, axis=0), rtol=1e-11
    )
    balanced = 0 * C
    np.testing.assert_allclose(mobility(depth, a, balanced), a ** (2 - 2 / depth), rtol=1e-12)
    np.testing.assert_allclose(layer_values(depth, 0 * a, balanced), 0, atol=0)


@pytest.mark.slow
def test_a_start_from_given_layers_comes_back():
    """Hadamard start and projection, with rotations, a zero layer and dead modes among them."""
    model = hf.UFM(6, samples=2, depth=4, width=9)
    rng = np.random.default_rng(0)
    sigma = rng.uniform(0.2, 2, (4, model.modes))
    sigma[2, 0] = 0.0
    start = hf.spectrum(np.prod(sigma, axis=0), differences(sigma), units="raw")
    state = hf.hadamard(model, start, rotation=5)
    back = hf.project(model, state)
    np.testing.assert_allclose(back.a, start.a, atol=1e-13)
    np.testing.assert_allclose(back.C, start.C, atol=1e-12)
    assert hf.distance_from_hadamard(model, state) < 1e-12
    assert hf.distance_from_hadamard(model, hf.gaussian(model, 0.5, 0)) > 0.1
    # One zero layer moves and two do not.
    run = hf.solve(model, start, hf.Time(1.0), progress=None)
    assert run.a[-1, 0] > 1e-3
    np.testing.assert_allclose(run.C[-1], start.C, rtol=1e-15)
    sigma[1, 0] = 0.0
    dead = hf.spectrum(np.prod(sigma, axis=0), differences(sigma), units="raw")
    assert hf.solve(model, dead, hf.Time(1.0), progress=None).a[-1, 0] == 0
    assert hf.solve(model, dead, progress=None).status == "never-collapses"


@pytest.mark.parametrize(("depth", "mu"), [(3, 0.2), (3, 0.6), (4, 0.3), (5, 1.5)])
def test_collapse_is_unstable_below_one_minus_two_over_n(depth, mu):
    """Near NC d log ε/d log μ = (1 − 2/N) − μ, by the exact rate of the spread."""
    model = hf.UFM(8, depth=depth)
    rng = np.random.default_rng(0)
    eps = rng.standard_normal(7) * 1e-7
    a = mu * (1 + eps - eps.mean())
    spread = float(hf.rate("collapse_deviation", model, a)) / float(
        hf.measure("collapse_deviation", model, a)
    )
    velocity = model.velocity(a)
    growth = velocity.mean() / mu
    assert spread / growth == pytest.approx(1 - 2 / depth - mu, rel=1e-5, abs=1e-6)


def test_kl_may_rise_at_depth_three():
    """K = 4, N = 3: (8, 8, 0.7) goes to rank 2 with KL from 0.449 to 1.057 at norm 12 000."""
    model = hf.UFM(4, depth=3)
    run = hf.solve(model, [8, 8, 0.7], hf.Norm(12000), progress=None)
    kl = run.measure("kl")
    assert kl[0] == pytest.approx(0.449, abs=1e-3) and kl[-1] == pytest.approx(1.057, abs=1e-3)
    assert np.all(run.rate("kl", flow="normalized") > 0)


@pytest.mark.parametrize(
    ("depth", "threshold"), [(3, 1 / 8), pytest.param(4, 1 / 4, marks=pytest.mark.slow)]
)
def test_the_threshold_of_the_third_mode(depth, threshold):
    """K = 4, two equal large modes: the third dies below 2^{−N/(N−2)} of them."""
    model = hf.UFM(4, depth=depth)
    low = hf.solve(model, [30, 30, 30 * threshold * 0.98], points=2, progress=None)
    assert low.status == "never-collapses"
    assert "mode 3 provably loses all share" in low.message
    assert "rank 2 at most" in low.message and "(0.5, 0.5)" in low.message
    high = hf.solve(model, [30, 30, 30 * threshold * 1.2], points=2, progress=None)
    assert high.status == "collapsed"


@pytest.mark.slow
def test_no_mode_called_lost_ever_gains_again():
    """The certificate against the flow: from many starts lost modes fall behind R to the end.

    R = (Σσ²/N)^{N/2} is the norm up to a bounded factor, so that their share of it may rise a little.
    """
    from hadaflow.base.precision import double_precision
    from hadaflow.saddles.low_rank import low_rank_limit

    rng, seen = np.random.default_rng(3), 0
    for depth, C in ((3, 0.0), (4, 0.0), (3, 0.4)):
        model = hf.UFM(8, depth=depth)
        for _ in range(2):
            a = np.exp(rng.uniform(-3, 2.5, 7))
            layers = None if C == 0 else C * rng.uniform(-1, 1, (depth - 1, 7))
            start = hf.spectrum(a, layers)
            run = hf.solve(model, start, hf.Norm(3000), points=60, progress=None)
            C_row = fitted(model, start).C
            for i in range(len(run)):
                with double_precision():
                    told = low_rank_limit(model, run.a[i], C_row)
                if told:
                    modes = told.split("provably")[0].split("mode")[-1].strip("s ").split(",")
                    lost = [int(m) - 1 for m in modes]
                    squares = [np.sum(layer_values(depth, a, C_row) ** 2) for a in run.a[i:]]
                    behind = run.log_a[i:, lost] - depth / 2 * np.log(squares)[:, None]
                    assert np.all(np.diff(behind, axis=0) < 0)
                    assert np.all(run.a_hat[-1, lost] < run.a_hat[i, lost])
                    seen += 1
                    break
    assert seen > 2


def test_the_deep_flow_against_another_solver_far_out():
    """LSODA on log a at N = 3, unbalanced, to t = 1e6, in scaled units."""
    model, psi = hf.UFM(8, depth=3), dense_psi(8)
    rng = np.random.default_rng(1)
    sigma = rng.uniform(0.3, 1.2, (3, 7))

    def field(t, y):
        s = np.exp(y.reshape(3, 7))
        a = s.prod(axis=0)
        e = np.exp(-psi @ a)
        g = psi @ e / (1 + e.sum())
        return (g * a / s**2 / 3).ravel()

    times = [1.0, 1e3, 1e6]
    want = scipy.integrate.solve_ivp(
        field, (0, 1e6), np.log(sigma).ravel(), "LSODA", t_eval=times, rtol=1e-11, atol=1e-12
    )
    logs = want.y.T.reshape(3, 3, 7).sum(axis=1)
    start = hf.spectrum(sigma.prod(axis=0), differences(sigma))
    run = hf.solve(model, start, times=times, rtol=1e-9, progress=None)
    np.testing.assert_allclose(run.log_a[1:], logs, atol=1e-7)


@pytest.mark.slow
def test_the_full_view_of_a_deep_model():
    model = hf.UFM(4, depth=3, samples=2, width=6)
    start = hf.spectrum([0.5, 0.8, 0.3], [[0.1, -0.2, 0.3], [0.0, 0.2, -0.1]])
    state = hf.hadamard(model, start, rotation=1)
    assert [f.shape for f in state.factors] == [(4, 6), (6, 6), (6, 8)]
    np.testing.assert_allclose(state.W @ state.H, state.Z, atol=1e-14)
    times = [1.0, 50.0]
    full = hf.solve(model, state, times=times, progress=None)
    reduced = hf.solve(model, start, times=times, progress=None)
    np.testing.assert_allclose(hf.project(model, full.parameters).a, reduced.a, rtol=1e-6)
    assert model.factor_names == ("W1", "W2", "H") and "W2" in full.to_xarray()
    random = hf.solve(model, hf.gaussian(model, 0.8, 0), hf.Norm(30), progress=None)
    assert random.status == "reached" and random.measure("nc1_quot")[-1] < 1
    losses = hf.descend(model, hf.gaussian(model, 0.5, [0, 1]), 200, 0.02, progress=None)
    assert np.all(np.diff(losses.measure("loss"), axis=1) < 0)


def test_a_deep_run_is_saved_and_continued(tmp_path):
    model = hf.UFM(5, depth=3, weight_decay=(0.1, 0.2, 0.3))
    run = hf.solve(model, hf.spectrum([2.0, 1.5]), hf.Time(3), progress=None)
    run.save(tmp_path / "run.nc")
    again = hf.load(tmp_path / "run.nc")
    assert again.model == model and again.C.shape == (200, 2, 2)
    np.testing.assert_array_equal(again.C, run.C)
    further = hf.solve(model, again.state(-1), hf.Time(2), points=2, progress=None)
    direct = hf.solve(model, hf.spectrum([2.0, 1.5]), hf.Time(5), points=2, progress=None)
    np.testing.assert_allclose(further.log_a[-1], direct.log_a[-1], atol=1e-6)


# --- penalties and labels ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "decays", "n"),
    [
        (1, 0.4, 3),
        pytest.param(3, (0.1, 0.2, 0.3), 2, marks=pytest.mark.slow),
        pytest.param(4, 0.1, 1, marks=pytest.mark.slow),
    ],
)
def test_penalties_on_every_layer_settle_at_the_root(depth, decays, n):
    """All modes at g a^{1−2/N} = λ̄, here from SciPy on the equation in raw units; λ_l σ_l² alike."""
    model = hf.UFM(4, depth=depth, samples=n, weight_decay=decays)
    strength = np.prod(model.decays) ** (1 / depth) / math.sqrt(n)

    def gap(a):
        return 4 / (math.exp(a / math.sqrt(n)) + 3) * a ** (1 - 2 / depth) - strength

    top = 1e-3 if depth == 1 else scipy.optimize.minimize_scalar(
        lambda a: -gap(a), bounds=(1e-3, 5), method="bounded").x  # fmt: skip
    want = scipy.optimize.brentq(gap, top, 60, xtol=1e-13)
    np.testing.assert_allclose(hf.fixed_point(model, "raw"), want, rtol=1e-10)
    run = hf.solve(model, hf.spectrum([1.0, 0.8, 1.3]), points=2, progress=None)
    assert run.status == "steady"
    np.testing.assert_allclose(run.a[-1], hf.fixed_point(model), rtol=1e-5)
    if depth > 1:
        squares = layer_values(depth, run.a[-1], run.C[-1]) ** 2
        pulled = np.array(model.decays)[:, None] * squares
        np.testing.assert_allclose(pulled, np.broadcast_to(pulled[0], pulled.shape), rtol=1e-5)


def test_deep_penalties_that_are_too_strong_leave_nothing():
    model = hf.UFM(4, depth=3, weight_decay=2.0)
    assert np.all(hf.fixed_point(model) == 0)
    run = hf.solve(model, [1.0, 0.8, 1.3], hf.Collapse(1e-3), points=2, progress=None)
    assert run.status == "never-collapses" and "too strong for collapse" in run.message


@pytest.mark.slow
def test_a_temperature_moves_the_threshold_of_the_penalty():
    """At τ the force at zero is 1/τ: λ̄ = 1.5 lives at τ = 0.5, λ̄ = 0.7 dies at τ = 2."""
    alive = hf.UFM(4, weight_decay=1.5, temperature=0.5)
    run = hf.solve(alive, [0.1, 0.2, 0.3], progress=None)
    np.testing.assert_allclose(run.a[-1], hf.fixed_point(alive), rtol=1e-5)
    assert hf.fixed_point(alive)[0] > 0.1
    dying = hf.UFM(4, weight_decay=0.7, temperature=2.0)
    assert np.all(hf.fixed_point(dying) == 0)
    run = hf.solve(dying, [0.1, 0.2, 0.3], progress=None)
    assert run.status == "steady" and run.a[-1].max() < 1e-12


def test_a_deep_penalized_run_to_collapse_ends_in_a_low_rank_state():
    model = hf.UFM(4, depth=3, weight_decay=0.05)
    run = hf.solve(model, [8, 8, 0.1], hf.Collapse(1e-3), points=2, progress=None)
    assert run.status == "never-collapses" and "(0.5, 0.5, 0)" in run.message


@pytest.mark.slow
def test_a_fixed_point_that_repels_has_no_stability_limit():
    """Depth 3, λ = 0.6995: all modes equal is a saddle (μ < 1/3), and the flow leaves it."""
    model = hf.UFM(4, depth=3, weight_decay=0.6995)
    run = hf.solve(model, hf.fixed_point(model) * [1.01, 1, 0.99], progress=None)
    assert run.status == "steady" and run.a[-1, 2] < 1e-9 < 0.1 < run.a[-1, 0]
    with pytest.raises(hf.InputError, match="that attracts"):
        hf.stability_limit(model)


def test_one_row_of_differences_stands_for_all_layers():
    model = hf.UFM(4, depth=3)
    one, all_rows = hf.spectrum([1, 2, 3], 0.5), hf.spectrum([1, 2, 3], [[0.5] * 3, [0.5] * 3])
    by_layer = hf.spectrum([1, 2, 3], [[0.5], [0.5]])
    want = fitted(model, all_rows).C
    np.testing.assert_array_equal(fitted(model, one).C, want)
    np.testing.assert_array_equal(fitted(model, by_layer).C, want)


@pytest.mark.parametrize("start", [pytest.param("full", marks=pytest.mark.slow), "phases"])
def test_other_deep_starts_are_told_of_their_limit_too(start):
    model = hf.UFM(5, depth=3)
    given = hf.circulant([8, 0.1 * np.exp(0.3j)])
    if start == "full":
        given = hf.hadamard(model, [8, 0.1])
    run = hf.solve(model, given, hf.Collapse(1e-3), points=2, progress=None)
    assert run.status == "never-collapses" and "mode 2 provably loses" in run.message


@pytest.mark.slow
def test_a_penalty_on_one_layer_alone_has_no_fixed_point():
    model = hf.UFM(4, weight_decay=(0.3, 0.0))
    assert not model.settles
    run = hf.solve(model, [0.5, 0.4, 0.6], hf.Collapse(1e-3), progress=None)
    assert run.status == "collapsed"
    with pytest.raises(hf.InputError, match="cannot be Steady"):
        hf.solve(model, [0.5, 0.4, 0.6], hf.Steady())


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_divergence_from_the_labels_falls_at_every_depth(depth):
    """Bregman divergence of φ″ = 1/w from the fixed point; unbalanced too at depth 2."""
    model = hf.UFM(8, depth=depth, label_smoothing=0.2)
    rng = np.random.default_rng(depth)
    for _ in range(10):
        C = rng.normal(size=7) if depth == 2 else None
        start = hf.spectrum(rng.uniform(0.01, 2, 7), C)
        assert float(hf.rate("label_divergence", model, start)) <= 1e-12
    rest = float(hf.measure("label_divergence", model, hf.fixed_point(model)))
    assert abs(rest) < 1e-12
    assert float(hf.measure("label_divergence", model, 1.1 * hf.fixed_point(model))) > 1e-4


def test_deep_mse_learns_its_modes_one_after_the_other():
    model = hf.UFM(4, depth=3, loss="mse")
    start = hf.spectrum([0.5, 0.3, 0.2, 0.1], units="raw")
    run = hf.solve(model, start, points=2, progress=None)
    assert run.status == "steady"
    np.testing.assert_allclose(run.a[-1], 1.0, rtol=1e-6)


# --- lazy to rich --------------------------------------------------------------------------------


@pytest.mark.slow
def test_equal_differences_keep_kl_falling_and_unequal_ones_do_not():
    """C = (0, 1, 2): KL leaves 0 and rises to 5.45e-4 at μ = 1.69."""
    model = hf.UFM(4)
    run = hf.solve(
        model, hf.spectrum([1, 1, 1], C=[0, 1, 2]), hf.Norm(30), points=2000, progress=None
    )
    kl = run.measure("kl")
    top = kl.argmax()
    assert kl[0] == 0 and kl[top] == pytest.approx(5.45e-4, abs=5e-7)
    assert np.exp(run.log_norm[top]) / 3 == pytest.approx(1.69, abs=0.01)
    rng = np.random.default_rng(0)
    for C in (0.0, 0.3, -2.0, 50.0):
        for _ in range(20):
            start = hf.spectrum(rng.uniform(0.01, 3, 3), C=C)
            assert float(hf.rate("kl", model, start)) <= 1e-14


# --- steps that are too large --------------------------------------------------------------------


def test_a_large_step_at_collapse_drives_the_ratios_apart():
    """K = 4, a = (2, 2.04, 1.96), η = 1000: KL 1.33e-4 → 2.23e-4."""
    model = hf.UFM(4)
    kl = hf.descend(model, [2, 2.04, 1.96], 1, 1000.0, progress=None).measure("kl")
    assert kl == pytest.approx([1.33e-4, 2.23e-4], abs=1e-6)


@pytest.mark.parametrize("options", [
    {}, {"samples": 3, "reduction": "mean"}, {"depth": 1}, {"depth": 3}, {"temperature": 2.0},
    {"depth": 4, "group": (4,)}])  # fmt: skip
def test_the_limit_at_collapse_is_where_one_step_keeps_the_spread(options):
    model = hf.UFM(4, **options)
    mu = 2.5
    limit = hf.stability_limit(model, at=mu)
    # h μ = 1 + h at depth 2, with h = η√n g.
    if options == {}:
        g = 4 / (math.exp(4 * mu) + 3)
        assert limit * g * mu == pytest.approx(1 + limit * g, rel=1e-12)
    eps = np.linspace(-1, 1, model.modes) * 1e-6
    eps -= eps @ model.basis.multiplicity / 3
    spreads = []
    for share in (0.99, 1.01):
        run = hf.descend(model, mu * (1 + eps), 1, share * limit, progress=None)
        spreads.append(np.ptp(run.a[1] / run.a[1].mean()) / np.ptp(eps))
    assert spreads[0] < 1 < spreads[1]
    assert hf.stability_limit(model, at=0.1) == math.inf


@pytest.mark.parametrize("options", [
    {"weight_decay": 0.1}, {"weight_decay": (0.1, 0.3), "samples": 2},
    pytest.param({"weight_decay": 0.15, "depth": 3}, marks=pytest.mark.slow),
    pytest.param({"label_smoothing": 0.1, "depth": 3}, marks=pytest.mark.slow)])  # fmt: skip
def test_descent_settles_below_the_limit_of_the_penalty_and_not_above(options):
    model = hf.UFM(4, **options)
    limit, goal = hf.stability_limit(model), hf.fixed_point(model)
    if options == {"weight_decay": 0.1}:  # the formula of smoothing with s = λ̄
        a, s = goal[0] * 4, 0.1
        assert limit == pytest.approx(4 / (a * s * (1 + 3 * (1 - s))), rel=1e-9)
    run = hf.solve(model, hf.spectrum(goal * 1.2), points=2, progress=None)
    settled = run.state(-1)
    start = hf.Spectrum(settled.a * (1 + 1e-4 * np.array([1, -2, 1])), settled.C, "scaled")
    ends = []
    for share in (0.97, 1.04):
        run = hf.descend(model, start, 3000, share * limit, progress=None)
        ends.append(np.abs(run.a[-1] / goal - 1).max())
    assert ends[0] < 1e-6 and ends[1] > 1e-3
