"""Commands and their cache: what the second one is spared, and what it is told."""

import json
import os
import pty
import shutil
import subprocess
import sys

import pytest

from hadaflow.base.cache import Cache

HANG = 120  # seconds; nothing here is about speed
SOLVE = ("solve", "--classes", "8", "--start", "1,1,1,1.25,.01,.01,.01", "--json")
# What a process has imported in the end, too: what is traced needs diffrax.
HEAVY = {"jax", "diffrax", "xarray", "pandas", "matplotlib", "scipy.optimize"}
WATCHED = f"""
import os, sys
from hadaflow.cli import commands
end = os._exit
def told(code):
    print(*sorted({HEAVY} & {{*sys.modules}}), file=sys.stderr)
    sys.stderr.flush()
    end(code)
os._exit = told
commands.run()
"""


def hadaflow(folder, *arguments, code=None, **variables):
    start = ["-m", "hadaflow"] if code is None else ["-c", code]
    done = subprocess.run(
        [sys.executable, *start, *map(str, arguments)], capture_output=True, text=True, timeout=HANG,
        env=os.environ | {"HADAFLOW_CACHE": str(folder), "XLA_FLAGS": ""} | variables, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def answer(out):
    """A document without the time it took."""
    document = json.loads(out)
    del document["diagnostics"]["wall_seconds"]
    return document


QUIETLY = "from hadaflow.base import progress\nprogress._QUIET_SECONDS = 0.05\n"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with the programs of one command, what it said, and what it had imported."""
    folder = tmp_path_factory.mktemp("kept") / "programs"
    code, out, err = hadaflow(folder, *SOLVE, code=QUIETLY + WATCHED)
    assert code == 0
    return folder, answer(out), err


@pytest.fixture
def folder(kept, tmp_path):
    """The same programs, to do with as one likes."""
    return shutil.copytree(kept[0], tmp_path / "programs")


@pytest.mark.parametrize(
    "more",
    [
        (),
        pytest.param(("--label-smoothing", "0.1"), marks=pytest.mark.slow),
        pytest.param(("--method", "dual", "--rtol", "1e-4"), marks=pytest.mark.slow),
    ],
    ids=["explicit", "implicit", "dual"],
)
def test_the_second_command_traces_nothing_and_says_the_same(folder, kept, tmp_path, more):
    """Implicit steps call LAPACK, which has to be set up by a process that compiles nothing."""
    _, first, err = kept
    if more:
        folder = tmp_path / "others"
        code, out, err = hadaflow(folder, *SOLVE, *more, code=WATCHED)
        assert code == 0
        first = answer(out)
    assert "diffrax" in err
    count = len(Cache(folder).entries())
    assert count > 3
    code, out, err = hadaflow(folder, *SOLVE, *more, code=WATCHED)
    assert code == 0 and answer(out) == first
    assert err.split() in (["jax"], ["jax", "scipy.optimize"])
    other = (
        "solve",
        "--classes",
        "8",
        "--start",
        "uniform:0.5:1:3",
        "--temperature",
        "2",
        "--json",
    )
    code, out, err = hadaflow(folder, *other, *more, code=WATCHED)
    assert code == 0 and "diffrax" not in err and answer(out) != first
    assert len(Cache(folder).entries()) == count
    code, out, err = hadaflow("off", *SOLVE, *more)
    assert code == 0 and err == "" and answer(out) == first


def test_a_damaged_cache_is_no_word_to_the_user(kept, folder):
    entries = Cache(folder).entries()
    for i, (path, found) in enumerate(entries):
        path.write_bytes(path.read_bytes()[: i * found.st_size // len(entries)])
    code, out, err = hadaflow(folder, *SOLVE)
    assert (code, err) == (0, "") and answer(out) == kept[1]
    cache = Cache(folder)
    assert len(cache.entries()) == len(entries) > 3
    assert all(cache.get(path.stem) is not None for path, _ in cache.entries())


@pytest.mark.parametrize(
    "place", ["/proc/self/programs", pytest.param("/dev/null", marks=pytest.mark.slow)]
)
def test_a_cache_that_cannot_be_kept_is_no_word_to_the_user(place):
    code, out, err = hadaflow(place, *SOLVE)
    assert (code, err) == (0, "") and json.loads(out)["status"] == "collapsed"


def test_the_estimate_knows_what_is_compiled(folder, tmp_path):
    estimate = ("solve", *SOLVE[1:5], "--estimate")
    code, out, err = hadaflow(tmp_path / "empty", *estimate)
    assert (code, err) == (0, "") and "of compilation, once" in out
    code, out, err = hadaflow(folder, *estimate, "--json")
    assert (code, err) == (0, "") and json.loads(out)["compile_seconds"] == 0
    assert hadaflow(folder, *estimate)[1].endswith("compiled already\n")
    code, out, err = hadaflow(folder, *estimate, "--depth", "3", "--until", "time:9", "--json")
    assert json.loads(out)["compile_seconds"] > 0


# --- the command -----------------------------------------------------------------------------------


def test_the_command_says_where_how_big_and_how_many_and_clears(tmp_path):
    folder = tmp_path / "programs"
    nothing = {
        "folder": str(folder), "used": True, "programs": 0, "bytes": 0, "most_bytes": 256 * 10**6,
    }  # fmt: skip
    code, out, err = hadaflow(folder, "cache", "--json")
    assert (code, json.loads(out), err) == (0, nothing, "") and not folder.exists()
    cache = Cache(folder)
    cache.put("0" * 64, bytes(10**6))
    cache.put("1" * 64, bytes(10**6))
    (folder / "mine").write_text("stays")
    size = sum(found.st_size for _, found in cache.entries())
    code, out, err = hadaflow(folder, "cache", "--json")
    assert json.loads(out) == nothing | {"programs": 2, "bytes": size}
    code, out, err = hadaflow(folder, "cache")
    assert (code, err) == (0, "")
    assert out == f"folder    {folder}\nprograms  2, 2.0 MB of at most 256.0 MB\n"
    code, out, err = hadaflow(folder, "cache", "clear")
    assert (code, out, err) == (0, "removed 2 programs, 2.0 MB\n", "")
    code, out, err = hadaflow(folder, "cache", "clear", "--json")
    assert (code, json.loads(out), err) == (0, {"removed": 0, "bytes": 0}, "")
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_the_command_says_why_a_cache_is_not_used(tmp_path):
    folder = tmp_path / "hadaflow"
    folder.mkdir()
    folder.chmod(0o777)
    code, out, err = hadaflow(folder, "cache")
    assert code == 0 and err == "" and "others may write to it" in out
    assert not json.loads(hadaflow(folder, "cache", "--json")[1])["used"]
    code, out, err = hadaflow("off", "cache", XDG_CACHE_HOME=str(tmp_path))
    assert code == 0 and err == "" and f"folder    {folder}\n" in out
    assert out.endswith("not used: HADAFLOW_CACHE is off\n")


def test_the_command_and_bad_words(tmp_path):
    for arguments in (("cache", "clean"), ("cache", "clear", "all"), ("cache", "--all")):
        code, out, err = hadaflow(tmp_path, *arguments)
        assert code == 2 and out == "" and err.count("\n") == 1 and "Traceback" not in err
    code, out, err = hadaflow(tmp_path, "cache", code=WATCHED.replace("os._exit = told", ""))
    assert code == 0
    code = 'import sys; sys.argv = ["hadaflow", "cache"]\nfrom hadaflow.cli.commands import main\n'
    code += "try: main()\nexcept SystemExit: assert 'jax' not in sys.modules"
    assert hadaflow(tmp_path, code=code)[0] == 0


# --- on a terminal ---------------------------------------------------------------------------------

SOON_SAID = QUIETLY + "from hadaflow.cli.commands import run\nrun()\n"


def on_terminal(folder, *arguments):
    """What a command writes to a terminal while it works."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SOON_SAID, *arguments], stdout=subprocess.PIPE, stderr=theirs,
        env=os.environ | {"HADAFLOW_CACHE": str(folder), "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with process:
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # nobody is at the other end any more
                break
            if not part:
                break
            shown += part
        assert process.stdout is not None and b"collapsed" in process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    return shown.decode()


def test_a_first_run_says_that_it_compiles_and_a_second_does_not(tmp_path):
    shown = on_terminal(tmp_path / "programs", *SOLVE[:-1])
    assert shown.count("compiling, once") > 2  # the line is alive while XLA works
    assert shown.rstrip().endswith("\x1b[2K")  # and gone in the end
    assert "compiling" not in on_terminal(tmp_path / "programs", *SOLVE[:-1])


def test_without_a_terminal_nothing_is_said(kept):
    """Nothing but what this process was told to say in the end."""
    assert {*kept[2].split()} <= HEAVY and kept[2].count("\n") == 1
