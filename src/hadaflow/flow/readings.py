"""What targets are told of a state: computed when asked for, so that nothing else is compiled."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp

from hadaflow.runs.targets import Reading


class Untimed(Reading, Protocol):
    """Of a state that does not know its time: the march tells it."""

    def at(self, u: Any) -> Reading: ...


@dataclasses.dataclass(frozen=True)
class ValuesReading:
    """Of a flow of singular values."""

    values: Callable[[], Any]  # the K − 1 non-trivial ones, scaled
    path: Any
    speed: Callable[[], Any]  # the largest relative rate of change
    u: Any = None

    def at(self, u: Any) -> "ValuesReading":
        """With the time, which the march knows."""
        return dataclasses.replace(self, u=u)

    @property
    def deviation(self) -> Any:
        values = self.values()
        mean = jnp.mean(values, axis=0, keepdims=True)
        return jnp.max(jnp.abs(values / mean - 1.0), axis=0)

    @property
    def log_norm(self) -> Any:
        return jnp.log(jnp.sum(self.values(), axis=0))

    @property
    def log_path(self) -> Any:
        return jnp.log(self.path)

    @property
    def fastest(self) -> Any:
        return self.speed()
