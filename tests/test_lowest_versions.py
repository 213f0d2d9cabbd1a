"""The lowest versions that `pyproject.toml` declares work: an environment of its own, built of them."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = (
    "test_transforms.py", "test_model.py", "test_trajectory.py", "test_certify.py",
    "test_workers.py", "test_trust.py", "test_cli.py",
)  # fmt: skip


@pytest.fixture(scope="module")
def lowest(tmp_path_factory):
    """The interpreter of an environment with the project and the lowest versions it declares."""
    folder = tmp_path_factory.mktemp("lowest")
    subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
    python = folder / "environment" / "bin" / "python"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pinned = [requirement.replace(">=", "==") for requirement in declared]
    assert all("==" in requirement for requirement in pinned)
    install = [python, "-m", "pip", "install", "--quiet", ROOT, *pinned]
    subprocess.run([*install, "pytest", "hypothesis", "mpmath"], check=True)
    return python


def environment():
    """That of this process, without a path to other packages than those installed there."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def command(python, folder, *arguments):
    found = subprocess.run(
        [python.parent / "hadaflow", *map(str, arguments)],
        cwd=folder, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0 and found.stderr == "", (arguments, found.stderr)
    return found.stdout


@pytest.mark.slow
def test_the_commands_run_on_the_lowest_versions(lowest, tmp_path):
    assert command(lowest, tmp_path, "--version").startswith("hadaflow ")
    for name in ("solve", "train", "show", "plot", "hunt", "certify", "rise", "atlas", "portrait"):
        assert "--help" in command(lowest, tmp_path, name, "--help")
    start = "1,1,1,1.25,0.01,0.01,0.01"
    run = command(lowest, tmp_path, "solve", "--classes", 8, "--start", start, "--json")
    assert json.loads(run)["status"] == "collapsed"
    command(lowest, tmp_path, "solve", "--classes", 4, "--start", "1,2,3", "--out", "run.nc")
    assert "collapsed" in command(lowest, tmp_path, "show", "run.nc")
    command(lowest, tmp_path, "plot", "run.nc", "--out", "run.png")
    command(lowest, tmp_path, "train", "--classes", 4, "--steps", 20, "--json")
    hunt = command(lowest, tmp_path, "hunt", "l2", "--classes", 6, "--out", "c.json", "--json")
    assert json.loads(hunt)["certified"]
    assert command(lowest, tmp_path, "certify", "c.json").startswith("holds")
    command(lowest, tmp_path, "atlas", "--classes", 4)
    command(lowest, tmp_path, "portrait", "--classes", 4, "--metric", "l2")


@pytest.mark.slow
def test_the_tests_pass_on_the_lowest_versions(lowest, tmp_path):
    # Old versions may speak of what newer ones of others no longer have: that is no error here.
    options = ["-q", "-x", "-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    tests = [path for name in TESTS for path in (ROOT / "tests").rglob(name)]
    assert len(tests) == len(TESTS)
    subprocess.run([lowest, "-m", "pytest", *options, *tests], env=environment(), check=True)
