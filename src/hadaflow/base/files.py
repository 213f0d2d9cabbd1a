"""Files that are written whole or not at all, and read only if they are files of ordinary size."""

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hadaflow.base.errors import InputError, shown
from hadaflow.base.memory import require_memory

try:
    import fcntl
except ImportError:  # Windows has no such locks: nothing is ever taken for stale there
    fcntl = None

_MARK = ".hadaflow-"
_DRAFT = re.compile(r"\..+\.hadaflow-[a-z0-9_]{8}", re.DOTALL)


def as_path(path: str | os.PathLike[str]) -> Path:
    """A path as users give it."""
    try:
        return Path(os.fsdecode(path))
    except TypeError:
        raise InputError(f"A path must be text or a path, but is {shown(path)}.") from None


def read_text_file(what: str, path: str | os.PathLike[str], most_bytes: int) -> str:
    """The text of a regular file of at most `most_bytes` bytes; `what` is in it, for the messages."""
    content = read_file(what, path, most_bytes)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"Cannot read {what} from {_name(path)}: it is not text in UTF-8."
        ) from None


def read_file(
    what: str, path: str | os.PathLike[str], most_bytes: int, begins: tuple[bytes, ...] = ()
) -> bytes:
    """The bytes of a regular file of at most `most_bytes` bytes.

    Pipes, terminals and devices, which may never end, are refused, and so is what would fill the memory.
    It is the opened file that is looked at, so that nothing can be put in its place in between. With
    `begins` only the first part is read of a file that begins with none of them.
    """
    path = as_path(path)
    try:
        # Not to wait for what a pipe without a writer would bring.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            found, content = os.fstat(descriptor), bytearray()
            kind, first = found.st_mode, True
            while stat.S_ISREG(kind) and len(content) <= most_bytes:
                part = os.read(descriptor, 2**10 if first else 2**24)
                content += part
                if not part or (first and begins and not part.startswith(begins)):
                    break
                if first:  # it is held twice, as bytes and as numbers
                    size = min(found.st_size, most_bytes)
                    require_memory(size / 4, f"Reading {what}", "use a machine with more memory")
                first = False
        finally:
            os.close(descriptor)
    except InputError:  # there is not the memory
        raise
    except FileNotFoundError:
        reason = "there is no such file"
    except OSError as error:
        reason = str(error.strerror)
    except ValueError:  # a null character in the name
        reason = "there is no such name"
    else:
        ours = not begins or content.startswith(begins)
        if stat.S_ISREG(kind) and len(content) <= most_bytes and ours:
            return bytes(content)
        reason = "it is a folder" if stat.S_ISDIR(kind) else "it is not a regular file"
        if stat.S_ISREG(kind) and not ours:
            reason = "it is not a hadaflow file"
        elif content:
            reason = f"it has more than {_size(most_bytes)}"
    raise InputError(f"Cannot read {what} from {_name(path)}: {reason}.")


def _size(count: int) -> str:
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count} bytes"


def _name(path: str | os.PathLike[str]) -> str:
    return shown(os.fsdecode(path), 200)


def check_writable(path: Path) -> None:
    """Refuse a path that nothing can be written to, before the work rather than after it."""
    try:
        if len(os.fsencode(path.name)) > 200:
            reason = "the name is too long"
        elif path.is_dir():
            reason = "it is a folder"
        elif not path.parent.is_dir():
            reason = "the folder does not exist"
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            reason = "the folder is not writable"
        elif _exists(path) and not path.is_file():
            reason = "it is not a regular file"
        else:
            return
    except OSError as error:
        reason = str(error.strerror)
    raise InputError(f"Cannot write {_name(path)}: {reason}.")


def _exists(path: Path) -> bool:
    """Is it there? Links that lead round in a circle are an error, not nothing."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


class Drafts:
    """Files written beside their targets under names of their own, until `publish` renames them all.

    A draft is locked for as long as its writer lives. One that can be locked was left by a process that
    was killed: whoever writes into the same folder next removes it.
    """

    def __init__(self) -> None:
        self._drafts: list[tuple[Path, Path, int]] = []

    def __enter__(self) -> "Drafts":
        return self

    def write(self, path: Path, write: Callable[[str], Any]) -> Path:
        """Call `write(name of the draft)` for what is to become `path`; returns the draft."""
        check_writable(path)
        with _naming(path):
            folder = path.resolve().parent  # a link stays a link; what it points to is replaced
            remove_stale(folder)
            draft, descriptor = _locked_draft(folder, path.resolve().name)
            self._drafts.append((path, draft, descriptor))
            write(str(draft))
        return draft

    def publish(self, private: bool = False) -> None:
        """Every draft under its own name, in the order of writing; private ones for this user alone."""
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            for _, draft, _ in self._drafts:
                os.chmod(draft, 0o666 & ~umask)  # drafts are made private
        for path, draft, _ in self._drafts:
            with _naming(path):
                os.replace(draft, path.resolve())

    def __exit__(self, *_: object) -> None:
        for _path, draft, descriptor in self._drafts:
            with contextlib.suppress(OSError):  # published, or the folder is gone
                draft.unlink()
            os.close(descriptor)


def write_atomically(path: Path, write: Callable[[str], Any]) -> None:
    """Call `write(temporary path)` beside `path`, then rename: never a half-written file."""
    with Drafts() as drafts:
        drafts.write(path, write)
        drafts.publish()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While it lasts, no other process is here: for files that must change together."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that cannot be opened cannot be locked, and may still be written to
        yield
        return
    try:
        _lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def remove_stale(folder: Path) -> None:
    """Remove the drafts in `folder` whose writers are dead; those of a living process stay."""
    with contextlib.suppress(OSError):  # what cannot be looked at cannot be cleaned
        for name in os.listdir(folder):
            if _DRAFT.fullmatch(name):
                _remove_if_unlocked(folder / name)


def _remove_if_unlocked(draft: Path) -> None:
    if not stat.S_ISREG(draft.lstat().st_mode):  # not one of ours
        return
    descriptor = os.open(draft, os.O_RDONLY)
    try:
        if _lock(descriptor, wait=False):
            draft.unlink()
    finally:
        os.close(descriptor)


def _locked_draft(folder: Path, name: str) -> tuple[Path, int]:
    """A new empty file and the descriptor that holds its lock."""
    while True:
        descriptor, draft = tempfile.mkstemp(dir=folder, prefix=f".{name}{_MARK}")
        _lock(descriptor, wait=True)
        # Another process may have taken it for stale, and removed it, just before it was locked.
        if os.path.exists(draft):
            return Path(draft), descriptor
        os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool:
    """Was the file locked? Not where another process holds it, nor where the system has no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What the system refuses is told with the name of the file that was asked for."""
    try:
        yield
    except OSError as error:
        raise InputError(f"Cannot write {_name(path)}: {error.strerror or error}.") from error
