"""What matrices of a small width cannot do, neither view does; what they can, both do."""

import numpy as np
import pytest

import hadaflow as hf

NARROW = hf.UFM(8, width=3)
THREE = [1.0, 0.5, 0.2, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: hf.solve(NARROW, [1.0] * 7, progress=None),
        lambda: hf.descend(NARROW, [1.0] * 7, 5, 0.1, progress=None),
        lambda: hf.lift(NARROW, [1.0] * 7),
        lambda: hf.measure("kl", NARROW, [1.0] * 7),
        lambda: hf.rate("kl", NARROW, [1.0] * 7),
        lambda: hf.estimate(NARROW, [1.0] * 7),
        lambda: hf.predict_collapse(NARROW, [1.0] * 7),
        lambda: hf.solve(NARROW, [THREE, [1.0] * 7], hf.Time(1.0), progress=None),
        # A difference takes a feature direction too, though its product is zero.
        lambda: hf.solve(NARROW, hf.spectrum(THREE, [0, 0, 0, 1, 0, 0, 0]), hf.Time(1.0)),
        lambda: hf.solve(hf.UFM(10, width=3), [1.0, 1, 0, 0, 0], hf.Time(1.0)),  # pairs: rank 4
        lambda: hf.solve(hf.UFM(4, width=3, loss="mse"), [1.0] * 4, progress=None),
        lambda: hf.solve(hf.UFM(4, width=2, depth=3), [1.0] * 3, progress=None),
    ],
)
def test_more_modes_than_the_width_are_refused(call):
    with pytest.raises(hf.InputError, match=r"rank \d at most for `width` = \d"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: hf.fixed_point(hf.UFM(8, width=3, label_smoothing=0.1)),
        lambda: hf.atlas(NARROW, progress=None),
        lambda: hf.hunt("l2", NARROW, progress=None),
        lambda: hf.worst_rise("l2", NARROW, progress=None),
        lambda: hf.portrait(hf.UFM(4, width=2)),
        lambda: hf.certify("kl", ["1"] * 7, NARROW),
        lambda: hf.stability_limit(hf.UFM(8, width=3, label_smoothing=0.1)),
    ],
)
def test_what_needs_all_modes_needs_the_width(call):
    with pytest.raises(hf.InputError, match="must have `width` of at least"):
        call()


@pytest.mark.parametrize(
    ("width", "depth"),
    [
        (3, 2), (5, 3),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((3, 3), (5, 2), (7, 2), (7, 3))),
    ],
)  # fmt: skip
def test_modes_that_fit_move_alike_in_both_views(depth, width):
    model = hf.UFM(8, width=width, depth=depth)
    start = THREE if width < 7 else [1.0, 0.5, 0.2, 0.3, 0.7, 0.1, 0.4]
    run = hf.solve(model, start, times=[5.0], rtol=1e-9, progress=None)
    begin = hf.hadamard(model, start, rotation=3)
    assert begin.factors[0].shape == (8, width)
    full = hf.solve(model, begin, times=[5.0], rtol=1e-9, progress=None)
    Z = full.state(-1).Z
    np.testing.assert_allclose(hf.lift(model, run.state(-1)).Z, Z, atol=1e-8 * np.abs(Z).max())
    down = hf.descend(model, start, 30, 0.1, points=2, progress=None)
    steps = hf.descend(model, begin, 30, 0.1, points=2, progress=None)
    Z = steps.state(-1).Z
    np.testing.assert_allclose(hf.lift(model, down.state(-1)).Z, Z, atol=1e-12 * np.abs(Z).max())


def test_a_batch_of_narrow_starts_has_its_own_directions():
    starts = [[1.0, 0.5, 0], [0, 0.5, 1.0], [0.3, 0, 0]]
    lifted = hf.hadamard(hf.UFM(4, width=2), starts)
    for k, start in enumerate(starts):
        got = np.linalg.svd(lifted.Z[k], compute_uv=False)[:3] / 4
        np.testing.assert_allclose(got, np.sort(start)[::-1], atol=1e-15)


@pytest.mark.parametrize("width", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_zeros_of_narrow_matrices_are_exact(width):
    model = hf.UFM(8, width=width)
    state = hf.gaussian(model, 0.1, 0)
    assert hf.measure("kl", model, state) == hf.measure("log_ratio", model, state) == np.inf
    run = hf.solve(model, state, hf.Time(10.0), points=4, progress=None)
    assert np.all(run.a_hat[:, width:] == 0) and np.all(run.a_hat[:, :width] > 0)
    assert "infinite where a singular value is zero" in str(run)
    assert hf.solve(model, state, hf.Collapse(), progress=None).status == "never-collapses"
    assert np.count_nonzero(hf.matched_spectrum(model, state).a) == width
    # The largest ones are those of NumPy.
    want = np.linalg.svd(run.parameters.Z, compute_uv=False)[:, :width] / 8
    np.testing.assert_allclose(run.a[:, :width], want, rtol=1e-12)


def test_zeros_of_a_start_are_no_rounding_either():
    """A mode that starts at zero stays zero in the matrices, up to rounding: KL is infinite, not 30."""
    model = hf.UFM(4)
    state = hf.hadamard(model, [1.0, 0.5, 0.0], rotation=1)
    assert hf.measure("kl", model, state) == np.inf
    assert hf.measure("kl", model, [1.0, 0.5, 0.0]) == np.inf


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-3, 1e100])
def test_distances_of_directions_see_no_scale(scale):
    """The logits of tiny matrices underflow; their direction does not."""
    model = hf.UFM(6, samples=2)
    state = hf.gaussian(model, 1.0, 3)
    small = hf.parameters(*(scale * f for f in state.factors))
    scale_free = [n for n in hf.metric_names("full", model) if "energy" not in n and "los" not in n]
    for name in sorted(set(scale_free) - {"margin"}):
        want = float(hf.measure(name, model, state))
        assert float(hf.measure(name, model, small)) == pytest.approx(want, rel=1e-10), name
    run = hf.descend(model, small, 1, 1e-3, progress=None) if scale < 1 else None
    assert run is None or np.all(np.isfinite(run.measure("kl")))
