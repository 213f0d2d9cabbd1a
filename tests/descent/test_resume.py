"""A run that was interrupted, gone on with, is the run that was not."""

import numpy as np
import pytest

import hadaflow as hf

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


def stop_after(reports: int):
    """A progress function that asks to stop, once, in the middle of the work."""
    heard = []

    def progress(text, fraction=None):
        if text.startswith("compiling"):
            return
        heard.append(text)
        if len(heard) == reports:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize(
    ("until", "method"),
    [
        (hf.Collapse(1e-6), "tsit5"),
        (hf.Norm(5000.0), "tsit5"),
        (hf.PathLength(2000.0), "tsit5"),
        (hf.Time(log10=3000), "tsit5"),
        (hf.Collapse(1e-6), "dual"),
    ],
)
def test_a_run_goes_on_to_its_target(until, method):
    model = hf.UFM(8)
    cut = hf.solve(model, FIGURE_1, until, method=method, progress=stop_after(1))
    assert cut.status == "interrupted"
    run, whole = hf.resume(cut, progress=None), hf.solve(model, FIGURE_1, until, method=method)
    assert run.status == whole.status and "Resumed" in run.message
    assert run.log10_time[-1] == pytest.approx(whole.log10_time[-1], rel=1e-7)
    assert run.path_length[-1] == pytest.approx(whole.path_length[-1], rel=1e-6)
    np.testing.assert_allclose(run.a[-1], whole.a[-1], rtol=1e-6)
    np.testing.assert_array_equal(run.a[: len(cut)], cut.a)
    assert np.all(np.diff(run.log10_time) > 0) and np.all(np.diff(run.log_norm) > 0)
    assert len(run) > len(cut) + 20
    again = hf.solve(model, FIGURE_1, log10_times=run.log10_time[len(cut) :: 20])
    np.testing.assert_allclose(run.a[len(cut) :: 20], again.a[1:], rtol=1e-5)


def test_times_of_ones_own_that_are_left():
    times = [0.0, 1.0, 500.0, 2500.0, 3000.0]
    cut = hf.solve(hf.UFM(8), FIGURE_1, log10_times=times, method="tsit5", progress=stop_after(1))
    assert 1 < len(cut) < 6
    run = hf.resume(cut, progress=None)
    kept = set(run.log10_time.tolist())
    assert set(times) <= kept and run.status == "reached"
    whole = hf.solve(hf.UFM(8), FIGURE_1, log10_times=times)
    np.testing.assert_allclose(run.a[-1], whole.a[-1], rtol=1e-6)


def test_what_has_ended_stays_as_it_is():
    run = hf.solve(hf.UFM(4), [1.0, 0.5, 0.2], hf.Norm(20.0))
    assert hf.resume(run) is run
    with pytest.raises(hf.InputError, match="`run` must be a trajectory"):
        hf.resume("run.nc")


def test_full_runs_batches_and_files(tmp_path):
    model = hf.UFM(4)
    start = hf.hadamard(model, [0.1, 0.2, 0.3], rotation=0)
    cut = hf.solve(model, start, hf.Norm(3000.0), progress=stop_after(1))
    assert cut.status == "interrupted"
    cut.save(tmp_path / "cut.nc")
    run = hf.resume(hf.load(tmp_path / "cut.nc"), progress=None)
    assert run.status == "reached" and run.log_norm[-1] == pytest.approx(np.log(3000.0), abs=1e-9)
    run.save(tmp_path / "whole.nc")
    assert hf.load(tmp_path / "whole.nc").log_norm[-1] == run.log_norm[-1]


def test_runs_of_a_batch_that_were_not_begun():
    starts = np.random.default_rng(0).uniform(0.1, 1.0, (300, 7))
    part = hf.solve(hf.UFM(8), starts, hf.Collapse(1e-3), progress=stop_after(1))
    assert part.status != "collapsed" and "interrupted" in part.statuses
    batch = hf.resume(part[-20:], progress=None)
    whole = hf.solve(hf.UFM(8), starts[-20:], hf.Collapse(1e-3))
    assert isinstance(batch, hf.Batch) and batch.status == "collapsed"
    for run, alone in zip(batch, whole, strict=True):
        assert run.log10_time[-1] == pytest.approx(alone.log10_time[-1], rel=1e-6)


def test_descents_go_on_at_the_iteration_where_they_were():
    cut = hf.descend(hf.UFM(8), FIGURE_1, 50_000, 0.01, progress=stop_after(3))
    assert cut.status == "interrupted" and cut.iterations[-1] < 50_000
    run, whole = hf.resume(cut, progress=None), hf.descend(hf.UFM(8), FIGURE_1, 50_000, 0.01)
    assert run.iterations[-1] == 50_000 and np.all(np.diff(run.iterations) > 0)
    np.testing.assert_allclose(run.a[-1], whole.a[-1], rtol=1e-13)
    assert run.log10_time[-1] == whole.log10_time[-1]
    heavy = hf.descend(hf.UFM(8), FIGURE_1, 50_000, 0.01, momentum=0.9, progress=stop_after(3))
    with pytest.raises(hf.InputError, match="momentum"):
        hf.resume(heavy)
