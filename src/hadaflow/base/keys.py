"""Keys of programs: all that decides which machine code a call needs.

A key too many is a program compiled twice; a key too few runs the wrong one. So what is not told by
the kinds of things listed here is `Untold`: a class or a function of somebody else's, whose source nobody
looks at. What calls such things is known by what JAX makes of it, after tracing.
"""

import dataclasses
import enum
import functools
import hashlib
import inspect
import os
import sys
import types
from typing import Any

import numpy as np

from hadaflow.base.lazy import jax
from hadaflow.base.sources import LIBRARIES, PACKAGE, sources

_TOLD_BY_SOURCE = frozenset((PACKAGE, *LIBRARIES))
_PLAIN = (bool, int, str, bytes, complex, types.NoneType)
# What libraries and compiler read beside their arguments.
_VARIABLES = (
    "XLA_", "JAX_", "EQX_", "LIBTPU_", "TF_", "CUDA_", "NVIDIA_", "ROCM_", "HIP_", "PJRT_", "NPROC",
)  # fmt: skip
# Settings of JAX that no program depends on: where it keeps things, what it says, what it refuses.
_NO_MATTER = (
    "jax_compilation_cache", "jax_persistent_cache", "jax_log", "jax_debug_log", "jax_explain",
    "jax_traceback", "jax_include_full_tracebacks", "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion", "jax_check_tracer_leaks", "jax_pprint",
)  # fmt: skip


class Untold(Exception):
    """Its name and fields do not tell what it does."""


def key_of_source(function: Any, leaves: list[Any], tree: Any, how: Any) -> str | None:
    """The key of a call by the source of the function, without tracing; None where that is untold."""
    source = sources()
    if source is None:
        return None
    try:
        told = told_of(function), told_of(tree), told_of(how)
    except Untold:
        return None
    return _digest("source", source, told, [kind(x) for x in leaves], _surroundings())


def key_of_lowered(lowered: Any, options: dict[str, Any]) -> str | None:
    """The key of a program by the code that JAX hands to XLA; None where it calls back to Python."""
    text = lowered.as_text()
    if "callback" in text:  # known by an address
        return None
    ends = [
        [
            (x.shape, str(x.dtype), bool(getattr(x, "weak_type", False)))
            for x in jax.tree.leaves(side)
        ]
        for side in (lowered.in_avals, lowered.out_info)
    ]
    return _digest("lowered", text, ends, told_of(options), _surroundings())


def kind(x: Any) -> Any:
    """What code is compiled for, of one leaf of the arguments."""
    if hasattr(x, "shape"):
        return x.shape, str(x.dtype), bool(getattr(x, "weak_type", False))
    return type(x).__name__


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=32).hexdigest()


# --- values ----------------------------------------------------------------------------------------


def told_of(value: Any) -> Any:
    """`value` in nested tuples of plain ones, whose `repr` tells one from another.

    Examples:
        >>> told_of((1, 0.5))
        ('tuple', ('int', 1), ('float', '0x1.0000000000000p-1'))
    """
    which = type(value)
    if which in _PLAIN:
        return which.__name__, value
    if which is float:
        return "float", value.hex()
    if which in (tuple, list):
        return which.__name__, *map(told_of, value)
    if which is dict:
        return "dict", *((told_of(k), told_of(v)) for k, v in value.items())
    if which is frozenset:
        return "frozenset", *sorted(map(told_of, value), key=repr)
    if isinstance(value, np.ndarray | np.generic):
        return _told_of_array(np.asarray(value))
    if isinstance(value, np.dtype):
        return "dtype", value.str
    if isinstance(value, type | types.FunctionType):
        return _named(value)
    if which is functools.partial:
        return "partial", told_of(value.func), told_of(value.args), told_of(value.keywords)
    if isinstance(value, enum.Enum):
        return "enum", _named(which), value.name
    if which is jax.tree_util.PyTreeDef:
        return _told_of_tree(value)
    return _told_of_object(value)


def _told_of_array(array: np.ndarray) -> Any:
    if array.dtype.hasobject:
        raise Untold(array)
    return "array", array.dtype.str, array.shape, array.tobytes()


def _told_of_tree(tree: Any) -> Any:
    node = tree.node_data()
    if node is None:
        return "leaf"
    which, data = node
    name = which.__name__ if which in (*_PLAIN, tuple, list, dict) else _named(which)
    return "tree", name, told_of(data), *map(_told_of_tree, tree.children())


def _told_of_object(value: Any) -> Any:
    """A dataclass by its fields, a named tuple by its entries, an object of ours that has no state."""
    which = type(value)
    name, kinds = _named(which), which.__mro__[:-1]
    if tuple in kinds and hasattr(value, "_fields"):
        return "object", name, *map(told_of, value)
    if any(each.__module__ == "builtins" for each in kinds):  # whose content is no field
        raise Untold(value)
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return "object", name, *((field, told_of(getattr(value, field))) for field in fields)
    ours = all(each.__module__.startswith(f"{PACKAGE}.") for each in kinds)
    if not ours or getattr(value, "__dict__", True):  # a state that no field lists
        raise Untold(value)
    return "object", name


def _named(value: Any) -> Any:
    """A class or function that is found by its name in a module whose source is told."""
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    if module.partition(".")[0] not in _TOLD_BY_SOURCE:
        raise Untold(value)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None or (found is not value and inspect.unwrap(found) is not value):
        raise Untold(value)
    return "named", module, name


# --- the machine, and what is set ------------------------------------------------------------------


def _surroundings() -> Any:
    return _machine(), _set()


def _set() -> list[tuple[str, str]]:
    values = jax.config.values
    return [(n, str(values[n])) for n in sorted(values) if not n.startswith(_NO_MATTER)]


@functools.cache
def _machine() -> Any:
    """The device with all that its processor can do, the threads code is made for, and the compiler."""
    # JAX's own cache tells processors apart by this.
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

    device = jax.local_devices()[0]
    topology = xla_client.get_topology_for_devices([device])
    told = "fingerprint" if hasattr(topology, "fingerprint") else "serialize"  # until JAX 0.9
    affinity = getattr(os, "sched_getaffinity", None)
    threads = len(affinity(0)) if affinity is not None else os.cpu_count()
    variables = sorted((k, v) for k, v in os.environ.items() if k.startswith(_VARIABLES))
    flags = [word for word in sys.argv if word.startswith("--xla")]
    client = device.client
    return (
        jax.__version__, getattr(topology, told)(), threads, client.platform, client.platform_version,
        device.device_kind, len(jax.devices()), variables, flags,
    )  # fmt: skip
