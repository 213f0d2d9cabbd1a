"""STEP imbalance: two blocks in the reduced view, anything in the full one."""

import numpy as np
import pytest
import scipy.special

import hadaflow as hf

BLOCKS = ((4, 5), (4, 1))


@pytest.mark.slow
def test_two_blocks_of_equal_samples_are_a_balanced_model():
    """K = 8 in two blocks of Z_2 × Z_2 against Z_2^3: the simplex among all starts."""
    blocks, plain = hf.UFM(8, imbalance=((4, 2), (4, 2))), hf.UFM(8, samples=2)
    assert blocks.singular_value_scale == plain.singular_value_scale
    assert blocks.time_scale == plain.time_scale
    same = hf.lift(plain, np.full(7, 0.4)).Z
    np.testing.assert_allclose(hf.lift(blocks, np.full(7, 0.4)).Z, same, atol=1e-13)
    for name in ("loss", "margin", "kl"):
        ours = float(hf.measure(name, blocks, np.full(7, 0.4)))
        assert ours == pytest.approx(float(hf.measure(name, plain, np.full(7, 0.4))), abs=1e-13)
    times = np.geomspace(1e-3, 1e3, 50)
    a = hf.solve(blocks, np.full(7, 0.4), times=times, progress=None)
    b = hf.solve(plain, np.full(7, 0.4), times=times, progress=None)
    np.testing.assert_allclose(a.log_a, b.log_a, atol=1e-7)


def test_loss_and_margin_by_definition():
    model = hf.UFM(8, imbalance=BLOCKS)
    start = hf.spectrum(np.linspace(0.2, 0.8, 7), angle=0.5)
    Z = hf.lift(model, start).Z
    labels = np.repeat(np.arange(8), [5] * 4 + [1] * 4)
    logs = scipy.special.log_softmax(Z, axis=0)[labels, np.arange(24)]
    assert float(hf.measure("loss", model, start)) == pytest.approx(-logs.sum(), rel=1e-12)
    rights = Z[labels, np.arange(24)]
    margin = min((rights[s] - np.delete(Z[:, s], labels[s])).min() for s in range(24))
    assert float(hf.measure("margin", model, start)) == pytest.approx(margin, rel=1e-12)
    back = hf.project(model, hf.hadamard(model, start, rotation=2))
    np.testing.assert_allclose(back.a, start.a, rtol=1e-12)
    np.testing.assert_allclose(back.angles, [0.5], rtol=1e-12)


def test_one_basis_no_longer_decouples():
    """K = 4, n = (4, 4, 1, 1), from a Hadamard start: the logits leave the diagonal."""
    model = hf.UFM(4, imbalance=((2, 4), (2, 1)))
    U = hf.Sylvester(4).vectors
    values = np.array([0.0, 1.0, 1.0, 1.0])
    counts = np.array([4, 4, 1, 1])
    W = U * np.sqrt(values)
    H = np.repeat((np.sqrt(values)[:, None] * U.T), counts, axis=1) / np.sqrt(
        np.repeat(counts, counts)
    )
    run = hf.solve(model, hf.parameters(W, H), times=[2.0], units="raw", progress=None)
    V = np.repeat(U, counts, axis=0) / np.sqrt(np.repeat(counts, counts))[:, None]
    shares = []
    for state in (run.state(0), run.state(-1)):
        inner = U.T @ state.Z @ V
        shares.append(np.linalg.norm(inner - np.diag(np.diag(inner))) / np.linalg.norm(inner))
    assert shares[0] < 1e-14 and shares[1] > 0.1


def test_the_larger_block_is_learned_first_and_the_smaller_one_lags():
    model = hf.UFM(8, imbalance=((4, 20), (4, 1)))
    run = hf.solve(model, np.full(7, 1e-3), hf.Time(6.0), progress=None)
    assert np.all(run.a[-1, :3] > 5 * run.a[-1, 3:6])
    assert run.angles[0, 0] == pytest.approx(np.pi / 4)
    assert "4 classes of 20 samples" in run.summary()


@pytest.mark.slow
def test_far_out_the_two_views_agree():
    model = hf.UFM(5, imbalance=((3, 3), (2, 1)))
    start = hf.spectrum([0.6, 0.5, 0.7], C=[0.2, -0.1, 0.3], angle=0.7)
    reduced = hf.solve(model, start, log10_times=[2.0, 30.0], progress=None)
    full = hf.solve(model, hf.hadamard(model, start), log10_times=[2.0, 30.0], progress=None)
    back = hf.project(model, full.parameters)
    np.testing.assert_allclose(back.a, reduced.a, rtol=1e-6)
    np.testing.assert_allclose(back.angles, reduced.angles, atol=1e-6)


@pytest.mark.slow
def test_smoothing_and_penalties_settle(tmp_path):
    for options in ({"label_smoothing": 0.1}, {"weight_decay": 0.2}):
        model = hf.UFM(8, imbalance=BLOCKS, **options)
        run = hf.solve(model, np.full(7, 0.3), progress=None)
        assert run.status == "steady"
        if "label_smoothing" in options:  # the softmax equals the labels
            P = scipy.special.softmax(hf.lift(model, run.state(-1)).Z, axis=0)
            np.testing.assert_allclose(P, model.labels, atol=1e-6)
    run.save(tmp_path / "run.nc")
    assert hf.load(tmp_path / "run.nc").model == model
    run.plot(tmp_path / "run.png")


def test_three_blocks_have_a_full_view():
    model = hf.UFM(6, imbalance=((2, 3), (2, 2), (2, 1)), width=7)
    assert model.factor_shapes == ((6, 7), (7, 12))
    run = hf.solve(model, hf.gaussian(model, 0.3, 0), hf.Norm(20), points=2, progress=None)
    assert run.status == "reached" and run.measure("nc1_quot")[-1] < run.measure("nc1_quot")[0]
    assert "2×3, 2×2, 2×1" in run.summary()
    losses = hf.descend(model, hf.gaussian(model, 0.3, [0, 1]), 100, 0.02, progress=None)
    assert np.all(np.diff(losses.measure("loss"), axis=1) < 0)
