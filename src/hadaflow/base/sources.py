"""What the code that is traced is made from: our own files, and the versions of the libraries it calls.

Machine code may be found by the name of a function only if that name stands for the same source as when
the code was made. Where that cannot be told for sure, nothing is said, and it is found by what is traced.
"""

import functools
import hashlib
import importlib.util
import os
import sys
from pathlib import Path

import hadaflow

PACKAGE = "hadaflow"
# What our functions call while they are traced.
LIBRARIES = ("jax", "jaxlib", "numpy", "diffrax", "equinox", "lineax", "optax", "optimistix")
_COARSE = 0.05  # seconds by which the time of a change may be told too early


def sources() -> str | None:
    """A digest of our own source and of the versions of the libraries.

    None where the modules in memory may be others than the files: a file that was changed after the
    first of them was read, and a library that is not where its installer put it, tell nothing.
    """
    if sys.platform == "win32":  # which does not tell when a file was changed last
        return None
    try:
        files = tuple(_seen(path) for path in _files(Path(__file__).parents[1]))
        installed = tuple(_seen(_installed(name)) for name in LIBRARIES)
    except (OSError, LookupError):
        return None
    # The time of the last change of a file's entry cannot be set back, as that of its content can.
    if max(changed for *_, changed in files + installed) >= (hadaflow._began - _COARSE) * 1e9:
        return None
    return _digest(files, installed)


def _files(folder: Path) -> list[str]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        found += [os.path.join(parent, name) for name in sorted(names) if name.endswith(".py")]
    if not found:  # in an archive
        raise LookupError(folder)
    return found


def _seen(path: str) -> tuple[str, int, int, int]:
    found = os.stat(path)
    return path, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@functools.cache
def _installed(name: str) -> str:
    """The record of what was installed, beside the package as Python finds it; it tells the version."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise LookupError(name)
    folder = os.path.dirname(os.path.dirname(spec.origin))
    records = [entry for entry in _listed(folder) if entry.startswith(f"{name}-")]
    if len(records) != 1:
        raise LookupError(name)
    return os.path.join(folder, records[0])


@functools.cache
def _listed(folder: str) -> list[str]:
    return [entry for entry in os.listdir(folder) if entry.endswith(".dist-info")]


@functools.cache
def _digest(files: tuple, installed: tuple) -> str:
    digest = hashlib.blake2b(repr((sys.version, [Path(p).name for p, *_ in installed])).encode())
    root = os.path.commonpath([path for path, *_ in files])
    for path, *_ in files:
        with open(path, "rb") as file:
            content = file.read()
        digest.update(f"\n{os.path.relpath(path, root)} {len(content)}\n".encode() + content)
    return digest.hexdigest()
