"""Files that are written whole or not at all."""

import os
import tempfile
from pathlib import Path
from typing import Any

from hadaflow.errors import InputError


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
    raise InputError(f"Cannot write {str(path)!r}: {reason}.")


def write_atomically(path: Path, write: Any) -> None:
    """Call `write(temporary path)` beside `path`, then rename: never a half-written file."""
    check_writable(path)
    path = path.resolve()  # a link stays a link; what it points to is replaced
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"Cannot write {str(path)!r}: {error.strerror}.") from error
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
