"""A target as compiled code sees it."""

from typing import NamedTuple

from hadaflow.runs.targets import Target


class Aim(NamedTuple):
    """The kind of a target, for which code is compiled, and its number, which is traced."""

    kind: type[Target] | None
    number: float
