"""What a flow is: a vector field that holds its start and its numbers, and how its states are read."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from hadaflow.flow.steppers import make_solver
from hadaflow.runs.targets import Reading, Target


class Values(NamedTuple):
    """What a state, or many of them, is in the reduced view: NumPy arrays, scaled units."""

    a: np.ndarray
    C: np.ndarray | None  # None where the differences are conserved
    angles: np.ndarray | None


class Flow(eqx.Module):
    """Structure is static, numbers are leaves: another number compiles nothing."""

    def begin(self) -> Any:
        """The state to start from, as NumPy arrays."""
        raise NotImplementedError

    def velocity(self, u, y) -> Any:
        """dy/du."""
        raise NotImplementedError

    def error_scale(self, y) -> Any:
        """The size, like `y`, against which an error in `y` counts as relative."""
        raise NotImplementedError

    def read(self, y) -> Reading:
        """What targets may ask of a state."""
        raise NotImplementedError

    def solver(self, method: str) -> Any:
        """The diffrax solver that steps it."""
        return make_solver(method)

    def rounding(self, u) -> Any:
        """What rounding leaves of a state in a step, at least; None where it is nothing to speak of."""
        return None

    def longest_step(self, y) -> Any:
        """The longest step from a state; None for any."""
        return None

    @property
    def steps_per_chunk(self) -> int | None:
        """Steps between two returns to Python, if fewer than usual."""
        return None


def length(v):
    """Euclidean norm that neither underflows nor overflows."""
    largest = jnp.maximum(jnp.max(jnp.abs(v)), 1e-300)
    return largest * jnp.linalg.norm(v / largest)


class Course(eqx.Module):
    """A flow on its way to a target: the kind of the target is static, its number traced."""

    flow: Flow
    number: Any
    kind: type[Target] | None = eqx.field(static=True)

    @classmethod
    def towards(cls, flow: Flow, target: Target | None, number: float) -> "Course":
        return cls(flow, np.float64(number), None if target is None else type(target))

    def left(self, y):
        """Positive until the target is reached."""
        return jnp.ones(()) if self.kind is None else self.kind.left(self.flow.read(y), self.number)
