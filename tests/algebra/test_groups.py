"""Any number of classes: the characters of abelian groups, against dense and independent references."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hadaflow as hf
from references import matrix_flow

GROUPS = [(3,), (4,), (5,), (6,), (7,), (8,), (2, 4), (9,), (3, 3), (10,), (12,), (2, 6), (4, 4)]


def model_of(group, **options):
    return hf.UFM(math.prod(group), group=group, **options)


def start_of(model, seed=0, low=0.1, high=1.0):
    return np.random.default_rng(seed).uniform(low, high, model.modes)


def elements(group):
    return np.array(np.unravel_index(np.arange(math.prod(group)), group)).T


def full_psi(group):
    """1 − Re χ(g) for all elements, by definition."""
    g = elements(group)
    phase = sum(np.outer(g[:, k], g[:, k]) / n for k, n in enumerate(group))
    return 1 - np.cos(2 * np.pi * phase)


# --- the basis -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "modes"),
    [((3,), 1), ((5,), 2), ((6,), 3), ((7,), 3), ((8,), 4), ((2, 4), 5), ((2, 2, 2), 7),
     ((10,), 5), ((12,), 6), ((2, 6), 7), ((100,), 50), ((10, 10), 51)],
)  # fmt: skip
def test_free_modes_are_as_many_as_the_formula_says(group, modes):
    """R = (K + 2^s)/2 − 1 with s even cyclic factors."""
    basis = hf.UFM(math.prod(group), group=group).basis
    assert basis.modes == modes
    if group != (2, 2, 2):
        s = sum(n % 2 == 0 for n in group)
        assert modes == (basis.classes + 2**s) // 2 - 1
    assert basis.multiplicity.sum() == basis.classes - 1


@pytest.mark.parametrize("group", GROUPS)
def test_vectors_are_orthonormal_and_diagonalize_the_softmax(group):
    model = model_of(group)
    U, a = model.basis.vectors, model.nontrivial(start_of(model, high=4.0))
    np.testing.assert_allclose(U.T @ U, np.eye(model.classes), atol=1e-13)
    Z = U @ np.diag([0.0, *a]) @ U.T
    np.testing.assert_allclose(Z, Z.T, atol=1e-14)
    g = elements(group)
    where = {tuple(x): i for i, x in enumerate(g)}
    for i, j in ((0, 1), (1, 0), (model.classes - 1, 1)):  # Z_{gh} = c_{g−h}
        shifted = where[tuple((g[i] - g[j]) % np.array(group))]
        assert Z[i, j] == pytest.approx(Z[shifted, 0], abs=1e-13)
    P = np.exp(Z) / np.exp(Z).sum(axis=0)
    D = U.T @ P @ U
    assert np.abs(D - np.diag(np.diag(D))).max() < 1e-14
    folded = model.basis.fold(np.diag(D)[1:])
    np.testing.assert_allclose(model.basis.expand(folded), np.diag(D)[1:], atol=1e-14)


@pytest.mark.parametrize(
    "group",
    [
        *GROUPS, (2, 3, 5), (129,), (7, 60), (401,),
        *(pytest.param(g, marks=pytest.mark.slow) for g in ((2, 201), (997,), (1000,), (10, 10, 10))),
    ],
)  # fmt: skip
def test_psi_is_the_sum_over_the_group(group):
    """Dense up to 192 modes, by a real Fourier transform above."""
    basis = hf.AbelianGroup(group)
    v = np.random.default_rng(1).standard_normal((2, basis.modes))
    number, firsts = basis._classes_of_elements
    spread = np.concatenate([np.zeros((2, 1)), v], axis=1)[:, number]
    want = (spread @ full_psi(group))[:, firsts[1:]]
    np.testing.assert_allclose(basis.psi(v), want, rtol=1e-11, atol=1e-10 * np.abs(want).max())
    np.testing.assert_allclose(
        v @ basis.dense_psi.T, want, rtol=1e-9, atol=1e-9 * np.abs(want).max()
    )


def test_a_power_of_two_group_is_sylvester():
    plain, named = hf.UFM(8), hf.UFM(8, group=(2, 2, 2))
    assert named.basis == plain.basis == hf.Sylvester(8)
    a = start_of(plain)
    np.testing.assert_array_equal(
        hf.solve(named, a, hf.Time(10)).a, hf.solve(plain, a, hf.Time(10)).a
    )
    assert hf.AbelianGroup((2, 2, 2)).multiplicity.tolist() == [1] * 7
    np.testing.assert_allclose(
        hf.AbelianGroup((2, 2, 2)).dense_psi, plain.basis.dense_psi, atol=1e-12
    )


def test_describe_tells_modes_and_pairs():
    assert hf.cyclic(10).describe() == (
        "Z_10: 10 classes, 5 free modes: 4 conjugate pairs of characters (multiplicity 2) and "
        "1 real one (multiplicity 1)"
    )
    assert (
        hf.Sylvester(4).describe() == "Z_2 × Z_2: 4 classes, 3 free modes, each one singular value"
    )


# --- two views -----------------------------------------------------------------------------------

small_groups = st.sampled_from([g for g in GROUPS if math.prod(g) <= 16])


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(small_groups, st.integers(1, 3), st.integers(0, 3), st.booleans(), st.integers(0, 2**20))
def test_lift_then_flow_is_flow_then_lift(group, samples, extra, balanced, seed):
    """The reduced flow against the matrix flow of an independent integrator."""
    model = model_of(group, samples=samples, width=math.prod(group) + extra)
    rng = np.random.default_rng(seed)
    C = 0.0 if balanced else rng.uniform(-1, 1, model.modes)
    start = hf.spectrum(rng.uniform(0.05, 1.5, model.modes), C=C)
    times = [0.3, 3.0]
    reduced = hf.solve(model, start, times=times, units="raw", rtol=1e-10, progress=None)
    factors = hf.hadamard(model, start, rotation=seed % 1000, units="raw").factors
    Z = matrix_flow(factors, model.classes, samples, times)
    for row, want in zip(reduced.a[1:], Z, strict=True):
        got = hf.lift(model, row, units="raw").Z
        assert np.linalg.norm(got - want) <= 1e-8 * np.linalg.norm(want)


@pytest.mark.parametrize("group", [(3,), (6,), (2, 4), (10,)])
@pytest.mark.parametrize("options", [{"depth": 1}, {"loss": "mse"}, {"loss": "mse", "depth": 1}])
def test_other_models_on_a_group(group, options):
    model = model_of(group, samples=2, **options)
    start, times = hf.spectrum(start_of(model, 3)), [0.4, 2.0]
    reduced = hf.solve(model, start, times=times, units="raw", rtol=1e-10, progress=None)
    factors = hf.hadamard(model, start, units="raw").factors
    loss = options.get("loss", "cross_entropy")
    for row, want in zip(
        reduced.a[1:], matrix_flow(factors, model.classes, 2, times, loss), strict=True
    ):
        got = hf.lift(model, row, units="raw").Z
        assert np.linalg.norm(got - want) <= 1e-8 * np.linalg.norm(want)


@pytest.mark.parametrize(
    "group", [(6,), (2, 4), *(pytest.param(g, marks=pytest.mark.slow) for g in ((5,), (3, 3)))]
)
def test_metrics_agree_between_the_views(group):
    model = model_of(group, samples=2)
    a = start_of(model, 5)
    state = hf.lift(model, a)
    for name in hf.metric_names("reduced"):
        if name in hf.metric_names("full"):
            reduced = float(hf.measure(name, model, a))
            assert reduced == pytest.approx(
                float(hf.measure(name, model, state)), rel=1e-9, abs=1e-13
            )
    back = hf.project(model, state)
    np.testing.assert_allclose(back.a, a, rtol=1e-13)
    assert hf.distance_from_hadamard(model, state) < 1e-12


def test_descent_on_the_spectrum_is_descent_on_the_matrices():
    model = model_of((10,), samples=2)
    start = hf.spectrum(start_of(model, 1), C=0.3)
    reduced = hf.descend(model, start, 50, 0.1, momentum=0.5, units="raw", progress=None)
    full = hf.descend(model, hf.hadamard(model, start, units="raw"), 50, 0.1, momentum=0.5,
                      units="raw", progress=None)  # fmt: skip
    np.testing.assert_allclose(hf.project(model, full.parameters).a, reduced.a, rtol=1e-12)


def test_a_matched_start_keeps_the_norm():
    model = model_of((2, 4))
    random = hf.gaussian(model, 0.1, range(3))
    paired = hf.matched_spectrum(model, random, units="raw")
    total = np.linalg.svd(random.Z, compute_uv=False)[:, :7].sum(axis=1)
    np.testing.assert_allclose(model.nontrivial(paired.a).sum(axis=1), total, rtol=1e-12)


# --- laws ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(small_groups, st.integers(0, 2**20), st.floats(-2, 1.5))
def test_kl_falls_by_its_pair_sum_on_every_group(group, seed, scale):
    """The Lyapunov theorem with multiplicities: Σ over elements of the group, by definition."""
    model = model_of(group)
    a = start_of(model, seed, low=0.01) * 10**scale
    K = model.classes
    number, _ = model.basis._classes_of_elements
    x = (full_psi(group) @ np.append(0.0, a)[number])[1:]
    e = np.exp(-x)
    pairs = np.sum(np.subtract.outer(x, x) * np.subtract.outer(e, e))
    want = pairs / (2 * (K - 1) * (1 + e.sum()) * model.nontrivial(a).sum())
    got = float(hf.rate("kl", model, a))
    assert got <= 1e-13
    assert got == pytest.approx(want, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "group", "a", "rate"),
    [
        ("l2", (6,), (0.01, 1, 1.2), 1.49e-4),
        ("l2", (7,), (1.2, 0.01, 1), 1.04e-4),
        ("l2", (8,), (0.01, 1.4, 1, 0.01), 4.39e-5),
        ("l2", (2, 4), (0.01, 1, 1.25, 1, 0.01), 7.33e-4),
        ("l2", (9,), (1.5, 0.01, 0.01, 1), 3.42e-4),
        ("l2", (10,), (0.01, 1, 0.01, 1, 1.5), 9.06e-4),
        ("reverse_kl", (6,), (0.001, 1, 1.25), 2.94e-4),
        ("log_ratio", (10,), (2, 0.1, 0.1, 2.01, 0.09), 1.69e-3),
        ("log_ratio", (12,), (2.01, 0.1, 0.1, 0.1, 2, 0.09), 5.69e-3),
    ],
)
def test_counterexamples_on_other_groups(metric, group, a, rate):
    assert float(hf.rate(metric, model_of(group), a)) == pytest.approx(rate, rel=5e-3)


@pytest.mark.parametrize(
    "group",
    [(5,), (2, 4), *(pytest.param(g, marks=pytest.mark.slow) for g in ((6,), (9,), (3, 3), (10,)))],
)
def test_collapse_comes_like_t_log_t_to_the_minus_one_over_k(group):
    """Deviation ∝ (t log t)^{−1/K}, measured over the last decades before 1e-8."""
    model = model_of(group)
    run = hf.solve(model, start_of(model, 2, low=0.4), hf.Collapse(1e-8), points=400, progress=None)
    assert run.status == "collapsed"
    deviation = run.measure("collapse_deviation")
    late = (deviation < 1e-3) & (deviation > 1e-7)
    x = run.log10_time[late] * math.log(10)
    slope = np.polyfit(x + np.log(x), np.log(deviation[late]), 1)[0]
    assert slope * model.classes == pytest.approx(-1, abs=0.04)


def test_a_run_on_a_group_is_saved_and_described(tmp_path):
    model = model_of((2, 4))
    run = hf.solve(model, start_of(model), hf.Time(log10=20), progress=None)
    np.testing.assert_allclose(run.a_hat @ model.basis.multiplicity, 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(run.log_norm), run.a @ model.basis.multiplicity, rtol=1e-12)
    run.save(tmp_path / "run.nc")
    again = hf.load(tmp_path / "run.nc")
    assert again.model == model and again.model.group == (2, 4)
    np.testing.assert_array_equal(again.log_a, run.log_a)
    assert "Z_2 × Z_4" in run.summary()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"classes": 10, "group": (2, 4)},
            "`group` must have `classes` = 10 elements, but (2, 4) has 8",
        ),
        ({"classes": 8, "group": (1, 8)}, "each a whole number of at least 2"),
        ({"classes": 8, "group": ()}, "`group` must list the orders of cyclic factors"),
        ({"classes": 8, "group": "2x4"}, "`group` must list the orders"),
        ({"classes": 8, "group": (2.5, 4)}, "`group` must list the orders"),
        ({"classes": 8, "group": (2**13, 2**12)}, "at most 2^24 elements"),
    ],
)
def test_groups_that_do_not_fit_are_refused(arguments, told):
    with pytest.raises(hf.InputError) as error:
        hf.UFM(**arguments)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_start_of_the_wrong_length_names_the_group():
    with pytest.raises(
        hf.InputError, match=r"must have 5 singular values .*\(free modes of Z_10\), but has 9"
    ):
        hf.solve(hf.UFM(10, group=(10,)), [1.0] * 9, hf.Time(1))


# --- which bases work ----------------------------------------------------------------------------


def paley(q):
    """A Hadamard matrix of order q + 1 from the squares modulo a prime q ≡ 3 (mod 4), normalized."""
    squares = {x * x % q for x in range(1, q)}
    chi = np.array([0] + [1 if x in squares else -1 for x in range(1, q)])
    S = np.zeros((q + 1, q + 1))
    S[0, 1:], S[1:, 0] = 1, -1
    S[1:, 1:] = chi[(np.arange(q)[:, None] - np.arange(q)) % q]
    H = np.eye(q + 1) + S
    H = H * H[:, :1]
    return H * H[:1]


def test_which_orthogonal_matrices_diagonalize_the_softmax():
    rng = np.random.default_rng(0)
    U = hf.Sylvester(8).vectors
    shuffled = U[rng.permutation(8)][:, rng.permutation(8)] * rng.choice([-1, 1], 8)
    negated = U * np.where(np.arange(8) == 3, -1, 1)[:, None]
    assert hf.diagonalizes_softmax(U) < 1e-13
    assert hf.diagonalizes_softmax(shuffled) < 1e-13
    assert hf.diagonalizes_softmax(negated) > 0.5  # Hadamard equivalence is not the criterion
    assert hf.diagonalizes_softmax(paley(7) / math.sqrt(8)) < 1e-13
    assert hf.diagonalizes_softmax(paley(11) / math.sqrt(12)) > 0.05
    assert hf.diagonalizes_softmax(paley(19) / math.sqrt(20)) > 0.05
    for bad in (np.ones((3, 3)), np.ones(4), "U", np.eye(1)):
        with pytest.raises(hf.InputError, match="`U` must"):
            hf.diagonalizes_softmax(bad)
