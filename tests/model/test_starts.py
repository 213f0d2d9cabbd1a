import numpy as np
import pytest
from hypothesis import given, strategies as st

import hadaflow as hf
from hadaflow.model.fitting import fitted


@given(
    K=st.sampled_from([2, 4, 8, 16]),
    n=st.integers(1, 3),
    extra=st.integers(0, 3),
    seed=st.integers(0, 1000),
    units=st.sampled_from(["scaled", "raw"]),
    loss=st.sampled_from(["cross_entropy", "mse"]),
)
def test_project_undoes_lift(K, n, extra, seed, units, loss):
    model = hf.UFM(K, samples=n, width=K + extra, loss=loss)
    rng = np.random.default_rng(seed)
    start = hf.spectrum(rng.uniform(0, 3, model.modes), C=rng.normal(size=model.modes), units=units)
    state = hf.hadamard(model, start, rotation=seed)
    back, scaled = fitted(model, hf.project(model, state)), fitted(model, start)
    np.testing.assert_allclose(back.a, scaled.a, atol=1e-13)
    np.testing.assert_allclose(back.C, scaled.C, atol=1e-13)
    assert hf.distance_from_hadamard(model, state) < 1e-14


@pytest.mark.parametrize("n", [1, 3])
def test_hadamard_start_is_built_as_in_the_theorem(n):
    """W = U D_W Rᵀ and H = R D_H Vᵀ with dense V = U ⊗ Q, β_i in column (i−1)n + 1."""
    K, d = 4, 6
    model = hf.UFM(K, samples=n, width=d)
    alpha, beta = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.5, 2.5, 1.5])
    a, C = alpha * beta, alpha**2 - beta**2
    state = hf.hadamard(model, hf.spectrum(a[1:], C=C[1:], units="raw"), rotation=7)
    U = model.basis.vectors
    R = hf.hadamard(model, [1.0, 1.0, 1.0], rotation=7)  # the same rotation, read off W
    R = (U.T @ R.W / np.linalg.norm(U.T @ R.W, axis=1, keepdims=True).clip(1e-300)).T
    Q = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0]
    Q *= np.sign(Q[0, 0])
    V = np.kron(U, Q)
    D_H = np.zeros((K, K * n))
    D_H[np.arange(K), np.arange(K) * n] = beta
    np.testing.assert_allclose(state.W, U[:, 1:] @ np.diag(alpha[1:]) @ R[:, 1:].T, atol=1e-13)
    np.testing.assert_allclose(state.H, R[:, 1:] @ (D_H @ V.T)[1:], atol=1e-13)
    np.testing.assert_allclose(
        np.sort(np.linalg.svd(state.Z, compute_uv=False)), np.sort(a), atol=1e-13
    )


def test_rotation_can_be_given_as_a_matrix():
    model = hf.UFM(4)
    flip = np.eye(4)[::-1]
    state = hf.hadamard(model, [1.0, 2.0, 3.0], rotation=flip)
    plain = hf.lift(model, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(state.W, plain.W @ flip.T, atol=1e-15)
    np.testing.assert_allclose(state.Z, plain.Z, atol=1e-14)


def test_gaussian_is_seeded_and_batches():
    model = hf.UFM(4, samples=2, width=3)
    one, many = hf.gaussian(model, 0.1, 5), hf.gaussian(model, 0.1, [4, 5, 6])
    np.testing.assert_array_equal(one.W, many.W[1])
    np.testing.assert_array_equal(one.H, many.H[1])
    large = hf.gaussian(hf.UFM(64, width=500), 0.1, 0)
    np.testing.assert_allclose(large.W.std(), 0.1, rtol=0.02)


@pytest.mark.parametrize("order", ["descending", "ascending", 3])
def test_matched_spectrum_has_the_singular_values_of_the_random_start(order):
    model = hf.UFM(8, samples=2)
    random = hf.gaussian(model, 0.1, [0, 1])
    matched = hf.matched_spectrum(model, random, order=order, units="raw")
    lifted = hf.hadamard(model, matched)
    top = np.linalg.svd(random.Z, compute_uv=False)[:, :7]
    np.testing.assert_allclose(np.linalg.svd(lifted.Z, compute_uv=False)[:, :7], top, rtol=1e-10)
    sorted_rows = {"descending": top, "ascending": top[:, ::-1]}.get(order)
    if sorted_rows is not None:
        np.testing.assert_allclose(matched.a, sorted_rows, rtol=1e-12)
    else:
        assert not np.allclose(matched.a, top)


def test_distance_from_the_hadamard_subspace_sees_every_violation():
    model = hf.UFM(4, samples=2, width=8)
    good = hf.hadamard(model, [1.0, 2.0, 3.0], rotation=0)
    assert hf.distance_from_hadamard(model, hf.gaussian(model, 1.0, 0)) > 0.3
    noise = 1e-3 * np.random.default_rng(0).standard_normal(good.H.shape)
    assert 1e-5 < hf.distance_from_hadamard(model, hf.parameters(good.W, good.H + noise)) < 1e-2
    # Rotating H alone keeps WWᵀ and HᵀH but breaks the pairing of W with H.
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0]
    assert hf.distance_from_hadamard(model, hf.parameters(good.W, Q @ good.H)) > 0.1
    logits = hf.UFM(4, depth=1)
    assert hf.distance_from_hadamard(logits, hf.lift(logits, [1.0, 2.0, 3.0])) < 1e-7
    assert hf.distance_from_hadamard(logits, hf.gaussian(logits, 1.0, 0)) > 0.3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: hf.spectrum([1.0, -1.0, 2.0]),
            "`a` must hold finite .* not negative, but has -1.0",
        ),
        (lambda: hf.spectrum([1.0, np.nan]), "but has nan"),
        (lambda: hf.spectrum([]), "`a` must be a list of singular values"),
        (lambda: hf.spectrum("abc"), "`a` must hold numbers"),
        (lambda: hf.spectrum([1.0, 2.0], C=[1.0, 2.0, 3.0]), r"`C` must be one number or as many"),
        (lambda: hf.spectrum([1.0], C=np.inf), "`C` must hold finite"),
        (lambda: hf.spectrum([1.0], units="metric"), '`units` must be "scaled" or "raw"'),
        (lambda: hf.lift(hf.UFM(4), [1.0]), "`start` must have 3 singular values .* but has 1"),
        (lambda: hf.lift(hf.UFM(4, loss="mse"), [1.0] * 3), "must have 4 singular values"),
        (lambda: hf.lift(hf.UFM(4, width=2), [1.0] * 3), "rank 2 at most for `width` = 2"),
        (lambda: hf.lift(hf.UFM(4, width=3), [1.0] * 4), "`width` must be at least 4"),
        (
            lambda: hf.lift(hf.UFM(4, depth=1), hf.spectrum([1.0] * 3, C=1.0)),
            "`C` must be zero at depth 1",
        ),
        (
            lambda: hf.hadamard(hf.UFM(4), [1.0] * 3, rotation="flip"),
            '`rotation` must be "identity"',
        ),
        (lambda: hf.hadamard(hf.UFM(4), [1.0] * 3, rotation=np.ones((4, 4))), "is not orthogonal"),
        (lambda: hf.hadamard(hf.UFM(4), [1.0] * 3, rotation=np.eye(3)), r"shape \(3, 3\)"),
        (lambda: hf.gaussian(hf.UFM(4), -1.0, 0), "`scale` must be a positive number, but is -1.0"),
        (lambda: hf.gaussian(hf.UFM(4), 1.0, -3), "`seed` must be a whole number of at least 0"),
        (lambda: hf.gaussian(hf.UFM(4), 1.0, "12"), "`seed` must be a whole number"),
        (lambda: hf.gaussian(hf.UFM(4), 1.0, [1.7]), "`seed` must be a whole number"),
        (lambda: hf.spectrum([1e-310]), "zeros or values of at least 2.23e-308"),
        (lambda: hf.project(hf.UFM(4), [1.0]), "A full state is needed"),
        (lambda: hf.gaussian(hf.UFM(4), 1.0, []), "`seed` must hold at least one seed"),
        (lambda: hf.parameters(np.ones((2, 2)), np.full((2, 2), np.nan)), "finite numbers"),
        (lambda: hf.parameters(), "none was given"),
        (
            lambda: hf.project(hf.UFM(4), hf.parameters(np.ones((4, 4)))),
            "must have matrices of shapes",
        ),
        (lambda: hf.parameters(np.ones((2, 2))).W, "from depth 2 on"),
        (
            lambda: hf.matched_spectrum(hf.UFM(4), hf.gaussian(hf.UFM(4), 1.0, 0), order="odd"),
            "`order` must be",
        ),
    ],
)
def test_bad_starts(call, message):
    with pytest.raises(hf.InputError, match=message):
        call()


def test_drawn_spectra_are_those_of_their_seeds():
    model = hf.UFM(8, samples=2)
    many = hf.uniform_spectrum(model, 0.5, 2.0, [3, 4], units="raw")
    assert many.a.shape == (2, 7) and many.units == "raw"
    assert np.all((many.a >= 0.5) & (many.a <= 2.0))
    np.testing.assert_array_equal(many.a[1], hf.uniform_spectrum(model, 0.5, 2.0, 4).a)
    np.testing.assert_array_equal(many.a[0], np.random.default_rng(3).uniform(0.5, 2.0, 7))
    for low, high in ((2.0, 1.0), (-1.0, 1.0), (0.0, np.inf)):
        with pytest.raises(hf.InputError, match="0 ≤ low ≤ high"):
            hf.uniform_spectrum(model, low, high)


def test_random_hadamard_starts_have_the_size_of_gaussian_ones():
    model = hf.UFM(8, samples=2)
    state = hf.random_hadamard(model, 0.1, [0, 1], C=0.3, units="raw")
    assert state.batch == (2,) and hf.distance_from_hadamard(model, state).max() < 1e-12
    found = hf.project(model, state)
    size = 0.1**2 * model.singular_value_scale
    assert np.all((found.a >= 0.5 * size * 0.999) & (found.a <= 1.5 * size * 1.001))
    np.testing.assert_allclose(found.C, 0.3)
    assert found.units == "raw" and state.seed == [0, 1]
    scaled = hf.random_hadamard(model, 0.1, [0, 1], C=0.3, rotation=5)
    np.testing.assert_allclose(hf.project(model, scaled).C, 0.3, atol=1e-12)
    np.testing.assert_allclose(
        hf.project(model, scaled).a * model.singular_value_scale, found.a, rtol=1e-9
    )
    small = hf.gaussian(model, seed=1)
    assert np.std(small.factors[0]) == pytest.approx(np.exp(-6) / np.sqrt(8), rel=0.3)
