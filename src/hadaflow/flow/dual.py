r"""Extrapolated implicit steps of the orbit, and what its states mean.

In the orbit variable $\sigma$ the balanced flow of depth 2 is

$$\frac{d\log a}{d\sigma} = \Psi p,\qquad p = \mathrm{softmax}(-\Psi a),\qquad
\frac{dt}{d\sigma} = 1 + e^M,\quad M = -\log\sum_je^{-(\Psi a)_j}.$$

The weights have an integral, $P = \int p\,d\sigma$, that holds the whole orbit: $\log a = \log a_0 +
\Psi P$. Implicit Euler steps are solved for its increments, see `stages`.

Where weights only ever come in (no margin stops being minimal), Euler's step in the hard-margin limit is
exact at any length: the orbit is then $P(\sigma) = \arg\min\{\sum_i a_ie^{(\Psi P)_i} : P \ge 0,
\sum P = \sigma\}$. Extrapolation of Euler steps keeps that, adds the order that the soft regime needs,
and its error estimate is the check of the condition: where it fails, partial steps disagree and the
step is shortened.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.algebra.padding import with_front
from hadaflow.algebra.shapes import Number, Padded
from hadaflow.base.compiling import compiled
from hadaflow.base.lazy import diffrax
from hadaflow.base.precision import is_traced
from hadaflow.flow.kinds.flow import Flow
from hadaflow.flow.stages import (
    LARGEST_LOG,
    Basis,
    Operator,
    Weights,
    rounding,
    shares,
    soft_weights,
    solve_stage,
)
from hadaflow.model.views.pytrees import Traced, static, traced

LATE = 1e17  # from here on log t is M, or the smallest margin, to every digit
# From here on one weight among many decides nothing, and one estimate of the error is enough: measured at
# 1024 classes, the first alone keeps a ten-thousandth of its promise, and a second doubles the steps.
MANY_CLASSES = 256
_LAST_STRETCH, _LAST_MARGINS = 30.0, 4.0  # of the deviation; margins that join on it
# How many times 1/μ the layer is deep in which collapse becomes exponential, and steps in it are long.
# Where it is not thin, in the soft regime, steps are short enough by themselves.
_LAYER, _LAYER_STEP, _THIN = 3.0, 1.5, 0.1
_FINEST = 2e-3  # smallest share of the tolerance that collapse may ask for, at hard margins
_CHUNK_WORK = 2**16  # numbers moved by the steps between two returns to Python
_SETTLED = 50.0  # of M, from where on the clock of any loss is a plain exponential
_STAGE_SHARE = 0.3  # of the tolerance of a step, for all errors of its stages together


class Clock(Traced):
    r"""$dt/d\sigma = e^{R(M)}$, by the loss: $R = \log(1 + e^M)$ for cross-entropy.

    Other functions of the probability have its orbit, and $R \to \kappa M + \rho$ late.
    """

    loss: Any  # of temperature one

    @classmethod
    def of(cls, loss: Any) -> "Clock":
        return cls(traced(loss.of(1.0, None)))

    @property
    def steepness(self) -> Any:
        return self.loss.steepness

    def log_rate(self, M):
        """R."""
        return jax.nn.softplus(M) - self.loss.log_pace(-M)

    def offset(self, M):
        r"""$R - \kappa M$, which is constant when M is large."""
        early = jnp.minimum(M, _SETTLED)
        return self.log_rate(early) - self.steepness * early

    def passed(self, x, rise, M):
        r"""$\int_0^1e^{R(M(s)) - \kappa M}ds$ where M, at the end, has risen by `rise` with slope x."""
        late = jnp.exp(self.offset(jnp.full_like(M, _SETTLED)))
        behind = _time_behind(self.steepness * x, self.steepness * rise)
        return late * behind + (jnp.exp(self.offset(M)) - late)


class OrbitState(NamedTuple):
    r"""P, padded in front, and two clocks that stay of ordinary size.

    `lag` is $t e^{-\kappa M}$, which counts for nothing in $\log t$ beyond M = `LATE`, $\kappa$ the
    steepness of the loss (1 for cross-entropy), and `reach` the path length over $\|a\|_1$.
    """

    P: Any
    lag: Any
    reach: Any


@dataclasses.dataclass(frozen=True, eq=False)
class DualEuler:
    """Extrapolated implicit Euler with dual stages: `rank` results of 1, 2, … partial steps each.

    The state is an `OrbitState`, the solver state is the last weights, as a guess. The error of P is
    returned as that of log a. A stage that cannot be solved makes the error infinite.
    """

    flow: "DualFlow"

    def error_order(self, terms) -> float:
        return float(self.flow.rank)

    def init(self, terms, t0, t1, y0, args):
        op = self.flow.operator
        return soft_weights(op, log_a(op, y0.P, self.flow.log_a0))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        flow, op, h = self.flow, self.flow.operator, t1 - t0
        now = flow.read(y0)
        place = _place(now)
        best_weights, *estimates = _extrapolation(flow.rank)
        if flow.basis.classes >= MANY_CLASSES:
            estimates = estimates[:1]
        tolerance = _STAGE_SHARE / float(np.abs(best_weights).sum()) * flow.tolerance
        if flow.collapse is not None:
            tolerance = tolerance * flow.fineness(now)

        def result(guess, parts):
            """Increments by `parts` Euler steps; one loop for all, so that a stage compiles once."""
            y, guess, solved, spent = _partial_steps(
                op, flow.clock, place, y0, h, parts, guess, tolerance
            )
            return guess, (jax.tree.map(lambda a, b: a - b, y, y0), solved, spent)

        guess, (moves, solved, spent) = lax.scan(result, solver_state, jnp.arange(1, flow.rank + 1))
        solved = jnp.all(solved)
        best = jax.tree.map(lambda y, m: y + best_weights @ m, y0, moves)
        error = jax.tree.map(jnp.zeros_like, y0)
        for weights in estimates:
            found = jax.tree.map(lambda m, w=weights: jnp.abs(w @ m), moves)
            found = found._replace(P=jnp.abs(op.psi(weights @ moves.P)))
            error = jax.tree.map(jnp.maximum, error, found)
        # Extrapolation may leave the clocks below what is possible by less than their error.
        last = jax.tree.map(lambda y, m: y + m[-1], y0, moves)
        best = best._replace(
            lag=jnp.where(best.lag > 0, best.lag, last.lag),
            reach=jnp.where(best.reach > 0, best.reach, last.reach),
        )
        if flow.collapse is not None:
            solved = solved & ~flow.leaps(h, best)
        error = jax.tree.map(lambda e: jnp.where(solved, e, jnp.inf), error)
        # The readings before and after the step, of two products each, and those of the error.
        work = jnp.sum(spent) + 4 * op.transforms + len(estimates)
        return best, error, {"y0": y0, "y1": best, "work": work}, guess, diffrax.RESULTS.successful

    def func(self, terms, t0, y0, args):
        return OrbitState(self.init(terms, t0, t0, y0, args).p, jnp.ones(()), jnp.ones(()))


def _extrapolation(rank: int) -> tuple[np.ndarray, ...]:
    """Weights of the results of 1, …, `rank` parts: the limit of ever more, and its error estimates.

    The value at zero of the polynomial in 1/parts through all of them; the estimates are its distances
    from that through all but the first and from that through all but the last. Where a weight comes in
    during the step one of them may vanish by chance, but hardly both.
    """

    def limit(first: int, last: int) -> np.ndarray:
        x = 1.0 / np.arange(first, last + 1)
        others = [np.delete(x, i) for i in range(len(x))]
        inner = [np.prod(o / (o - xi)) for o, xi in zip(others, x, strict=True)]
        return np.pad(inner, (first - 1, rank - last))

    best = limit(1, rank)
    return best, best - limit(2, rank), best - limit(1, rank - 1)


def _partial_steps(op, clock: Clock, place, y: OrbitState, h, parts, guess: Weights, tolerance):
    """`parts` Euler steps, of length `h` together, from `place` = (log a, M, log‖a‖₁).

    The state, the last weights, whether all was solved, and the transforms spent.
    """
    length = h / parts.astype(h.dtype)

    def one(_, carry):
        (z, M, size), y, guess, solved, spent = carry
        stage = solve_stage(op, z, length, guess, tolerance)
        z = z + stage.growth
        new_size, share = shares(op, z)
        # M never falls; where it is cut off it stands still.
        rise, growth = jnp.maximum(stage.soft_minimum - M, 0.0), new_size - size
        slope = jnp.exp(jnp.minimum(new_size, LARGEST_LOG)) * op.total(share * stage.growth**2)
        passed = clock.passed(slope / length, rise, stage.soft_minimum)
        lag = y.lag * jnp.exp(-clock.steepness * rise) + length * passed
        speed = jnp.sqrt(op.total((share * stage.growth) ** 2)) / length
        reach = y.reach * jnp.exp(-growth) + length * speed * _mean_decay(growth)
        guess = Weights(stage.q / length, stage.log_q - jnp.log(length))
        place = z, stage.soft_minimum, new_size
        y, solved = OrbitState(y.P + stage.q, lag, reach), solved & stage.solved
        return place, y, guess, solved, spent + stage.transforms

    begin = (place, y, guess, jnp.asarray(True), jnp.asarray(0))
    return lax.fori_loop(0, parts, one, begin)[1:]


@compiled(static_argnames=("op",))
def euler_step(op: Operator, clock: Clock, y: OrbitState, log_a0, guess: Weights, h, tolerance):
    """One Euler step, however long: as `_partial_steps`."""
    place = _place(read(op, clock, y, log_a0))
    return _partial_steps(op, clock, place, y, h, jnp.asarray(1), guess, tolerance)


def _place(now: "OrbitReading"):
    return with_front(now.log_a, 0.0), now.soft_minimum, now.log_norm


def _mean_decay(x: Number) -> Number:
    """Mean of e^{−s} for s from 0 to x."""
    small = jnp.abs(x) < 1e-6
    safe = jnp.where(small, 1.0, x)
    return jnp.where(small, 1 - x / 2, -jnp.expm1(-safe) / safe)


def _time_behind(x: Number, rise: Number) -> Number:
    r"""$\int_0^1e^{M(s) - M(1)}ds$ where M rises by `rise`, with slope x = M'(1) at the end.

    M is a parabola, $M(1) - M(s) = xr - dr^2$ with $r = 1 - s$, taken to first order in d: right to
    second order where x is small, and $1/x$, as it must be, where the last moment is all that counts.
    """
    small = x < 1e-2
    safe = jnp.where(small, 1.0, jnp.minimum(x, 1e100))
    second = (2 - jnp.exp(-safe) * (safe * safe + 2 * safe + 2)) / safe / safe / safe
    second = jnp.where(small, 1 / 3 - x / 4 + x * x / 10, second)
    return _mean_decay(x) + jnp.maximum(x - rise, 0.0) * second


def log_a(op: Operator, P: Padded, log_a0: Padded) -> Padded:
    """Log a = log a₀ + ΨP; the front entry is zero."""
    return log_a0 + op.positive(P)


def longest_step(now: "OrbitReading"):
    """No step leads from the soft regime into the hard one past all that happens between them.

    Partial steps that are all too long to see it would agree with each other on the hard-margin path
    from where they began, which is another orbit.
    """
    return 0.5 + 0.25 * jnp.abs(now.log_margin)


class DualFlow(Flow):
    """The orbit in σ, from scaled singular values for temperature one."""

    basis: Basis = static()
    rank: int = static()  # order of the extrapolation
    wide: bool = static()  # are the entries so far apart that sums must not cancel?
    log_a0: Any  # padded in front
    tolerance: Any  # of one step
    collapse: Any  # the tolerance of collapse, where that is to be located; else None
    clock: Clock

    @property
    def operator(self) -> Operator:
        return Operator(self.basis, self.wide)

    @property
    def steps_per_chunk(self) -> int:
        return int(np.clip(_CHUNK_WORK // self.basis.classes, 1, 64))

    def velocity(self, u, y: OrbitState):
        """dP/dσ; the stages do without it, as it cannot be computed at large norms."""
        return DualEuler(self).func(None, u, y, None)

    @functools.cached_property
    def _seen(self) -> list[tuple[OrbitState, "OrbitReading"]]:
        return []

    def read(self, y: OrbitState) -> "OrbitReading":
        """Once of each state: a step, its error and the target ask for the same while it is traced."""
        for state, reading in self._seen:
            if all(a is b for a, b in zip(state, y, strict=True)):
                return reading
        reading = read(self.operator, self.clock, y, self.log_a0)
        if is_traced(y.P):
            self._seen.append((y, reading))
        return reading

    def error_scale(self, y: OrbitState) -> OrbitState:
        """What the error of log a, and of the two clocks, is measured against.

        The logarithm of time is promised relatively.
        """
        now = self.read(y)
        scale = jnp.ones(()) if self.collapse is None else self.fineness(now)
        far = self.clock.steepness * now.soft_minimum
        timing = jnp.maximum(y.lag * jnp.maximum(far, 1.0), 1e-290)
        return OrbitState(
            jnp.full_like(y.P, scale),
            jnp.where(now.soft_minimum < LATE, timing, 1.0),
            jnp.maximum(y.reach, 1e-290),
        )

    def longest_step(self, y: OrbitState):
        return longest_step(self.read(y))

    def leaps(self, h: Any, y: OrbitState) -> Any:
        """Does a step end where the last margin joins the smallest ones, from far outside?

        There the deviation δ, which fell along a straight line, begins to decay like e^{−μ},
        μ = ‖a‖₁/(K−1), within 1/μ. The partial steps of one that is longer than that all miss how, and
        there is always an end at which they agree by chance: the one a controller would find. Nothing
        that comes after forgets their error, since δ decays no slower.
        """
        now = self.read(y)
        mean = jnp.exp(jnp.minimum(now.log_norm, 100.0)) / (self.basis.classes - 1)
        short = jnp.maximum(
            now.deviation, self.collapse
        )  # what comes after the target is not looked at
        return (mean * h > _LAYER_STEP) & (mean * short < _LAYER) & (short < _THIN)

    def fineness(self, now: "OrbitReading"):
        """How much more accurate log a must be than log‖a‖₁ at collapse, which is to be located.

        By the slope of the deviation δ: it decays like e^{−μ}, μ = ‖a‖₁/(K−1), so that the slope is
        μδ; at hard margins it falls by 1/K for every margin that is still out. With thousands of classes
        collapse is so far in the hard regime that steps are exact, and asking for more would ask for
        less than rounding. What rounding leaves of a step is the limit for all.
        """
        basis, target = self.basis, self.collapse
        mean = jnp.exp(jnp.minimum(now.log_norm, 100.0)) / (basis.classes - 1)
        slope = jnp.maximum(mean, 1.0) * jnp.maximum(now.deviation, target)
        last = now.deviation < _LAST_STRETCH * target
        least = max(_LAST_MARGINS / basis.classes, _FINEST)
        slope = jnp.where(last, jnp.minimum(slope, least), slope)
        floor = rounding(basis, longest_step(now)) * float(
            np.abs(_extrapolation(self.rank)[0]).sum()
        )
        return jnp.minimum(jnp.maximum(slope, floor / self.tolerance), 1.0)


class OrbitReading(NamedTuple):
    """What a state of the orbit means."""

    log_a: Any  # padded in front
    log_norm: Any
    deviation: Any  # max |(K−1)â − 1|
    soft_minimum: Any  # M, cut off where it overflows
    log_margin: Any  # log of the smallest margin
    log_time: Any  # natural log of t; infinite where it overflows
    log_path: Any

    @property
    def u(self) -> Any:
        """log(1 + t)."""
        return jax.nn.softplus(self.log_time)

    def at(self, u: Any) -> "OrbitReading":
        """It knows the time itself."""
        return self

    @property
    def fastest(self) -> Any:
        raise NotImplementedError("this orbit never settles")


def read(op: Operator, clock: Clock, y: OrbitState, log_a0: Padded) -> OrbitReading:
    """The singular values and the clocks of a state."""
    z = log_a(op, y.P, log_a0)
    size, share = shares(op, z)
    count = op.basis.classes - 1
    deviation = jnp.max(jnp.abs(with_front(share * count, 1.0) - 1))
    margins = with_front(op.positive(share), jnp.inf)
    smallest = jnp.min(margins)
    scale = jnp.exp(jnp.clip(size, -LARGEST_LOG, LARGEST_LOG))
    tail = op.total(with_front(jnp.exp((smallest - margins) * scale), 0.0))
    M = smallest * scale - jnp.log(tail)
    late = smallest * jnp.exp(size)
    log_time = clock.steepness * jnp.where(M < LATE, M, late)
    log_time = jnp.where(M < LATE, log_time + jnp.log(y.lag), log_time)
    log_time = jnp.where(y.lag > 0, log_time, -jnp.inf)  # nothing has happened yet
    return OrbitReading(
        with_front(z, -jnp.inf), size, deviation, M, size + jnp.log(smallest), log_time,
        size + jnp.log(y.reach),
    )  # fmt: skip
