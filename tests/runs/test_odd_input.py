"""Input of every odd kind, to every public function: an `InputError`, never another, and no warning."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import hadaflow as hf
from hadaflow.base import memory

BEYOND = 10**400  # no float holds it
MODEL, NARROW = hf.UFM(4), hf.UFM(8, width=3)
HUGE = hf.parameters(np.eye(4) * 1e200, np.eye(4) * 1e200)
KL = next(
    path
    for path in sorted((Path(__file__).parents[2] / "docs" / "certificates").glob("*.json"))
    if json.loads(path.read_text())["metric"] == "kl"
)


def bare(a, C=(0.0, 0.0, 0.0), **options):
    return hf.Spectrum(np.array(a), np.array(C), **options)


def run(start, until=None, **options):
    return hf.solve(MODEL, start, until or hf.Time(1.0), progress=None, **options)


STATES = [
    lambda: run(bare([1, np.nan, 1.0])),
    lambda: run(bare([1, -1.0, 1.0])),
    lambda: run(bare([1, np.inf, 1.0])),
    lambda: run(bare([1, 1.0, 1.0], [0, np.nan, 0])),
    lambda: run(bare([1, 1.0, 1.0], [0.0])),
    lambda: run(bare([1, 1.0, 1.0], angles=np.array([0, np.inf, 0]))),
    lambda: run(bare("abc")),
    lambda: hf.measure("kl", MODEL, bare([1, -1.0, 1.0])),
    lambda: hf.estimate(MODEL, bare([1, np.nan, 1.0])),
    lambda: run(hf.Parameters((np.full((4, 4), np.nan), np.eye(4)))),
    lambda: run(hf.Parameters((np.ones((2, 4, 4)), np.eye(4)))),
    lambda: run(hf.Parameters(("W", "H"))),
    lambda: run([[1, 2], [1]]),
    lambda: run(np.ma.array([1.0, 2, 3], mask=[0, 1, 0])),
    lambda: run(np.array(["2020-01-01"] * 3, dtype="datetime64[D]")),
    lambda: run(np.array([1j, 1, 1])),
    lambda: run(["1", "2", "3"]),
    lambda: hf.margins(MODEL, HUGE),
    lambda: hf.max_margin(MODEL, HUGE),
    lambda: hf.project(MODEL, HUGE),
    lambda: hf.matched_spectrum(MODEL, HUGE),
    lambda: hf.distance_from_hadamard(MODEL, HUGE),
]
NO_MODEL = [
    lambda: hf.atlas(None),
    lambda: hf.portrait(None),
    lambda: hf.descend(None, [1, 1, 1], 5, 0.1),
    lambda: hf.gaussian(None, 0.1, 0),
    lambda: hf.hadamard("x", [1, 1, 1]),
    lambda: hf.lift(None, [1, 1, 1]),
    lambda: hf.stability_limit(None),
    lambda: hf.margins(None, [1, 1, 1]),
    lambda: hf.max_margin(None, HUGE),
    lambda: hf.project(4, HUGE),
    lambda: hf.distance_from_hadamard(None, HUGE),
    lambda: hf.matched_spectrum(None, HUGE),
    lambda: hf.linearized(None, [1, 1, 1], [1]),
    lambda: hf.mse_exact(None, [1] * 4, [1]),
    lambda: hf.predict_collapse(None, [1, 1, 1]),
    lambda: hf.fixed_point(None),
    lambda: hf.solve(4, [1, 1, 1]),
    lambda: hf.estimate(None, [1, 1, 1]),
    lambda: hf.measure("kl", None, [1, 1, 1]),
    lambda: hf.rate("kl", None, [1, 1, 1]),
    lambda: hf.hunt("kl", None),
    lambda: hf.worst_rise("kl", None),
]
TOO_LARGE = [
    lambda: hf.spectrum([BEYOND, 1, 1]),
    lambda: hf.spectrum([1, 1, 1], C=BEYOND),
    lambda: hf.circulant([BEYOND, 1]),
    lambda: hf.parameters([[BEYOND]]),
    lambda: run([BEYOND, 1, 1]),
    lambda: hf.hadamard(MODEL, [BEYOND, 1, 1]),
    lambda: hf.margins(MODEL, [BEYOND, 1, 1]),
    lambda: hf.measure("kl", MODEL, [BEYOND, 1, 1]),
    lambda: hf.estimate(MODEL, [BEYOND, 1, 1]),
    lambda: hf.predict_collapse(MODEL, [BEYOND, 1, 1]),
    lambda: hf.solve(MODEL, [1, 1, 1], times=[BEYOND]),
    lambda: hf.solve(MODEL, [1, 1, 1], log10_times=[BEYOND]),
    lambda: hf.solve(MODEL, [1, 1, 1], rtol=BEYOND),
    lambda: hf.linearized(MODEL, [1, 1, 1], [BEYOND]),
    lambda: hf.mse_exact(hf.UFM(4, loss="mse"), [1] * 4, [BEYOND]),
    lambda: hf.UFM(4, label_smoothing=BEYOND),
    lambda: hf.UFM(4, temperature=BEYOND),
    lambda: hf.UFM(4, weight_decay=BEYOND),
    lambda: hf.UFM(4, label_distribution=[BEYOND, 1, 1, 1]),
    lambda: hf.UFM(4, samples=BEYOND),
    lambda: hf.UFM(4, width=BEYOND),
    lambda: hf.UFM(4, imbalance=((2, BEYOND), (2, 1))),
    lambda: hf.UFM(BEYOND),
    lambda: hf.UFM(10**5000),
    lambda: hf.UFM(4, depth=BEYOND),
    lambda: hf.Sylvester(BEYOND),
    lambda: hf.cyclic(float("inf")),
    lambda: hf.gaussian(MODEL, BEYOND, 0),
    lambda: hf.hierarchical_labels([BEYOND, 1], (2,)),
    lambda: hf.diagonalizes_softmax([[BEYOND, 1], [1, 1]]),
    lambda: hf.walsh_hadamard([BEYOND, 1]),
    lambda: hf.descend(MODEL, [1, 1, 1], 5, BEYOND),
    lambda: hf.stability_limit(MODEL, at=BEYOND),
    lambda: hf.portrait(MODEL, norm=BEYOND),
    lambda: hf.worst_rise("kl", MODEL, low=BEYOND),
]
OTHER_KINDS = [
    lambda: hf.UFM(np.array(1.0)),
    lambda: hf.UFM(np.array([3])),
    lambda: hf.UFM(4, samples=np.array([3])),
    lambda: hf.UFM(4, width=np.array([3])),
    lambda: hf.UFM(4, temperature=np.array([1.0])),
    lambda: hf.UFM(4, weight_decay=True),
    lambda: run([1, 1, 1], points=np.array([3])),
    lambda: hf.descend(MODEL, [1, 1, 1], np.array([3]), 0.1),
    lambda: hf.matched_spectrum(MODEL, hf.gaussian(MODEL, 0.1, 0), order=np.array([3])),
    lambda: hf.diagonalizes_softmax(np.eye(4), draws=np.array([3])),
    lambda: hf.Sylvester(None),
    lambda: hf.Sylvester("4"),
    lambda: hf.Sylvester(3.0),
    lambda: hf.hierarchical_labels([0.5, 0.25, 0.25], None),
    lambda: hf.hierarchical_labels([0.5, 0.25, 0.25], 5),
    lambda: hf.hadamard(MODEL, [1, 1, 1], rotation=1j),
    lambda: hf.hadamard(MODEL, [1, 1, 1], rotation={}),
    lambda: hf.hadamard(MODEL, [1, 1, 1], rotation=b"x"),
    lambda: hf.walsh_hadamard("abc"),
    lambda: hf.walsh_hadamard(1j),
    lambda: hf.walsh_hadamard([1j, 1]),
    lambda: hf.walsh_hadamard(jnp.array([1j, 1])),
    lambda: hf.worst_rise("kl", MODEL, low="x"),
    lambda: hf.portrait(MODEL, title="$\\bad$"),
    lambda: hf.portrait(MODEL, title=5),
    lambda: hf.portrait(MODEL, path=5),
    lambda: hf.load(None),
    lambda: hf.load(5),
    lambda: hf.recheck(None),
    lambda: hf.recheck(5),
    lambda: hf.recheck(KL, metric=lambda a: -sum(a)),
    lambda: hf.recheck(KL, metric=5),
    lambda: hf.hunt("kl", NARROW),
    lambda: hf.worst_rise("kl", NARROW),
]
CALLS = [*STATES, *NO_MODEL, *TOO_LARGE, *OTHER_KINDS]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_odd_input_is_one_sentence(call):
    with pytest.raises(hf.InputError) as refusal:
        call()
    text = str(refusal.value)
    assert "\n" not in text and len(text) < 500 and text.endswith("."), text


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.save(None),
        lambda run: run.save(1),
        lambda run: run.plot(1),
        lambda run: run.state(3),
        lambda run: run.state("x"),
        lambda run: run.state(1.0),
    ],
)
def test_so_is_that_of_a_trajectory(call):
    with pytest.raises(hf.InputError):
        call(run([1.0, 0.5, 0.3], points=3))


def test_what_only_looks_odd_is_taken():
    lists = run(hf.Spectrum([1.0, 0.5, 0.3], [0.0, 0, 0]))  # pyright: ignore
    arrays = run([1.0, 0.5, 0.3])
    assert np.array_equal(lists.a, arrays.a)
    zero = hf.parameters(np.zeros((4, 4)), np.zeros((4, 4)))
    assert hf.distance_from_hadamard(MODEL, zero) == 0
    assert hf.gaussian(MODEL, 0.1, np.array(3)).seed == 3
    assert hf.recheck(KL, metric="kl").holds
    assert arrays.state(-1).a.shape == (3,)


def test_a_projected_narrow_state_starts_a_run():
    state = hf.hadamard(NARROW, [1, 0.5, 0.3, 0, 0, 0, 0], rotation=3)
    spectrum = hf.project(NARROW, state)
    assert np.all(spectrum.a[3:] == 0) and np.all(spectrum.C[3:] == 0)
    assert hf.solve(NARROW, spectrum, hf.Time(1.0), progress=None).status == "reached"
    later = hf.solve(NARROW, state, hf.Time(3.0), progress=None).state(
        -1
    )  # zeros are rounding there
    assert hf.solve(NARROW, hf.project(NARROW, later), hf.Time(1.0)).status == "reached"


def test_an_own_metric_sees_infinities():
    import dataclasses

    short = run([1.0, 0.5, 0.3], points=3)
    far = dataclasses.replace(short, arrays={"log_a": short.log_a + 800, "C": short.C})
    assert np.all(far.measure(lambda a: jnp.sum(a)) == np.inf)
    assert np.all(np.isfinite(far.measure("kl")))


def test_zero_matrices_and_modes_are_drawn(tmp_path):
    zeros = hf.parameters(np.zeros((4, 4)), np.zeros((4, 4)))
    for name, start in (("reduced", [0.0, 0, 0]), ("full", zeros)):
        run(start, points=3).plot(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


# --- names of files, and what is in them ---------------------------------------------------------


def hadaflow(*arguments, folder):
    command = [sys.executable, "-m", "hadaflow", *map(os.fspath, arguments)]
    done = subprocess.run(command, capture_output=True, check=False, cwd=folder, timeout=300)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


SOLVE = ("solve", "--classes", "4", "--start", "1,.5,.3", "--until", "time:1", "--points", "3")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_a_name_that_is_no_text(tmp_path):
    code, out, err = hadaflow(*SOLVE, "--out", b"\xff.nc", folder=tmp_path)
    assert (code, err) == (0, "") and "wrote" in out
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff.nc"]
    assert hf.load(os.fsencode(tmp_path) + b"/\xff.nc").status == "reached"
    shown = os.path.join(os.fsencode(tmp_path), b"\xff.json")
    Path(os.fsdecode(shown)).write_bytes(KL.read_bytes())
    code, out, err = hadaflow("certify", b"\xff.json", "--json", folder=tmp_path)
    assert (code, err) == (0, "") and json.loads(out)["file"] == "\\udcff.json"


def test_a_link_that_leads_nowhere_is_refused_before_the_work(tmp_path):
    (tmp_path / "loop.nc").symlink_to("loop.nc")
    code, out, err = hadaflow(*SOLVE, "--out", "loop.nc", "--json", folder=tmp_path)
    assert (code, out) == (2, "") and err.startswith("hadaflow: Cannot write 'loop.nc': ")


def test_large_foreign_files_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2.0**34)
    sparse = tmp_path / "sparse.nc"
    with sparse.open("wb") as file:
        file.truncate(2**35)
    with pytest.raises(hf.InputError, match="it is not a hadaflow file"):
        hf.load(sparse)
    with sparse.open("r+b") as file:
        file.write(b"CDF\x01")
        file.truncate(2**36 - 1)
    with pytest.raises(hf.InputError, match="would take about 137 GB of memory"):
        hf.load(sparse)


def test_a_file_of_many_more_numbers_than_modes_is_not_read(tmp_path):
    (tmp_path / "many").write_text("1," * 10**5)
    code, out, err = hadaflow("solve", "--classes", "4", "--start", "@many", folder=tmp_path)
    assert (code, out) == (2, "") and "it has more than 8576 bytes" in err
