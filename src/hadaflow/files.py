"""Files that are written whole or not at all, and read only if they are files of ordinary size."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from hadaflow.errors import InputError, shown


def read_text_file(what: str, path: str | os.PathLike[str], most_bytes: int) -> str:
    """The text of a regular file of at most `most_bytes` bytes; `what` is in it, for the messages."""
    content = read_file(what, path, most_bytes)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"Cannot read {what} from {_name(path)}: it is not text in UTF-8."
        ) from None


def read_file(what: str, path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The bytes of a regular file of at most `most_bytes` bytes.

    Pipes, terminals and devices, which may never end, are refused. It is the opened file that is looked
    at, so that nothing can be put in its place in between.
    """
    try:
        # Not to wait for what a pipe without a writer would bring.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            kind, content = os.fstat(descriptor).st_mode, bytearray()
            while stat.S_ISREG(kind) and len(content) <= most_bytes:
                part = os.read(descriptor, 2**24)
                content += part
                if not part:
                    break
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        reason = "there is no such file"
    except OSError as error:
        reason = str(error.strerror)
    except ValueError:  # a null character in the name
        reason = "there is no such name"
    else:
        if stat.S_ISREG(kind) and len(content) <= most_bytes:
            return bytes(content)
        reason = "it is a folder" if stat.S_ISDIR(kind) else "it is not a regular file"
        if content:
            reason = f"it has more than {_size(most_bytes)}"
    raise InputError(f"Cannot read {what} from {_name(path)}: {reason}.")


def _size(count: int) -> str:
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count} bytes"


def _name(path: str | os.PathLike[str]) -> str:
    return shown(os.fspath(path), 200)


def check_writable(path: Path) -> None:
    """Refuse a path that nothing can be written to, before the work rather than after it."""
    try:
        if len(path.name.encode()) > 200:
            reason = "the name is too long"
        elif path.is_dir():
            reason = "it is a folder"
        elif not path.parent.is_dir():
            reason = "the folder does not exist"
        elif path.exists() and not path.is_file():
            reason = "it is not a regular file"
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            reason = "the folder is not writable"
        else:
            return
    except OSError as error:
        reason = str(error.strerror)
    raise InputError(f"Cannot write {_name(path)}: {reason}.")


def write_atomically(path: Path, write: Any) -> None:
    """Call `write(temporary path)` beside `path`, then rename: never a half-written file."""
    check_writable(path)
    path = path.resolve()  # a link stays a link; what it points to is replaced
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"Cannot write {_name(path)}: {error.strerror}.") from error
    os.close(descriptor)
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes files private
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
