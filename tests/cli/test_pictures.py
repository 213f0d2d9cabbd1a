"""`plot` of one file and of several, and `resume`, on the command line."""

import json

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.cli.commands import main

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


@pytest.fixture
def run_line(monkeypatch, capsys, tmp_path):
    """A command line as exit code, standard output and standard error, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["hadaflow", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


@pytest.fixture
def saved(run_line, tmp_path):
    """Files of a run, of a batch and of a descent."""
    hf.solve(hf.UFM(8), FIGURE_1, hf.Time(1e3), points=20).save(tmp_path / "one.nc")
    hf.solve(hf.UFM(8), "figure1", hf.Norm(9.0), points=9).save(tmp_path / "two.nc")
    hf.solve(hf.UFM(8), np.eye(7) + 0.1, hf.Norm(9.0), points=9).save(tmp_path / "many.nc")
    hf.solve(hf.UFM(8), np.eye(7) + 0.1, hf.Norm(9.0)).save(tmp_path / "ends.nc")
    return tmp_path


def test_several_files_are_compared(run_line, saved):
    code, out, err = run_line("plot", "one.nc", "two.nc", "many.nc", "--metric", "kl")
    assert (code, out, err) == (0, "wrote one-two-many.png\n", "")
    assert (saved / "one-two-many.png").stat().st_size > 10_000
    code, out, _ = run_line("plot", "one.nc", "two.nc", "--out", "c.svg", "--json")
    assert json.loads(out) == {"picture": "c.svg"}
    text = (saved / "c.svg").read_text()
    assert "<svg" in text
    code, out, _ = run_line(
        "plot", "many.nc", "--metric", "l2", "--spread", "all", "--x", "log_norm", "--out", "b.png"
    )
    assert (code, out) == (0, "wrote b.png\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plot one.nc --x iteration", "`x` must be one of auto"),
        ("plot one.nc two.nc --x hour", "`x` must be one of auto"),
        ("plot one.nc one.nc", "`files` must name each file once"),
        ("plot one.nc --metric kk", "Unknown metric"),
        ("plot one.nc two.nc --out two.nc", "would overwrite"),
        ("plot one.nc --spread wide", "`spread` must be one of auto"),
        ("plot one.nc nowhere.nc", "there is no such file"),
        ("plot ends.nc --x log_norm", "`x` is for curves"),
        ("plot ends.nc --spread all", "(`--points 50`)"),
        ("plot one.nc ends.nc --metric kl", "`runs` must hold curves"),
        ("resume nowhere.nc", "there is no such file"),
        ("resume one.nc --metric kk", "Unknown metric"),
    ],
)
def test_odd_lines_are_one_sentence(run_line, saved, line, message):
    code, out, err = run_line(*line.split())
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
    assert not (saved / "one.png").exists()


def test_an_interrupted_run_goes_on_in_its_file(run_line, saved):
    def stop(text, fraction=None):
        if not text.startswith("compiling"):
            raise KeyboardInterrupt

    cut = hf.solve(hf.UFM(8), FIGURE_1, hf.Collapse(1e-6), method="tsit5", progress=stop)
    assert cut.status == "interrupted"
    cut.save(saved / "cut.nc")
    code, out, _ = run_line("resume", "cut.nc", "--metric", "l2", "--json")
    document = json.loads(out)
    assert code == 0 and document["status"] == "collapsed"
    assert document["log10_time"][-1] == pytest.approx(3614.8996, abs=1e-3)
    assert hf.load(saved / "cut.nc").status == "collapsed"
    before = (saved / "cut.nc").read_bytes()
    code, out, _ = run_line("resume", "cut.nc")
    assert code == 0 and "collapsed" in out and "wrote" not in out
    assert (saved / "cut.nc").read_bytes() == before, "what has ended is left alone"
