"""Batches: each run of them is the run alone; what they say of all; how they are drawn."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import hadaflow as hf

MODEL = hf.UFM(8)
STARTS = np.random.default_rng(0).uniform(0.1, 1.0, (6, 7))


@pytest.fixture(scope="module")
def batch():
    return hf.solve(MODEL, STARTS, hf.Collapse(1e-3))


@pytest.fixture(scope="module")
def long_batch():
    return hf.solve(MODEL, STARTS, hf.Collapse(1e-3), points=30)


def test_runs_are_counted_gone_through_and_taken_one_by_one(batch, long_batch):
    for several in (batch, long_batch):
        assert isinstance(several, hf.Batch) and len(several) == 6
        assert several.statuses == ["collapsed"] * 6
        for i, run in enumerate(several):
            alone = hf.solve(MODEL, STARTS[i], hf.Collapse(1e-3), points=several.points)
            assert not isinstance(run, hf.Batch)
            np.testing.assert_allclose(run.a[-1], alone.a[-1], rtol=1e-7)
            assert run.log10_time[-1] == pytest.approx(alone.log10_time[-1], rel=1e-8)
            assert (run.status, several.statuses[i]) == ("collapsed", "collapsed")
            assert f"{run.log10_time[-1]:.5g}"[:4] in several.messages[i]
            assert 0 < run.steps < several.steps
    # A run that is shorter than the longest one is as long as it is alone.
    lengths = [len(run) for run in long_batch]
    assert max(lengths) == long_batch.points
    np.testing.assert_array_equal(batch[-1].a, batch[5].a)


def test_some_of_the_runs(batch):
    late = batch[batch.log10_time[:, -1] > 50]
    assert 0 < len(late) < 6 and len(late.statuses) == len(late)
    assert late.message == f"{len(late)} runs until collapse:0.001: {len(late)} collapsed."
    assert repr(late).startswith(f"<Batch collapsed: {len(late)} runs, 2 points")
    assert batch[3].message.startswith("Collapsed at log10 t = ")
    assert batch[3].message.endswith(" (until collapse:0.001).")
    np.testing.assert_array_equal(batch[1:4].a, batch.a[1:4])
    np.testing.assert_array_equal(batch[[5, 0]].a[1], batch.a[0])
    for odd in (6, -7, "a", 1.5, [], slice(6, 9), np.ones(3, dtype=bool)):
        with pytest.raises(hf.InputError, match="A batch of 6 runs is asked for"):
            batch[odd]


def test_mixed_ends_are_counted():
    model = hf.UFM(4, depth=3)
    runs = hf.solve(model, [[8.0, 8.0, 0.7], [1.0, 1.0, 1.1], [1.0, 0.9, 1.1]], hf.Collapse(1e-3))
    assert runs.status == "mixed" and (
        runs.message == "3 runs until collapse:0.001: 2 collapsed, 1 never-collapses."
    )
    assert runs.statuses[0] == "never-collapses" and "rank 2" in runs.messages[0]
    assert runs[0].status == "never-collapses" and runs[1:].status == "collapsed"


def test_quantiles_and_tables(batch, long_batch):
    ends = batch.measure("kl")[:, -1]
    np.testing.assert_allclose(batch.quantiles("kl", 0.5), [[np.median(ends)]])
    common = hf.solve(MODEL, STARTS, times=[1.0, 10.0])
    values = common.measure("kl")
    np.testing.assert_array_equal(common.quantiles("kl", 0.5)[0], np.median(values, axis=0))
    many = hf.descend(MODEL, STARTS, 100, 0.1, points=5)
    np.testing.assert_allclose(
        many.quantiles("kl", [0.25, 0.75]), np.quantile(many.measure("kl"), [0.25, 0.75], axis=0)
    )
    assert values.shape == (6, 3)
    with pytest.raises(hf.InputError, match="`at` must hold numbers from 0 to 1"):
        batch.quantiles("kl", 2.0)
    table = batch.to_dataframe()
    assert (
        list(table.columns) == ["status", "log10_time", "log_norm", "kl", "l2"] and len(table) == 6
    )
    np.testing.assert_array_equal(table["kl"], ends)
    assert list(batch.to_xarray()["status"].values) == batch.statuses


def test_batches_of_descents_and_files(batch, tmp_path):
    many = hf.descend(MODEL, STARTS, 50, 0.1, points=5)
    assert isinstance(many, hf.Batch) and many.statuses == ["reached"] * 6
    one = hf.descend(MODEL, STARTS[2], 50, 0.1, points=5)
    np.testing.assert_allclose(many[2].a, one.a, rtol=1e-12)
    np.testing.assert_array_equal(many[2].iterations, one.iterations)
    gaussian = hf.descend(hf.UFM(4), hf.gaussian(hf.UFM(4), 0.1, [3, 4]), 50, 0.1, points=5)
    alone = hf.descend(hf.UFM(4), hf.gaussian(hf.UFM(4), 0.1, 4), 50, 0.1, points=5)
    np.testing.assert_allclose(gaussian[1].parameters.W, alone.parameters.W, rtol=1e-12)
    batch.save(tmp_path / "batch.nc")
    again = hf.load(tmp_path / "batch.nc")
    assert isinstance(again, hf.Batch) and again.statuses == batch.statuses
    np.testing.assert_array_equal(again[3].a, batch[3].a)
    batch[3].save(tmp_path / "one.nc")
    assert hf.load(tmp_path / "one.nc").status == "collapsed"


def lines_of(axis) -> list[np.ndarray]:
    return [line.get_ydata() for line in axis.lines]


def test_pictures_of_batches_say_what_lines_and_bands_are(batch, long_batch):
    figure = long_batch.plot(metrics="kl")
    assert figure.legends[0].get_texts()[0].get_text() == (
        "median, 5–95 % of 6 runs; each stays at its end"
    )
    # At the end of all runs the median is that of their ends.
    ends = [run.measure("kl")[-1] for run in long_batch]
    assert lines_of(figure.axes[0])[0][-1] == pytest.approx(np.median(ends), rel=1e-9)
    each = long_batch.plot(metrics=["kl", "l2"], spread="all")
    assert "each of 6 runs" in each.legends[0].get_texts()[0].get_text()
    assert len(lines_of(each.axes[0])) == 6
    ended = batch.plot(metrics="kl")
    assert len(ended.axes) == 3 and ended.axes[0].get_ylabel() == "share of 6 runs"
    assert lines_of(ended.axes[0])[0][-1] == 1.0
    common = hf.solve(MODEL, STARTS, log10_times=[-1.0, 0.5, 1.0])
    drawn = common.plot(metrics="kl", x="log10_time")
    assert "mean ± standard error of 6 runs" in drawn.legends[0].get_texts()[0].get_text()
    np.testing.assert_allclose(lines_of(drawn.axes[0])[0], common.measure("kl").mean(axis=0)[1:])
    means = hf.descend(MODEL, STARTS, 50, 0.1, points=5).plot(metrics="l2")
    assert "mean ± standard error of 6 runs" in means.legends[0].get_texts()[0].get_text()
    with pytest.raises(hf.InputError, match="`spread` must be one of auto, quantiles"):
        long_batch.plot(spread="sd")


@pytest.mark.parametrize(
    "asked", [{"x": "log_norm"}, {"spread": "all"}, {"ax": Figure().subplots()}]
)
def test_no_curves_are_made_of_start_and_end(batch, asked):
    with pytest.raises(hf.InputError, match=rf"`{next(iter(asked))}` is for curves.*points=50"):
        batch.plot(metrics="kl", **asked)
    usual = batch.plot(metrics="kl", x="auto", spread="auto", ax=None)
    assert [axis.get_xlabel() for axis in usual.axes] == [
        axis.get_xlabel() for axis in batch.plot(metrics="kl").axes
    ]
    with pytest.raises(
        hf.InputError, match=r"`runs` must hold curves.*run of 'ends' only.*points=50"
    ):
        hf.compare({"one": batch[0], "ends": batch}, "kl")
    # One run of them has two points, and a line between them would be invented, too.
    axis = batch[0].plot(metrics="kl", x="log10_time").axes[0]
    assert axis.get_xticklabels()[0].get_text() == "start"
    for line in [*axis.lines, *batch[0].plot(metrics="kl", x="log_norm").axes[0].lines]:
        assert (line.get_linestyle(), line.get_marker()) == ("None", "o")


def test_ends_are_counted_whatever_they_are():
    starts = [[1.0] * 7, [1, 1, 1, 1, 0.1, 0.1, 0.2], [0.3, 0.2, 0.1, 0.5, 0.6, 0.7, 0]]
    runs = hf.solve(MODEL, starts, hf.Collapse(1e-3))
    times, _, kl = runs.plot(metrics="kl").axes
    assert "2 of 3 at $t = 0$" in times.get_xlabel() and "1 of 3: infinite" in kl.get_xlabel()
    assert "in $10^{-7}$" in kl.get_xlabel(), "no offset beside the axis, which runs into its label"
    np.testing.assert_allclose(lines_of(times)[0], [2 / 3, 1])
    np.testing.assert_allclose(lines_of(kl)[0], [0, 1 / 3, 2 / 3])
    same = hf.solve(MODEL, STARTS, hf.Time(1e3)).plot(metrics="a_hat")
    assert len(same.axes) == 2 and "all at log10 t = 3" in same.get_suptitle()
    assert len(same.axes[1].lines) == 7  # one for each mode
