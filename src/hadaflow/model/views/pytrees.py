"""Dataclasses whose numbers JAX traces: what is compiled belongs to their structure.

As Equinox's modules are, without their bound methods, which took 0.4 of the 1.6 ms of a short run.
"""

import dataclasses
from typing import Any, dataclass_transform

import jax

_registered: set[type] = set()


def static() -> Any:
    """A field that is structure: hashable, and code is compiled for it."""
    return dataclasses.field(metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
class Traced:
    """Base of frozen dataclasses that are pytrees: fields are leaves, but for those that are `static`."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        numbers = [f.name for f in fields if not f.metadata.get("static")]
        structure = [f.name for f in fields if f.metadata.get("static")]
        jax.tree_util.register_dataclass(cls, numbers, structure)


def traced(value: Any) -> Any:
    """`value`, whose kind JAX knows from now on: its `numbers` are leaves, its other fields structure.

    For dataclasses that are described without JAX.
    """
    kind = type(value)
    if kind not in _registered:
        _registered.add(kind)
        structure = [f.name for f in dataclasses.fields(kind) if f.name not in value.numbers]
        jax.tree_util.register_dataclass(kind, list(value.numbers), structure)
    return value
