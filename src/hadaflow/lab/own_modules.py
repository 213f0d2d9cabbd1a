"""Modules of one's own: found by name, read, and run only when they may be.

Nothing here asks Python's import system where a module is, because that runs the packages on the way.
Files are looked for in the order in which it would find them, read once, and run from what was read:
the code that runs is the code whose digest was compared, whatever lies in `__pycache__` or in
`sys.modules` under that name.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from hadaflow.base.errors import InputError, failures_told, shown
from hadaflow.base.files import read_file

_MOST_BYTES = 2**24  # of a module's source
_PACKAGE = "__init__.py"


@dataclasses.dataclass(frozen=True)
class _File:
    """A file that importing a module runs: that of a package on the way, or its own."""

    module: str
    path: Path
    content: bytes

    @property
    def code(self) -> CodeType:
        return compile(self.content, str(self.path), "exec", dont_inherit=True)


@dataclasses.dataclass(frozen=True)
class Source:
    """The files of `module`: those of the packages that it is in, outermost first, and its own."""

    module: str
    files: tuple[_File, ...]

    @property
    def path(self) -> Path:
        return self.files[-1].path

    @property
    def digest(self) -> str:
        """SHA-256 of the file; in packages that of the digests of all the files, one after another."""
        each = [hashlib.sha256(file.content).hexdigest() for file in self.files]
        return each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()

    def defines(self, function: Any) -> bool:
        """Is it a function whose code stands in this file, as the file is now?"""
        if not inspect.isfunction(function) or function.__module__ != self.module:
            return False
        try:
            return _contains(self.files[-1].code, function.__code__)
        except (SyntaxError, ValueError):  # the file is no longer what it was when it was imported
            return False

    def load(self, function: str) -> Callable[..., Any]:
        """Run the files, and get the function of this name."""

        def sentence(reason: str) -> str:
            return f"Cannot load the metric {shown(f'{self.module}:{function}')}: {reason}."

        with failures_told(sentence), _first_on_path(os.getcwd()):
            found: Any = self._run()
            for part in function.split("."):
                found = getattr(found, part)
            own = self.defines(inspect.unwrap(found))
        if not own:
            reason = f"`{function}` is not a function that {shown(str(self.path), 200)} defines"
            raise InputError(sentence(reason))
        return found

    def _run(self) -> ModuleType:
        """The module, afresh; packages that are loaded already stay as they are."""
        for file in self.files:
            loaded = sys.modules.get(file.module)
            if loaded is not None and not _same(getattr(loaded, "__file__", None), file.path):
                raise InputError(
                    f"Cannot load the module `{file.module}` from {shown(str(file.path), 200)}: "
                    "another one of this name is loaded already."
                )
            if loaded is None and file is not self.files[-1]:
                _execute(file)
        return _execute(self.files[-1])


def find_source(module: str) -> Source | None:
    """The files of a module, read and not run; None where there are none."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    folders, files, path = [Path.cwd(), *map(Path, sys.path)], [], None
    for count, part in enumerate(parts, 1):
        path = _first_file(folders, part)
        if path is None:  # a folder without a file of its own runs nothing
            folders = [f / part for f in folders if os.path.isdir(f / part)]
            continue
        content = read_file("the module", path, _MOST_BYTES)
        files.append(_File(".".join(parts[:count]), path, content))
        folders = [path.parent] if path.name == _PACKAGE else []
    return None if path is None else Source(module, tuple(files))


def _first_file(folders: list[Path], name: str) -> Path | None:
    places = (p for f in folders for p in (f / name / _PACKAGE, f / f"{name}.py"))
    return next((p.absolute() for p in places if os.path.isfile(p)), None)


def _execute(file: _File) -> ModuleType:
    """Run a file as the module it is; one of this name that is loaded already stays."""
    inside = [str(file.path.parent)] if file.path.name == _PACKAGE else None
    spec = importlib.util.spec_from_file_location(
        file.module, file.path, submodule_search_locations=inside
    )
    assert spec is not None
    module, earlier = importlib.util.module_from_spec(spec), sys.modules.get(file.module)
    sys.modules[file.module] = module
    done = False
    try:
        exec(file.code, module.__dict__)
        done = True
    finally:
        if earlier is not None:
            sys.modules[file.module] = earlier
        elif not done:
            sys.modules.pop(file.module, None)
    return module


def _contains(code: CodeType, wanted: CodeType) -> bool:
    inner = [value for value in code.co_consts if inspect.iscode(value)]
    return wanted in inner or any(_contains(value, wanted) for value in inner)


def _same(one: Any, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, TypeError, ValueError):
        return False


@contextlib.contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
