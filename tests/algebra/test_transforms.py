import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, strategies as st

import hadaflow as hf
from hadaflow.algebra import transforms


@pytest.mark.parametrize("n", [2**k for k in range(12)])
def test_equals_the_dense_matrix(n):
    x = np.random.default_rng(n).standard_normal((3, n))
    expected = x @ (scipy.linalg.hadamard(n) if n > 1 else np.ones((1, 1)))
    np.testing.assert_allclose(hf.walsh_hadamard(x), expected, rtol=0, atol=1e-11 * n)


FORMS = [transforms._radix4, transforms._constant_geometry, transforms._kronecker]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "n", [1, 2, 8, 64, *(pytest.param(n, marks=pytest.mark.slow) for n in (512, 2048))]
)
def test_every_form_agrees_whether_or_not_it_is_chosen(form, n):
    x = np.random.default_rng(0).standard_normal((2, n))
    with jax.enable_x64(True):
        got = np.asarray(form(jnp.asarray(x)))
    dense = scipy.linalg.hadamard(n) if n > 1 else np.ones((1, 1))
    np.testing.assert_allclose(got, x @ dense, rtol=0, atol=1e-11 * n)


@given(st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_twice_is_n_times_the_identity(bits, seed):
    x = np.random.default_rng(seed).standard_normal(2**bits)
    twice = hf.walsh_hadamard(hf.walsh_hadamard(x))
    np.testing.assert_allclose(twice / 2**bits, x, rtol=0, atol=1e-13 * np.abs(x).max())


def test_the_largest_size():
    """One unit vector of 2^24 entries has a known transform: the parities of its index."""
    n, j = 2**24, 0b1011_0001_1100_0111_0010_1101
    x = np.zeros(n, dtype=np.float32)
    x[j] = 1
    got = hf.walsh_hadamard(x)
    i = np.random.default_rng(0).integers(0, n, 1000)
    parity = np.array([int(k & j).bit_count() % 2 for k in i])
    np.testing.assert_array_equal(got[i], 1 - 2 * parity)


def test_batch_equals_loop():
    x = np.random.default_rng(1).standard_normal((4, 5, 256))
    loop = np.array([[hf.walsh_hadamard(row) for row in block] for block in x])
    np.testing.assert_allclose(hf.walsh_hadamard(x), loop, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_keeps_the_precision_it_is_given(dtype):
    x = np.random.default_rng(2).standard_normal(64).astype(dtype)
    got = hf.walsh_hadamard(x)
    assert got.dtype == dtype
    exact = scipy.linalg.hadamard(64) @ x.astype(np.float64)
    assert np.abs(got - exact).max() < 100 * np.finfo(dtype).eps * np.abs(exact).max()


def test_is_differentiable_and_works_inside_jit():
    x = np.random.default_rng(3).standard_normal(16).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda v: hf.walsh_hadamard(v)[5]))(x)
    np.testing.assert_array_equal(gradient, scipy.linalg.hadamard(16)[5])


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((2, 0)), np.ones(12)])
def test_refuses_other_lengths(bad):
    with pytest.raises(hf.InputError, match="power of two"):
        hf.walsh_hadamard(bad)


def test_refuses_a_number():
    with pytest.raises(hf.InputError, match="at least one axis"):
        hf.walsh_hadamard(1.0)
