"""What a flow is: a vector field that holds its start and its numbers, and how its states are read."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.flow.readings import Untimed
from hadaflow.model.states import Spectrum
from hadaflow.model.views.pytrees import Traced, static
from hadaflow.runs.requests import Request
from hadaflow.runs.targets import Target

_AT_A_KINK, _FEW_STEPS = 0.1, 32  # in u; where the force vanishes from one moment to the next


class Values(NamedTuple):
    """What a state is in the reduced view, in scaled units; of several states, they are the last axis."""

    a: Any
    C: Any  # None where the differences are conserved
    angles: Any  # None where there are none


class Flow(Traced):
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

    def read(self, y) -> Untimed:
        """What targets may ask of a state."""
        raise NotImplementedError

    def runs(self, y) -> tuple[int, ...]:
        """The axis of the runs of a state, where there are several side by side."""
        return ()

    def largest(self, tree) -> Any:
        """The largest absolute value in something like a state; of each run, where there are several."""
        each = [jnp.max(jnp.abs(x)) for x in jax.tree.leaves(tree)]
        return functools.reduce(jnp.maximum, each)

    def rounding(self, u) -> Any:
        """What rounding leaves of a state in a step, at least; None where it is nothing to speak of."""
        return None

    def longest_step(self, y) -> Any:
        """The longest step from a state; None for any. Beyond a kink nothing may hold steps back."""
        return _AT_A_KINK if self.view.loss.kinked else None  # pyright: ignore

    @property
    def steps_per_chunk(self) -> int | None:
        """Steps between two returns to Python, if fewer than usual."""
        return _FEW_STEPS if self.view.loss.kinked else None  # pyright: ignore


class SpectrumFlow(Flow):
    """A flow of singular values. Arrays have the modes first, and the runs of a batch, if any, last."""

    def values(self, y) -> Values:
        """Of one state, or of several along the last axis; NumPy arrays or traced ones."""
        raise NotImplementedError

    def runs(self, y) -> tuple[int, ...]:
        return y.shape[1:]

    def largest(self, tree) -> Any:
        return jnp.max(jnp.abs(tree), axis=0)


def runs_last(start: Spectrum, x: np.ndarray) -> np.ndarray:
    """An array made of a start, modes last, as flows want it."""
    return x if start.a.ndim == 1 else np.swapaxes(x, -1, -2)


def length(v):
    """Euclidean norm over the modes, of length 1, that neither underflows nor overflows."""
    largest = jnp.maximum(jnp.max(jnp.abs(v), axis=0, keepdims=True), 1e-300)
    return largest * root(jnp.sum((v / largest) ** 2, axis=0, keepdims=True))


def root(square):
    """The square root, with slope zero at zero: where nothing moves, an implicit step has to know it."""
    moves = square > 0
    return jnp.where(moves, jnp.sqrt(jnp.where(moves, square, 1.0)), 0.0)


def escape(depth: int, force):
    """How fast a mode that grows counts at least, by the force on it, where rest is asked for.

    In a deep model one that is tiny hardly moves for a very long time, and leaves all the same.
    """
    return force / depth if depth > 2 else jnp.zeros_like(force)


class Course(Traced):
    """A flow on its way to a target: the kind of the target is static, its numbers traced."""

    flow: Flow
    number: Any
    kind: type[Target] | None = static()
    patience: Any = np.float64(
        np.inf
    )  # what settles has had this time, in u, and counts no slower after

    @classmethod
    def towards(cls, flow: Flow, request: Request) -> "Course":
        event = request.event
        kind = None if event is None else type(event)
        patience = np.log1p(100 * request.model.settling_time)
        return cls(flow, np.float64(request.target_value), kind, np.float64(patience))

    def left(self, u, y):
        """Positive until the target is reached."""
        if self.kind is None:
            return jnp.ones(self.flow.runs(y))
        reading = self.flow.read(y).at(jnp.minimum(u, self.patience))
        return self.kind.left(reading, self.number)
