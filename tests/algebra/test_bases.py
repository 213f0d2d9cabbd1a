import numpy as np
import pytest

import hadaflow as hf
from references import dense_psi


@pytest.mark.parametrize("K", [2, 4, 8, 64, 512])
def test_psi_without_forming_it(K):
    v = np.random.default_rng(K).standard_normal((3, K - 1))
    np.testing.assert_allclose(hf.Sylvester(K).psi(v), v @ dense_psi(K), rtol=0, atol=1e-11 * K)
    if K <= 64:
        np.testing.assert_array_equal(hf.Sylvester(K).dense_psi, dense_psi(K))


@pytest.mark.parametrize("K", [2, 8, 32])
def test_identities_of_psi(K):
    """Ψ² = K(I + 11ᵀ), Ψ1 = K1, and each mode enlarges half of the K margins."""
    psi = hf.Sylvester(K).dense_psi
    np.testing.assert_array_equal(psi @ psi, K * (np.eye(K - 1) + 1))
    np.testing.assert_array_equal(psi.sum(axis=0), np.full(K - 1, K))
    assert set(np.count_nonzero(psi, axis=0)) == {K // 2}


def test_vectors_are_orthogonal_with_the_trivial_mode_first():
    U = hf.Sylvester(16).vectors
    np.testing.assert_allclose(U @ U.T, np.eye(16), atol=1e-15)
    np.testing.assert_array_equal(U[:, 0], np.full(16, 0.25))


@pytest.mark.parametrize("K", [0, 1, 3, 10, 12, 2**25])
def test_refuses_class_numbers_that_are_not_powers_of_two(K):
    with pytest.raises(hf.InputError, match=f"power of two from 2 to .* but is {K}"):
        hf.Sylvester(K)


def test_refuses_a_vector_of_the_wrong_length():
    with pytest.raises(hf.InputError, match=r"last axis 7 .* shape \(8,\)"):
        hf.Sylvester(8).psi(np.ones(8))


def test_refuses_dense_forms_that_would_not_fit():
    with pytest.raises(hf.InputError, match="dense"):
        _ = hf.Sylvester(2**20).vectors
