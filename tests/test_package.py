"""The package as others get it: built, checked, installed into an empty environment and used there.

`make wheel` builds into dist/ and tries what lies there; without it a wheel is built for the test.
"""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
# In the environment and nowhere else: no path to the sources, to settings or to a cache of pip's.
BARE = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "JAX", "VIRTUAL_ENV"))}


def called(*command, **options):
    return subprocess.run(
        [str(part) for part in command], env=BARE, capture_output=True, text=True, **options
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder with a wheel and a source distribution."""
    if (made := os.environ.get("HADAFLOW_DIST")) is not None:
        return Path(made).absolute()
    pytest.importorskip("build", reason="`make wheel` installs what builds packages")
    folder = tmp_path_factory.mktemp("dist")
    built = called(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    (found,) = dist.glob(f"hadaflow-{VERSION}-py3-none-any.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The `bin` folder of an environment that has the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip"]
    found = called(*pip, "install", "--quiet", wheel)
    assert found.returncode == 0, found.stderr
    assert called(*pip, "check").returncode == 0
    return folder / "bin"


def test_the_wheel_has_the_library_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = archive.read(f"hadaflow-{VERSION}.dist-info/METADATA").decode()
        entry = archive.read(f"hadaflow-{VERSION}.dist-info/entry_points.txt").decode()
    sources = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py")}
    extra = {"hadaflow/py.typed", "hadaflow/__init__.pyi"}
    assert {name for name in names if ".dist-info/" not in name} == sources | extra
    assert f"hadaflow-{VERSION}.dist-info/licenses/LICENSE" in names
    assert "hadaflow = hadaflow.__main__:run" in entry
    assert f"Requires-Python: {PROJECT['requires-python']}" in metadata
    for requirement in PROJECT["dependencies"]:
        assert f"Requires-Dist: {requirement}\n" in metadata


def test_the_sources_are_whole(dist):
    with tarfile.open(dist / f"hadaflow-{VERSION}.tar.gz") as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "src/hadaflow/py.typed",
    } <= names
    assert "tests/test_package.py" in names and "docs/images/figure1.png" in names
    assert not any(
        name.startswith((".", "out", "site", "dist")) and name != ".gitignore" for name in names
    )


def test_twine_finds_nothing_wrong(dist):
    pytest.importorskip("twine", reason="`make wheel` installs what checks packages")
    checked = called(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == 2


def test_it_imports_says_its_version_and_is_typed(installed, tmp_path):
    code = (
        "import sys, hadaflow as hf, pathlib; assert 'jax' not in sys.modules; "
        "print(hf.__version__, (pathlib.Path(hf.__file__).parent / 'py.typed').exists()); "
        "assert 'site-packages' in hf.__file__; assert set(hf.__all__) <= set(dir(hf))"
    )
    found = called(installed / "python", "-c", code, cwd=tmp_path)
    assert (found.stdout, found.stderr) == (f"{VERSION} True\n", "")
    assert called(installed / "hadaflow", "--version").stdout == f"hadaflow {VERSION}\n"
    told = called(installed / "hadaflow", "--help")
    assert told.returncode == 0 and "certify" in told.stdout and told.stderr == ""


def test_it_solves_certifies_and_draws(installed, tmp_path):
    def hadaflow(*arguments):
        found = called(installed / "hadaflow", *arguments, cwd=tmp_path)
        assert found.returncode == 0 and found.stderr == "", found.stderr
        return found.stdout

    run = json.loads(
        hadaflow("solve", "--classes", 8, "--start", "figure1", "--out", "run.nc", "--json")
    )
    assert run["status"] == "collapsed" and run["version"] == VERSION
    assert run["log10_time"][-1] == pytest.approx(3614.8996, abs=1e-3)
    hadaflow("plot", "run.nc")
    assert (tmp_path / "run.png").stat().st_size > 20_000
    certificate = ROOT / "docs" / "certificates" / "l2-k8-paper.json"
    assert hadaflow("certify", certificate).startswith("holds")
