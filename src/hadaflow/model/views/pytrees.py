"""Dataclasses whose numbers JAX traces: what is compiled belongs to their structure.

As Equinox's modules are, without their bound methods, which took 0.4 of the 1.6 ms of a short run. Not by
`jax.tree_util.register_dataclass`: structures of two such classes with the same fields compare equal (as
of JAX 0.10.2), so that code compiled for one would be run for the other.
"""

import dataclasses
import threading
from collections.abc import Collection
from typing import Any, dataclass_transform

import jax

_registered: set[type] = set()
_registering = threading.Lock()


def static() -> Any:
    """A field that is structure: hashable, and code is compiled for it."""
    return dataclasses.field(metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
class Traced:
    """Base of frozen dataclasses that are pytrees: fields are leaves, but for those that are `static`."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        _register(cls, [f.name for f in fields if not f.metadata.get("static")])


def traced(value: Any) -> Any:
    """`value`, whose kind JAX knows from now on: its `numbers` are leaves, its other fields structure.

    For dataclasses that are described without JAX.
    """
    if type(value) not in _registered:
        with _registering:  # runs of a batch come at once
            if type(value) not in _registered:
                _register(type(value), value.numbers)
                _registered.add(type(value))
    return value


def _register(kind: type, numbers: Collection[str]) -> None:
    fields = [f.name for f in dataclasses.fields(kind)]  # pyright: ignore[reportArgumentType]
    leaves = [name for name in fields if name in numbers]
    structure = [name for name in fields if name not in numbers]

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, n) for n in leaves], tuple(getattr(value, n) for n in structure)

    def unflatten(fixed: tuple[Any, ...], found: Any) -> Any:
        # Not by the class's own check of its numbers: JAX puts other things in their place, too.
        value = object.__new__(kind)
        for name, x in zip((*leaves, *structure), (*found, *fixed), strict=True):
            object.__setattr__(value, name, x)
        return value

    jax.tree_util.register_pytree_node(kind, flatten, unflatten)
