"""Where inequalities are tried: random states of every scale, and states an optimizer pushed."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.base.compiling import SMALL, Compiled
from hadaflow.base.lazy import optimize
from hadaflow.base.precision import double_precision
from hadaflow.lab.exact.balls import Enclosure, exact


def random_states(K: int, count: int, seed: int, low: float = -4, high: float = 1.5) -> np.ndarray:
    """Full-rank states of every shape: smooth, spiky, nearly low-rank, nearly uniform, tied.

    The norm runs over 10^low … 10^high; entries differ by up to twelve orders of magnitude.
    """
    rng = np.random.default_rng(seed)
    norm = 10 ** rng.uniform(low, high, (count, 1))
    spread = rng.choice([1e-9, 1e-4, 1e-2, 0.3, 1.0, 3.0, 12.0], (count, 1))
    shape = np.exp(spread * rng.standard_normal((count, K - 1)))
    small = rng.random((count, K - 1)) < rng.choice([0.0, 0.3, 0.6], (count, 1))
    shape = np.where(small & (spread < 4), shape * 10 ** rng.uniform(-8, -1, (count, 1)), shape)
    tied = rng.random((count, K - 1)) < rng.choice([0.0, 0.0, 0.5], (count, 1))
    shape = np.where(tied & ~small, shape[:, :1], shape)
    states = norm * shape / shape.sum(axis=1, keepdims=True)
    # At collapse itself every rate is zero; what is tried are the states around it.
    return states[np.ptp(states, axis=1) > 0] if K > 2 else states


def pushed_states(
    objective: Callable[[Any], Any], starts: np.ndarray, steps: int = 60
) -> np.ndarray:
    """States an optimizer reached from `starts` while raising `objective(a)`, in log coordinates.

    The objective should be free of scale, so that it is pushed towards violation and not towards
    large or small numbers.
    """
    with double_precision():
        value = Compiled(jax.value_and_grad(lambda z: -objective(jnp.exp(z))), SMALL)
        reached = []
        for start in starts:
            limits = [(-40.0, 4.0)] * len(start)

            def lowered(z: np.ndarray) -> tuple[float, np.ndarray]:
                f, g = value(jnp.asarray(z))
                return float(f), np.nan_to_num(np.asarray(g))

            z = np.clip(np.log(start), -40.0, 4.0)
            found = optimize.minimize(
                lowered, z, jac=True, bounds=limits, method="L-BFGS-B", options={"maxiter": steps}
            )
            reached.append(np.exp(found.x))
    return np.array(reached)


def exactly(states: np.ndarray) -> Iterator[list[Fraction]]:
    """Each state as the rationals its floats are."""
    return ([exact(v) for v in row] for row in states)


def proven_signs(
    enclose_one: Callable[[list[Fraction]], Enclosure], states: np.ndarray
) -> np.ndarray:
    """The proven sign at every state: −1, 1, or 0 where the value is zero to the last bit allowed."""
    return np.array([enclose_one(a).sign for a in exactly(states)])
