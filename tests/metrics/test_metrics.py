import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import hadaflow as hf
from references import dense_psi, stable_velocity

COUNTEREXAMPLE = [1.0, 1.0, 1.0, 1.25, 1e-4, 1e-4, 1e-4]


# --- values --------------------------------------------------------------------------------------


def textbook(name, a):
    """The paper's formulas as printed, in 50 digits."""
    with mp.workdps(50):
        a = [mp.mpf(float(v)) for v in a]
        N, total = len(a), mp.fsum(a)
        hat = [v / total for v in a]
        norm = mp.sqrt(mp.fsum(v**2 for v in a))
        value = {
            "kl": lambda: -mp.log(N) - mp.fsum(mp.log(v) for v in hat) / N,
            "reverse_kl": lambda: mp.log(N) + mp.fsum(v * mp.log(v) for v in hat),
            "l2": lambda: mp.fsum((v - mp.mpf(1) / N) ** 2 for v in hat) / 2,
            "frobenius": lambda: mp.fsum((v / norm - 1 / mp.sqrt(N)) ** 2 for v in a),
            "log_ratio": lambda: mp.log(max(a)) - mp.log(min(a)),
            "collapse_deviation": lambda: max(abs(N * v - 1) for v in hat),
            "margin": lambda: min(
                mp.fsum(int(p) * v for p, v in zip(row, a, strict=True)) for row in dense_psi(N + 1)
            ),
        }[name]()
        return float(value)


NAMES = ["kl", "reverse_kl", "l2", "frobenius", "log_ratio", "collapse_deviation", "margin"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spread", [2.0, 0.1, 1e-6])
def test_reduced_metrics_equal_the_printed_formulas(name, spread):
    a = np.exp(np.random.default_rng(0).normal(0, spread, 7))
    # Near collapse r is known to 1e-16, so a square of it to 1e-16/r.
    rtol = {2.0: 1e-12, 0.1: 1e-12, 1e-6: 1e-8}[spread]
    assert hf.measure(name, hf.UFM(8), a) == pytest.approx(textbook(name, a), rel=rtol)


def test_full_metrics_agree_with_reduced_ones_on_hadamard_states():
    model = hf.UFM(8, samples=2, width=10)
    rng = np.random.default_rng(0)
    start = hf.spectrum(rng.uniform(0.1, 2, 7), C=rng.normal(size=7))
    state = hf.hadamard(model, start, rotation=3)
    for name in hf.metric_names("reduced"):
        reduced, full = hf.measure(name, model, start), hf.measure(name, model, state)
        assert full == pytest.approx(reduced, rel=1e-9), name


def test_full_mse_metrics_leave_the_trivial_mode_out():
    """The constant mode learns too, but it is no part of the simplex."""
    model = hf.UFM(4, samples=2, width=6, loss="mse")
    collapsed = hf.hadamard(model, np.full(4, 0.25), rotation=0)
    start = hf.spectrum([0.7, 0.2, 0.1, 0.3], C=[0.3, 0.1, 0.0, -0.2])
    state = hf.hadamard(model, start, rotation=1)
    for name in ("kl", "l2", "frobenius", "alignment_z", "alignment_w", "alignment_h"):
        assert hf.measure(name, model, collapsed) < 1e-15, name
        reduced = hf.measure(name, model, start)
        assert hf.measure(name, model, state) == pytest.approx(reduced, rel=1e-9), name


def test_rates_at_ties_are_one_sided():
    """Where entries tie, the rate is that of the one that wins: against the solution itself."""
    model, a = hf.UFM(8), [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]
    for name in ("log_ratio", "collapse_deviation", "margin"):
        run = hf.solve(model, a, times=[1e-5, 2e-5], rtol=1e-12, progress=None)
        value = run.measure(name)
        slope = (-3 * value[0] + 4 * value[1] - value[2]) / 2e-5
        assert hf.rate(name, model, a) == pytest.approx(slope, rel=1e-4), name
    for name in ("alignment_z", "alignment_w", "alignment_h"):
        assert abs(hf.rate(name, model, np.ones(7))) < 1e-15


def test_alignment_is_the_root_of_twice_m():
    """The paper's metric (b) is √(2M), not √M."""
    a = [0.3, 1.0, 2.0]
    m, model = hf.measure("l2", hf.UFM(4), a), hf.UFM(4)
    state = hf.lift(model, a)
    S = np.eye(4) - 0.25
    direct = np.linalg.norm(state.Z / np.linalg.norm(state.Z, "nuc") - S / 3)
    assert hf.measure("alignment_z", model, a) == pytest.approx(np.sqrt(2 * m), rel=1e-12)
    assert direct == pytest.approx(np.sqrt(2 * m), rel=1e-12)


def test_residual_and_off_diagonal_against_dense_projections():
    model = hf.UFM(8, samples=2)
    state = hf.gaussian(model, 1.0, 0)
    U = model.basis.vectors
    V = np.kron(U, np.full((2, 1), 2**-0.5))
    Z = state.Z
    core = U[:, 1:].T @ Z @ V[:, 1:]
    residual = np.linalg.norm(Z - U[:, 1:] @ core @ V[:, 1:].T) / np.linalg.norm(Z)
    assert hf.measure("residual", model, state) == pytest.approx(residual, rel=1e-12)
    diagonal = np.diag(U.T @ Z @ V)
    off = np.sqrt(1 - (diagonal**2).sum() / (Z**2).sum())
    assert hf.measure("off_diagonal", model, state) == pytest.approx(off, rel=1e-10)
    assert hf.measure("residual", model, hf.lift(model, np.ones(7))) < 1e-15


def test_collapsed_matrices_have_no_nc_error_and_random_ones_do():
    model = hf.UFM(8, samples=3, width=12)
    collapsed = hf.hadamard(model, np.ones(7), rotation=0)
    random = hf.gaussian(model, 1.0, 0)
    names = ["nc1_pinv", "nc1_quot", "nc1_cdnv", "nc2_etf_err", "nc3_etf_err", "nc3_dual_err"]
    for name in [*names, "alignment_w", "alignment_h", "alignment_z", "residual", "off_diagonal"]:
        assert hf.measure(name, model, collapsed) < 1e-13, name
        assert hf.measure(name, model, random) > 0.05, name


def test_nc1_against_plain_numpy():
    model = hf.UFM(4, samples=5, width=6)
    H = hf.gaussian(model, 1.0, 2).H
    groups = H.reshape(6, 4, 5)
    means = groups.mean(axis=2)
    within = sum(np.cov(groups[:, c], bias=True) for c in range(4)) / 4
    between = np.cov(means, bias=True)
    state = hf.parameters(np.ones((4, 6)), H)
    assert hf.measure("nc1_quot", model, state) == pytest.approx(
        np.trace(within) / np.trace(between)
    )
    pinv = np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / 4
    assert hf.measure("nc1_pinv", model, state) == pytest.approx(pinv)
    variance = [np.trace(np.cov(groups[:, c], bias=True)) for c in range(4)]
    pairs = [
        (variance[i] + variance[j]) / 2 / np.sum((means[:, i] - means[:, j]) ** 2)
        for i in range(4)
        for j in range(i)
    ]
    assert hf.measure("nc1_cdnv", model, state) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("size", [0.5, 30.0, 600.0])
def test_losses_stay_exact_when_they_underflow(size):
    model = hf.UFM(4, samples=2)
    Z = size * model.labels + np.random.default_rng(1).standard_normal((4, 8))
    logits = hf.UFM(4, samples=2, depth=1)
    with mp.workdps(400):
        total = mp.mpf(0)
        for j in range(8):
            c = j // 2
            wrong = mp.fsum(mp.exp(mp.mpf(Z[k, j]) - mp.mpf(Z[c, j])) for k in range(4) if k != c)
            total += mp.log1p(wrong)
        exact, log_exact = float(total), float(mp.log(total))
    state = hf.parameters(Z)
    assert hf.measure("loss", logits, state) == pytest.approx(exact, rel=1e-12)
    assert hf.measure("log_loss", logits, state) == pytest.approx(log_exact, rel=1e-13)
    assert hf.measure("log_energy", logits, state) == pytest.approx(
        log_exact - np.log(8), rel=1e-13
    )


def test_loss_at_zero_and_its_mean():
    for reduction, factor in (("sum", 12), ("mean", 1)):
        model = hf.UFM(4, samples=3, reduction=reduction)
        tiny = hf.lift(model, np.full(3, 1e-20))
        assert hf.measure("loss", model, tiny) == pytest.approx(factor * np.log(4), rel=1e-12)
        assert hf.measure("loss", model, np.full(3, 1e-20)) == pytest.approx(factor * np.log(4))
    mse = hf.UFM(4, samples=3, loss="mse")
    assert hf.measure("loss", mse, np.zeros(4)) == pytest.approx(6.0)


# --- rates ---------------------------------------------------------------------------------------


def test_the_papers_counterexamples():
    model = hf.UFM(8)
    assert hf.rate("reverse_kl", model, COUNTEREXAMPLE) == pytest.approx(3.73e-3, rel=2e-3)
    a = np.array(COUNTEREXAMPLE)
    psi = dense_psi(8)
    e = np.exp(-psi @ a)
    b, D = psi @ e, 1 + e.sum()
    printed = sum(a[i] * a[j] * b[j] * (a[j] - a[i]) for i in range(7) for j in range(7))
    assert printed == pytest.approx(0.0878, rel=1e-3)
    frobenius = 2 * printed / (D * np.linalg.norm(a) ** 3 * np.sqrt(7))
    assert hf.rate("frobenius", model, a) == pytest.approx(frobenius, rel=1e-9)
    K16 = [5.01, 0.99, 2, 5, 1, 5, 1, 2, 1, 5, 3, 5, 1, 5, 1]
    assert hf.rate("log_ratio", hf.UFM(16), K16) == pytest.approx(1.825e-13, rel=1e-3)
    # M falls first from the Figure 1 start, before it rises.
    assert hf.rate("l2", model, [1, 1, 1, 1, 1e-3, 1e-3, 1e-3]) == pytest.approx(-3.3e-5, rel=2e-2)


@given(st.sampled_from([4, 8, 16]), st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 30.0]))
def test_kl_falls_by_its_closed_form(K, seed, size):
    """The pair sum at the end of the proof of Theorem 3."""
    a = np.random.default_rng(seed).uniform(0.01, 1, K - 1) * size
    x = dense_psi(K) @ a
    x_scale = np.exp(-(x - x.min()))
    pairs = (x[:, None] - x[None, :]) * (x_scale[:, None] - x_scale[None, :])
    D = np.exp(min(x.min(), 700)) + x_scale.sum()
    closed = pairs.sum() / (2 * (K - 1) * D * a.sum())
    assert hf.rate("kl", hf.UFM(K), a) == pytest.approx(closed, rel=1e-6, abs=1e-300)
    assert hf.rate("kl", hf.UFM(K), a) <= 0


@pytest.mark.parametrize("name", [n for n in hf.metric_names("reduced")])
def test_reduced_rates_are_derivatives_along_the_flow(name):
    model, rng = hf.UFM(8), np.random.default_rng(5)
    a, C = rng.uniform(0.3, 2, 7), rng.normal(size=7)
    v = stable_velocity(a, 8, C)
    h = 1e-3
    at = lambda s: hf.measure(name, model, hf.spectrum(a + s * v, C=C))  # noqa: E731
    numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    assert hf.rate(name, model, hf.spectrum(a, C=C)) == pytest.approx(numeric, rel=1e-7)


@pytest.mark.parametrize("name", [n for n in hf.metric_names("full")])
def test_full_rates_are_derivatives_along_the_flow(name):
    model = hf.UFM(4, samples=3, width=6)
    state = hf.gaussian(model, 1.0, 4)
    gradient = model.gradient(state)

    def at(s):
        moved = (f - s * g for f, g in zip(state.factors, gradient.factors, strict=True))
        return hf.measure(name, model, hf.parameters(*moved))

    h = 1e-4
    numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    assert hf.rate(name, model, state, units="raw") == pytest.approx(numeric, rel=1e-6)
    scaled = hf.rate(name, model, state)
    assert scaled == pytest.approx(numeric / model.time_scale, rel=1e-6)


def test_normalized_rates_are_per_path_length():
    model, a = hf.UFM(8), np.array(COUNTEREXAMPLE)
    speed = np.linalg.norm(stable_velocity(a, 8))
    assert hf.rate("l2", model, a, flow="normalized") == pytest.approx(
        hf.rate("l2", model, a) / speed, rel=1e-12
    )
    far = 1e4 * a
    assert hf.rate("kl", model, far) == 0.0  # beyond the range of doubles
    assert hf.rate("kl", model, far, flow="normalized") < -1e-6


def test_a_users_own_metric():
    model, a = hf.UFM(8), np.array([0.5, 1.0, 1.5, 2.0, 0.1, 0.2, 0.3])

    def biggest_share(a):
        return jnp.max(a) / jnp.sum(a)

    assert hf.measure(biggest_share, model, a) == pytest.approx(2.0 / a.sum())
    v = stable_velocity(a, 8)
    expected = v[3] / a.sum() - 2.0 * v.sum() / a.sum() ** 2
    assert hf.rate(biggest_share, model, a) == pytest.approx(expected, rel=1e-10)
    # In raw units it sees raw singular values.
    assert hf.measure(jnp.sum, model, a * 8, units="raw") == pytest.approx(8 * a.sum())
    assert hf.measure(jnp.sum, model, hf.spectrum(a, units="scaled"), units="raw") == pytest.approx(
        8 * a.sum()
    )
    state = hf.gaussian(model, 1.0, 0)
    got = hf.rate(lambda W, H: jnp.sum(W**2) - jnp.sum(H**2), model, state)
    assert abs(got) < 1e-12  # conserved


def test_metrics_batch_over_leading_axes():
    model = hf.UFM(4)
    a = np.random.default_rng(0).uniform(0.1, 1, (2, 5, 3))
    values = hf.measure("kl", model, a)
    assert values.shape == (2, 5)
    assert values[1, 3] == pytest.approx(hf.measure("kl", model, a[1, 3]), rel=1e-13)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: hf.measure("kul", m, [1.0] * 3),
            r"Unknown metric 'kul' \(did you mean kl\?\); allowed are .*kl, l2",
        ),
        (lambda m: hf.measure("residual", m, [1.0] * 3), "`residual` needs a full state"),
        (lambda m: hf.rate("kl", m, [1.0] * 3, flow="fast"), '`flow` must be "gradient" or'),
        (lambda m: hf.measure(lambda a: a, m, [1.0] * 3), r"one number, but .* shape \(3,\)"),
        (
            lambda m: hf.measure("alignment_w", hf.UFM(4, depth=1), [1.0] * 3),
            "`alignment_w` is about W and H and needs `depth` of at least 2",
        ),
        (
            lambda m: hf.measure("nc1_quot", hf.UFM(4, depth=1), hf.parameters(np.eye(4))),
            "`nc1_quot` is about W and H",
        ),
    ],
)
def test_bad_metrics(call, message):
    with pytest.raises(hf.InputError, match=message):
        call(hf.UFM(4))
