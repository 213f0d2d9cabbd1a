"""Pictures: the axis on which the story shows, what is asked to be drawn, and several runs in one."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import hadaflow as hf

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


@pytest.fixture(scope="module")
def collapse():
    return hf.solve(hf.UFM(8), FIGURE_1, hf.Collapse(1e-6))


def test_the_picture_of_figure_1_shows_the_rise_of_m(collapse):
    """On an axis that is named, and not on a logarithmic scale that would hide it."""
    figure = collapse.plot()
    axis = figure.axes[3]
    assert axis.get_xlabel() == r"$\log\,\|a\|_1$" and axis.get_yscale() == "linear"
    x, y = axis.lines[0].get_data()
    np.testing.assert_allclose(y, collapse.measure("l2"), rtol=1e-9, atol=1e-16)
    peak = x[np.argmax(y)]
    low, high = axis.get_xlim()
    # Neither at the edge nor a spike: an eighth of the picture lies before the peak, and it is seen.
    assert 0.125 < (peak - low) / (high - low) < 0.875 and y.max() > 1.2 * y[0]


@pytest.mark.parametrize(
    ("until", "label"),
    [(hf.Time(1e3), r"$\log_{10} t$ (scaled units)"), (hf.Collapse(1e-3), r"$\log\,\|a\|_1$")],
)
def test_the_axis_is_chosen_by_what_happens(until, label):
    run = hf.solve(hf.UFM(8), np.linspace(0.1, 1.0, 7), until)
    assert run.plot().axes[0].get_xlabel() == label


def test_axes_and_quantities_of_ones_own(collapse):
    def first(a):
        return a[0] / a.sum()

    run = hf.solve(hf.UFM(8), FIGURE_1, hf.Time(1e6))
    for x, values in (
        ("log_norm", run.log_norm), ("time", run.time), ("path_length", run.path_length),
    ):  # fmt: skip
        figure = run.plot(metrics=["kl", first], x=x)
        assert len(figure.axes) == 2 and figure.axes[1].get_ylabel() == "first"
        np.testing.assert_allclose(figure.axes[0].lines[0].get_xdata(), values)
        np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), run.a_hat[:, 0], rtol=1e-12)
    late = collapse.plot(metrics="kl", x="log10_log10_time").axes[0].lines[0].get_xdata()
    np.testing.assert_allclose(late[-1], np.log10(3614.8996), rtol=1e-6)
    mine = Figure().subplots(1, 2)
    assert run.plot(metrics=["kl", "l2"], ax=mine) is None
    np.testing.assert_array_equal(mine[1].lines[0].get_ydata(), run.measure("l2")[1:])
    descent = hf.descend(hf.UFM(8), FIGURE_1, 100, 0.1, points=10)
    np.testing.assert_array_equal(
        descent.plot(metrics="kl", x="iteration").axes[0].lines[0].get_xdata(), descent.iterations
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"x": "iteration"}, "`x` must be one of auto, log10_time"),
        ({"metrics": "kk"}, "Unknown metric"),
        ({"ax": 3, "metrics": "kl"}, "`ax` must be matplotlib axes"),
        ({"path": "picture.txt"}, "must end in one of png"),
    ],
)
def test_odd_pictures_are_refused(collapse, asked, message):
    with pytest.raises(hf.InputError, match=message):
        collapse.plot(**asked)


def test_many_modes_have_a_colour_bar():
    run = hf.solve(hf.UFM(16), np.linspace(0.1, 1.0, 15), hf.Time(10.0), points=20)
    figure = run.plot()
    assert len(figure.axes) == 5 and figure.axes[4].get_ylabel() == "mode"
    assert figure.axes[0].get_legend() is None


def test_runs_are_compared_by_name_with_bands_explained(tmp_path):
    model = hf.UFM(4)
    one = hf.solve(model, [0.1, 0.2, 0.3], hf.Time(1e4), points=50)
    many = hf.descend(model, hf.gaussian(model, 0.1, range(5)), 1000, 0.01, points=20)
    flows = hf.solve(model, [[0.1, 0.2, 0.3], [0.2, 0.2, 0.1]], hf.Collapse(1e-2), points=20)
    figure = hf.compare(
        {"hadamard": one, "gaussian": many, "two": flows}, ("kl", "a_hat"), path=tmp_path / "c.png"
    )
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said[0] == "hadamard"
    assert said[1] == "gaussian: mean ± standard error of 5 runs"
    assert said[2].startswith("two: median, 5–95 % of 2 runs")
    kl = one.measure("kl"), many.measure("kl").mean(axis=0)
    for line, values in zip(figure.axes[0].lines, kl, strict=False):
        np.testing.assert_allclose(line.get_ydata(), values[1:], rtol=1e-12)
    assert len(figure.axes[1].lines) == 3 * 3 + 1  # every mode of each, and collapse
    assert (tmp_path / "c.png").stat().st_size > 10_000


def test_odd_comparisons_are_refused(collapse):
    raw = hf.solve(hf.UFM(8), FIGURE_1, hf.Time(1.0), units="raw")
    with pytest.raises(hf.InputError, match="names with trajectories"):
        hf.compare([collapse])
    with pytest.raises(hf.InputError, match="must hold trajectories, but 'b'"):
        hf.compare({"a": collapse, "b": 3})
    with pytest.raises(hf.InputError, match="same units"):
        hf.compare({"a": collapse, "b": raw})


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            lambda: hf.solve(hf.UFM(8, imbalance=((4, 5), (4, 1))), np.full(7, 0.1), hf.Time(10.0)),
            marks=pytest.mark.slow,
        ),
        lambda: hf.solve(hf.UFM(5), hf.circulant([1 + 0.2j, 0.3 + 0.5j]), hf.Norm(20.0)),
    ],
)
def test_what_a_run_does_not_have_is_left_out_if_nothing_is_said(run, collapse):
    """M is not told by the singular values of imbalance, or of modes with phases."""
    run = run()
    names = [axis.get_ylabel() for axis in run.plot().axes]
    assert len(names) == 3 and not any("$M$" in name for name in names)
    assert list(run.to_dataframe().columns)[-1] == "kl"
    assert len(hf.compare({"it": run, "other": collapse}).axes) == 1
    for asked in (run.to_dataframe, run.plot):
        with pytest.raises(hf.InputError, match="`l2`"):
            asked(metrics=["l2"])
    assert list(collapse.to_dataframe().columns)[-2:] == ["kl", "l2"]


def test_no_axis_is_chosen_that_hides_the_beginning(collapse):
    """A descent that ends early has half of its story before t = 1, where log10 log10 t has no number."""
    early = hf.solve(hf.UFM(8), np.linspace(0.1, 1.0, 7), hf.Time(20.0))
    late = hf.solve(hf.UFM(8, depth=3), FIGURE_1, hf.Time(1e30))
    figure = hf.compare({"early": early, "late": late}, "kl")
    (axis,) = figure.axes
    drawn = axis.lines[0].get_ydata()[np.isfinite(axis.lines[0].get_xdata())]
    assert drawn[0] == early.measure("kl")[0]


def test_legends_are_no_wider_than_their_figure(collapse):
    names = [f"a run with a long name, number {i}" for i in range(4)]
    for metrics in ("kl", ("kl", "l2")):
        figure = hf.compare(dict.fromkeys(names, collapse), metrics)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_a_descent_says_how_it_was_stepped():
    start = hf.gaussian(hf.UFM(4), 0.1, [0, 1])
    run = hf.descend(hf.UFM(4), start, 50, 0.1, momentum=0.9, points=5)
    assert "iterations  50, learning rate 0.1, momentum 0.9" in str(run)
    assert "learning rate 0.1, momentum 0.9" in run.plot().get_suptitle()
    turned = hf.solve(hf.UFM(5), hf.circulant([1 + 0.2j, 0.3 + 0.5j]), hf.Norm(5.0))
    assert "modes with phases" in turned.plot().get_suptitle()


def test_the_start_has_no_place_on_a_logarithmic_axis():
    """It stands at the left edge, which says so, and no line joins it to the first positive time."""
    model = hf.UFM(4)
    run = hf.solve(model, [0.1, 0.2, 0.3], hf.Time(1e3), points=20)
    descent = hf.descend(model, [0.1, 0.2, 0.3], 100, 0.1, points=10)
    for figure, kl in (
        (run.plot(metrics="kl", x="log10_time"), run.measure("kl")),
        (descent.plot(metrics="kl", x="log10_iteration"), descent.measure("kl")),
    ):
        (axis,) = figure.axes
        x, y = axis.lines[0].get_data()
        np.testing.assert_array_equal(y, kl[1:])
        ((edge, first),) = axis.collections[0].get_offsets()
        assert first == kl[0] and edge == axis.get_xlim()[0] <= x[0] - 0.5
        assert axis.get_xticklabels()[0].get_text() == "start"
    untimed = hf.descend(model, [0.1, 0.2, 0.3], 100, optimizer="adam:0.01", points=10)
    (axis,) = untimed.plot(metrics="kl", x="log10_iteration").axes
    assert untimed.log10_time is None and axis.get_xticklabels()[0].get_text() == "start"
    both = hf.compare({"run": run, "descent": descent}, "kl", x="log10_time").axes[0].collections
    assert both[0].get_offsets()[0][0] == both[1].get_offsets()[0][0]
    assert "start" not in [
        t.get_text() for t in run.plot(metrics="kl", x="log_norm").axes[0].get_xticklabels()
    ]
