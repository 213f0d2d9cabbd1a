import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hadaflow as hf

matplotlib.use("Agg")


def make(kind):
    model = hf.UFM(4, samples=2)
    if kind == "reduced":
        return hf.solve(
            model, hf.spectrum([0.1, 0.0, 0.4], C=[0, 1, 2]), hf.Time(1e4), points=20, progress=None
        )
    if kind == "full":
        return hf.solve(model, hf.gaussian(model, 0.3, 0), hf.Time(1e3), points=10, progress=None)
    if kind == "mse":
        mse = hf.UFM(4, loss="mse")
        return hf.solve(mse, [0.1, 0.2, 0.3, 0.4], units="raw", points=15, progress=None)
    if kind == "logits":
        logits = hf.UFM(4, depth=1)
        return hf.solve(logits, hf.gaussian(logits, 0.3, 0), hf.Time(1e3), points=10, progress=None)
    return hf.descend(model, hf.gaussian(model, 0.3, [0, 1, 2]), 100, 0.1, points=10, progress=None)


KINDS = ["reduced", "full", "mse", "logits", "descent"]


@pytest.mark.parametrize("kind", KINDS)
def test_load_returns_what_was_saved(kind, tmp_path):
    run = make(kind)
    run.save(tmp_path / "run.nc")
    back = hf.load(tmp_path / "run.nc")
    assert back.arrays.keys() == run.arrays.keys()
    for name, values in run.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], values)
    for name in ("log10_time", "path_length", "iterations"):
        np.testing.assert_array_equal(getattr(back, name), getattr(run, name))
    same = (
        "model",
        "view",
        "status",
        "message",
        "units",
        "steps",
        "settings",
        "diagnostics",
        "versions",
    )
    for name in same:
        assert getattr(back, name) == getattr(run, name), name
    np.testing.assert_array_equal(back.measure("kl"), run.measure("kl"))
    assert str(back) == str(run)
    assert [p.name for p in tmp_path.iterdir()] == ["run.nc"]


def damaged_is_refused_or_the_same(data, path, whole):
    path.write_bytes(bytes(data))
    try:
        run = hf.load(path)
    except hf.InputError as error:
        assert "Cannot read" in str(error) and "\n" not in str(error)
    else:  # a bit that carries nothing, such as padding
        np.testing.assert_array_equal(run.log_a, whole.log_a)


def test_every_flipped_bit_of_the_header_is_noticed(saved_bytes, tmp_path):
    """Names, shapes, types and offsets: one bit at a time, none may end in a traceback."""
    whole = make("reduced")
    header = saved_bytes.index(b"{") if b"{" in saved_bytes else 400
    for position in [*range(header), *range(header, len(saved_bytes), 97)]:
        data = bytearray(saved_bytes)
        data[position] ^= 1 << position % 8
        damaged_is_refused_or_the_same(data, tmp_path / "run.nc", whole)


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.sampled_from(["flip", "cut", "grow"]))
def test_damage_is_noticed(saved_bytes, tmp_path_factory, seed, damage):
    rng, data = np.random.default_rng(seed), bytearray(saved_bytes)
    if damage == "flip":
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    elif damage == "cut":
        data = data[: rng.integers(len(data))]
    else:
        data = data[:100] + b"x" + data[100:]
    path = tmp_path_factory.mktemp("damaged") / "run.nc"
    damaged_is_refused_or_the_same(data, path, make("reduced"))


@pytest.fixture(scope="module")
def saved_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run.nc"
    make("reduced").save(path)
    return path.read_bytes()


def test_foreign_and_missing_files(tmp_path):
    import xarray as xr

    with pytest.raises(hf.InputError, match="there is no such file"):
        hf.load(tmp_path / "nothing.nc")
    (tmp_path / "text.nc").write_text("hello")
    with pytest.raises(hf.InputError, match="it is not a hadaflow file"):
        hf.load(tmp_path / "text.nc")
    xr.Dataset({"x": ("t", [1.0])}).to_netcdf(tmp_path / "other.nc", engine="scipy")
    with pytest.raises(hf.InputError, match="not a hadaflow file: it names no schema"):
        hf.load(tmp_path / "other.nc")


def test_nothing_half_written_stays_behind(tmp_path, monkeypatch):
    import xarray as xr

    run = make("reduced")
    (tmp_path / "run.nc").write_text("old")

    def fail(self, path, **kwargs):
        with open(path, "w") as file:
            file.write("half")
        raise OSError("disk full")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", fail)
    with pytest.raises(hf.InputError, match=r"Cannot write '.*run.nc': disk full"):
        run.save(tmp_path / "run.nc")
    assert [p.name for p in tmp_path.iterdir()] == ["run.nc"]
    assert (tmp_path / "run.nc").read_text() == "old"
    with pytest.raises(hf.InputError, match="the folder does not exist"):
        run.save(tmp_path / "no" / "run.nc")
    with pytest.raises(hf.InputError, match="it is a folder"):
        run.save(tmp_path)
    with pytest.raises(hf.InputError, match="the name is too long"):
        run.save(tmp_path / ("x" * 300))


def test_links_stay_links_and_devices_are_left_alone(tmp_path):
    import os

    run = make("reduced")
    (tmp_path / "target.nc").write_text("old")
    (tmp_path / "link.nc").symlink_to(tmp_path / "target.nc")
    run.save(tmp_path / "link.nc")
    assert (tmp_path / "link.nc").is_symlink() and hf.load(
        tmp_path / "target.nc"
    ).status == "reached"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(hf.InputError, match="not a regular file"):
        run.save(tmp_path / "pipe")


def test_seeds_are_recorded():
    model = hf.UFM(4)
    run = hf.solve(model, hf.gaussian(model, 0.3, 7), hf.Time(1.0), points=3, progress=None)
    assert run.settings["seed"] == 7
    assert make("descent").settings["seed"] == [0, 1, 2]


def test_numpy_integers_are_integers(tmp_path):
    run = hf.solve(hf.UFM(np.int64(4)), [1.0, 2.0, 3.0], hf.Time(np.float64(5)), progress=None)
    assert run.settings["until"] == "time:5.0"
    run.save(tmp_path / "run.nc")
    assert hf.load(tmp_path / "run.nc").model == hf.UFM(4)


def test_arrays_are_named_and_labelled():
    run = make("reduced")
    data = run.to_xarray()
    assert set(data.dims) == {"time", "mode"}
    assert data["mode"].values.tolist() == [1, 2, 3]
    np.testing.assert_allclose(data["a_hat"].sum("mode"), 1, rtol=1e-12)
    np.testing.assert_array_equal(data["log10_time"], run.log10_time)
    assert data.attrs["units"] == "scaled"
    np.testing.assert_allclose(np.exp(run.log_norm), run.a.sum(axis=1), rtol=1e-13)
    batch = make("descent").to_xarray()
    assert batch["a"].dims == ("run", "time", "mode") and batch.sizes["run"] == 3
    assert batch["W"].dims == ("run", "time", "W_row", "W_column")
    mse = make("mse").to_xarray()
    assert mse["mode"].values.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(mse["a_hat"].isel(mode=slice(1, None)).sum("mode"), 1, rtol=1e-12)


def test_summary_is_readable():
    text = str(hf.solve(hf.UFM(8), [1, 1, 1, 1, 1e-3, 1e-3, 1e-3], progress=None))
    assert "collapsed" in text and "log10 t = 3614.8996" in text and "8 classes" in text
    assert "3 runs" in str(make("descent"))


@pytest.mark.parametrize("kind", KINDS)
def test_plots_are_drawn(kind, tmp_path):
    figure = make(kind).plot(tmp_path / "run.png")
    assert len(figure.axes) == 4
    for axis in figure.axes:
        assert axis.get_xlabel() and axis.get_ylabel() and axis.lines
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    drawn = figure.axes[1].lines[0].get_ydata()
    assert np.all(np.isfinite(drawn))


def test_plots_refuse_unknown_formats(tmp_path):
    with pytest.raises(hf.InputError, match=r"must end in one of png"):
        make("reduced").plot(tmp_path / "run.docx")
    assert not list(tmp_path.iterdir())


def test_views_say_what_they_do_not_have():
    with pytest.raises(hf.InputError, match="reduced one"):
        _ = make("reduced").parameters
    with pytest.raises(hf.InputError, match="belongs to the reduced view"):
        _ = make("full").C


def test_statistics_over_runs():
    model = hf.UFM(4)
    run = hf.descend(model, hf.gaussian(model, 0.1, range(5)), 20, 0.1, points=3, progress=None)
    values, found = run.measure("loss"), run.statistics("loss")
    np.testing.assert_allclose(found.mean, values.mean(axis=0))
    want = values.std(axis=0, ddof=1) / np.sqrt(5)
    np.testing.assert_allclose(found.standard_error, want, rtol=1e-12)
    alone = hf.descend(model, hf.gaussian(model, 0.1, 0), 20, 0.1, points=3, progress=None)
    np.testing.assert_array_equal(alone.statistics("loss").mean, alone.measure("loss"))
    assert np.isnan(alone.statistics("loss").standard_error).all()


def test_statistics_and_quantiles_speak_of_the_same_points():
    starts = np.random.default_rng(0).uniform(0.1, 1, (4, 3))
    own = hf.solve(hf.UFM(4), starts, hf.Collapse(1e-2))
    assert own.quantiles("kl").shape == (5, 1) and own.statistics("kl").mean.shape == (1,)
    np.testing.assert_allclose(own.statistics("kl").mean, own.measure("kl")[:, -1:].mean(axis=0))
    common = hf.solve(hf.UFM(4), starts, times=[1.0, 2.0])
    assert common.quantiles("kl").shape == (5, 3) and common.statistics("kl").mean.shape == (3,)


def test_a_full_view_says_what_its_numbers_are_of():
    """Its path is that of the matrices, and its singular values have ranks instead of modes."""
    model = hf.UFM(4)
    state = hf.hadamard(model, [0.1, 0.2, 0.3])
    full, reduced = (hf.solve(model, s, hf.Time(1.0), points=5) for s in (state, [0.1, 0.2, 0.3]))
    assert "path of the matrices" in str(full) and "path of" not in str(reduced)
    assert full.path_length[-1] > 1.5 * reduced.path_length[-1]
    for run, kind in ((full, "singular value\n(by size)"), (reduced, "mode")):
        figure = run.plot()
        assert figure.legends[0].get_title().get_text() == kind
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert not any(box.overlaps(axis.get_window_extent()) for axis in figure.axes)


def test_the_constant_mode_is_told():
    run = make("mse")
    table = run.to_dataframe()
    np.testing.assert_array_equal(table["a_0"], run.a[:, 0])
    np.testing.assert_array_equal(table["a_1"], run.a[:, 1])
    assert "without the constant mode" in run.plot().get_suptitle()
