"""The central theorem as the central test: lift ∘ reduced flow = full flow ∘ lift."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hadaflow as hf
from references import matrix_flow


@st.composite
def problems(draw, rotations=True):
    """A model and a Hadamard start of it: size, samples, width, depth, loss, spectrum, rotation."""
    K = draw(st.sampled_from([2, 4, 8, 16]))
    n = draw(st.integers(1, 3))
    depth = draw(st.sampled_from([1, 2]))
    loss = draw(st.sampled_from(["cross_entropy", "mse"]))
    width = None if depth == 1 else K + draw(st.integers(0, 4))
    reduction = draw(st.sampled_from(["sum", "mean"]))
    model = hf.UFM(K, samples=n, width=width, depth=depth, loss=loss, reduction=reduction)
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    a = np.exp(rng.uniform(np.log(1e-2), np.log(2.0), model.modes))
    if loss == "mse":
        a /= K
    balanced = depth == 1 or draw(st.booleans())
    C = np.zeros(model.modes) if balanced else rng.normal(size=model.modes) * a.mean()
    start = hf.spectrum(a, C=C, units="scaled")
    rotation = draw(st.integers(0, 100)) if depth == 2 else "identity"
    return model, start, rotation


def relative_difference(Z, expected):
    return np.linalg.norm(Z - expected) / np.linalg.norm(expected)


@settings(max_examples=5)
@given(problems())
def test_reduced_flow_lifted_equals_scipy_on_the_matrices(problem):
    """Against DOP853 on W and H in raw time, which shares no code with the library."""
    model, start, rotation = problem
    full_start = hf.hadamard(model, start, rotation=rotation)
    scaled_times = np.array([0.3, 2.0, 8.0])
    reduced = hf.solve(model, start, times=scaled_times, progress=None)
    raw_times = scaled_times / model.time_scale / model.loss_divisor
    full = matrix_flow(full_start.factors, model.classes, model.samples, raw_times, model.loss)
    for i, Z in enumerate(full):
        lifted = hf.hadamard(model, reduced.state(i + 1), rotation=rotation)
        assert relative_difference(lifted.Z, Z) < 1e-8


@pytest.mark.slow
@settings(max_examples=6)
@given(problems())
def test_reduced_flow_lifted_equals_our_full_flow_matrix_by_matrix(problem):
    model, start, rotation = problem
    full_start = hf.hadamard(model, start, rotation=rotation)
    times = [0.5, 20.0] if model.loss == "mse" else [0.5, 300.0]
    reduced = hf.solve(model, start, times=times, progress=None)
    full = hf.solve(model, full_start, times=times, progress=None)
    for i in (1, 2):
        lifted, direct = hf.hadamard(model, reduced.state(i), rotation=rotation), full.state(i)
        for ours, theirs in zip(lifted.factors, direct.factors, strict=True):
            assert relative_difference(ours, theirs) < 1e-8
        assert hf.distance_from_hadamard(model, direct) < 1e-6


@settings(max_examples=5)
@given(problems(), st.sampled_from([0.0, 0.9]), st.sampled_from([0.01, 0.3]))
def test_reduced_descent_lifted_equals_descent_on_the_matrices(problem, momentum, rate):
    model, start, rotation = problem
    full_start = hf.hadamard(model, start, rotation=rotation)
    arguments = {"momentum": momentum, "points": 12, "progress": None}
    rate = rate / model.samples / 4 if model.loss == "mse" else rate
    reduced = hf.descend(model, start, 300, rate, **arguments)
    full = hf.descend(model, full_start, 300, rate, **arguments)
    for i in range(len(full)):
        lifted = hf.hadamard(model, reduced.state(i), rotation=rotation)
        assert relative_difference(lifted.Z, full.state(i).Z) < 1e-10


@pytest.mark.parametrize("n", [1, 2])
def test_descent_on_the_matrices_is_plain_gradient_descent(n):
    """Against a NumPy loop over the textbook gradient, heavy ball included."""
    model = hf.UFM(4, samples=n, width=5)
    start = hf.gaussian(model, 0.5, 0)
    run = hf.descend(model, start, 50, 0.1, momentum=0.5, points=5, progress=None)
    W, H, vW, vH = start.W.copy(), start.H.copy(), 0.0, 0.0
    for _ in range(50):
        Z = W @ H
        P = np.exp(Z) / np.exp(Z).sum(axis=0)
        R = np.kron(np.eye(4), np.ones((1, n))) - P
        vW, vH = 0.5 * vW + 0.1 * R @ H.T, 0.5 * vH + 0.1 * W.T @ R
        W, H = W + vW, H + vH
    np.testing.assert_allclose(run.state(-1).W, W, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(run.state(-1).H, H, rtol=1e-11, atol=1e-13)


def test_a_nonzero_trivial_mode_stays_frozen_and_changes_nothing():
    model = hf.UFM(4, samples=2)
    a = [0.7, 0.2, 0.5, 0.9]
    full = hf.solve(model, hf.hadamard(model, a), times=[1.0, 100.0], progress=None)
    reduced = hf.solve(model, a[1:], times=[1.0, 100.0], progress=None)
    U, V = model.basis.vectors, np.kron(model.basis.vectors, np.full((2, 1), 2**-0.5))
    for i in range(3):
        diagonal = np.diag(U.T @ full.state(i).Z @ V) / model.singular_value_scale
        np.testing.assert_allclose(diagonal[0], 0.7, rtol=1e-9)
        np.testing.assert_allclose(diagonal[1:], reduced.a[i], rtol=1e-8)


def test_surplus_width_is_integrated_in_its_span():
    """Width 40 for 4 classes runs as width 8; the matrices come back at full width."""
    model = hf.UFM(4, width=40)
    start = hf.gaussian(model, 0.3, 0)
    run = hf.solve(model, start, times=[3.0], progress=None)
    Z = matrix_flow(start.factors, 4, 1, [3.0 / model.time_scale])[0]
    assert run.state(1).W.shape == (4, 40)
    np.testing.assert_allclose(run.state(1).Z, Z, rtol=1e-8, atol=1e-10)
    descent = hf.descend(model, start, 30, 0.05, progress=None)
    narrow = hf.UFM(4, width=40)
    W, H = start.factors
    for _ in range(30):
        R = narrow.residual(W @ H)
        W, H = W + 0.05 * R @ H.T, H + 0.05 * W.T @ R
    np.testing.assert_allclose(descent.state(-1).W, W, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(descent.state(0).W, start.W)
