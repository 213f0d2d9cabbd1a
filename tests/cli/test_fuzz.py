"""Random command lines: whatever is asked, the answer is a document, a readable text or one sentence."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import command_lines
import hadaflow as hf
from hadaflow.cli import commands as cli

LIMIT = 60.0  # seconds, to notice what hangs
OWN = "def largest(a):\n    return max(a)\n"


class Hang(BaseException):
    """A line that does not come to an end."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with what lines may name: runs, certificates, labels, a metric, and damaged ones."""
    folder = tmp_path_factory.mktemp("files")
    model = hf.UFM(4)
    run = hf.solve(model, [1.0, 0.5, 0.1], hf.Time(1e3), points=9, progress=None)
    run.save(folder / "good.nc")
    start = hf.gaussian(model, 0.3, [0, 1])
    hf.descend(model, start, 20, 0.1, points=5, progress=None).save(folder / "batch.nc")
    data = bytearray((folder / "good.nc").read_bytes())
    data[len(data) // 2] ^= 8
    (folder / "damaged.nc").write_bytes(data)
    proof = hf.certify("kl", ["1", "1/2", "0.1"])
    proof.save(folder / "certificate.json")
    forged = proof.to_document() | {"metric": "own:largest", "enclosure": "1/0", "source": "0" * 64}
    (folder / "forged.json").write_text(json.dumps(forged))
    (folder / "words.txt").write_text("no numbers \x1b[31m here")
    (folder / "labels.txt").write_text("0.7 0.1 0.1 0.1")
    (folder / "own.py").write_text(OWN)
    return folder


def strict_document(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


def check_answer(words, code, out, err, left_behind):
    """Exit 0 or 1 with a document or a text, or 2 with one sentence; nothing half-written."""
    told = f"{words}\n{code}\n{out[-2000:]}\n{err[-3000:]}"
    assert code in (0, 1, 2), told
    assert "Traceback" not in err and "Warning" not in err and "\x1b" not in err + out, told
    assert not [name for name in left_behind if ".hadaflow-" in name], told
    assert len(err) < 1500 and err.count("\n") == (code > 0 and bool(err)), told
    if err:
        assert re.fullmatch(r"hadaflow: \S.*[^\s]\n", err), told
    if code == 2:
        assert out == "" and err and not left_behind, told
    elif "--json" in words and "--help" not in words and "--version" not in words:
        document = strict_document(out)
        if words[0] in ("solve", "train", "show") and "--estimate" not in words:
            assert (document["status"] == "failed") == (code == 1), told
    else:
        assert out.strip(), told


def run_here(words, files, folder, monkeypatch, capfd):
    """One line inside this process, in a folder of its own."""
    shutil.copytree(files, folder)
    before = set(os.listdir(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["hadaflow", *words])
    monkeypatch.delitem(sys.modules, "own", raising=False)

    def hang(*_):
        raise Hang(words)

    signal.signal(signal.SIGUSR1, hang)
    watch = threading.Timer(LIMIT, os.kill, (os.getpid(), signal.SIGUSR1))
    watch.start()
    try:
        with pytest.raises(SystemExit) as end:
            cli.main()
    finally:
        watch.cancel()
    out, err = capfd.readouterr()
    left_behind = set(os.listdir(folder)) - before - {"__pycache__"}
    check_answer(words, end.value.code, out, err, left_behind)
    shutil.rmtree(folder)


def some(count, quick):
    """Parts of a test, a few of them in every run."""
    return [pytest.param(i, marks=() if i in quick else pytest.mark.slow) for i in range(count)]


@pytest.mark.parametrize("part", some(15, quick=(1, 3, 5, 7)))
def test_any_line_gets_an_answer(part, files, tmp_path, monkeypatch, capfd):
    for i in range(10 * part, 10 * part + 10):
        run_here(command_lines.line(i), files, tmp_path / "here", monkeypatch, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(100))
def test_many_lines_get_an_answer(part, files, tmp_path, monkeypatch, capfd):
    """2 000 lines, with more nasty values in the later ones."""
    for i in range(20 * part, 20 * part + 20):
        words = command_lines.line(10_000 + i, nasty=0.02 + 0.0001 * i)
        run_here(words, files, tmp_path / "here", monkeypatch, capfd)


@pytest.mark.parametrize("seed", some(10, quick=range(5)))
def test_lines_as_processes(seed, files, tmp_path):
    words = command_lines.line(5_000 + seed)
    shutil.copytree(files, tmp_path / "here")
    before = set(os.listdir(tmp_path / "here"))
    done = subprocess.run(
        [sys.executable, "-m", "hadaflow", *words], cwd=tmp_path / "here", capture_output=True,
        text=True, timeout=3 * LIMIT, check=False,
    )  # fmt: skip
    left_behind = set(os.listdir(tmp_path / "here")) - before - {"__pycache__"}
    check_answer(words, done.returncode, done.stdout, done.stderr, left_behind)


def test_the_check_notices():
    """What no answer may be is refused by the check itself."""
    bad = [
        (0, "", "", set()), (2, "text", "hadaflow: no.\n", set()), (1, "{}", "", set()),
        (0, '{"status": NaN}', "", set()), (2, "", "hadaflow: one\nhadaflow: two\n", set()),
        (2, "", "Traceback (most recent call last):\n", set()), (0, "{}", "Warning: x\n", set()),
        (2, "", "hadaflow: no.\n", {"run.nc"}), (3, "{}", "", set()),
        (0, '{"status": "failed"}', "", set()),
    ]  # fmt: skip
    for code, out, err, files in bad:
        with pytest.raises((AssertionError, ValueError, KeyError)):
            check_answer(["solve", "--json"], code, out, err, files)
    check_answer(["solve", "--json"], 0, '{"status": "reached"}', "", set())


def test_lines_reach_every_command():
    words = [command_lines.line(i)[:1] for i in range(150)]
    commands = {"solve", "train", "show", "plot", "hunt", "certify", "rise", "atlas", "portrait",
                "resume", "predict-collapse", "fixed-point", "stability-limit"}  # fmt: skip
    assert commands <= {w[0] for w in words if w}
    assert np.mean([w[:1] == ["solve"] for w in words]) > 0.2
