"""Compiled programs kept on disk, so that the next process need not compile them.

A folder of entries, each written whole or not at all and carrying a sum of its content and its name; what
does not fit its sum is removed and compiled anew. When they take too much, those that were not used for
longest go. A program that is loaded is code that runs: the folder must be one that nobody else may write
to, and so must the entries be.

Nothing is kept unless it is asked for: by `enable_cache`, or by the command line for itself. Nothing here
fails because of the folder: what cannot be read or written is compiled as if there were no cache.
"""

import contextlib
import dataclasses
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from hadaflow.base.checks import check_whole_number
from hadaflow.base.errors import InputError
from hadaflow.base.files import Drafts, as_path, remove_stale

VARIABLE = "HADAFLOW_CACHE"
_OFF = ("off", "0", "no", "false", "none")
_MEGABYTES = 256
_ENTRY = re.compile(r"[0-9a-f]{64}\.program")
_MARK = b"hadaflow-program-1\n"
_SUM = hashlib.blake2b().digest_size


@dataclasses.dataclass(frozen=True)
class Cache:
    """A folder of programs, of at most so many bytes together."""

    folder: Path
    most_bytes: int = _MEGABYTES * 10**6

    def get(self, name: str) -> bytes | None:
        """What is kept under a name, if it is there, whole and ours."""
        path = self._path(name)
        try:
            if not _private(os.stat(self.folder)):
                return None
            content = _read(path)
        except OSError:
            return None
        kept = _unsealed(name, content)
        with contextlib.suppress(OSError):
            path.unlink() if kept is None else os.utime(path)  # used last
        return kept

    def put(self, name: str, content: bytes) -> None:
        """Keep it, and let go of what was not used for longest where it becomes too much."""
        sealed = _MARK + _sum(name, content) + content
        if len(sealed) > self.most_bytes or not self._made():
            return
        with contextlib.suppress(OSError, InputError), Drafts() as drafts:  # no room, no right
            drafts.write(self._path(name), lambda draft: Path(draft).write_bytes(sealed))
            drafts.publish(private=True)
            self._evict()

    @property
    def is_trusted(self) -> bool:
        """Can nobody else write to the folder? One that is not there yet will be made so."""
        try:
            return _private(os.stat(self.folder))
        except OSError:
            return True

    def has(self, name: str) -> bool:
        return self._path(name).is_file()

    def drop(self, name: str) -> None:
        """What could not be used is kept no longer."""
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """The programs, those used last at the end. Other files are left out, and alone."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as files:
            for file in files:
                with contextlib.suppress(OSError):  # gone just now
                    if _ENTRY.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                        found.append((Path(file.path), file.stat()))
        return sorted(found, key=lambda entry: entry[1].st_mtime_ns)

    def clear(self) -> tuple[int, int]:
        """Remove all programs; how many there were, and how many bytes."""
        remove_stale(self.folder)
        count = size = 0
        for path, found in self.entries():
            with contextlib.suppress(OSError):
                path.unlink()
                count, size = count + 1, size + found.st_size
        return count, size

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.program"

    def _made(self) -> bool:
        """Is there a folder of our own that nobody else may write to? It is made if need be."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            return _private(os.stat(self.folder))
        except OSError:
            return False

    def _evict(self) -> None:
        """Others may do the same at this moment: what has gone already is as good."""
        entries = self.entries()
        size = sum(found.st_size for _, found in entries)
        for path, found in entries:
            if size <= self.most_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            size -= found.st_size


def _sum(name: str, content: bytes) -> bytes:
    """Of the name, too: an entry under another name is another program."""
    return hashlib.blake2b(name.encode() + b"\n" + content).digest()


def _unsealed(name: str, sealed: bytes) -> bytes | None:
    begin = len(_MARK) + _SUM
    content = sealed[begin:]
    return content if sealed[:begin] == _MARK + _sum(name, content) else None


def _read(path: Path) -> bytes:
    """The content of a regular file of our own."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not _private(found):
            raise PermissionError(path)
        return file.read()


def _private(found: os.stat_result) -> bool:
    """Is it this user's, and can nobody else write to it? Windows tells by other means."""
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


# --- which one is used -----------------------------------------------------------------------------


class _Used:
    cache: Cache | None = None


def enable_cache(
    path: str | os.PathLike[str] | None = None, megabytes: int = _MEGABYTES
) -> Path | None:
    """Keep what hadaflow compiles on disk, and use what is kept there: for this process and its workers.

    Importing hadaflow does not do that; the command line does it for itself. Only hadaflow's own
    programs are kept, and none of JAX's settings is changed. They hold machine code: the folder is
    made for this user alone, and one that others may write to is not used.

    Args:
        path: The folder. Left out: what the variable `HADAFLOW_CACHE` says, or `hadaflow` in the
            user's folder for caches (`$XDG_CACHE_HOME` or `~/.cache`; on macOS `~/Library/Caches`).
        megabytes: How much it may hold; what was not used for longest goes first.

    Returns:
        The folder, or None where `HADAFLOW_CACHE` is "off", or no such folder is known.

    Examples:
        >>> import hadaflow as hf, tempfile
        >>> folder = hf.enable_cache(tempfile.mkdtemp())
        >>> hf.disable_cache()
    """
    check_whole_number("megabytes", megabytes, least=1)
    folder = default_folder() if path is None else as_path(path)
    folder = None if switched_off() else folder
    _Used.cache = None if folder is None else Cache(folder.absolute(), int(megabytes) * 10**6)
    return None if _Used.cache is None else _Used.cache.folder


def disable_cache() -> None:
    """Compile as if nothing were kept; what is kept stays."""
    _Used.cache = None


def used_cache() -> Cache | None:
    """The cache of this process, if it has one."""
    return _Used.cache


def use_cache(cache: Cache | None) -> None:
    """Of a process that works for another one: the same."""
    _Used.cache = cache


@contextlib.contextmanager
def cache_of_commands() -> Iterator[None]:
    """Within it a command has its cache, unless one was chosen before."""
    before = _Used.cache
    if before is None:
        enable_cache()
    try:
        yield
    finally:
        _Used.cache = before


def switched_off() -> bool:
    return os.environ.get(VARIABLE, "").strip().lower() in _OFF


def default_folder() -> Path | None:
    """The folder that is used if none is named; None where there is no home to have it in."""
    if not switched_off() and (named := os.environ.get(VARIABLE, "").strip()):
        return Path(named)
    try:
        if sys.platform == "darwin":
            caches = Path.home() / "Library" / "Caches"
        elif sys.platform == "win32":
            caches = Path(os.environ.get("LOCALAPPDATA") or Path.home())
        else:
            wanted = Path(os.environ.get("XDG_CACHE_HOME", ""))
            caches = wanted if wanted.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return caches / "hadaflow"
