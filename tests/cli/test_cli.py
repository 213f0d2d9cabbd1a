import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.cli import commands as cli

SOLVE_KEYS = {
    "classes", "units", "status", "message", "log10_time", "log_norm", "path_length", "a_hat",
    "metrics", "steps", "settings", "version", "multiplicity", "diagnostics", "log10_log10_time",
    "log_path_length", "notes", "model", "view",
}  # fmt: skip


def call(monkeypatch, capsys, *arguments):
    """Run the command in this process; returns exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["hadaflow", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    return end.value.code, out, err


def strict_json(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def hadaflow(monkeypatch, capsys):
    return lambda *arguments: call(monkeypatch, capsys, *arguments)


def test_solve_prints_one_json_document(hadaflow):
    code, out, err = hadaflow(
        "solve", "--classes", 8, "--start", "1,1,1,1,.001,.001,.001", "--until", "collapse:1e-6",
        "--metric", "kl", "--metric", "l2", "--json",
    )  # fmt: skip
    assert code == 0 and err == ""
    document = strict_json(out)
    assert set(document) == SOLVE_KEYS
    assert document["status"] == "collapsed" and document["classes"] == 8
    assert document["log10_time"][0] is None
    assert document["log10_time"][-1] == pytest.approx(3614.8996376, rel=1e-8)
    n = len(document["log10_time"])
    assert n == 200
    for key in ("log_norm", "path_length", "a_hat"):
        assert len(document[key]) == n
    assert len(document["metrics"]["kl"]) == len(document["metrics"]["l2"]) == n
    assert document["multiplicity"] == [1] * 7
    assert document["settings"]["until"] == "collapse:1e-06"
    np.testing.assert_allclose(np.sum(document["a_hat"], axis=1), 1)
    assert document["version"] == hf.__version__


def test_default_target_and_zero_modes(hadaflow):
    code, out, _ = hadaflow("solve", "--classes", 4, "--start", "1,1,0", "--metric", "kl", "--json")
    document = strict_json(out)
    assert code == 0 and document["status"] == "never-collapses"
    assert document["metrics"]["kl"] == [None]
    assert document["notes"]["kl"] == (
        "infinite (null) at 1 of 1 points, where a singular value is zero"
    )
    assert document["settings"]["until"] == "collapse:1e-06"


@pytest.mark.parametrize(
    ("until", "check"),
    [
        ("time:1e6", lambda d: d["log10_time"][-1] == pytest.approx(6)),
        ("log10time:400", lambda d: d["log10_time"][-1] == pytest.approx(400)),
        ("norm:1e2", lambda d: d["log_norm"][-1] == pytest.approx(np.log(100))),
        ("path:10", lambda d: d["path_length"][-1] == pytest.approx(10)),
    ],
)
def test_targets(hadaflow, until, check):
    code, out, _ = hadaflow(
        "solve", "--classes", 4, "--start", "uniform:0.1:1:7", "--until", until, "--points", 20,
        "--json",
    )  # fmt: skip
    document = strict_json(out)
    assert code == 0 and document["status"] == "reached" and check(document)
    assert len(document["log10_time"]) == 20 and document["settings"]["seed"] == 7


def test_times_files_units_and_saving(hadaflow, tmp_path):
    (tmp_path / "start.txt").write_text("0.1, 0.2\n0.3\n")
    code, out, _ = hadaflow(
        "solve", "--classes", 4, "--start", f"@{tmp_path / 'start.txt'}", "--units", "raw",
        "--log10-times", "0,3,6,100", "--out", tmp_path / "run.nc", "--json",
    )  # fmt: skip
    document = strict_json(out)
    assert code == 0 and document["log10_time"] == [None, 0, 3, 6, 100]
    assert document["units"] == "raw"
    run = hf.solve(
        hf.UFM(4), [0.1, 0.2, 0.3], log10_times=[0, 3, 6, 100], units="raw", progress=None
    )
    np.testing.assert_allclose(document["a_hat"], run.a_hat, rtol=1e-14)
    code, out, _ = hadaflow("show", tmp_path / "run.nc", "--metric", "kl", "--json")
    shown = strict_json(out)
    assert shown["a_hat"] == document["a_hat"] and len(shown["metrics"]["kl"]) == 5
    code, out, _ = hadaflow("show", tmp_path / "run.nc")
    assert code == 0 and "hadaflow trajectory · reached" in out
    code, out, _ = hadaflow("plot", tmp_path / "run.nc", "--out", tmp_path / "run.pdf")
    assert code == 0 and (tmp_path / "run.pdf").read_bytes().startswith(b"%PDF")
    code, out, _ = hadaflow("plot", tmp_path / "run.nc", "--json")
    assert strict_json(out) == {"picture": str(tmp_path / "run.png")}


def test_a_picture_never_overwrites_its_trajectory(hadaflow, tmp_path):
    hf.solve(hf.UFM(4), [1, 2, 3], hf.Time(1.0)).save(tmp_path / "r.png")
    code, _, err = hadaflow("plot", tmp_path / "r.png")
    assert code == 2 and "would overwrite" in err
    assert hf.load(tmp_path / "r.png").status == "reached"
    code, _, err = hadaflow("plot", tmp_path / "r.png", "--out", tmp_path / "r.docx")
    assert code == 2 and "must end in one of" in err


def test_diverging_training_is_still_one_document(hadaflow):
    code, out, err = hadaflow(
        "train", "--classes", 4, "--steps", 1000, "--lr", 10, "--loss", "mse", "--scale", 1,
        "--seeds", 2, "--json",
    )  # fmt: skip
    assert code == 1 and err == "" and strict_json(out)["status"] == "failed"


def test_negative_log10_times(hadaflow):
    code, out, _ = hadaflow(
        "solve", "--classes", 4, "--start", "1,2,3", "--log10-times=-3,0", "--json"
    )
    assert code == 0 and strict_json(out)["log10_time"] == [None, -3, 0]


@pytest.mark.parametrize("init", ["gaussian", "hadamard", "matched"])
def test_train_prints_means_and_standard_errors(hadaflow, init):
    code, out, err = hadaflow(
        "train", "--classes", 4, "--samples", 1, "--width", 4, "--init", init, "--scale", 0.2,
        "--seeds", 5, "--steps", 500, "--lr", 0.05, "--json",
    )  # fmt: skip
    assert code == 0 and err == ""
    document = strict_json(out)
    assert document["iterations"][0] == 0 and document["iterations"][-1] == 500
    for name in ("loss", "kl", "alignment_z", "residual"):
        series = document["metrics"][name]
        assert len(series["mean"]) == len(series["standard_error"]) == len(document["iterations"])
    residual = document["metrics"]["residual"]["mean"]
    assert max(residual) < 1e-10 if init != "gaussian" else residual[0] > 0.1
    if init == "gaussian":
        model = hf.UFM(4)
        run = hf.descend(model, hf.gaussian(model, 0.2, range(5)), 500, 0.05, progress=None)
        loss = run.measure("loss")
        np.testing.assert_allclose(
            document["metrics"]["loss"]["mean"], loss.mean(axis=0), rtol=1e-12
        )
        error = loss.std(axis=0, ddof=1) / 5**0.5
        got = document["metrics"]["loss"]["standard_error"]
        np.testing.assert_allclose(got, error, rtol=1e-6, atol=1e-15)


def test_train_saves_and_shows(hadaflow, tmp_path):
    code, out, _ = hadaflow(
        "train", "--classes", 2, "--steps", 50, "--seeds", 1, "--init", "hadamard", "--start", "0.5",
        "--metric", "loss", "--out", tmp_path / "t.nc",
    )  # fmt: skip
    assert code == 0 and "All 50 iterations done" in out and "loss" in out
    code, out, _ = hadaflow("show", tmp_path / "t.nc", "--metric", "loss", "--json")
    document = strict_json(out)
    assert document["metrics"]["loss"]["standard_error"][0] is None
    code, out, _ = hadaflow("plot", tmp_path / "t.nc")
    assert code == 0 and (tmp_path / "t.png").exists()
    code, out, _ = hadaflow("show", tmp_path / "t.nc", "--json")
    assert code == 0 and strict_json(out)["metrics"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("solve --classes 10 --start 1,1", "`start` must have 5 singular values"),
        ("solve --classes ten --start 1", "'--classes'.*integer"),
        ("solve --start 1", "Missing option '--classes'"),
        ("solve --classes 4 --start 1,2", "`start` must have 3 singular values"),
        ("solve --classes 4 --start 1,-2,3", "not negative, but has -2.0"),
        ("solve --classes 4 --start 1,nan,3", "but has nan"),
        ("solve --classes 4 --start a,b,c", "`start` must be numbers separated by commas"),
        ("solve --classes 4 --start @nowhere.txt", "Cannot read the start from 'nowhere.txt'"),
        ("solve --classes 4 --start uniform:1:0:3", "uniform:LOW:HIGH:SEED"),
        ("solve --classes 4 --start 1,1,2 --until soon", "`until` must be one of time:NUMBER"),
        (
            "solve --classes 4 --start 1,1,2 --until collapse:0",
            "`until` must have a positive number behind its colon",
        ),
        ("solve --classes 4 --start 1,1,2 --until steady:1e-3", "cannot be Steady"),
        ("solve --classes 4 --start 1,1,2 --metric entropy", "Unknown metric 'entropy'"),
        ("solve --classes 4 --start 1,1,2 --metric residual", "needs a full state"),
        ("solve --classes 4 --start 1,1,2 --units si", "'--units'"),
        ("solve --classes 4 --start 1,1,2 --rtol 1", "`rtol` must be from"),
        ("solve --classes 4 --start 1,1,2 --points 1", "`points` must be"),
        ("solve --classes 4 --start 1,1,2 --method euler", "`method` must be one of"),
        (
            "solve --classes 4 --start 1,1,2 --depth 0",
            "`depth` must be a whole number of at least 1",
        ),
        ("solve --classes 4 --start 1,1,2 --samples 0", "`samples` must be"),
        ("solve --classes 4 --start 1,1,2 --log10-times 3,2", "strictly increasing"),
        ("solve --classes 4 --start 1,1,2 --out nowhere/x.nc", "the folder does not exist"),
        (
            "train --classes 4 --steps 0",
            "`steps` must be a whole number from 1 to 1000000000000000, but is 0",
        ),
        (
            "train --classes 4 --steps 5 --lr 0",
            "`learning_rate` must be a positive number, but is 0.0",
        ),
        ("train --classes 4 --steps 5 --lr nan", "`learning_rate` must be a positive number"),
        ("train --classes 4 --steps 5 --scale -1", "`scale` must be a positive number"),
        (
            "train --classes 4 --steps 5 --seeds 0",
            "`seeds` must be a whole number from 1 to 1000000, but is 0",
        ),
        ("train --classes 4 --steps 5 --momentum 1", "`momentum` must be from 0 to below 1"),
        (
            "train --classes 4 --steps 5 --width 2 --init hadamard",
            "rank 2 at most for `width` = 2",
        ),
        ("train --classes 4 --steps 5 --start 1,1,1 --init gaussian", "--init hadamard alone"),
        ("train --classes 4 --steps 5 --init zero", "'--init'"),
        ("show nowhere.nc", "there is no such file"),
        ("plot nowhere.nc", "there is no such file"),
        ("reproduce figure-99", "Unknown figure 'figure-99'"),
        ("reproduce k4 --seeds 0", "`seeds` must be a whole number of at least 1"),
        ("reproduce k4 --lr -1", "`learning_rate` must be a positive number"),
        ("reproduce k4 --classes 1", "`classes` must be from 2 to"),
        ("reproduce k4 --order odd", '`order` must be "descending"'),
        ("reproduce k4 --width 2", "`width` must be at least `classes`"),
        ("dance", "No such command 'dance'"),
        (
            "solve --classes 4 --start 1,1,2 --depth 1 --metric alignment_w",
            "needs `depth` of at least 2",
        ),
        ("solve --classes 4 --start 1,1,2 --points 99999999999", "whole number from 2 to 1000000"),
        (f"show {'x' * 300}", "Cannot read"),
        (f"solve --classes 4 --start 1,1,2 --out {'x' * 300}", "the name is too long"),
        ("plot .", "it is a folder"),
        ("show .", "it is a folder"),
        ("reproduce k4 --order ²", '`order` must be "descending"'),
        (f"train --classes 4 --steps {'9' * 20}", "`steps` must be a whole number from 1 to"),
        (f"train --classes 4 --steps 5 --seeds {'9' * 20}", "`seeds` must be a whole number from"),
        ("train --classes 4 --steps 5 --seed -1", "`seed` must be a whole number of at least 0"),
        ("train --classes 4 --steps 5 --scale 1e300 --init hadamard", "`scale` must be at most 1e"),
        ("train --classes 4 --steps 5 --scale 1e300 --init matched", "`scale` must be at most 1e"),
        ("train --classes 4 --steps 5 --scale 1e300", "`scale` must be at most 1e"),
        ("solve --classes 4 --start 1e308,1e308,1e308", "values of at most 6.25e.305"),
        ("solve --classes 4 --start 1e308,1,1 --until time:1", "values of at most 6.25e.305"),
        ("solve --classes 4 --start 1,1,2 --metric KL", r"\(did you mean kl\?\)"),
        (f"solve --classes 4 --start 1,1,2 --group {'2x' * 50_000}2", "`group` must"),
        (f"solve --classes 4 --start {'1,' * 50_000}1", "must have 3 singular values"),
        (f"solve --classes {'9' * 4000} --start 1", "'--classes'|`classes`"),
        (f"solve --classes 4 --start {'x' * 100_000}", "`start` must be numbers"),
        (f"dance{'x' * 100_000}", "No such command"),
        (f"hunt {'x' * 100_000} --classes 4", "Unknown metric"),
        (f"reproduce {'x' * 100_000}", "Unknown figure"),
        (f"verify {'x' * 100_000}", "Unknown claim"),
        ("verify l2-counterexampl", r"\(did you mean l2-counterexample\?\)"),
        ("solve --classes 4 --start 1,1,2 --out x.txt", "`out` must be the name of a NetCDF file"),
    ],
)
def test_errors_are_one_line_and_exit_2(hadaflow, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = hadaflow(*arguments.split())
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and re.search(message, err), err
    assert len(err) < 1200, "what was given is shortened"
    assert not list(tmp_path.iterdir())


ANNOUNCE = """
import sys
from hadaflow.cli import commands as cli
from hadaflow.flow import integrate
original = integrate.chunk_of_steps
def announced(*args):
    result = original(*args)
    print("chunk", file=sys.stderr, flush=True)
    return result
integrate.chunk_of_steps = announced
cli.main()
"""


def test_control_c_leaves_what_was_finished_readable(tmp_path):
    """A long run, interrupted from outside: strict JSON with the finished part, exit code 130."""
    command = [
        sys.executable, "-c", ANNOUNCE, "solve", "--classes", "64", "--start", "uniform:0.001:3:1",
        "--until", "log10time:3000000", "--rtol", "1e-10", "--method", "tsit5", "--json",
        "--out", str(tmp_path / "run.nc"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for _ in range(3):
        assert process.stderr.readline() == "chunk\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    document = strict_json(out)
    assert document["status"] == "interrupted" and len(document["log10_time"]) > 1
    run = hf.load(tmp_path / "run.nc")
    assert run.log10_time[-1] == document["log10_time"][-1] > 1


def test_help_without_arguments(hadaflow):
    code, out, _ = hadaflow()
    assert code == 0 and "Commands" in out


# --- verify --------------------------------------------------------------------------------------


def test_verify_prints_claims_with_their_enclosures(hadaflow):
    code, out, err = hadaflow("verify", "l2-counterexample", "basin-constant", "--json")
    assert code == 0 and err == ""
    records = strict_json(out)
    assert [r["id"] for r in records] == ["l2-counterexample", "basin-constant"]
    keys = "id where statement status method value paper_value enclosure correction".split()
    assert all(list(r) == keys for r in records)
    assert records[0]["status"] == "certified"
    assert records[0]["enclosure"]["K = 8"].startswith("[0.0007330787094099466 +/- ")
    assert records[0]["paper_value"] == 7.3e-4


def test_verify_is_readable(hadaflow):
    code, out, _ = hadaflow("verify", "basin-constant")
    assert code == 0
    assert "certified" in out and "0.9611" in out and out.endswith("1 certified\n")


def test_verify_exits_with_one_and_a_list_when_a_status_is_not_expected(hadaflow, monkeypatch):
    import dataclasses

    from hadaflow.paper import verify
    from hadaflow.paper.claim import CLAIMS

    changed = dataclasses.replace(CLAIMS["basin-constant"], expected="corrected")
    monkeypatch.setitem(verify.CLAIMS, "basin-constant", changed)
    code, _, err = hadaflow("verify", "basin-constant")
    assert code == 1
    assert err.strip().endswith("basin-constant (expected corrected, is certified)")


def test_a_check_that_breaks_down_counts_as_failed(monkeypatch):
    import dataclasses

    from hadaflow.paper import verify
    from hadaflow.paper.claim import CLAIMS

    def broken():
        raise ZeroDivisionError("no such number")

    monkeypatch.setitem(
        verify.CLAIMS, "basin-constant", dataclasses.replace(CLAIMS["basin-constant"], check=broken)
    )
    records, interrupted = verify.verify(["basin-constant"])
    assert records[0]["status"] == "fails as stated" and not interrupted
    assert records[0]["value"]["error"].startswith(
        "ZeroDivisionError: no such number (broken, line"
    )


def test_verify_names_an_unknown_claim(hadaflow):
    code, out, err = hadaflow("verify", "theorem-9")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert "'theorem-9'" in err and "kl-lyapunov" in err


def test_verify_writes_a_page_and_keeps_what_was_there(hadaflow, tmp_path):
    folder = tmp_path / "new"
    code, out, _ = hadaflow("verify", "fano-triples", "--out", folder)
    assert code == 0 and out.endswith("claims.html\n")
    assert hadaflow("verify", "basin-constant", "--json", "--out", folder)[0] == 0
    document = strict_json((folder / "claims.json").read_text())
    assert [r["id"] for r in document["claims"]] == ["fano-triples", "basin-constant"]
    page = (folder / "claims.html").read_text()
    assert "0.961118" in page and "lacks a factor of 2" in page and "<script" not in page


def test_verify_refuses_a_folder_before_the_work(hadaflow, tmp_path, monkeypatch):
    from hadaflow.paper import verify

    monkeypatch.setattr(verify, "check", lambda id: pytest.fail("worked"))
    (tmp_path / "file").write_text("")
    (tmp_path / "claims.html").mkdir()
    for folder in (tmp_path / "file" / "x", tmp_path):
        code, out, err = hadaflow("verify", "basin-constant", "--out", folder)
        assert code == 2 and out == "" and err.count("\n") == 1


def test_verify_is_strict_json_on_any_terminal():
    call = "from hadaflow.cli import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", call, "verify", "fano-triples", "--json"],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0 and strict_json(done.stdout.decode("ascii"))


def test_verify_interrupted_keeps_an_earlier_page(hadaflow, tmp_path, monkeypatch):
    from hadaflow.paper import verify

    assert hadaflow("verify", "basin-constant", "--out", tmp_path)[0] == 0
    before = (tmp_path / "claims.json").read_text()

    def interrupt(id):
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "check", interrupt)
    code, _, err = hadaflow("verify", "fano-triples", "--out", tmp_path)
    assert code == 130 and "interrupted" in err
    assert (tmp_path / "claims.json").read_text() == before
