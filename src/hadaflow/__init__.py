"""hadaflow: a laboratory for cross-entropy training dynamics.

The public names are those of the stub beside this file. They are imported on first use, so that the
command line can answer `--help` without waiting for JAX.
"""

import time
from typing import Any

import lazy_loader

_began = time.time()  # before any other file of the package is read
_public, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("hadaflow")
    if name not in __all__:
        raise AttributeError(f"module 'hadaflow' has no attribute {name!r}")
    return _public(name)


def __dir__() -> list[str]:
    return [*_names(), "__version__"]
