"""Starts that have a name: what they are, how they are spelled, and wherever a start is taken."""

import subprocess
import sys

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.runs.targets import parse_target

MODELS = [hf.UFM(8), hf.UFM(10, samples=2), hf.UFM(4, loss="mse"), hf.UFM(4, depth=3),
          hf.UFM(5, imbalance=((3, 3), (2, 1)))]  # fmt: skip
DRAWN = {
    "uniform": (lambda m, **o: hf.starts.uniform(m, 0.2, 3.0, **o), "uniform:0.2:3"),
    "log-uniform": (lambda m, **o: hf.starts.log_uniform(m, 1e-6, 2.0, **o), "log-uniform:1e-6:2"),
    "lognormal": (lambda m, **o: hf.starts.lognormal(m, 1.5, **o), "lognormal:1.5"),
    "small": (lambda m, **o: hf.starts.small(m, 1e-3, **o), "small:1e-3"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_they_are(name):
    """The definitions, from the same random bits."""
    rng, found = np.random.default_rng(7), DRAWN[name][0](hf.UFM(64), seeds=7).a
    even = rng.uniform(0, 1, 63) if name != "lognormal" else rng.standard_normal(63)
    want = {
        "uniform": 0.2 + 2.8 * even,
        "log-uniform": 1e-6 * (2.0 / 1e-6) ** even,
        "lognormal": np.exp(1.5 * even),
        "small": 1e-3 * (0.5 + even),
    }[name]
    np.testing.assert_allclose(found, want, rtol=1e-12)


def test_a_scale_is_the_median_of_a_lognormal_start():
    values = hf.starts.lognormal(hf.UFM(2**12), 2.0, range(20), scale=3.0).a
    assert np.median(values) == pytest.approx(3.0, rel=0.03)
    assert np.log(values).std() == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    "model",
    [pytest.param(m, marks=pytest.mark.slow if m in MODELS[1::2] else ()) for m in MODELS],
    ids=lambda m: m.describe(short=True),
)
@pytest.mark.parametrize("name", DRAWN)
def test_a_run_of_a_batch_is_that_of_its_seed(model, name):
    make, text = DRAWN[name]
    seeds = [3, 0, 11]
    differences = [0.1] * model.modes if model.depth == 2 else None
    if model.depth == 3:
        differences = [[0.1 * (i + j) for i in range(model.modes)] for j in (1, 2)]
    batch = make(model, seeds=seeds, C=differences, units="raw")
    assert batch.seed == seeds and batch.units == "raw"
    assert np.all((batch.a > 0) & np.isfinite(batch.a)) and batch.a.shape == (3, model.modes)
    for i, seed in enumerate(seeds):
        for alone in (
            make(model, seeds=seed, C=differences, units="raw"),
            hf.starts.parse(model, f"{text}:{seed}", C=differences, units="raw"),
            hf.starts.parse(model, text, seeds=seed, C=differences, units="raw"),
        ):
            np.testing.assert_array_equal(alone.a, batch.a[i])
            np.testing.assert_array_equal(alone.C, batch.C[i])
            assert alone.seed == seed
    np.testing.assert_array_equal(hf.starts.parse(model, text).a, make(model, seeds=0).a)
    run = hf.solve(model, make(model, seeds=seeds, C=differences), hf.Time(0.1), progress=None)
    assert run.settings["seed"] == seeds and run.a.shape[0] == 3


def test_uniform_spectrum_is_the_same_function():
    model = hf.UFM(6)
    for seed in (4, [1, 2]):
        one, other = (
            hf.uniform_spectrum(model, 0.1, 2, seed),
            hf.starts.uniform(model, 0.1, 2, seed),
        )
        np.testing.assert_array_equal(one.a, other.a)


@pytest.mark.parametrize(
    ("model", "want"),
    [
        (hf.UFM(8), [1, 1, 1, 1, 0.001, 0.001, 0.001]),
        (hf.UFM(4), [1, 1, 0.001]),
        (hf.UFM(2), [1]),
        (hf.UFM(10), [1, 1, 1, 0.001, 0.001]),
        (hf.UFM(4, loss="mse"), [1, 1, 1, 0.001]),
    ],
)
def test_figure_1_for_any_model(model, want):
    np.testing.assert_array_equal(hf.starts.figure1(model).a, want)
    np.testing.assert_array_equal(hf.starts.parse(model, " figure1 ", units="raw").a, want)
    assert hf.starts.figure1(model, C=0.5).C.tolist() == [0.5] * len(want)


def test_numbers_files_and_phases_are_spelled_too(tmp_path):
    model = hf.UFM(5)
    np.testing.assert_array_equal(hf.starts.parse(model, "1, .5").a, [1, 0.5])
    turned = hf.starts.parse(model, "1+1j, -0.5+0j", C=0.2)
    np.testing.assert_allclose(turned.angles, [np.pi / 4, np.pi])
    for text in ("0.3 0.2\n", "0.3,0.2"):
        (tmp_path / "a.txt").write_text(text)
        np.testing.assert_array_equal(hf.starts.parse(model, f"@{tmp_path}/a.txt").a, [0.3, 0.2])
    (tmp_path / "a.txt").write_text("figure1")
    with pytest.raises(
        hf.InputError, match="must be numbers separated by commas, but is 'figure1'"
    ):
        hf.starts.parse(model, f"@{tmp_path}/a.txt")


def test_an_angle_between_two_blocks():
    model = MODELS[-1]
    for start in (
        hf.starts.small(model, 0.1, [1, 2], angle=0.4), hf.starts.figure1(model, angle=0.4),
        hf.starts.parse(model, "1,2,3,4", angle=0.4),
    ):  # fmt: skip
        assert np.all(start.angles == 0.4) and start.angles.shape == (*start.a.shape[:-1], 1)
    with pytest.raises(hf.InputError, match="`angle` does not go with complex numbers"):
        hf.starts.parse(model, "1+1j,2,3,4", angle=0.4)


def test_wherever_a_start_is_taken():
    model, text = hf.UFM(8, samples=2), "uniform:0.1:1:5"
    values = hf.starts.uniform(model, 0.1, 1, 5).a
    run = hf.solve(model, text, "time:2", units="raw", progress=None)
    same = hf.solve(model, values, hf.Time(2.0), units="raw", progress=None)
    np.testing.assert_array_equal(run.a, same.a)
    assert run.settings["start"] == text and run.settings["seed"] == 5
    steps = hf.descend(model, text, 10, 0.1, progress=None)
    np.testing.assert_array_equal(steps.a, hf.descend(model, values, 10, 0.1, progress=None).a)
    assert steps.settings["start"] == text and steps.settings["seed"] == 5
    assert hf.estimate(model, text, "collapse:1e-3").method == "tsit5"
    assert float(hf.measure("kl", model, text)) == float(hf.measure("kl", model, values))
    assert float(hf.rate("kl", model, text)) == float(hf.rate("kl", model, values))
    np.testing.assert_array_equal(hf.lift(model, text).Z, hf.lift(model, values).Z)
    assert hf.lift(model, text).seed == 5
    assert hf.predict_collapse(model, text) == hf.predict_collapse(model, values)


BAD = [
    (lambda m: hf.solve(m, "unifrom:0.1:1:0"), r"did you mean uniform\?"),
    (lambda m: hf.solve(m, "loguniform:0.1:1"), r"did you mean log-uniform"),
    (lambda m: hf.solve(m, "Figure1"), r"did you mean figure1\?"),
    (lambda m: hf.solve(m, "log:1"), r"did you mean log-uniform or lognormal\?"),
    (lambda m: hf.solve(m, "figure1:2"), "must be figure1, but is 'figure1:2'"),
    (
        lambda m: hf.solve(m, "small:0:1"),
        "must be small:SCALE:SEED with 0 < SCALE and a whole SEED",
    ),
    (lambda m: hf.solve(m, "uniform:1:0:1"), "uniform:LOW:HIGH:SEED with 0 ≤ LOW ≤ HIGH"),
    (lambda m: hf.solve(m, "uniform:1"), "uniform:LOW:HIGH:SEED"),
    (lambda m: hf.solve(m, "uniform:0:1:2:3"), "uniform:LOW:HIGH:SEED"),
    (lambda m: hf.solve(m, "uniform:0:1:-2"), "a whole SEED"),
    (lambda m: hf.solve(m, "log-uniform:0:1:2"), "log-uniform:LOW:HIGH:SEED with 0 < LOW"),
    (lambda m: hf.solve(m, "lognormal:-1:2"), "lognormal:SIGMA:SEED with 0 ≤ SIGMA"),
    (lambda m: hf.solve(m, "lognormal:1e5:0"), "finite singular values|at least 2.23e-308"),
    (lambda m: hf.solve(m, "1,2"), "must have 3 singular values"),
    (lambda m: hf.solve(m, "nan"), "but has nan"),
    (lambda m: hf.solve(m, "@nowhere.txt"), "Cannot read the start"),
    (lambda m: hf.solve(m, [1.0, 1, 1], "colapse:1e-3"), r"did you mean collapse\?"),
    (lambda m: hf.solve(m, [1.0, 1, 1], "time"), "must be one of time:NUMBER"),
    (lambda m: hf.estimate(m, [1.0, 1, 1], "norm"), "must be one of time:NUMBER"),
    (lambda m: hf.starts.parse(m, "1,2,3", seeds=[1, 2]), "`seeds` is for starts that are drawn"),
    (lambda m: hf.starts.parse(m, "figure1", seeds=3), "`seeds` is for starts that are drawn"),
    (lambda m: hf.starts.parse(m, "small:1:3", seeds=3), "no seed of its own beside `seeds`"),
    (lambda m: hf.starts.parse(m, 3), "`text` must be text, but is 3"),
    (lambda m: hf.starts.uniform(m, 2, 1), "0 ≤ low ≤ high"),
    (lambda m: hf.starts.log_uniform(m, 0, 1), "0 < low ≤ high"),
    (lambda m: hf.starts.lognormal(m, np.inf), "`sigma` must be from 0 upwards"),
    (lambda m: hf.starts.lognormal(m, 1, scale=0), "`scale` must be a positive number"),
    (lambda m: hf.starts.small(m, -1), "`scale` must be a positive number"),
    (lambda m: hf.starts.small(m, 1, "x"), "`seeds` must be a whole number"),
    (lambda m: hf.starts.small(m, 1, []), "`seeds` must hold at least one seed"),
    (lambda m: hf.starts.figure1("m"), "`model` must be a UFM"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_a_wrong_spelling_is_one_sentence(call, message):
    with pytest.raises(hf.InputError, match=message) as error:
        call(hf.UFM(4))
    assert "\n" not in str(error.value)


def test_a_tolerance_may_be_left_out():
    for text, target in (
        ("collapse", hf.Collapse()), ("steady", hf.Steady()), ("collapse:0.1", hf.Collapse(0.1)),
        ("predicted-collapse", hf.PredictedCollapse()), ("log10time:400", hf.Time(log10=400)),
    ):  # fmt: skip
        assert parse_target(text) == target
    run = hf.solve(hf.UFM(4, label_smoothing=0.1), "small:0.1", "steady", progress=None)
    assert run.status == "steady" and run.settings["until"] == "steady:1e-08"


def test_starts_models_and_targets_are_made_without_jax():
    code = (
        "import sys, hadaflow as hf; m = hf.UFM(8); hf.starts.uniform(m, 0.1, 1, range(9));"
        "hf.starts.parse(m, 'figure1'); hf.Collapse(1e-3); m.describe(); m.to_document();"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
