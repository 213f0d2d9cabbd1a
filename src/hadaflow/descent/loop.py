"""The compiled loop of all descents, and how it is driven: states are kept at some iterations."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.base.compiling import compiled
from hadaflow.base.precision import double_precision
from hadaflow.base.progress import Pace, Progress
from hadaflow.descent.optimizers.own import relaxed
from hadaflow.descent.rules import Rule
from hadaflow.descent.systems import System
from hadaflow.runs.targets import Collapse, Target

NOT_YET = -1  # in place of the iteration at which a target is reached


@dataclasses.dataclass(frozen=True)
class Watched:
    """Targets by their kinds, which are structure, and their numbers, which are traced.

    The first ends a run; of the others it is noted when they are reached.
    """

    kinds: tuple[type[Target], ...] = ()
    numbers: tuple[float, ...] = ()  # in the units of singular values that are scaled
    targets: tuple[Target, ...] = ()

    @classmethod
    def of(
        cls, target: Target | None, value_scale: float, full: bool, levels: tuple[float, ...] = ()
    ) -> "Watched":
        """`target`, where there is one, and collapse to each of the levels."""
        if target is None and not levels:
            return cls()
        first = target or Collapse()
        number = first.never if target is None else first.scaled_number(value_scale, full)
        others = tuple(Collapse(level) for level in levels)
        numbers = (number, *(other.number for other in others))
        return cls(tuple(type(t) for t in (first, *others)), numbers, (first, *others))

    def met(self, values: np.ndarray) -> list[np.ndarray]:
        """Which runs meet each of the targets, by their K − 1 singular values, modes last."""
        return [
            np.asarray(target.reached_at_start(values, number))
            for target, number in zip(self.targets, self.numbers, strict=True)
        ]

    def met_in(self, system: System, x: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The same by the state of a system, which has more to say than its singular values."""
        if not self.kinds:
            return []
        with double_precision():
            return list(np.asarray(_met_by(self.kinds, system, tuple(x), self.numbers)))


@dataclasses.dataclass
class Marched:
    """States at the start and at the kept iterations, and the iterations that met the targets."""

    states: list[Any]
    iterations: list[int]
    reached: np.ndarray  # targets × runs
    interrupted: bool


def _met(kinds, system, x, numbers):
    """Which runs meet each of the targets: targets × runs; traced."""
    reading = system.reading(x)
    left = [kind.left(reading, n) for kind, n in zip(kinds, numbers, strict=True)]
    return jnp.stack(left) <= 0


_met_by = compiled(static_argnames=("kinds",))(_met)


@compiled(static_argnames=("kinds", "runs"))
def _iterate(kinds, runs, system, rule, carry, goal, numbers):
    """Iterations up to `goal`, or to that at which every run has reached the first target."""

    def going(carry):
        at, _, _, reached = carry
        return (at < goal) & jnp.any(reached[0] < 0) if kinds else at < goal

    def body(carry):
        at, x, memory, reached = carry
        with relaxed():
            moved, memory = rule.step(system, x, memory)
        if kinds and runs:  # each run stays where it has arrived
            arrived = reached[0] >= 0
            moved = tuple(jnp.where(arrived, old, new) for old, new in zip(x, moved, strict=True))
        if kinds:
            met = (reached < 0) & _met(kinds, system, moved, numbers)
            reached = jnp.where(met, at + 1, reached)
        return at + 1, moved, memory, reached

    return lax.while_loop(going, body, carry)


def march(
    system: System, rule: Rule, x0: Sequence[np.ndarray], runs: int | None, kept: np.ndarray,
    watched: Watched, reached: np.ndarray, progress: Any,
) -> Marched:  # fmt: skip
    """Follow `rule` from `x0`, with `runs` on the last axis (None: alone), to the kept iterations.

    `reached` are targets × runs: 0 where the start meets one, else `NOT_YET`.
    """
    found = Marched([tuple(x0)], [0], reached, False)
    at, pace, last = 0, Pace(10**7), int(kept[-1])
    with double_precision(), Progress(progress, "descend") as bar:
        x = tuple(np.asarray(f) for f in x0)
        try:
            carry = (np.int64(0), x, rule.begin(system, x), reached)
            for goal in kept:
                while at < goal:
                    aim = min(at + pace.steps, int(goal))
                    began = time.perf_counter()
                    carry = jax.block_until_ready(
                        _iterate(
                            watched.kinds, runs is not None, system, rule, carry, np.int64(aim),
                            watched.numbers,
                        )
                    )  # fmt: skip
                    done = int(carry[0])
                    pace.took(done - at, time.perf_counter() - began)
                    at = done
                    bar.report(f"iteration {at}", at / last)
                    if at < aim:  # the target is met
                        break
                if at > found.iterations[-1]:
                    found.states.append(tuple(np.asarray(f) for f in carry[1]))
                    found.iterations.append(at)
                    found.reached = np.asarray(carry[3])
                if at < goal:
                    break
        except KeyboardInterrupt:
            found.interrupted = True
    return found
