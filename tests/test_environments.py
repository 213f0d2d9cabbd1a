"""The lowest versions and the Pythons that `pyproject.toml` declares, in environments of their own."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = (
    "test_transforms.py", "test_model.py", "test_trajectory.py", "test_certify.py",
    "test_workers.py", "test_trust.py", "test_cli.py", "test_cache.py", "test_programs.py",
    "test_cache_command.py",
)  # fmt: skip


PYTHONS = tuple(f"3.{minor}" for minor in range(11, 15))  # as the classifiers say


def interpreter(version):
    """The Python of this version, if the machine has one: on the path, or with pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    for path in [*([named] if named else []), *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        asked = subprocess.run([path, "--version"], capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.startswith(f"Python {version}."):
            return path
    return None


@pytest.fixture(scope="module", params=["lowest", *PYTHONS])
def python(request, tmp_path_factory):
    """The interpreter of an environment with the project: its lowest versions, or another Python."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    maker, requirements = sys.executable, []
    if request.param == "lowest":
        requirements = [each.replace(">=", "==") for each in declared["dependencies"]]
        assert all("==" in requirement for requirement in requirements)
    else:
        assert f"Programming Language :: Python :: {request.param}" in declared["classifiers"]
        maker = interpreter(request.param)
        if maker is None:
            pytest.skip(f"there is no Python {request.param} here")
        if sys.version.startswith(f"{request.param}."):
            pytest.skip("the Python that runs all tests")
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([maker, "-m", "venv", folder], check=True)
    made = folder / "bin" / "python"
    install = [made, "-m", "pip", "install", "--quiet", ROOT, *requirements]
    subprocess.run([*install, "pytest", "hypothesis", "mpmath"], check=True)
    return made


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
def test_the_commands_run(python, tmp_path):
    assert command(python, tmp_path, "--version").startswith("hadaflow ")
    for name in (
        "solve",
        "train",
        "race",
        "show",
        "plot",
        "hunt",
        "certify",
        "rise",
        "atlas",
        "portrait",
    ):
        assert "--help" in command(python, tmp_path, name, "--help")
    start = "1,1,1,1.25,0.01,0.01,0.01"
    run = command(python, tmp_path, "solve", "--classes", 8, "--start", start, "--json")
    assert json.loads(run)["status"] == "collapsed"
    command(python, tmp_path, "solve", "--classes", 4, "--start", "1,2,3", "--out", "run.nc")
    assert "collapsed" in command(python, tmp_path, "show", "run.nc")
    command(python, tmp_path, "plot", "run.nc", "--out", "run.png")
    command(python, tmp_path, "train", "--classes", 4, "--steps", 20, "--json")
    hunt = command(python, tmp_path, "hunt", "l2", "--classes", 6, "--out", "c.json", "--json")
    assert json.loads(hunt)["certified"]
    assert command(python, tmp_path, "certify", "c.json").startswith("holds")
    command(python, tmp_path, "atlas", "--classes", 4)
    command(python, tmp_path, "portrait", "--classes", 4, "--metric", "l2")


@pytest.mark.slow
def test_the_tests_pass(python):
    # Old versions may speak of what newer ones of others no longer have: that is no error here.
    options = ["-q", "-x", "-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    tests = [path for name in TESTS for path in (ROOT / "tests").rglob(name)]
    assert len(tests) == len(TESTS)
    subprocess.run([python, "-m", "pytest", *options, *tests], env=environment(), check=True)
