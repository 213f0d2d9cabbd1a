"""Circulant logits without symmetry: phases that move, and what becomes of KL."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import hadaflow as hf


def logits(model, values):
    """Z_{gh} = c_{g−h} by definition, c from the eigenvalues of all characters; raw, n = 1."""
    group, K = model.basis.group, model.classes
    g = np.array(np.unravel_index(np.arange(K), group)).T
    chi = np.exp(2j * np.pi * sum(np.outer(g[:, k], g[:, k]) / n for k, n in enumerate(group)))
    full = np.zeros(K, dtype=complex)
    for first, value in zip(model.basis.representatives[1:], values, strict=True):
        other = np.ravel_multi_index(tuple(-g[first] % np.array(group)), group)
        full[first], full[other] = value, np.conj(value)
    c = (full @ chi).real / K
    where = {tuple(x): i for i, x in enumerate(g)}
    return np.array([[c[where[tuple((x - y) % np.array(group))]] for y in g] for x in g])


@pytest.mark.parametrize("group", [(3,), (5,), (6,), (2, 4), (3, 3), (12,)])
def test_the_lift_has_the_eigenvalues(group):
    model = hf.UFM(math.prod(group), group=group)
    rng = np.random.default_rng(0)
    values = rng.normal(size=model.modes) + 1j * rng.normal(size=model.modes)
    values = np.where(model.basis.multiplicity == 2, values, values.real)
    start = hf.circulant(values, units="raw")
    np.testing.assert_allclose(hf.lift(model, start).Z, logits(model, values), atol=1e-13)
    # Margins and energy by definition too.
    Z = logits(model, values)
    margins = Z[0, 0] - Z[1:, 0]
    np.testing.assert_allclose(hf.margins(model, start), margins, atol=1e-12)
    energy = np.log1p(np.exp(-margins).sum())
    assert float(hf.measure("energy", model, start)) == pytest.approx(energy, rel=1e-12)


def test_kl_rises_on_z5_with_phases():
    """λ = 5e^{0.2i}, 5e^{i}: the logs of the moduli grow at rates 0.306 and 0.106, so KL leaves 0."""
    model = hf.UFM(5)
    start = hf.circulant([5 * np.exp(0.2j), 5 * np.exp(1j)], units="raw")
    rates = [
        float(hf.rate(lambda a, k=k: jnp.log(a[k]), model, start, units="raw")) for k in (0, 1)
    ]
    assert rates == pytest.approx([0.306, 0.106], abs=5e-4)
    run = hf.solve(model, start, hf.Norm(200), points=300, progress=None)
    kl = run.measure("kl")
    assert kl[0] < 1e-20 and kl.max() > 2e-3
    # … and collapse is reached nevertheless, with the phases gone.
    assert run.measure("collapse_deviation")[-1] < 1e-3 and np.abs(run.angles[-1]).max() < 1e-3


@pytest.mark.parametrize("group", [(3,), (5,)])
def test_random_phases_end_in_collapse(group):
    """At ‖λ‖₁ ≈ 200 the deviation is below 1e-4."""
    model = hf.UFM(math.prod(group), group=group)
    rng = np.random.default_rng(4)
    values = rng.uniform(0.5, 1, model.modes) * np.exp(1j * rng.uniform(-2, 2, model.modes))
    run = hf.solve(model, hf.circulant(values), hf.Norm(200), points=2, progress=None)
    assert run.measure("collapse_deviation")[-1] < 1e-4


def test_a_symmetric_start_stays_symmetric():
    model = hf.UFM(10)
    a = np.linspace(0.2, 1, 5)
    plain = hf.solve(model, a, times=[1.0, 1e3], progress=None)
    turned = hf.solve(model, hf.circulant(a), times=[1.0, 1e3], progress=None)
    np.testing.assert_allclose(turned.log_a, plain.log_a, atol=1e-8)
    assert np.abs(turned.angles).max() < 1e-10


def test_a_negative_mode_passes_through_zero():
    """A real mode of the wrong sign, unbalanced: the reduced flow follows it through zero."""
    model = hf.UFM(4)
    run = hf.solve(model, hf.circulant([-0.3, 0.5, 0.4], C=1.0), times=[30.0], progress=None)
    assert run.status == "reached"
    assert np.cos(run.angles[0, 0]) == pytest.approx(-1) and np.cos(run.angles[-1, 0]) > 0.99


@pytest.mark.slow
def test_a_run_with_phases_is_saved_and_continued(tmp_path):
    model = hf.UFM(6, label_smoothing=0.1)
    run = hf.solve(model, hf.circulant([0.5 + 0.3j, 0.4 - 0.2j, 0.6]), hf.Time(2), progress=None)
    run.save(tmp_path / "run.nc")
    again = hf.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(again.angles, run.angles)
    assert again.to_xarray()["angles"].dims == ("time", "mode")
    end = hf.solve(model, again.state(-1), progress=None)
    assert end.status == "steady"
    np.testing.assert_allclose(end.a[-1], hf.fixed_point(model), rtol=1e-6)
    run.plot(tmp_path / "run.png")
    assert "Z_6" in run.summary()
