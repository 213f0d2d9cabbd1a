import numpy as np
import pytest

import hadaflow as hf
from references import dense_psi


def test_margins_of_both_views():
    model = hf.UFM(4, samples=2)
    a = np.array([0.3, 1.0, 2.0])
    reduced = hf.margins(model, hf.spectrum(a))
    np.testing.assert_allclose(reduced, dense_psi(4) @ a, rtol=1e-13)
    state = hf.hadamard(model, a, rotation=0)
    full = hf.margins(model, state)
    assert full.shape == (8, 3)
    for row in full:
        np.testing.assert_allclose(np.sort(row), np.sort(reduced), rtol=1e-12)
    W, H = state.factors
    assert full[5, 1] == pytest.approx((W[2] - W[1]) @ H[:, 5])  # class 3 against class 2


@pytest.mark.parametrize("n", [1, 2])
def test_collapse_is_optimal_and_a_kkt_point(n):
    model = hf.UFM(4, samples=n, width=5)
    point = hf.max_margin(model, hf.hadamard(model, [3.0, 3.0, 3.0], rotation=1))
    assert point.kkt_residual < 1e-12
    assert point.value == pytest.approx(point.optimal_value, rel=1e-12)
    assert np.all(point.multipliers >= 0)


def test_low_rank_directions_are_kkt_points_but_not_optimal():
    """K = 8: (1, 1, 1, 2, 0, 0, 0) is a saddle of Eq. (3), (1, 1, 1, 1, 0, 0, 0) no KKT point."""
    model = hf.UFM(8)
    saddle = hf.max_margin(model, hf.lift(model, [1.0, 1, 1, 2, 0, 0, 0]))
    assert saddle.kkt_residual < 1e-12
    assert saddle.value > 1.1 * saddle.optimal_value
    other = hf.max_margin(model, hf.lift(model, [1.0, 1, 1, 1, 0, 0, 0]))
    assert other.kkt_residual > 0.05


def test_the_residual_falls_along_the_flow():
    model = hf.UFM(4)
    run = hf.solve(model, hf.gaussian(model, 0.3, 0), log10_times=[2.0, 20.0, 200.0], progress=None)
    residuals = [hf.max_margin(model, run.state(i)).kkt_residual for i in (1, 2, 3)]
    assert residuals[0] > 3 * residuals[1] > 9 * residuals[2]


def test_bad_states():
    model = hf.UFM(4)
    with pytest.raises(hf.InputError, match="classify every sample"):
        hf.max_margin(model, hf.gaussian(model, 1.0, 0))
    with pytest.raises(hf.InputError, match="`depth` = 2"):
        hf.max_margin(hf.UFM(4, depth=1), hf.parameters(np.eye(4)))
    with pytest.raises(hf.InputError, match="batch"):
        hf.max_margin(model, hf.gaussian(model, 1.0, [0, 1]))
    large = hf.UFM(128)
    with pytest.raises(hf.InputError, match="limit"):
        hf.max_margin(large, hf.lift(large, np.ones(127)))
