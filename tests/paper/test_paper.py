import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import hadaflow as hf
from hadaflow.paper import figures, orbit_figures, reproduce
from hadaflow.paper.experiment import Experiment
from hadaflow.paper.settings import Settings

SMALL = Settings(seeds=2, steps=300, points=12)


def silent(*_):
    pass


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two figures at small scale, made in worker processes."""
    folder = tmp_path_factory.mktemp("out")
    records = reproduce.reproduce(["logits", "k4"], folder, SMALL, progress=False)
    return folder, records


def test_every_file_is_there_and_the_record_says_how_it_was_made(small):
    folder, records = small
    names = {p.name for p in folder.iterdir()}
    suffixes = (*reproduce.SUFFIXES, "json")
    assert names == {"report.html"} | {f"{n}.{s}" for n in ("logits", "k4") for s in suffixes}
    assert [r["name"] for r in records] == ["logits", "k4"]
    assert records[1]["settings"]["steps"] == 300 and records[1]["version"] == hf.__version__
    assert (folder / "k4.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "k4.pdf").read_bytes().startswith(b"%PDF")


def test_the_data_are_what_plain_descent_gives(small):
    """Loss and singular values of one seed against a NumPy loop."""
    folder, _ = small
    data = xr.open_dataset(folder / "k4.nc", engine="scipy")
    model = hf.UFM(4)
    start = hf.gaussian(model, np.exp(-6) / 2, 1)
    W, H = start.factors
    for _ in range(300):
        Z = W @ H
        P = np.exp(Z) / np.exp(Z).sum(axis=0)
        W, H = W + 0.01 * (np.eye(4) - P) @ H.T, H + 0.01 * W.T @ (np.eye(4) - P)
    Z = W @ H
    loss = -np.log(np.diag(np.exp(Z) / np.exp(Z).sum(axis=0))).sum()
    last = data.isel(init=0, run=1, iteration=-1)
    assert int(last["iteration"]) == 300
    assert float(last["loss"]) == pytest.approx(loss, rel=1e-10)
    values = np.linalg.svd(Z, compute_uv=False)[:3]
    np.testing.assert_allclose(last["singular_value"], values, rtol=1e-9)
    np.testing.assert_allclose(last["normalized"], values / values.sum(), rtol=1e-9)
    first = data.isel(run=1, iteration=0)["singular_value"]
    np.testing.assert_allclose(first.isel(init=1), first.isel(init=2), rtol=1e-3)


def test_the_table_holds_what_is_drawn(small):
    folder, _ = small
    table = pd.read_csv(folder / "k4.csv")
    data = xr.open_dataset(folder / "k4.nc", engine="scipy")
    row = table[(table.variable == "kl") & (table.init == "random") & (table.iteration == 300)]
    kl = data["kl"].isel(init=0, iteration=-1).values
    assert row.value.item() == pytest.approx(kl.mean(), rel=1e-12)
    assert row.standard_error.item() == pytest.approx(kl.std(ddof=1) / np.sqrt(2), rel=1e-12)


def test_the_report_is_one_page_that_needs_nothing_else(small):
    folder, records = small
    page = (folder / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "width=device-width" in page
    for record in records:
        figure = figures.FIGURES[record["name"]]
        assert f'id="{figure.name}"' in page
        for check in record["checks"]:
            assert check["statement"].split(":")[0].split("(")[0][:20] in page.replace(
                "&#x27;", "'"
            )
    assert page.count("data:image/png;base64,") == 2


def test_a_second_run_keeps_what_is_finished_and_mends_what_is_not(small):
    folder, _ = small
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    reproduce.reproduce(["logits", "k4"], folder, SMALL, progress=False)
    after = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert {n for n in after if after[n] != before[n]} == {"report.html"}
    (folder / "logits.csv").write_text("damaged")
    reproduce.reproduce(["logits", "k4"], folder, SMALL, progress=False)
    assert (folder / "logits.csv").read_text() != "damaged"
    assert (folder / "k4.json").stat().st_mtime_ns == before["k4.json"]
    assert reproduce.finished("logits", folder, Settings(seeds=3)) is None
    assert reproduce.finished("k4", folder, SMALL) is not None


def test_killed_half_way_nothing_half_written_remains(tmp_path):
    command = [
        sys.executable, "-c", "from hadaflow.cli import run; run()", "reproduce", "logits", "k4",
        "--steps", "20000000", "--seeds", "2", "--out", str(tmp_path / "out"), "--json",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    marker = tmp_path / "out" / "logits.json"
    for _ in range(600):
        if marker.exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    assert marker.exists() and process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    left = {p.name for p in (tmp_path / "out").iterdir()}
    assert left == {f"logits.{s}" for s in (*reproduce.SUFFIXES, "json")}
    json.loads(marker.read_text())


def test_quick_solutions_follow_descent():
    """The same curves from adaptive solutions, up to the O(η) gap between descent and flow."""
    plain = Experiment(4, delta=0.0).compute(SMALL, silent)
    quick = Experiment(4, delta=0.0).compute(
        Settings(seeds=2, steps=300, points=12, quick=True), silent
    )
    for name in ("loss", "kl", "alignment_z", "residual"):
        a, b = plain[name].values[:2], quick[name].values[:2]
        assert np.abs(a - b).max() < 0.03 * np.abs(b).max(), name
    np.testing.assert_allclose(plain["kl"].values[2], quick["kl"].values[2], rtol=1e-9)


@pytest.mark.slow
def test_settings_change_the_experiment():
    wide = Experiment(4).compute(Settings(seeds=1, steps=5, width=9, scale=0.5), silent)
    assert wide.attrs["width"] == 9 and wide.attrs["scale"] == 0.5
    other = Experiment(4).compute(Settings(seeds=1, steps=5, classes=8, order="ascending"), silent)
    assert other.sizes["mode"] == 7
    slow = Experiment(4, delta=0.0).compute(Settings(seeds=1, steps=400, reduction="mean"), silent)
    fast = Experiment(4, delta=0.0).compute(Settings(seeds=1, steps=100), silent)
    assert float(slow["kl"][1, 0, -1]) == pytest.approx(float(fast["kl"][1, 0, -1]), rel=1e-2)
    both = Experiment(4, delta=0.0).compute(Settings(seeds=2, seed=3, steps=100), silent)
    last = Experiment(4, delta=0.0).compute(Settings(seeds=1, seed=4, steps=100), silent)
    np.testing.assert_allclose(both["kl"][:, 1], last["kl"][:, 0], rtol=1e-10)
    assert float(both["kl"][1, 0, -1]) != float(fast["kl"][1, 0, -1])
    with pytest.raises(
        hf.InputError, match="`seed` must be a whole number of at least 0, but is -1"
    ):
        Settings(seed=-1)


@pytest.fixture(scope="module")
def orbit():
    return orbit_figures.compute_nonmonotone(Settings(), silent)


def test_turning_points_of_figure_1(orbit):
    """FORMULAS §12: M is at half of its peak at ln t ≈ 710, at half of M(0) at ≈ 949."""
    points = orbit_figures.turning_points(orbit)
    assert points["half of peak"] * np.log(10) == pytest.approx(710, rel=0.01)
    assert points["half of start"] * np.log(10) == pytest.approx(949, rel=0.01)
    run = hf.solve(
        hf.UFM(8), orbit_figures.START, log10_times=[points["dip"], points["peak"]], progress=None
    )
    rates = run.rate("l2", flow="normalized")[1:]
    scale = np.abs(orbit["l2_rate_per_path_length"].values).max()
    assert np.abs(rates).max() < 1e-2 * scale


@pytest.mark.parametrize("name", ["nonmonotone", "normalized", "logits"])
def test_checks_hold_and_can_fail(name, orbit):
    figure = figures.FIGURES[name]
    data = orbit if name != "logits" else orbit_figures.compute_logits(Settings(), silent)
    assert all(c.holds for c in figure.check(data))
    spoiled = data.copy(deep=True)
    if name == "logits":
        spoiled["margin"][:] = spoiled["margin"].values[::-1].copy()
    else:
        spoiled["kl"][-1] = 1.0
        spoiled["a_hat"][-1, 0] = 0.2
        spoiled["path_length"][:] = 10 * spoiled["path_length"]
    assert not all(c.holds for c in figure.check(spoiled))


def test_checks_of_an_experiment_can_fail(small):
    data = xr.open_dataset(small[0] / "k4.nc", engine="scipy").load()
    spoiled = data.copy(deep=True)
    spoiled["off_diagonal"][1] = 0.1
    spoiled["singular_value"][2] = 2 * spoiled["singular_value"][2]
    spoiled["kl"][1, :, -1] = 9.0
    failed = {c.statement.split(":")[0] for c in figures._check_experiment(spoiled) if not c.holds}
    assert failed >= {
        "Hadamard vectors stay frozen",
        "the ODE follows descent",
        "KL of Hadamard never rises above its start",
    }


def test_every_figure_of_the_paper_is_there():
    names = set(figures.FIGURES)
    assert names == {
        "nonmonotone", "k4", "k8", "k16", "k4-standard-scale", "k8-standard-scale", "k4-wide5",
        "k4-wide10", "k8-wide10", "logits", "normalized", "readings",
    }  # fmt: skip
    for figure in figures.FIGURES.values():
        assert len(figure.caption) > 80 and figure.differs


def test_bad_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(hf.InputError, match="Cannot write to"):
        reproduce.reproduce(["logits"], tmp_path / "file" / "out", SMALL)
