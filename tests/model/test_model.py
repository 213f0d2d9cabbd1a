import mpmath as mp
import numpy as np
import pytest

import hadaflow as hf
from references import dense_psi, softmax_residual, stable_velocity, textbook_velocity


def exact_residual(Z, K, n):
    """Y − P in 200-digit arithmetic."""
    with mp.workdps(200):
        rows = np.empty(Z.shape)
        for j in range(Z.shape[1]):
            e = [mp.exp(mp.mpf(z)) for z in Z[:, j]]
            total = mp.fsum(e)
            for i in range(K):
                value = (1 if i == j // n else 0) - e[i] / total
                rows[i, j] = float(value)
        return rows


@pytest.mark.parametrize("size", [0.1, 3.0, 60.0, 300.0])
def test_residual_is_right_when_one_minus_p_is_below_rounding(size):
    K, n = 4, 2
    model = hf.UFM(K, samples=n)
    Z = size * model.labels + np.random.default_rng(0).standard_normal((K, K * n))
    np.testing.assert_allclose(model.residual(Z), exact_residual(Z, K, n), rtol=1e-12)


def test_softmax_of_a_hadamard_matrix_is_diagonal():
    """Theorem 1, with the printed formula corrected by the factor √K."""
    K, a = 8, np.random.default_rng(0).uniform(0, 20, 8)
    U = hf.Sylvester(K).vectors
    Z = (U * a) @ U.T
    P = np.exp(Z - Z.max(axis=0))
    P /= P.sum(axis=0)
    D = U.T @ P @ U
    np.testing.assert_allclose(D, np.diag(np.diag(D)), atol=1e-14)
    v = U @ a / np.sqrt(K)
    p = np.exp(v - v.max())
    np.testing.assert_allclose(np.diag(D), np.sqrt(K) * U @ (p / p.sum()), atol=1e-14)


@pytest.mark.parametrize("K", [2, 4, 8, 16])
def test_velocity_equals_the_textbook_form_at_moderate_size(K):
    a = np.random.default_rng(K).uniform(0, 2, K - 1)
    np.testing.assert_allclose(hf.UFM(K).velocity(a), textbook_velocity(a, K), rtol=1e-12)


def test_velocity_unbalanced_and_batched():
    rng = np.random.default_rng(0)
    a, C = rng.uniform(0, 2, (5, 7)), rng.normal(size=(5, 7))
    got = hf.UFM(8).velocity(a, C)
    expected = [stable_velocity(x, 8, c) for x, c in zip(a, C, strict=True)]
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    got = hf.UFM(8, depth=1).velocity(a)
    np.testing.assert_allclose(got, [stable_velocity(x, 8, depth=1) for x in a], rtol=1e-12)


def test_drive_survives_where_the_textbook_form_freezes():
    a = np.full(7, 5000.0) * np.linspace(1, 1.3, 7)
    direction, slowness = hf.UFM(8).drive(a)
    assert not textbook_velocity(a, 8).any()
    assert np.all(direction >= 0) and direction.max() > 1
    assert slowness > 4e4


@pytest.mark.parametrize(
    "a", [np.full(7, 1e-3), np.full(7, 3.0), np.full(7, 80.0), np.full(7, 9e3)]
)
def test_energy_and_its_log(a):
    model, x = hf.UFM(8), dense_psi(8) @ a
    with mp.workdps(50):
        log_exact = mp.log(mp.log1p(mp.fsum(mp.exp(-mp.mpf(v)) for v in x)))
        exact = float(mp.exp(log_exact))
    np.testing.assert_allclose(model.energy(a), exact, rtol=1e-12)
    np.testing.assert_allclose(model.log_energy(a), float(log_exact), rtol=1e-13)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_gradient_is_the_derivative_of_the_loss(depth, loss, reduction):
    width = None if depth == 1 else 5
    model = hf.UFM(4, samples=2, width=width, depth=depth, loss=loss, reduction=reduction)
    start = hf.gaussian(model, 1.0, 0)
    gradient = model.gradient(start)
    rng = np.random.default_rng(1)
    direction = [rng.standard_normal(f.shape) for f in start.factors]

    def loss_at(h):
        return hf.measure(
            "loss",
            model,
            hf.parameters(*(f + h * d for f, d in zip(start.factors, direction, strict=True))),
        )

    slope = sum(np.sum(g * d) for g, d in zip(gradient.factors, direction, strict=True))
    h = 1e-3  # fourth-order central difference
    numeric = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h)
    np.testing.assert_allclose(slope, numeric, rtol=1e-8)


def test_gradient_against_plain_numpy():
    model = hf.UFM(4, samples=3, width=6)
    start = hf.gaussian(model, 1.0, 3)
    R = softmax_residual(start.Z, np.repeat(np.arange(4), 3))
    gradient = model.gradient(start)
    np.testing.assert_allclose(gradient.W, -R @ start.H.T, rtol=1e-12)
    np.testing.assert_allclose(gradient.H, -start.W.T @ R, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 1}, r"`classes` must be from 2 to 2\^24, but is 1"),
        ({"classes": 8.0}, "`classes` must be a whole number of at least 1, but is 8.0"),
        (
            {"classes": 4, "samples": 0},
            "`samples` must be a whole number from 1 to 1000000000000, but is 0",
        ),
        ({"classes": 4, "samples": float("nan")}, "`samples` must be a whole number"),
        (
            {"classes": 4, "width": 0},
            "`width` must be a whole number from 1 to 1000000000000, but is 0",
        ),
        ({"classes": 4, "width": 4, "depth": 1}, "`width` does not apply at depth 1"),
        ({"classes": 4, "depth": 101}, "`depth` must be from 1 to 100, but is 101"),
        (
            {"classes": 4, "loss": "ramp"},
            "or a function, but is 'ramp'",
        ),
        ({"classes": 4, "reduction": "max"}, '`reduction` must be "sum" or "mean"'),
    ],
)
def test_bad_models(arguments, message):
    with pytest.raises(hf.InputError, match=message):
        hf.UFM(**arguments)
