"""Batches of spectra, what fits, and both from the command line."""

import dataclasses
import json
import subprocess
import sys
import time

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.base import memory
from hadaflow.base.compiling import let_go
from hadaflow.base.precision import double_precision
from hadaflow.flow import lanes
from hadaflow.flow.following import reduced_flow
from hadaflow.flow.kinds.flow import Course
from hadaflow.flow.methods import TSIT5
from hadaflow.model.fitting import fitted

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


def solve(*args, **options):
    return hf.solve(*args, progress=None, **options)


def u_start(K, seed=0):
    return 1e-3 * np.random.default_rng(seed).uniform(0.5, 1.5, K - 1)


# --- batches -------------------------------------------------------------------------------------


def test_a_batch_equals_its_runs_one_by_one(tmp_path):
    rng = np.random.default_rng(0)
    a = np.exp(rng.normal(0, 1, (40, 7)))
    a[3] = [1e-12, 1, 1, 1, 1, 1, 1]  # a long way
    a[5] = 1.0  # there already
    a[6, 2] = 0.0  # never
    batch = solve(hf.UFM(8), a, hf.Collapse(1e-3), rtol=1e-6)
    assert batch.log_a.shape == (40, 2, 7) and batch.log10_time.shape == (40, 2)
    for i in (0, 3, 5, 6, 17, 39):
        one = solve(hf.UFM(8), a[i], hf.Collapse(1e-3), rtol=1e-6, points=2)
        assert batch.diagnostics["statuses"][i] == one.status
        np.testing.assert_allclose(batch.log_a[i, -1], one.log_a[-1], rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(batch.log10_time[i, -1], one.log10_time[-1], rtol=1e-10)
        np.testing.assert_allclose(batch.path_length[i, -1], one.path_length[-1], rtol=1e-10)
    assert batch.status == "mixed" and "1 never-collapses" in batch.message
    assert set(batch.diagnostics["methods"]) >= {"tsit5", "dual"}
    assert batch.measure("kl").shape == (40, 2) and "40 runs" in batch.summary()
    assert batch.to_xarray()["log10_time"].dims == ("run", "time")
    batch.save(tmp_path / "batch.nc")
    again = hf.load(tmp_path / "batch.nc")
    np.testing.assert_array_equal(again.log_a, batch.log_a)
    np.testing.assert_array_equal(again.log10_time, batch.log10_time)
    axis = batch.plot().axes[0]
    assert axis.get_ylabel() == "share of 40 runs"
    assert axis.lines[0].get_ydata()[0] == pytest.approx(2 / 40)  # those of t = 0


@pytest.mark.parametrize(
    "until",
    [
        hf.Time(100.0),
        pytest.param(hf.Norm(30.0), marks=pytest.mark.slow),
        pytest.param(hf.PathLength(5.0), marks=pytest.mark.slow),
    ],
)
def test_batches_to_other_targets(until):
    model = hf.UFM(6)
    a = np.random.default_rng(1).uniform(0.1, 1.0, (5, model.modes))
    batch = solve(model, hf.spectrum(a, units="raw"), until, rtol=1e-6)
    one = solve(model, hf.spectrum(a[4], units="raw"), until, rtol=1e-6, points=2)
    np.testing.assert_allclose(batch.log_a[4], one.log_a, atol=1e-11)
    np.testing.assert_allclose(batch.log10_time[4], one.log10_time, rtol=1e-11)


def test_batches_that_no_lane_takes():
    C = [[0.0, 1.0, 2.0], [0.5, 0.5, 0.5]]
    start = hf.spectrum([[1.0, 1.0, 1.0], [0.1, 0.2, 0.3]], C=C)
    batch = solve(hf.UFM(4), start, hf.Time(50.0), points=4)
    assert batch.log_a.shape == (2, 4, 3) and batch.C[0, 0].tolist() == C[0]
    one = solve(hf.UFM(4), hf.spectrum(start.a[1], C=C[1]), hf.Time(50.0), points=4)
    np.testing.assert_allclose(batch.log_a[1], one.log_a)


def test_an_interrupted_batch_keeps_what_was_finished(monkeypatch):
    calls = []

    def report(text, fraction):
        calls.append(text)
        if len(calls) == 2:
            raise KeyboardInterrupt

    a = np.exp(np.random.default_rng(0).normal(0, 1, (3000, 7)))
    a[0] = [1e-12, 1, 1, 1, 1, 1, 1]  # for which no lane is: it is not begun any more
    monkeypatch.setattr(lanes, "wait", lambda jobs, timeout: time.sleep(0.05))
    batch = hf.solve(hf.UFM(8), a, hf.Collapse(1e-3), rtol=1e-6, progress=report)
    statuses = batch.diagnostics["statuses"]
    assert batch.log_a.shape == (3000, 2, 7) and set(statuses) <= {"collapsed", "interrupted"}
    assert statuses[0] == "interrupted"
    for stopped in np.flatnonzero(np.array(statuses) == "interrupted")[:2]:
        np.testing.assert_allclose(batch.a[stopped, -1], a[stopped])


# --- what fits -----------------------------------------------------------------------------------


def test_what_cannot_fit_is_refused_with_the_estimate(monkeypatch):
    model = hf.UFM(2**20)
    start = np.ones(2**20 - 1)
    for call in (
        lambda: hf.gaussian(model, 1.0, 0),
        lambda: hf.hadamard(model, start),
        lambda: solve(model, start, hf.Time(1.0), method="kvaerno5"),
    ):
        with pytest.raises(hf.InputError, match=r"would take about [\d.]+ TB of memory"):
            call()
    with pytest.raises(hf.InputError, match=r"8\.8 TB"):
        _ = model.basis.dense_psi
    monkeypatch.setattr(memory, "available_memory", lambda: 1e8)
    with pytest.raises(hf.InputError, match="fewer `points`"):
        solve(hf.UFM(2**14), np.ones(2**14 - 1), hf.Time(1.0), points=5000)


def test_an_estimate_says_method_memory_and_time():
    found = hf.estimate(hf.UFM(1024), u_start(1024), hf.Collapse(1e-3), rtol=1e-4)
    assert found.method == "dual" and 1e6 < found.memory_bytes < 1e9 and 0.01 < found.seconds < 10
    assert "of compilation, once" in str(found) or "compiled already" in str(found)
    assert hf.estimate(hf.UFM(8), [FIGURE_1, FIGURE_1], hf.Time(1e3)).method == "tsit5"
    full = hf.estimate(hf.UFM(4), hf.gaussian(hf.UFM(4), 0.1, 0), hf.Time(1.0))
    assert full.memory_bytes > 0
    assert dataclasses.asdict(found)["reason"]
    two = hf.estimate(hf.UFM(1024), [u_start(1024)] * 2, hf.Collapse(1e-3), rtol=1e-4)
    assert two.method == "dual" and 0.4 * found.seconds < two.seconds < 2 * found.seconds
    with pytest.raises(hf.InputError, match="one spectrum or a list of them"):
        hf.estimate(hf.UFM(8), np.ones((2, 2, 7)))


@pytest.mark.parametrize(
    "model, start, more",
    [
        (hf.UFM(8), FIGURE_1, {"until": hf.Collapse(1e-3)}),
        (hf.UFM(8), FIGURE_1, {"log10_times": [1.0, 2.0]}),
        pytest.param(
            hf.UFM(4, label_smoothing=0.1), [1.0, 0.5, 0.3], {}, marks=pytest.mark.slow
        ),
        pytest.param(
            hf.UFM(64), u_start(64), {"until": hf.Collapse(1e-2), "method": "dual", "rtol": 1e-4},
            marks=pytest.mark.slow,
        ),
        (hf.UFM(8), [FIGURE_1, FIGURE_1], {"until": hf.Time(1e3)}),
        pytest.param(
            hf.UFM(4), hf.gaussian(hf.UFM(4), 0.1, 0), {"until": hf.Time(1.0)}, marks=pytest.mark.slow
        ),
        (hf.UFM(4, loss="mse"), [1.0, 0.5, 0.3, 0.1], {}),
    ],
    ids=["event", "times", "implicit", "dual", "batch", "full", "closed form"],
)  # fmt: skip
def test_an_estimate_counts_compilation_until_there_was_a_run(model, start, more):
    hf.disable_cache()
    let_go()
    first = hf.estimate(model, start, **more)
    assert 0.1 < first.compile_seconds < 20 and "of compilation, once" in str(first)
    solve(model, start, **more)
    after = hf.estimate(model, start, **more)
    assert after.compile_seconds == 0 and str(after).endswith("compiled already")
    assert (after.method, after.memory_bytes) == (first.method, first.memory_bytes)
    let_go()
    assert hf.estimate(model, start, **more).compile_seconds == first.compile_seconds


# --- from the command line -----------------------------------------------------------------------


def run_command(*arguments):
    command = [sys.executable, "-c", "from hadaflow.cli import run; run()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_predicted_collapse_from_the_command_line():
    common = ("solve", "--classes", 256, "--start", "uniform:0.0005:0.0015:0", "--rtol", 1e-4)
    code, out, err = run_command(*common, "--until", "predicted-collapse", "--points", 3, "--json")
    assert code == 0 and err == ""
    document = json.loads(out)
    assert document["status"] == "predicted"
    assert document["diagnostics"]["predicted_log_norm"] == pytest.approx(15.056, abs=0.01)
    assert len(document["log_norm"]) <= 3
    code, out, _ = run_command(*common, "--estimate")
    assert code == 0 and out.startswith("dual (matrix-free")
    code, out, err = run_command(*common, "--until", "predicted-collapse:x")
    assert code == 2 and out == "" and err.count("\n") == 1


# --- lanes of any flow, with numbers of their own -------------------------------------------------

MODELS = {
    "smoothing": [{"label_smoothing": s} for s in (0.02, 0.1, 0.3, 0.5)],
    "temperature": [{"temperature": t} for t in (0.5, 1.0, 1.5, 3.0)],
    "decay": [{"weight_decay": w} for w in (0.01, 0.1, 0.2, 0.3)],
    "depth 3": [{"depth": 3, "temperature": t} for t in (0.5, 1.0, 1.5, 3.0)],
    "depth 1": [{"depth": 1, "label_smoothing": s} for s in (0.02, 0.1, 0.3, 0.5)],
    "blocks": [{"imbalance": ((3, n), (2, 1))} for n in (1, 2, 5, 9)],
}


SOME = ("temperature", "depth 3")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in SOME else pytest.mark.slow) for k in MODELS]
)
def test_lanes_with_numbers_of_their_own_are_as_runs_one_by_one(kind):
    """One structure, four models: temperatures, smoothings, penalties or samples side by side."""
    models = [hf.UFM(5, **options) for options in MODELS[kind]]
    rng = np.random.default_rng(0)
    starts = hf.spectrum(rng.uniform(0.2, 1.0, (4, models[0].modes)))
    scaled = fitted(models[0], starts)
    assert kind == "blocks" or models[0].modes == 2
    views = iter([lanes.each([reduced_flow(m, scaled.row(0)).view for m in models])])
    flow = reduced_flow(models[0], scaled, lambda _: next(views))
    with double_precision():
        fleet = lanes.Fleet(
            Course(flow, np.ones(1), None), 4, TSIT5, 1e-10, np.log1p(3.0),
            lambda flow, march: np.zeros(march.u.shape, dtype=bool),
        )  # fmt: skip
        ends = fleet.run(lambda _: None)
    assert ends.ok.all()
    found = flow.values(ends.y).a.T
    for i, model in enumerate(models):
        alone = solve(model, starts.row(i), hf.Time(3.0), rtol=1e-9, points=2)
        np.testing.assert_allclose(found[i], alone.a[-1], rtol=1e-8)


@pytest.mark.parametrize(
    "options",
    [{"depth": 3}, {"temperature": 2.0}, pytest.param({"depth": 1}, marks=pytest.mark.slow), {}],
)
def test_batches_of_any_explicit_flow_go_side_by_side(options):
    model = hf.UFM(5, **options)
    rng = np.random.default_rng(1)
    C = rng.uniform(-0.5, 0.5, (6, model.modes)) if not options else None
    starts = hf.spectrum(rng.uniform(0.2, 1.0, (6, model.modes)), C=C)
    batch = solve(model, starts, hf.Time(5.0))
    assert batch.diagnostics["methods"] == {"tsit5": 6} and set(batch.diagnostics["messages"]) == {
        ""
    }
    for i in range(6):
        alone = solve(model, starts.row(i), hf.Time(5.0), points=2)
        np.testing.assert_allclose(batch.a[i, -1], alone.a[-1], rtol=1e-10)
        np.testing.assert_allclose(batch.path_length[i, -1], alone.path_length[-1], rtol=1e-9)
        np.testing.assert_allclose(batch.C[i, -1], alone.C[-1], atol=1e-12)


def test_an_ill_conditioned_event_is_looked_at_alone():
    """A norm that hardly moves is reached at a time that small errors shift by much."""
    model = hf.UFM(8)
    start = np.full(7, 2.6) + np.linspace(0, 0.5, 7)
    end = solve(model, start, hf.Time(1e3), rtol=1e-12, points=2)
    target = hf.Norm(float(end.a[-1].sum()))
    for given in (start, [start, start]):  # 30 times the promise without a second, sharper pass
        found = solve(model, given, target, rtol=1e-6, points=2)
        assert np.ravel(found.log10_time)[-1] == pytest.approx(3.0, rel=1e-6)
