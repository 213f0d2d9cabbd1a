"""What the command line can say Python can say, and the other way round."""

import inspect
import json

import numpy as np
import pytest
import typer
from test_cli import hadaflow as hadaflow, strict_json  # the fixture

import hadaflow as hf
from hadaflow.cli import commands as cli

# Arguments of Python by what the command line calls them; None for what it says otherwise or cannot.
SAME = {
    "solve": (hf.solve, {"start": "start", "until": "until", "progress": None}),
    "train": (hf.descend, {"learning_rate": "lr", "progress": None}),
    "race": (hf.race, {"optimizers": "optimizer", "progress": None}),
    "hunt": (hf.hunt, {"C": "unbalanced", "balls": None, "progress": None}),
    "rise": (hf.worst_rise, {"C": "unbalanced", "progress": None}),
    "atlas": (hf.atlas, {"progress": None}),
    "portrait": (hf.portrait, {"fixed": "fix", "path": "out"}),
    "certify": (hf.certify, {"metric": "target", "a": "start", "flow": "classes", "C": "unbalanced",
                             "balls": None}),
    "predict-collapse": (hf.predict_collapse, {"anchor": "start"}),
    "fixed-point": (hf.fixed_point, {}),
    "stability-limit": (hf.stability_limit, {}),
}  # fmt: skip


def options_of(command):
    return {p.name: p for p in typer.main.get_command(cli.app).commands[command].params}


@pytest.mark.parametrize("command", SAME)
def test_every_argument_is_an_option_and_every_model_can_be_described(command):
    function, names = SAME[command]
    options = options_of(command)
    for argument in inspect.signature(function).parameters:
        if argument != "model" and names.get(argument, argument) is not None:
            assert names.get(argument, argument) in options, argument
    fields = {"labels" if f == "label_distribution" else f
              for f in inspect.signature(hf.UFM).parameters}  # fmt: skip
    assert fields <= set(options)
    assert "as_json" in options


def test_named_starts_have_their_spellings():
    for name in set(hf.starts.__all__) - {"parse"}:
        assert name.replace("_", "-") in options_of("solve")["start"].help


# --- the model -----------------------------------------------------------------------------------

MODELS = [
    (hf.UFM(8), "--classes 8"),
    (
        hf.UFM(8, samples=2, group=(2, 4), width=10, reduction="mean", label_smoothing=0.1,
               temperature=0.7, weight_decay=(0.1, 0.3)),
        "--classes 8 --samples 2 --group 2x4 --width 10 --reduction mean --label-smoothing 0.1 "
        "--temperature 0.7 --weight-decay 0.1,0.3",
    ),
    (hf.UFM(4, depth=1, label_distribution=(0.7, 0.1, 0.1, 0.1)),
     "--classes 4 --depth 1 --labels q.txt"),
    (hf.UFM(5, depth=3, loss="mse"), "--classes 5 --depth 3 --loss mse"),
    (hf.UFM(5, imbalance=((3, 3), (2, 1)), group=((3,), (2,))),
     "--classes 5 --imbalance 3x3,2x1 --group 3,2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "words"),
    [pytest.param(*case, marks=pytest.mark.slow if i > 1 else ()) for i, case in enumerate(MODELS)],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_documents_of_runs_have_the_whole_model(model, words, hadaflow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.txt").write_text("0.7 0.1 0.1 0.1")
    lines = [
        f"solve {words} --start small:1:0 --until time:1 --points 2 --out run.nc",
        f"solve {words} --start small:1:0 --until time:1 --points 2 --summary",
        f"train {words} --start small:1:0 --steps 2",
        f"train {words} --steps 2 --seeds 2 --scale 0.1 --summary --out batch.nc",
        "show run.nc", "show run.nc --summary", "show batch.nc",
    ]  # fmt: skip
    for line in lines:
        code, out, err = hadaflow(*line.split(), "--json")
        assert code == 0 and not err, err
        assert hf.UFM(**strict_json(out)["model"]) == model
    code, out, _ = hadaflow("show", "run.nc")
    assert model.describe() in out


def test_documents_of_the_lab_have_the_whole_model(hadaflow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--classes 8 --group 2x4 --samples 2 --temperature 0.5"
    model = hf.UFM(8, group=(2, 4), samples=2, temperature=0.5)
    for line in (
        f"hunt l2 {words} --starts 64 --out proof.json", f"rise l2 {words} --starts 64",
        f"atlas {words}", f"portrait {words} --fix 3:0.1 --fix 4:0.1 --title mine",
        f"predict-collapse {words.replace('--group 2x4 ', '')} --start figure1",
        f"stability-limit {words} --at 3",
    ):  # fmt: skip
        code, out, err = hadaflow(*line.split(), "--json")
        assert code == 0 and not err, err
        group = None if "predict" in line else (2, 4)
        assert hf.UFM(**strict_json(out)["model"]) == hf.UFM(8, 2, group=group, temperature=0.5)
    code, out, _ = hadaflow("certify", "proof.json", "--json")
    assert code == 0 and hf.UFM(**strict_json(out)["model"]) == model
    code, out, _ = hadaflow("hunt", "l2", *words.split(), "--starts", 64)
    assert "\n  model K = 8, n = 2, group Z_2 × Z_4, temperature 0.5\n" in out


# --- batches -------------------------------------------------------------------------------------


def test_a_batch_is_labelled_by_run(hadaflow, tmp_path):
    words = ("solve", "--classes", 8, "--start", "lognormal:0.7", "--seeds", 4, "--seed", 5,
             "--until", "collapse:1e-3", "--metric", "l2", "--metric", "kl")  # fmt: skip
    code, out, err = hadaflow(*words, "--json", "--out", tmp_path / "batch.nc")
    document = strict_json(out)
    assert code == 0 and not err
    assert document["counts"] == {"collapsed": 4} and document["settings"]["seeds"] == 4
    model = hf.UFM(8)
    start = hf.starts.lognormal(model, 0.7, range(5, 9))
    batch = hf.solve(model, start, "collapse:1e-3", progress=None)
    for i, run in enumerate(document["runs"]):
        alone = hf.solve(model, f"lognormal:0.7:{5 + i}", "collapse:1e-3", points=2, progress=None)
        assert (run["run"], run["seed"], run["status"]) == (i, 5 + i, "collapsed")
        assert run["log10_time"][0] is None and len(run["a_hat"]) == 2
        assert run["log10_time"][1] == pytest.approx(float(alone.log10_time[-1]), rel=1e-6)
        assert run["log10_time"][1] == float(batch.log10_time[i, -1])
        assert run["metrics"]["l2"] == batch.measure("l2")[i].tolist()
        np.testing.assert_array_equal(run["a_hat"], batch.a_hat[i])
    shown = strict_json(hadaflow("show", tmp_path / "batch.nc", "--metric", "l2", "--json")[1])
    assert [r["seed"] for r in shown["runs"]] == [5, 6, 7, 8]
    assert shown["runs"][2]["a_hat"] == document["runs"][2]["a_hat"]
    code, out, _ = hadaflow(*words)
    assert out.lower().count("kl") == 1 and "4 runs until collapse:0.001" in out


def test_a_batch_saved_by_python_is_labelled_too(hadaflow, tmp_path):
    model = hf.UFM(4)
    start = hf.starts.uniform(model, 0.1, 1, [7, 3])
    run = hf.solve(model, start, times=[1.0, 2.0], progress=None)
    run.save(tmp_path / "run.nc")
    document = strict_json(hadaflow("show", tmp_path / "run.nc", "--json")[1])
    assert [r["seed"] for r in document["runs"]] == [7, 3]
    np.testing.assert_array_equal(document["runs"][1]["log10_time"][1:], np.log10([1.0, 2.0]))
    short = strict_json(hadaflow("show", tmp_path / "run.nc", "--json", "--summary")[1])
    assert short["settings"]["seed"] == {"count": 2, "first": 7, "last": 3}


def test_runs_are_counted_by_their_ends(hadaflow):
    _, out, _ = hadaflow(
        "solve", "--classes", 4, "--start", "uniform:0:0", "--seeds", 2, "--json", "--summary",
        "--metric", "kl",
    )  # fmt: skip
    document = strict_json(out)
    assert document["counts"] == {document["status"]: 2}
    assert document["end"]["metrics"]["kl"] == dict.fromkeys(
        ("min", "q05", "q25", "median", "q75", "q95", "max")
    )
    assert document["notes"]["kl"].startswith("undefined (null) at the end of 2 of 2 runs")


# --- summaries -----------------------------------------------------------------------------------


def lists_in(value):
    if isinstance(value, dict):
        return [found for k, v in value.items() if k != "model" for found in lists_in(v)]
    return [value] if isinstance(value, list) else []


def test_a_summary_has_no_arrays(hadaflow, tmp_path):
    words = ("solve", "--classes", 8, "--start", "figure1", "--times", "1,10,100", "--metric", "l2",
             "--json", "--out", tmp_path / "run.nc")  # fmt: skip
    whole, short = strict_json(hadaflow(*words)[1]), strict_json(hadaflow(*words, "--summary")[1])
    assert not lists_in(short) and lists_in(whole)
    for name in ("status", "message", "model", "units", "steps"):
        assert short[name] == whole[name]
    end = short["end"]
    assert end["metrics"]["l2"] == whole["metrics"]["l2"][-1]
    for name in ("log10_time", "log10_log10_time", "log_norm", "path_length", "log_path_length"):
        assert end[name] == whole[name][-1]
    assert short["settings"]["log10_times"]["count"] == 3
    zero = hadaflow("solve", "--classes", 4, "--start", "1,1,0", "--metric", "kl", "--json",
                    "--summary")[1]  # fmt: skip
    assert strict_json(zero)["notes"]["kl"] == (
        "infinite (null) at the end, where a singular value is zero"
    )


def test_quantiles_are_those_of_numpy(hadaflow):
    words = ("--classes", 4, "--seeds", 7, "--metric", "l2", "--json", "--summary")
    solved = strict_json(hadaflow("solve", "--start", "uniform:0.1:1", *words)[1])
    model = hf.UFM(4)
    batch = hf.solve(model, hf.starts.uniform(model, 0.1, 1, range(7)), progress=None)
    trained = strict_json(hadaflow("train", "--steps", 9, "--scale", 0.3, *words)[1])
    random = hf.gaussian(model, 0.3, range(7))
    run = hf.descend(model, random, 9, 0.01, progress=None)
    assert trained["end"]["iterations"] == 9 and not lists_in(trained)
    for end, want in (
        (solved["end"]["log10_time"], batch.log10_time[:, -1]),
        (solved["end"]["metrics"]["l2"], batch.measure("l2")[:, -1]),
        (trained["end"]["metrics"]["l2"], run.measure("l2")[:, -1]),
    ):
        levels = [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1]
        np.testing.assert_allclose(list(end.values()), np.quantile(want, levels), rtol=1e-12)


# --- starts --------------------------------------------------------------------------------------


def full_start(model, init):
    random = hf.gaussian(model, 0.5, 3)
    return {
        "--init gaussian --scale 0.5 --seed 3": lambda: random,
        "--init matched --scale 0.5 --seed 3 --order 4 --rotation 2": lambda: hf.hadamard(
            model, hf.matched_spectrum(model, random, order=4), rotation=2
        ),
        "--init hadamard --scale 0.5 --seed 3 --unbalanced 0.2 --rotation 2": lambda: (
            hf.random_hadamard(model, 0.5, 3, C=0.2, rotation=2)
        ),
        "--init hadamard --start small:1:3 --unbalanced 0.2": lambda: hf.hadamard(
            model, hf.starts.small(model, 1.0, 3, C=0.2)
        ),
    }[init]()


INITS = (
    "--init gaussian --scale 0.5 --seed 3",
    "--init matched --scale 0.5 --seed 3 --order 4 --rotation 2",
    "--init hadamard --scale 0.5 --seed 3 --unbalanced 0.2 --rotation 2",
    "--init hadamard --start small:1:3 --unbalanced 0.2",
)


@pytest.mark.parametrize("init", INITS)
def test_matrices_are_followed_from_the_command_line(init, hadaflow):
    model = hf.UFM(4, samples=2, width=5)
    words = f"--classes 4 --samples 2 --width 5 {init} --metric residual --metric kl --json"
    document = strict_json(hadaflow("solve", *words.split(), "--until", "time:3", "--points", 4)[1])
    start = full_start(model, init)
    run = hf.solve(model, start, "time:3", points=4, progress=None)
    assert document["view"] == "full" and document["settings"]["seed"] == 3
    np.testing.assert_allclose(document["a_hat"], run.a_hat, rtol=1e-12)
    np.testing.assert_allclose(document["metrics"]["kl"], run.measure("kl"), rtol=1e-9)
    assert (max(document["metrics"]["residual"]) < 1e-10) == ("gaussian" not in init)
    seeds = [] if "--start" in init else ["--seeds", "1"]
    trained = strict_json(hadaflow("train", *words.split(), "--steps", 20, *seeds)[1])
    steps = hf.descend(model, start, 20, 0.01, progress=None)
    np.testing.assert_allclose(trained["metrics"]["kl"]["mean"], steps.measure("kl"), rtol=1e-9)


def test_singular_values_are_trained_from_the_command_line(hadaflow):
    """`train --start` is the reduced map; drawn ones without a seed are ten, as all of `train`."""
    model = hf.UFM(8, label_smoothing=0.1)
    words = "train --classes 8 --label-smoothing 0.1 --steps 30 --lr 0.5 --metric loss --json"
    for text, start in (
        ("1,1,.5,.5,.2,.2,.2", [1, 1, 0.5, 0.5, 0.2, 0.2, 0.2]),
        ("small:1:4", hf.starts.small(model, 1.0, 4)),
        ("small:1", hf.starts.small(model, 1.0, range(10))),
    ):
        document = strict_json(hadaflow(*words.split(), "--start", text)[1])
        run = hf.descend(model, start, 30, 0.5, progress=None)
        mean = np.atleast_2d(run.measure("loss")).mean(axis=0)
        np.testing.assert_allclose(document["metrics"]["loss"]["mean"], mean, rtol=1e-12)
        assert document["view"] == "reduced" and document["settings"].get("seeds", 1) in (1, 10)


def test_times_angles_phases_and_widths(hadaflow):
    blocks = hf.UFM(5, imbalance=((3, 3), (2, 1)))
    narrow = hf.UFM(5, width=4, reduction="mean")
    lines = {
        "--classes 5 --imbalance 3x3,2x1 --start 1,.5,.7 --angle 0.4 --times 0,0.5,2": hf.solve(
            blocks, hf.spectrum([1, 0.5, 0.7], angle=0.4), times=[0, 0.5, 2], progress=None
        ),
        "--classes 5 --start 1+.2j,.3+.5j --times 0.5,2 --width 4 --reduction mean --units raw": (
            hf.solve(narrow, hf.circulant([1 + 0.2j, 0.3 + 0.5j]), times=[0.5, 2], units="raw",
                     progress=None)
        ),
    }  # fmt: skip
    for words, run in lines.items():
        document = strict_json(hadaflow("solve", *words.split(), "--json")[1])
        np.testing.assert_allclose(document["a_hat"], run.a_hat, rtol=1e-10)
        np.testing.assert_allclose(document["angles"], run.angles, rtol=1e-10)
        assert document["log10_time"] == [None, *run.log10_time[1:].tolist()]
    code, _, err = hadaflow("solve", "--classes", 5, "--start", "1,.5", "--width", 2)
    assert code == 2 and "rank 2 at most" in err


def test_estimates_of_batches_and_matrices(hadaflow):
    base = ("solve", "--classes", 8, "--estimate", "--json")
    many = strict_json(hadaflow(*base, "--start", "uniform:0.1:1", "--seeds", 50)[1])
    assert many["reason"].startswith("50 runs")
    full = strict_json(hadaflow(*base, "--init", "gaussian", "--until", "time:5")[1])
    assert "full view" in full["reason"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("solve", "`start` must be given, or `init`"),
        ("solve --start 1,1,1 --seeds 3", "`seeds` is for starts that are drawn (uniform, "),
        ("solve --start figure1 --seeds 3", "`seeds` is for starts that are drawn"),
        ("solve --start 1,1,1 --seed 3", "`seeds` is for starts that are drawn"),
        ("solve --start uniform:0:1:2 --seeds 3", "no seed of its own beside `seeds`"),
        ("solve --start uniform:0:1 --seeds 0", "`seeds` must be a whole number from 1 to"),
        ("solve --start uniform:0:1 --seed -1", "`seed` must be a whole number of at least 0"),
        ("solve --init gaussian --seeds 3", "matrices one at a time"),
        ("solve --init gaussian --start 1,1,1", "`start` goes with --init hadamard alone"),
        ("solve --init matched --unbalanced 1", "`unbalanced` goes with --init hadamard alone"),
        (
            "solve --start 1,1,1 --scale 1",
            "`scale` goes with matrices that are drawn (--init) alone",
        ),
        (
            "solve --start 1,1,1 --init hadamard --scale 1",
            "`scale` goes with matrices that are drawn",
        ),
        (
            "solve --start 1,1,1 --rotation 2",
            "`rotation` goes with --init hadamard and matched alone",
        ),
        ("solve --init gaussian --rotation 2", "`rotation` goes with --init hadamard and matched"),
        ("solve --init hadamard --order ascending", "`order` goes with --init matched alone"),
        ("solve --init matched --order odd", '`order` must be "descending"'),
        ("solve --init matched --rotation odd", '`rotation` must be "identity"'),
        ("solve --init gaussian --angle 1", "`angle` goes with --start alone"),
        ("solve --start 1,1,1 --angle 1", "`angle` is that of the mode between two blocks"),
        ("solve --start 1,1,1 --metric residual", "needs a full state"),
        ("solve --init gaussian --metric label_divergence", "must have soft labels"),
        ("solve --start unifrm:0:1", "did you mean uniform or log-uniform?"),
        ("solve --start 1,1,1 --until colapse:1", "did you mean collapse?"),
        ("solve --start 1,1,1 --times 2,1", "`times` must be strictly increasing"),
        ("solve --start 1,1,1 --times x", "`times` must be numbers separated by commas"),
        ("train --steps 5 --start 1,1,1 --seeds 2", "`seeds` is for starts that are drawn"),
        ("train --steps 5 --start 1,1,1 --metric residual", "needs a full state"),
        ("predict-collapse --start 1,1,1 --depth 3", "`anchor` must be one balanced spectrum"),
        ("fixed-point", "must have soft labels or penalties"),
        ("stability-limit", "`at` must be the mean singular value"),
        ("certify kl --most-bits 128", "`most_bits` goes with --start"),
    ],
)
def test_what_does_not_go_together(words, message, hadaflow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *rest = words.split()
    code, out, err = hadaflow(command, "--classes", 4, *rest)
    assert code == 2 and out == "" and err.count("\n") == 1 and message in err, err


# --- numbers of a model --------------------------------------------------------------------------


def test_numbers_of_a_model(hadaflow):
    soft = hf.UFM(8, label_smoothing=0.1)
    document = strict_json(
        hadaflow("fixed-point", "--classes", 8, "--label-smoothing", 0.1, "--json")[1]
    )
    assert document["a"] == hf.fixed_point(soft).tolist() and hf.UFM(**document["model"]) == soft
    text = hadaflow("fixed-point", "--classes", 8, "--label-smoothing", 0.1, "--units", "raw")[1]
    np.testing.assert_array_equal(hf.starts.parse(soft, text).a, hf.fixed_point(soft, "raw"))
    limit = strict_json(
        hadaflow("stability-limit", "--classes", 8, "--label-smoothing", 0.1, "--json")[1]
    )
    assert limit["learning_rate"] == hf.stability_limit(soft)
    still = hadaflow("stability-limit", "--classes", 4, "--at", 0.5, "--json")[1]
    assert strict_json(still)["learning_rate"] is None and "any rate" in still
    words = ("predict-collapse", "--classes", 64, "--start", "lognormal:1:3", "--tolerance", 0.01)
    model = hf.UFM(64)
    found = hf.predict_collapse(model, "lognormal:1:3", 0.01)
    told = strict_json(hadaflow(*words, "--json")[1])
    assert {name: told[name] for name in found._fields} == found._asdict()
    assert f"{found.log_norm:.8g}" in hadaflow(*words)[1]


def test_kl_is_said_once(hadaflow):
    out = hadaflow("solve", "--classes", 4, "--start", "1,2,3", "--until", "time:1", "--metric", "kl",
                   "--metric", "l2")[1]  # fmt: skip
    assert out.lower().count("kl ") == 1 and out.count("l2") == 1
    assert "4 classes × 1 sample, " in out


def test_json_of_a_certificate_is_still_a_certificate(hadaflow, tmp_path):
    out = hadaflow("certify", "l2", "--classes", 8, "--start", "figure1", "--json")[1]
    (tmp_path / "c.json").write_text(out)
    assert hf.recheck(tmp_path / "c.json").holds and json.loads(out)["a"][-1] == "0.001"
