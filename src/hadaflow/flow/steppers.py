"""Runge–Kutta steps in the form of diffrax's, as far as the march asks for it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.algebra.padding import row
from hadaflow.base.lazy import diffrax


@dataclasses.dataclass(frozen=True)
class Tsit5Steps:
    """diffrax's Tsit5 with its stages written out one after the other.

    `diffrax.Tsit5` runs its stages in a loop with a buffer; written out, a step of a state of a few
    numbers takes some 15 % less time. `brief` is a loop again, for what is called once in a run: it is
    compiled in half the time. The last stage of a step is the first of the next, so the solver state is
    that velocity.
    """

    brief: bool = False

    def error_order(self, terms) -> float:
        return 5.0

    def init(self, terms, t0, t1, y0, args):
        return terms.vf(t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        stages = _looped_stages if self.brief else _stages
        y, error, last = stages(lambda t, y: terms.vf(t, y, args), t0, t1 - t0, y0, solver_state)
        return y, error, {"y0": y0, "y1": y}, last, diffrax.RESULTS.successful


def _stages(velocity: Callable[..., Any], t0, h, y0, first):
    """The state after a step, its error, and the velocity there."""
    tableau = diffrax.Tsit5.tableau
    stages, y = [first], y0
    for weights, c in zip(tableau.a_lower, tableau.c, strict=True):
        y = _combine(y0, h, weights, stages)
        stages.append(velocity(t0 + float(c) * h, y))
    return y, _combine(None, h, tableau.b_error, stages), stages[-1]


def _combine(y0, h, weights: np.ndarray, stages):
    """y0 + h Σ w_i k_i, or without y0 if that is None."""

    def slope(*ks):
        return row(h) * sum(float(w) * k for w, k in zip(weights, ks, strict=True) if w != 0)

    move = jax.tree.map(slope, *stages)
    return move if y0 is None else jax.tree.map(lambda y, m: y + m, y0, move)


def _looped_stages(velocity: Callable[..., Any], t0, h, y0, first):
    """As `_stages`."""
    tableau, count = diffrax.Tsit5.tableau, len(diffrax.Tsit5.tableau.c)
    weights = jnp.asarray(np.array([np.pad(w, (0, count - len(w))) for w in tableau.a_lower]))
    times = jnp.asarray(tableau.c)

    def slope(weights, ks):
        column = lambda k: weights.reshape(-1, *(1,) * (k.ndim - 1))  # noqa: E731
        return jax.tree.map(lambda k: row(h) * jnp.sum(column(k) * k, axis=0), ks)

    def put(i, ks, k):
        return jax.tree.map(lambda kept, new: kept.at[i].set(new), ks, k)

    def stage(i, carry):
        ks, _, last = carry
        ks = put(i, ks, last)
        y = jax.tree.map(jnp.add, y0, slope(weights[i], ks))
        return ks, y, velocity(t0 + times[i] * h, y)

    none = jax.tree.map(lambda k: jnp.zeros((count, *k.shape), k.dtype), first)
    ks, y, last = lax.fori_loop(0, count, stage, (none, y0, first))
    *before, own = tableau.b_error
    error = jax.tree.map(
        lambda e, k: e + row(h) * (float(own) * k), slope(jnp.asarray(np.array(before)), ks), last
    )
    return y, error, last
