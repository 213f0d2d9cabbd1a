"""The folder of compiled programs: whole entries or none, of our own, and never too many."""

import os
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hadaflow as hf
from hadaflow.base import cache as caches
from hadaflow.base.cache import Cache, used_cache
from hadaflow.base.workers import run_all

HANG = 60  # seconds; nothing here is about speed
NAMES = [f"{i:064x}" for i in range(40)]
ONE, OTHER, *_ = NAMES


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "programs")


def files(cache):
    return {path.name for path in cache.folder.iterdir()}


def entry(cache, name=ONE):
    return cache.folder / f"{name}.program"


# --- entries ---------------------------------------------------------------------------------------


def test_what_is_put_is_got_under_its_name_alone(cache):
    assert cache.get(ONE) is None and not cache.has(ONE)
    cache.put(ONE, b"first")
    cache.put(OTHER, b"")
    cache.put(ONE, b"second")
    assert cache.get(ONE) == b"second" and cache.get(OTHER) == b"" and cache.has(ONE)
    assert files(cache) == {f"{ONE}.program", f"{OTHER}.program"}
    entry(cache).rename(entry(cache, OTHER))  # somebody mixes them up
    assert cache.get(OTHER) is None and not cache.has(OTHER)


def test_folder_and_entries_are_for_this_user_alone(cache):
    before = os.umask(0)
    try:
        cache.put(ONE, b"code")
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(cache).stat().st_mode) == 0o600


@pytest.mark.parametrize("length", [0, 1, 20, 83, 84, 200, -1])
def test_a_truncated_entry_is_removed_and_may_be_put_again(cache, length):
    cache.put(ONE, bytes(range(256)))
    whole = entry(cache).read_bytes()
    entry(cache).write_bytes(whole[:length])
    assert cache.get(ONE) is None and files(cache) == set()
    cache.put(ONE, b"anew")
    assert cache.get(ONE) == b"anew"


def test_every_changed_byte_is_noticed(cache):
    cache.put(ONE, b"a short program")
    whole = entry(cache).read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 + place % 255
        entry(cache).write_bytes(changed)
        assert cache.get(ONE) is None and not cache.has(ONE), place
    entry(cache).write_bytes(whole + b"!")
    assert cache.get(ONE) is None


def test_files_of_others_stay_and_are_not_counted(cache):
    cache.put(ONE, b"code")
    size = entry(cache).stat().st_size
    (cache.folder / "README").write_text("not a program")
    (cache.folder / "0123.program").write_text("nor this")
    entry(cache, OTHER).symlink_to(cache.folder / "README")
    (cache.folder / f"{NAMES[2]}.program").mkdir()
    assert cache.get(OTHER) is None and cache.get(NAMES[2]) is None
    assert [path for path, _ in cache.entries()] == [entry(cache)]
    assert cache.clear() == (1, size) and cache.clear() == (0, 0)
    assert (cache.folder / "README").read_text() == "not a program"
    assert "0123.program" in files(cache)


# --- whose folder it is ----------------------------------------------------------------------------


def test_entries_of_another_user_are_not_used(cache, monkeypatch):
    cache.put(ONE, b"code")
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert cache.get(ONE) is None and not cache.is_trusted
    cache.put(OTHER, b"more")
    monkeypatch.undo()
    assert cache.get(ONE) == b"code" and not cache.has(OTHER)  # nor written there


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_entry_that_somebody_else_put_there_is_not_used(cache):
    cache.put(ONE, b"code")
    os.chown(entry(cache), 12345, 12345)
    assert cache.get(ONE) is None
    os.chown(entry(cache), 0, 0)
    os.chown(cache.folder, 12345, 12345)
    assert cache.get(ONE) is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(cache, mode):
    cache.put(ONE, b"code")
    cache.folder.chmod(mode)
    assert cache.get(ONE) is None and not cache.is_trusted
    cache.put(OTHER, b"more")
    cache.folder.chmod(0o755)
    assert cache.get(ONE) == b"code" and not cache.has(OTHER)


# --- nothing fails ---------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_or_written_to_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/self/programs")):
        cache = Cache(folder)
        cache.put(ONE, b"code")
        cache.drop(ONE)
        assert cache.get(ONE) is None and cache.entries() == [] and cache.clear() == (0, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_read_only_is_read(cache):
    cache.put(ONE, b"code")
    cache.folder.chmod(0o500)
    cache.put(OTHER, b"more")
    assert cache.get(ONE) == b"code" and cache.get(OTHER) is None
    cache.folder.chmod(0o700)


def test_a_full_disk_keeps_what_is_there(cache):
    cache.put(ONE, b"code")
    limits, answer = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        cache.put(OTHER, bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, answer)
    assert cache.get(ONE) == b"code" and files(cache) == {f"{ONE}.program"}


# --- the bound -------------------------------------------------------------------------------------


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    cache = Cache(tmp_path, 4 * 1084)
    for age, name in enumerate(NAMES[:4]):
        cache.put(name, bytes(1000))
        os.utime(entry(cache, name), (1000 + age, 1000 + age))
    assert cache.get(NAMES[0]) is not None  # used last, now
    cache.put(NAMES[4], bytes(1000))
    assert [n for n in NAMES[:5] if cache.has(n)] == [NAMES[0], *NAMES[2:5]]
    cache.put(NAMES[5], bytes(3000))
    assert [n for n in NAMES[:6] if cache.has(n)] == NAMES[4:6]
    cache.put(NAMES[6], bytes(10_000))  # too large by itself: nothing goes for it
    assert [n for n in NAMES[:7] if cache.has(n)] == NAMES[4:6]
    assert sum(found.st_size for _, found in cache.entries()) <= cache.most_bytes


# --- other processes -------------------------------------------------------------------------------


def python(code, *arguments, **options):
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


LARGE = """
import sys
from pathlib import Path
from hadaflow.base.cache import Cache
Cache(Path(sys.argv[1]), 10**9).put(sys.argv[2], bytes(2**28))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="signals and locks")
def test_a_process_killed_while_it_writes_leaves_no_part_of_an_entry(cache):
    cache.put(ONE, b"code")
    left = set()
    for _ in range(20):  # until one was killed in the middle of it
        with python(LARGE, cache.folder, OTHER) as process:
            end = time.monotonic() + HANG
            while files(cache) == {f"{ONE}.program"} and time.monotonic() < end:
                pass
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        left = files(cache) - {f"{ONE}.program"}
        if left and f"{OTHER}.program" not in left:
            break
        cache.drop(OTHER)
    assert left, "never killed in time"
    assert all(name.startswith(f".{OTHER}.program") for name in left)
    assert cache.get(OTHER) is None and cache.get(ONE) == b"code" and len(cache.entries()) == 1
    cache.put(NAMES[2], b"more")  # the next one that writes tidies up
    assert files(cache) == {f"{ONE}.program", f"{NAMES[2]}.program"}


MANY = """
import random, sys
from pathlib import Path
from hadaflow.base.cache import Cache
cache, draw = Cache(Path(sys.argv[1]), 60_000), random.Random(int(sys.argv[2]))
for _ in range(300):
    name = f"{draw.randrange(40):064x}"
    content = cache.get(name)
    assert content in (None, name.encode() * 100), name
    cache.put(name, name.encode() * 100)
    if draw.random() < 0.1:
        cache.drop(name)
    if draw.random() < 0.01:
        cache.clear()
"""


def test_two_processes_at_once(cache):
    both = [python(MANY, cache.folder, seed) for seed in (1, 2)]
    for process in both:
        assert process.communicate(timeout=HANG)[1] == "" and process.returncode == 0
    cache = Cache(cache.folder, 60_000)
    cache.put(ONE, ONE.encode() * 100)
    assert sum(found.st_size for _, found in cache.entries()) <= 60_000
    assert all(cache.get(path.stem) == path.stem.encode() * 100 for path, _ in cache.entries())
    assert all(name.endswith(".program") for name in files(cache))


def told(name, report):
    return used_cache()


def test_workers_use_the_cache_of_the_process_they_work_for(tmp_path):
    for cache in (None, Cache(tmp_path, 12345)):
        caches.use_cache(cache)
        found = {}
        run_all({"a": ["a"]}, told, progress=False, finished=found.__setitem__)
        assert found == {"a": cache}


# --- which one is used -----------------------------------------------------------------------------


def test_a_cache_is_chosen_by_path_by_variable_or_by_platform(monkeypatch, tmp_path):
    monkeypatch.delenv(caches.VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert hf.enable_cache() == tmp_path / "xdg" / "hadaflow"
    for unset in ("", "relative/path"):  # which the standard says to ignore
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert hf.enable_cache() == tmp_path / ".cache" / "hadaflow"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert hf.enable_cache() == tmp_path / "Library" / "Caches" / "hadaflow"
    monkeypatch.setenv(caches.VARIABLE, str(tmp_path / "named"))
    assert hf.enable_cache(megabytes=3) == tmp_path / "named"
    assert used_cache() == Cache(tmp_path / "named", 3_000_000)
    assert hf.enable_cache(tmp_path / "given") == tmp_path / "given"
    hf.disable_cache()
    assert used_cache() is None
    for off in ("off", "OFF", "0", "no"):
        monkeypatch.setenv(caches.VARIABLE, off)
        assert hf.enable_cache() is None and hf.enable_cache(tmp_path) is None
        assert used_cache() is None


def test_bad_choices_are_refused():
    with pytest.raises(hf.InputError, match="`megabytes` must be a whole number"):
        hf.enable_cache(megabytes=0)
    with pytest.raises(hf.InputError, match="path must be text"):
        hf.enable_cache(3)  # pyright: ignore


def test_commands_have_a_cache_unless_one_was_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv(caches.VARIABLE, str(tmp_path / "named"))
    hf.disable_cache()
    with caches.cache_of_commands():
        assert used_cache() == Cache(tmp_path / "named")
    assert used_cache() is None
    hf.enable_cache(tmp_path / "chosen")
    with caches.cache_of_commands():
        assert used_cache() == Cache(tmp_path / "chosen")
    assert used_cache() == Cache(tmp_path / "chosen")


def test_importing_and_solving_keep_nothing_unless_asked(tmp_path):
    code = """
import hadaflow as hf
run = hf.solve(hf.UFM(4), [0.1, 0.2, 0.3], hf.Time(1.0), progress=None)
"""
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    inherited = {k: v for k, v in os.environ.items() if k != caches.VARIABLE}
    with python(code, env=inherited | home) as process:
        assert process.communicate(timeout=HANG)[1] == ""
    assert list(tmp_path.iterdir()) == []
