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
        pytest.param(
            hf.UFM(4, label_smoothing=0.1), [1.0, 2, 3], hf.Steady(1e-300), marks=pytest.mark.slow
        ),
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


@pytest.mark.parametrize(
    "until", [hf.Time(30.0), pytest.param(hf.PathLength(0.5), marks=pytest.mark.slow)]
)
def test_many_saved_points_are_stepped_to_in_blocks(until):
    """More points than a block, on both ways: to times, and to an event."""
    model = hf.UFM(4, weight_decay=0.05)
    run = hf.solve(model, [1, 0.5, 0.2], until, points=1500, progress=None)
    assert len(run) == 1500 and run.status == "reached"
    few = hf.solve(model, [1, 0.5, 0.2], log10_times=run.log10_time[[100, 700, -1]], progress=None)
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
    from hadaflow.base.compiling import let_go
    from hadaflow.base.programs import LOADED

    compiled = []

    def listen(event, duration, **_):
        if event in ("/jax/core/compile/backend_compile_duration", LOADED):
            compiled.append(duration)

    let_go()

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


# --- rest, and what is kept ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 12])
def test_a_tiny_deep_start_is_not_at_rest(count):
    """Depth 4, MSE: a' = a^{3/2}(1 − 4a), by hand s + ln((s−2)/(s+2)) falls by t/2 with s = a^{−1/2}."""
    model, s = hf.UFM(4, loss="mse", depth=4), 1e6
    times = np.geomspace(1e-1, 1.0, count) * (s - 2) * 2
    run = hf.solve(model, np.full(4, s**-2), times=[*times[:-1] / 2, s, 4 * s], progress=None)
    np.testing.assert_allclose(run.a[-2], 4 * s**-2, rtol=1e-6)
    np.testing.assert_allclose(run.a[-1], 0.25, rtol=1e-8)
    steady = hf.solve(model, np.full(4, s**-2), hf.Steady(), points=2, progress=None)
    assert steady.status == "steady" and steady.time[-1] > 1.9 * s


@pytest.mark.slow
def test_tiny_deep_matrices_are_not_at_rest():
    model, s = hf.UFM(4, loss="mse", depth=4), 1e6
    start = hf.hadamard(model, np.full(4, s**-2))
    full = hf.solve(model, start, hf.Steady(1e-6), points=2, progress=None)
    assert full.status == "steady" and full.time[-1] > 1.9 * s


@pytest.mark.parametrize("options", [{"weight_decay": 1e-9}, {"label_smoothing": 1e-9}])
def test_what_settles_slowly_is_not_taken_for_settled(options):
    """Speeds of 1e-9 are slow only where there is nothing left to go."""
    model = hf.UFM(4, **options)
    start = hf.starts.uniform(model, 0.1, 1, 0)
    run = hf.solve(model, start, hf.Steady(), points=2, progress=None)
    assert run.status == "steady"
    np.testing.assert_allclose(run.a[-1], hf.fixed_point(model), rtol=1e-6)


@pytest.mark.parametrize(
    "start",
    [
        [1e-10, 1e-10],
        pytest.param(hf.circulant([1e-10 * (1 + 1j), 1e-10 * (1 - 0.2j)]), marks=pytest.mark.slow),
    ],
    ids=["real", "phases"],
)
def test_a_deep_start_between_saddles_goes_on(start):
    """Soft labels, with and without phases: no rest before the small modes have grown."""
    model = hf.UFM(5, depth=3, label_smoothing=0.1)
    run = hf.solve(model, start, times=[1.0, 1e8], progress=None)
    np.testing.assert_allclose(run.a[-1], hf.fixed_point(model), rtol=1e-6)


@pytest.mark.parametrize("rotation", range(4))
def test_matrices_are_looked_at_in_double_precision_before_they_move(rotation):
    start = hf.hadamard(MODEL, np.full(3, 1 / 3), rotation=rotation)
    run = hf.solve(MODEL, start, hf.Norm(1 + 2e-9), points=2, progress=None)
    speed = MODEL.velocity(np.full(3, 1 / 3)).sum()
    assert run.status == "reached"
    assert run.time[-1] == pytest.approx(2e-9 / speed, rel=1e-5)


def test_few_points_and_many_are_the_same_states():
    start, many = [1.0, 0.3, 1e-3, 0.5, 0.2, 2.0, 1e-2], np.geomspace(1e-12, 1e5, 18)
    whole = hf.solve(hf.UFM(8), start, times=many, progress=None)
    few = hf.solve(hf.UFM(8), start, times=many[::3], progress=None)
    np.testing.assert_allclose(few.a[1:], whole.a[1::3], rtol=2e-8)
    # A step that is cut short by a point is not where the next one begins to grow from.
    assert hf.solve(hf.UFM(8), start, times=[1e-290, 1.0], progress=None).steps < 60


@pytest.mark.parametrize("short", [0, 2**14])
def test_an_interruption_keeps_what_is_beyond_the_records(short, monkeypatch):
    """And does not go the whole way again to find it."""
    from hadaflow.flow import integrate

    monkeypatch.setattr(integrate, "_RECORD_LIMIT", 100)
    monkeypatch.setattr(integrate, "_SHORT_EXPLICIT", short)
    heard = []

    def stop(text, _):
        heard.append(float(text.split("=")[1].split()[0].rstrip(",")))
        if heard[-1] > 1000:
            raise KeyboardInterrupt

    run = hf.solve(hf.UFM(8), [1, 1, 1, 1, 1e-3, 1e-3, 1e-3], method="tsit5", progress=stop)
    assert run.status == "interrupted" and run.log10_time[-1] == pytest.approx(heard[-1], rel=1e-6)
    assert np.all(np.diff(run.log10_time) > 0) and heard == sorted(heard)


def test_an_interrupted_second_pass_leaves_the_first(monkeypatch):
    """Where an ill-conditioned event is gone to once more, with finer steps."""
    from hadaflow.flow.following import not_begun
    from hadaflow.flow.integrate import Integration
    from hadaflow.flow.methods import TSIT5
    from hadaflow.runs.outcomes import Ending

    original, calls = Integration.to_end, []

    def interrupted(self, end, keep):
        calls.append(self.tolerance)
        if len(calls) == 2:
            return not_begun(self.course.flow, Ending.INTERRUPTED)
        return original(self, end, keep)

    monkeypatch.setattr(Integration, "to_end", interrupted)
    monkeypatch.setattr(type(TSIT5), "sharpened", lambda self, request, sensitivity: 1e-12)
    run = hf.solve(MODEL, [1.0, 0.5, 0.3], hf.Norm(5.0), progress=None)
    assert len(calls) == 2 and run.status == "interrupted" and len(run) == 200
    assert run.log_norm[-1] == pytest.approx(np.log(5.0), abs=1e-12)
