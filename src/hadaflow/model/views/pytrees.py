"""Plain dataclasses whose numbers JAX traces."""

from typing import Any

import jax


def register(kind: type, numbers: tuple[str, ...]) -> None:
    """Make `kind` a pytree: its `numbers` are leaves, its other fields structure.

    Its own checks are not run on what is traced.
    """
    fields = tuple(kind.__dataclass_fields__)  # pyright: ignore
    structure = tuple(name for name in fields if name not in numbers)

    def flatten(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        leaves = tuple(getattr(value, name) for name in numbers)
        return leaves, tuple(getattr(value, name) for name in structure)

    def unflatten(kept: tuple[Any, ...], leaves: Any) -> Any:
        value = object.__new__(kind)
        for name, entry in (*zip(numbers, leaves, strict=True), *zip(structure, kept, strict=True)):
            object.__setattr__(value, name, entry)
        return value

    jax.tree_util.register_pytree_node(kind, flatten, unflatten)
