"""One step of an optimizer, on any arrays: descent, heavy ball, or whatever optax has."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.base.compiling import SOON, compiled
from hadaflow.base.lazy import optax
from hadaflow.descent.optimizers.optimizer import Optimizer, Recipe
from hadaflow.descent.optimizers.own import relaxed
from hadaflow.model.views.pytrees import Traced, static


class Rule(Traced):
    """Moves `x`, a tuple of arrays with the runs on the last axis, and what it remembers."""

    def begin(self, system: Any, x: Any) -> Any:
        """What it remembers before the first step."""
        raise NotImplementedError

    def step(self, system: Any, x: Any, memory: Any) -> tuple[Any, Any]:
        raise NotImplementedError


class Descent(Rule):
    """Gradient descent."""

    rate: Any

    def begin(self, system: Any, x: Any) -> Any:
        return ()

    def step(self, system: Any, x: Any, memory: Any) -> tuple[Any, Any]:
        return tuple(a + self.rate * p for a, p in zip(x, system.push(x), strict=True)), memory


class HeavyBall(Rule):
    """Descent with momentum; the velocity is what is remembered."""

    rate: Any
    momentum: Any

    def begin(self, system: Any, x: Any) -> Any:
        return tuple(np.zeros_like(a) for a in x)

    def step(self, system: Any, x: Any, memory: Any) -> tuple[Any, Any]:
        push = system.push(x)
        velocity = tuple(
            self.momentum * v + self.rate * p for v, p in zip(memory, push, strict=True)
        )
        return tuple(a + v for a, v in zip(x, velocity, strict=True)), velocity


class Transformation(Rule):
    """A transformation of optax, made anew of its numbers whenever code is compiled."""

    recipe: Recipe = static()
    apart: bool = static()  # has every run, on the last axis, a state of its own?
    numbers: Any

    def begin(self, system: Any, x: Any) -> Any:
        return _begun(self, system, x)

    def state(self, system: Any, x: Any) -> Any:
        """What optax remembers before the first step; traced."""
        if not self.apart:
            return self.recipe.transformation(self.numbers).init(x)

        def one(numbers: Any, x: Any) -> Any:
            return self.recipe.transformation(numbers).init(x)

        return jax.vmap(one, in_axes=(self._axes, -1), out_axes=-1)(self.numbers, x)

    def step(self, system: Any, x: Any, memory: Any) -> tuple[Any, Any]:
        return self.moved(x, system.push(x), memory)

    def moved(self, x: Any, push: Any, state: Any) -> tuple[Any, Any]:
        def one(numbers: Any, push: Any, state: Any, x: Any) -> Any:
            rule = self.recipe.transformation(numbers)
            updates, state = rule.update(tuple(-p for p in push), state, x)
            return optax.apply_updates(x, updates), state

        if not self.apart:
            return one(self.numbers, push, state, x)
        axes = (self._axes, -1, -1, -1)
        return jax.vmap(one, in_axes=axes, out_axes=-1)(self.numbers, push, state, x)

    @property
    def _axes(self) -> Any:
        """Which numbers every run has for itself."""
        return jax.tree.map(lambda v: 0 if jnp.ndim(v) else None, self.numbers)


@compiled(SOON)
def _begun(rule: Any, system: Any, x: Any) -> Any:
    with relaxed():
        return rule.state(system, x)


class Scaleless(Transformation):
    """A rule that does not ask how large gradients are: they may be smaller than any double.

    What it remembers of them is in units of its own, which shrink with them, but no faster than memory
    fades: what dominates is of ordinary size.
    """

    def state(self, system: Any, x: Any) -> Any:
        _, slowness = system.drive(x)
        return super().state(system, x), jnp.full_like(slowness, jnp.inf)

    def step(self, system: Any, x: Any, memory: Any) -> tuple[Any, Any]:
        state, unit = memory
        direction, slowness = system.drive(x)
        name = self.recipe.memory
        if name:
            now = jnp.minimum(slowness, unit - jnp.log(self.numbers[name]))
            change = jnp.exp(now - unit)
            old = optax.tree.get(state, "mu")
            kept = jax.tree.map(lambda m: m * change, old)
            state = optax.tree.set(state, mu=kept)
        else:
            now = slowness
        size = jnp.exp(now - slowness)
        x, state = self.moved(x, tuple(d * size for d in direction), state)
        return x, (state, now)


def rule_of(
    optimizer: Optimizer, *, of_values: bool, in_logs: bool, runs: bool, shapes: Any
) -> Rule:  # fmt: skip
    """What an optimizer does at a step.

    On singular values, or on entries; with forces whose logarithms are known (`in_logs`); with runs on
    the last axis or alone.
    """
    recipe = optimizer.recipe(of_values)
    numbers = optimizer.numbers(of_values, shapes)
    kind = Scaleless if optimizer.scaleless and in_logs else Transformation
    return kind(recipe, runs, numbers)


def descent_of(rate: Any, momentum: float) -> Rule:
    return HeavyBall(rate, np.float64(momentum)) if momentum else Descent(rate)
