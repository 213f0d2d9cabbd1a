"""Commands as processes: stopped, killed, short of disk or without anybody to tell."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

import hadaflow as hf
from hadaflow.base import files
from hadaflow.paper import figures, reproduce
from hadaflow.paper.settings import Settings

HANG = 120  # seconds; nothing here is about speed
LONG_SOLVE = (
    "solve", "--classes", 64, "--start", "uniform:0.001:3:1", "--until", "log10time:3000000",
    "--rtol", 1e-10, "--method", "tsit5",
)  # fmt: skip
LONG_TRAIN = ("train", "--classes", 4, "--steps", 10**9, "--seeds", 2)
CERTIFICATE = next(iter(sorted(Path(__file__).parents[2].glob("docs/certificates/*.json"))))

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def begin(*arguments, **options):
    """`hadaflow` as a process; what it says is read as bytes."""
    call = [sys.executable, "-m", "hadaflow", *map(str, arguments)]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(call, **given)


def finish(process):
    with process:
        try:
            out, err = process.communicate(timeout=HANG)
        finally:
            process.kill()
    return process.returncode, (out or b"").decode(), (err or b"").decode()


def run(*arguments, **options):
    return finish(begin(*arguments, **options))


def until(condition, process=None):
    """Wait for something that happens soon, unless all is lost."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "hangs"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)


def cpu_seconds(pid):
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendants(pid):
    """Processes begun by `pid`, and by those, while their parents live."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        new = children.get(todo.pop(), [])
        found += new
        todo += new
    return found


def living(pids):
    def alive(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return [pid for pid in pids if alive(pid)]


def hidden(folder):
    return [p.name for p in Path(folder).iterdir() if p.name.startswith(".")]


# --- signals -------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (LONG_SOLVE, signal.SIGTERM),
        pytest.param(LONG_TRAIN, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(LONG_TRAIN, signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param(LONG_SOLVE, signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_says_what_is_finished(arguments, number, tmp_path):
    process = begin(*arguments, "--json", "--out", tmp_path / "run.nc")
    until(lambda: cpu_seconds(process.pid) > 5, process)
    process.send_signal(number)
    process.send_signal(number)  # as `timeout` does
    code, out, err = finish(process)
    assert code == 128 + number and err == ""
    document, saved = json.loads(out), hf.load(tmp_path / "run.nc")
    assert document["status"] == saved.status == "interrupted"
    assert saved.points == len(document["log10_time"]) > 1
    assert hidden(tmp_path) == []


@linux
def test_a_signal_while_jax_is_imported_is_one_line():
    for number in (signal.SIGTERM, signal.SIGINT):
        process = begin(*LONG_SOLVE)
        until(lambda p=process: "jaxlib" in Path(f"/proc/{p.pid}/maps").read_text(), process)
        process.send_signal(number)
        code, out, err = finish(process)
        assert code == 128 + number, (code, err)
        assert (out, err) == ("", "hadaflow: interrupted\n") or "Interrupted at the start" in out


def test_ignored_signals_stay_ignored(tmp_path):
    """`nohup` and the background of a shell ask for that."""
    command = (
        f"trap '' HUP; exec {sys.executable} -m hadaflow train --classes 2 --steps 2000 --seeds 1"
    )
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE)
    for _ in range(20):
        time.sleep(0.1)
        process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=HANG)
    assert process.returncode == 0 and b"All 2000 iterations done" in out


@pytest.mark.slow
@linux
@pytest.mark.parametrize("attempt", range(20))
def test_signals_at_any_moment_lose_nothing_and_never_spill(attempt, tmp_path):
    """A run of a few seconds, interrupted anywhere: it is saved, or says that nothing was."""
    draw = random.Random(attempt)
    number = draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    out_file = tmp_path / "run.nc"
    process = begin(
        "solve", "--classes", 32, "--start", "uniform:0.01:3:1", "--until", "log10time:5000",
        "--method", "tsit5", "--out", out_file,
    )  # fmt: skip
    until(lambda: b"hadaflow" in Path(f"/proc/{process.pid}/cmdline").read_bytes(), process)
    time.sleep(0.15 + 8 * draw.random() ** 2)  # the interpreter itself is not ours yet
    process.send_signal(number)
    code, out, err = finish(process)
    assert code in (0, 128 + number) and "Traceback" not in err and "ignored" not in err
    assert err in ("", "hadaflow: interrupted\n")
    if err == "":
        assert hf.load(out_file).status in ("reached", "interrupted") and "wrote" in out
    else:
        assert not out_file.exists() and out == "" and code != 0
    assert hidden(tmp_path) == []


@linux
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(
            ("rise", "l2", "--classes", 8, "--seconds", 600, "--starts", 10**6, "--json"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("hunt", "kl", "--classes", 128, "--seconds", 600, "--starts", 10**8, "--json"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("atlas", "--classes", 64, "--seconds", 600, "--starts", 10**5, "--json"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (
                "solve",
                "--classes",
                512,
                "--start",
                "uniform:0.001:3:1",
                "--method",
                "kvaerno5",
                "--until",
                "log10time:1e6",
                "--json",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("train", "--classes", 512, "--steps", 10**6, "--seeds", 4, "--json"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_long_command_stops_soon(arguments):
    """How soon is not for a test; that it stops at all, with what it has, is."""
    process = begin(*arguments)
    # A rise, whose programs may be kept already, ends by itself before long.
    until(lambda: cpu_seconds(process.pid) > (5 if arguments[0] == "rise" else 14), process)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130 and "Traceback" not in err
    assert time.monotonic() - began < 60, "hangs"
    document = json.loads(out)
    assert document.get("interrupted", True) and document.get("status") in (None, "interrupted")


def test_control_c_of_a_batch_ends_the_runs_that_have_begun(monkeypatch):
    """From the library: every run says how far it came."""
    from hadaflow.flow import batches

    model = hf.UFM(8)
    starts = np.exp(np.random.default_rng(0).normal(size=(6, 7)))
    real = batches.wait
    calls = []

    def interrupt(jobs, timeout):
        calls.append(0)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return real(jobs, timeout)

    monkeypatch.setattr(batches, "wait", interrupt)
    found = hf.solve(
        model, starts, hf.Time(log10=1e6), method="tsit5", rtol=1e-12, points=3, progress=None
    )
    assert found.diagnostics["statuses"] == ["interrupted"] * 6
    assert found.log10_time.shape[0] == 6


# --- children ------------------------------------------------------------------------------------


def begin_with_workers(tmp_path, command):
    arguments = {
        "verify": ("verify", "--json"),
        "reproduce": ("reproduce", "--quick", "--out", tmp_path / "out", "--json"),
    }[command]
    process = begin(*arguments)
    until(lambda: len(descendants(process.pid)) >= 3, process)  # two, and the tracker
    return process


def assert_alone_at_the_end(process, number, delay):
    time.sleep(delay)
    children = descendants(process.pid)
    assert len(children) >= 3
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == (-9 if number == signal.SIGKILL else 128 + number) and "Traceback" not in err
    until(lambda: not living(children))


@linux
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("verify", signal.SIGKILL),
        pytest.param("reproduce", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_children_end_with_their_parent(command, number, tmp_path):
    assert_alone_at_the_end(begin_with_workers(tmp_path, command), number, 1.0)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(10))
def test_children_end_with_their_parent_whenever_it_ends(attempt, tmp_path):
    draw = random.Random(attempt)
    command = draw.choice(["verify", "reproduce"])
    number = [signal.SIGKILL, signal.SIGTERM][attempt % 2]
    assert_alone_at_the_end(begin_with_workers(tmp_path, command), number, 15 * draw.random() ** 2)


@linux
def test_a_signal_to_the_whole_group_is_answered_by_the_parent(tmp_path):
    """Ctrl-C on a terminal reaches the workers too."""
    process = begin("verify", "--json", "--out", tmp_path, start_new_session=True)
    until(lambda: len(descendants(process.pid)) >= 3, process)
    children = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130 and json.loads(out) == []
    assert err == "hadaflow: interrupted; the claims above are those that were finished\n"
    until(lambda: not living(children))


# --- files ---------------------------------------------------------------------------------------


WRITER = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from hadaflow.base.files import write_atomically
def write(name):
    Path(name).write_text("half")
    print("writing", flush=True)
    sys.stdin.readline()
    Path(name).write_text("whole")
write_atomically(Path(sys.argv[1]), write)
"""


def test_drafts_of_the_dead_are_removed_and_of_the_living_are_not(tmp_path):
    target, other = tmp_path / "k4.png", tmp_path / "other.nc"
    mine = tmp_path / ".k4.png.mybackup"
    mine.write_text("mine")

    def begin_writing(path):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout.readline() == "writing\n"
        return process

    dead, living_one = begin_writing(target), begin_writing(other)
    assert len(hidden(tmp_path)) == 3
    dead.kill()
    dead.communicate()
    assert len(hidden(tmp_path)) == 3 and not target.exists()
    files.write_atomically(target, lambda name: Path(name).write_text("new"))
    assert [n for n in hidden(tmp_path) if n.startswith(".other.nc.")]
    assert not [n for n in hidden(tmp_path) if n.startswith(".k4.png.hadaflow")]
    living_one.communicate("\n", timeout=HANG)
    assert living_one.returncode == 0 and other.read_text() == "whole"
    assert target.read_text() == "new" and mine.read_text() == "mine"
    assert hidden(tmp_path) == [mine.name]


def test_many_processes_write_the_same_file_at_once(tmp_path):
    """None takes another's draft for stale, whatever the moment."""
    target = tmp_path / "x.txt"
    call = (
        "import sys; from pathlib import Path; from hadaflow.base.files import write_atomically\n"
        "for i in range(300): write_atomically(Path(sys.argv[1]), lambda n: Path(n).write_text('x'*i))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", call, str(target)]) for _ in range(4)]
    assert [p.wait(HANG) for p in processes] == [0] * 4
    assert target.read_text() == "x" * 299 and hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["x.nc", "x.json", pytest.param("x.png", marks=pytest.mark.slow)])
def test_a_full_disk_is_one_line_that_names_the_file(name, tmp_path):
    """A limit on the size of files stands in for the disk."""
    saved = tmp_path / "saved.nc"
    hf.solve(hf.UFM(4), [1, 2, 3], hf.Time(1e3), progress=None).save(saved)
    arguments = {
        "x.nc": ("solve", "--classes", 4, "--start", "1,2,3"),
        "x.json": (
            "certify", "l2", "--classes", 256, "--start", ",".join(f"{i}.123456789" for i in range(255)),
        ),
        "x.png": ("plot", saved),
    }[name]  # fmt: skip
    path = tmp_path / name
    command = shlex.join(["hadaflow", *map(str, arguments), "--out", str(path)])
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    code, out, err = shell(f"ulimit -f 2; {command}", env=environment)
    assert code == 2 and err == f"hadaflow: Cannot write '{path}': File too large.\n"
    assert ("collapsed" in out) == (name == "x.nc") and "wrote" not in out  # the answer is said
    assert {p.name for p in tmp_path.iterdir()} == {"saved.nc"}


@pytest.mark.slow
@linux
def test_a_folder_that_vanishes_meanwhile_is_one_line(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    process = begin(*LONG_TRAIN, "--json", "--out", folder / "run.nc")
    until(lambda: cpu_seconds(process.pid) > 4, process)
    shutil.rmtree(folder)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert code == 2 and json.loads(out)["status"] == "interrupted"
    assert err == f"hadaflow: Cannot write '{folder / 'run.nc'}': the folder does not exist.\n"


# --- reproduce, killed ---------------------------------------------------------------------------

SMALL = ("logits", "k4", "k4-standard-scale")
OPTIONS = ("--seeds", 1, "--steps", 300)


def make_small(folder):
    return begin("reproduce", *SMALL, *OPTIONS, "--quick", "--json", "--out", folder)


def contents(folder):
    """Records without what differs from run to run, and the numbers."""
    records, data = {}, {}
    for name in SMALL:
        record = json.loads((folder / f"{name}.json").read_text())
        for key in ("seconds", "versions", "files"):
            record.pop(key)
        records[name] = record
        with xr.open_dataset(folder / f"{name}.nc", engine="scipy") as dataset:
            data[name] = dataset.load()
    return records, data


@pytest.mark.slow
@linux
def test_reproduce_killed_at_thirty_random_moments_loses_nothing(tmp_path):
    assert finish(make_small(tmp_path / "whole"))[0] == 0
    records, data = contents(tmp_path / "whole")
    began, draw = time.monotonic(), random.Random(0)
    assert finish(make_small(tmp_path / "again"))[0] == 0  # all is compiled by now
    seconds = time.monotonic() - began
    folder, kills, before, children = tmp_path / "out", 0, {}, []
    while kills < 30:
        process = make_small(folder)
        try:
            process.wait(draw.uniform(0.1, seconds))
        except subprocess.TimeoutExpired:
            children = descendants(process.pid)
            kills += 1
        process.kill()
        process.communicate()
        until(lambda c=children: not living(c))
        marks = finished_figures(folder)
        assert marks.items() >= before.items()  # neither lost nor made again
        before = marks
        if process.returncode == 0:
            again, numbers = contents(folder)
            assert again == records and hidden(folder) == []
            for name in SMALL:
                xr.testing.assert_identical(numbers[name], data[name])
            shutil.rmtree(folder)
            before = {}


def finished_figures(folder):
    """Which figures count as finished, and the file that each record is."""
    settings = Settings(seeds=1, steps=300, quick=True)
    done = [n for n in SMALL if reproduce.finished(n, folder, settings)]
    return {name: (folder / f"{name}.json").stat().st_ino for name in done}


@pytest.mark.slow
def test_two_runs_into_one_folder(tmp_path):
    """At once, with the same settings and with others: each figure is whole, each answer its own."""
    both = [make_small(tmp_path / "same") for _ in range(2)]
    assert [finish(p)[0] for p in both] == [0, 0]
    settings = Settings(seeds=1, steps=300, quick=True)
    assert all(reproduce.finished(n, tmp_path / "same", settings) for n in SMALL)
    assert hidden(tmp_path / "same") == []
    others = [
        begin("reproduce", "k4", "logits", "--seeds", n, "--steps", 300, "--quick", "--json",
              "--out", tmp_path / "mixed")
        for n in (1, 2)
    ]  # fmt: skip
    answers = [finish(p) for p in others]
    assert [code for code, *_ in answers] == [0, 0]
    seeds = [json.loads(out)["figures"][0]["settings"]["seeds"] for _, out, _ in answers]
    assert seeds == [1, 2]
    for name in ("k4", "logits"):
        choices = [Settings(seeds=n, steps=300, quick=True) for n in (1, 2)]
        assert any(reproduce.finished(name, tmp_path / "mixed", s) for s in choices)


def test_two_verify_into_one_folder_keep_both(tmp_path):
    processes = [
        begin("verify", id, "--out", tmp_path) for id in ("fano-triples", "basin-constant")
    ]
    assert [finish(p)[0] for p in processes] == [0, 0]
    document = json.loads((tmp_path / "claims.json").read_text())
    assert [r["id"] for r in document["claims"]] == ["fano-triples", "basin-constant"]


# --- exit codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "options", "code"),
    [("logits", ["--seeds", "3"], 1), ("k4", [], 1), ("k4", ["--quick"], 1),
     ("k4", ["--seeds", "3"], 0), ("k4", ["--lr", "0.02"], 0)],
)  # fmt: skip
@pytest.mark.parametrize("as_json", [True, False])
def test_a_failed_check_at_the_paper_s_settings_exits_with_one(
    figure, options, code, as_json, monkeypatch, capsys, tmp_path
):
    from hadaflow.cli import commands as cli

    check = {"statement": "KL falls, by", "value": -0.25, "holds": False}
    record = {"name": figure, "checks": [check], "seconds": 1.0}
    monkeypatch.setattr(reproduce, "reproduce", lambda *args, **kwargs: [record])
    more = ["--json"] if as_json else []
    monkeypatch.setattr(
        sys, "argv", ["hadaflow", "reproduce", figure, "--out", str(tmp_path), *options, *more]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == code
    sentence = f"checks fail at the settings of the paper: {figure}: KL falls, by (-0.25)"
    assert err == (f"hadaflow: {sentence}\n" if code else "")
    assert as_json or "FAILS: KL falls, by (-0.25)" in out


def test_every_figure_says_whether_settings_change_it():
    fixed = {name for name, f in figures.FIGURES.items() if not f.adjustable}
    assert fixed == {"nonmonotone", "logits", "normalized"}


@pytest.mark.parametrize(
    ("statuses", "code"),
    [(["collapsed", "failed"], 1), (["collapsed", "never-collapses"], 0),
     (["failed", "interrupted"], 130), (["failed"], 1), (["never-collapses"], 0)],
)  # fmt: skip
@pytest.mark.parametrize("as_json", [True, False])
def test_one_failed_run_of_a_batch_is_a_failure(
    statuses, code, as_json, monkeypatch, capsys, tmp_path
):
    import dataclasses

    from hadaflow.cli import commands as cli

    batch = hf.solve(hf.UFM(4), np.ones((len(statuses), 3)), hf.Norm(10.0), progress=None, points=2)
    diagnostics = batch.diagnostics | {"statuses": statuses}
    status = statuses[0] if len(set(statuses)) == 1 else "mixed"
    dataclasses.replace(batch, status=status, diagnostics=diagnostics).save(tmp_path / "b.nc")
    more = ["--json"] if as_json else []
    monkeypatch.setattr(sys, "argv", ["hadaflow", "show", str(tmp_path / "b.nc"), *more])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code and capsys.readouterr().err == ""


# --- standard streams ----------------------------------------------------------------------------


def shell(command, **options):
    text = command.replace("hadaflow ", f"{sys.executable} -m hadaflow ", 1)
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {text}"], capture_output=True, timeout=HANG, **options
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


FULL = "hadaflow: Cannot write to standard output: No space left on device.\n"


@pytest.mark.parametrize(
    "command", ["hadaflow --help", "hadaflow --version", f"hadaflow certify {CERTIFICATE}"]
)
def test_streams_that_are_closed_full_or_unread(command):
    assert shell(f"{command} >&-") == (0, "", "")
    assert shell(f"{command} >&- 2>&- <&-") == (0, "", "")
    code, out, err = shell(f"{command} 2>&-")
    assert code == 0 and out and err == ""
    assert shell(f"{command} | true") == (141, "", "")
    if Path("/dev/full").exists():
        assert shell(f"{command} > /dev/full") == (2, "", FULL)


def test_errors_that_nobody_hears():
    assert shell("hadaflow dance 2>&-") == (2, "", "")
    assert shell("hadaflow dance >&- 2>&-") == (2, "", "")
    assert shell("hadaflow dance 2>&1 >&- | true") == (2, "", "")
    if Path("/dev/full").exists():
        assert shell("hadaflow dance 2> /dev/full") == (2, "", "")


def test_an_answer_that_cannot_be_told_is_saved_all_the_same(tmp_path):
    command = "hadaflow solve --classes 4 --start 1,2,3 --until time:10 --json --out"
    assert shell(f"{command} {tmp_path / 'closed.nc'} >&- 2>&-") == (0, "", "")
    assert shell(f"{command} {tmp_path / 'unread.nc'} | true") == (141, "", "")
    for name in ("closed.nc", "unread.nc"):
        assert hf.load(tmp_path / name).status == "reached"


def test_a_platform_without_a_device_is_one_line():
    code, out, err = run(
        "solve", "--classes", 4, "--start", "1,2,3", env={**os.environ, "JAX_PLATFORMS": "cuda"}
    )
    assert code == 2 and out == "" and err.count("\n") == 1
    assert err.startswith("hadaflow: JAX has no device to compute on with JAX_PLATFORMS='cuda': ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("hunt", "l2", "--classes", 8), ("train", "--classes", 4, "--steps", 3),
     ("verify", "ode-tracks-descent", "burn-in-times"), ("verify", "ode-tracks-descent"),
     ("reproduce", "k4", "--quick")],
)  # fmt: skip
def test_no_device_for_any_command(arguments, tmp_path):
    code, out, err = run(*arguments, cwd=tmp_path, env={**os.environ, "JAX_PLATFORMS": "cuda"})
    assert code == 2 and out == "" and err.count("\n") == 1 and "no device" in err


def test_matplotlib_keeps_its_notices_and_folders_to_itself(tmp_path):
    """A home that cannot be written to: a picture, one line, and nothing left behind."""
    hf.solve(hf.UFM(4), [1, 2, 3], hf.Time(1e3), progress=None).save(tmp_path / "run.nc")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    without = {k: v for k, v in os.environ.items() if k not in ("MPLCONFIGDIR", "XDG_CACHE_HOME")}
    places = {"HOME": "/proc/nowhere", "XDG_CONFIG_HOME": "/proc/nowhere", "TMPDIR": str(scratch)}
    code, out, err = run("plot", tmp_path / "run.nc", env=without | places)
    assert (code, err) == (0, "") and out == f"wrote {tmp_path / 'run.png'}\n"
    assert list(scratch.iterdir()) == []


def test_metrics_that_take_long_are_left_out_once_somebody_has_asked_to_stop(monkeypatch):
    from hadaflow.cli import answers

    def described(long, asked):
        monkeypatch.setattr(answers, "_long_to_measure", lambda run: long)
        monkeypatch.setattr(answers, "asked", lambda: asked)
        run: Any = SimpleNamespace(measure=lambda name: 1.0)
        return answers._described(run, lambda run, values: {"metrics": values}, ["kl"])

    whole = {"kl": 1.0}, {"metrics": {"kl": 1.0}}, False
    assert described(False, True) == described(True, False) == whole
    assert described(True, True) == ({}, {"metrics": None}, True)


@pytest.mark.parametrize("firmly", [True, False])
def test_one_who_asks_again_is_heard_unless_a_file_is_written(firmly, monkeypatch):
    from hadaflow.base import interruption

    now = [0.0]
    monkeypatch.setattr(interruption.time, "monotonic", lambda: now[0])
    with interruption.listening(), interruption.held_back(firmly):
        os.kill(os.getpid(), signal.SIGTERM)  # held back
        now[0] = 1.0
        os.kill(os.getpid(), signal.SIGTERM)  # as `timeout` does: the same request
        now[0] = 10.0
        if firmly:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.asked() and interruption.exit_code() == 143
    interruption.answer_held_back()  # what comes after the command is not asked to stop
