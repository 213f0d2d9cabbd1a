"""Every march has an end that can be stated, and what it leaves behind is bounded."""

import jax
import numpy as np
import pytest
import scipy.integrate

import hadaflow as hf
from hadaflow.flow.methods import runge_kutta

MODEL = hf.UFM(4)


def test_what_matrices_cannot_be_asked_is_refused():
    start = hf.hadamard(MODEL, [1, 0.5, 0.3])
    with pytest.raises(hf.InputError, match="cannot be PredictedCollapse for matrices"):
        hf.solve(MODEL, start, hf.PredictedCollapse(0.01), progress=None)
    with pytest.raises(hf.InputError, match='cannot be "dual" for matrices'):
        hf.solve(MODEL, start, hf.Collapse(0.01), method="dual", progress=None)


@pytest.mark.parametrize(
    ("model", "start", "until"),
    [
        (hf.UFM(4, weight_decay=(0, 0.1)), [1e6, 1, 1], None),
        (hf.UFM(4, weight_decay=(0, 0.1)), [1.0, 1, 1], hf.PathLength(50.0)),
        (hf.UFM(4, label_smoothing=0.1), [1.0, 2, 3], hf.Steady(1e-300)),
    ],
)
def test_explicit_steps_come_to_an_end(model, start, until, monkeypatch):
    monkeypatch.setattr(runge_kutta, "_MOST_STEPS_AT_REST", 20_000)
    run = hf.solve(model, start, until, method="tsit5", progress=None)
    assert run.status == "failed" and "steps of tsit5 were taken" in run.message
    assert run.steps < 30_000 and np.all(np.isfinite(run.log_a)) and len(run) > 10


def test_plain_explicit_steps_come_to_an_end(monkeypatch):
    monkeypatch.setattr(runge_kutta, "_MOST_STEPS", 10_000)
    run = hf.solve(hf.UFM(8), [1, 1, 1, 1, 1e-9, 1e-9, 1e-9], method="tsit5", progress=None)
    assert run.status == "failed" and "steps of tsit5 were taken" in run.message


def test_many_saved_points_are_stepped_to_in_blocks():
    """More points than a block, on both ways: to times, and to an event."""
    model = hf.UFM(4, weight_decay=0.05)
    for until in (hf.Time(30.0), hf.PathLength(0.5)):
        run = hf.solve(model, [1, 0.5, 0.2], until, points=1500, progress=None)
        assert len(run) == 1500 and run.status == "reached"
        few = hf.solve(
            model, [1, 0.5, 0.2], log10_times=run.log10_time[[100, 700, -1]], progress=None
        )
        np.testing.assert_allclose(run.a[[100, 700, -1]], few.a[1:], rtol=1e-8)


def logits_flow(a0, times, q):
    """Depth 1, Z_3 … Z_7 with labels q: eigenvalues of a circulant matrix, real and signed, scaled."""
    K, r = len(q), len(a0)
    modes = np.arange(1, r + 1)
    cosines = np.cos(2 * np.pi * np.outer(np.arange(K), modes) / K)

    def field(t, a):
        c = 2 * cosines @ a
        p = np.exp(c - c.max())
        return (q - p / p.sum()) @ cosines

    done = scipy.integrate.solve_ivp(
        field, (0, times[-1]), a0, "Radau", times, rtol=1e-10, atol=1e-13
    )
    return done.y.T


def test_a_mode_that_is_held_back_passes_through_zero():
    """Smoothing wants every mode positive, and a large one drives a small one negative all the same."""
    model = hf.UFM(7, depth=1, label_smoothing=0.9)
    start, times = [3.0, 0.2, 1e-3], [0.5, 2.0, 8.0, 60.0]
    run = hf.solve(model, start, times=times, progress=None)
    want = logits_flow(start, times, model.label_probabilities)
    assert np.any(want < 0) and np.all(want[-1] > 0)
    np.testing.assert_allclose(run.a[1:] * np.cos(run.angles[1:]), want, rtol=1e-7, atol=1e-9)
    assert np.all(np.isfinite(run.log_a))


def test_descent_and_batches_follow_a_sign_that_changes():
    """The reduced map and the matrices agree past zero; runs of a batch that stay positive are real."""
    model = hf.UFM(7, depth=1, label_smoothing=0.9)
    starts = [[3.0, 0.2, 1e-3], [0.3, 0.2, 0.1]]
    run = hf.descend(model, starts[0], 60, 0.5, points=20, progress=None)
    full = hf.descend(model, hf.hadamard(model, starts[0]), 60, 0.5, points=20, progress=None)
    assert run.status == "reached" and np.any(np.cos(run.angles) < 0)
    for k in (5, -1):
        Z = full.state(k).Z
        np.testing.assert_allclose(hf.lift(model, run.state(k)).Z, Z, atol=1e-12 * np.abs(Z).max())
    assert "angles" not in hf.descend(model, starts[1], 20, 0.1, progress=None).arrays
    batch = hf.solve(model, starts, times=[0.5, 2.0], progress=None)
    for k, start in enumerate(starts):
        alone = hf.solve(model, start, times=[0.5, 2.0], progress=None)
        np.testing.assert_allclose(batch.log_a[k], alone.log_a, rtol=1e-12)
        turned = alone.arrays.get("angles", np.zeros_like(alone.log_a))
        np.testing.assert_allclose(batch.angles[k], turned, atol=1e-12)
    assert np.any(np.cos(batch.angles[0]) < 0) and not np.any(batch.angles[1])


def test_pictures_compile_nothing_new():
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    reduced = hf.solve(MODEL, [1, 0.5, 0.2], hf.Time(10.0), points=20, progress=None)
    full = hf.solve(MODEL, hf.gaussian(MODEL, 0.3, 0), hf.Time(10.0), points=20, progress=None)
    for run in (reduced, full):
        run.plot()
        str(run)
    assert compiled
    compiled.clear()
    for run in (reduced, full):
        run.plot()
        str(run)
    assert not compiled
