r"""Implicit steps of the orbit, solved for the weights of the margins.

In the orbit variable $\sigma$ the balanced flow of depth 2 is

$$\frac{d\log a}{d\sigma} = \Psi p,\qquad p = \mathrm{softmax}(-\Psi a),\qquad
\frac{dt}{d\sigma} = 1 + e^M,\quad M = -\log\sum_je^{-(\Psi a)_j}.$$

The weights have an integral, $P = \int p\,d\sigma$, that holds the whole orbit: $\log a = \log a_0 +
\Psi P$. An implicit Euler step of length $h$ asks for $q = hp \ge 0$ with $\sum q = h$ and

$$\Psi e^{z + \Psi q} + \log q = \mathrm{const}.$$

That is the minimum of a convex function of $q$, found by Newton's method with conjugate gradients:
products with $\Psi$ only, never a matrix. Once $\|a\|$ exceeds 1e13 or so $p$ cannot be computed from
$a$ any more (the margins lose digits like $\|a\|$ times the rounding), but $q$ still can.

Where weights only ever come in (no margin stops being minimal), Euler's step in the hard-margin limit is
exact at any length: the orbit is then $P(\sigma) = \arg\min\{\sum_i a_ie^{(\Psi P)_i} : P \ge 0,
\sum P = \sigma\}$. Extrapolation of Euler steps keeps that, adds the order that the soft regime needs,
and its error estimate is the check of the condition: where it fails, partial steps disagree and the
step is shortened.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.bases import AbelianGroup, Sylvester, with_front

Basis = Sylvester | AbelianGroup

# Temperatures below this are zero to every digit of the weights.
_COLDEST = 1e-25
_LARGEST_LOG = 600.0  # where an exponential is cut off before it overflows
LATE = 1e17  # from here on log t is M, or the smallest margin, to every digit
_NO_WEIGHT = 1e-280
_NEWTON_LIMIT = 60
_GRADIENT_LIMIT = 200
_GRADIENT_REDUCTION = 0.1
_LARGEST_MOVE = 1.5  # of log a, in one Newton step
_LEAST_GAIN = 30.0  # of log a over the norm of the forces that move it; random ones give about 5
_LAST_STRETCH, _LAST_MARGINS = 30.0, 4.0  # of the deviation; margins that join on it
_FINEST = 2e-3  # smallest share of the tolerance that collapse may ask for, at hard margins
_STAGE_SHARE = 0.3  # of the tolerance of a step, for all errors of its stages together


def wright_omega(theta):
    """(w, log w) with w + log w = θ: the logarithm for small w, the identity for large ones."""
    e = jnp.exp(jnp.minimum(theta, 1.0))
    low = e * (1 - e * (1 - 1.5 * e))
    t = jnp.clip(theta, -2.0, 3.0) - 1
    middle = 1 + t / 2 * (1 + t / 8 * (1 - t / 12))
    large = jnp.maximum(theta, 1.0)
    log_large = jnp.log(large)
    high = large - log_large + log_large / large
    w = jnp.where(theta < -2, low, jnp.where(theta < 3, middle, high))
    w = jnp.maximum(w, 1e-300)
    for _ in range(2):  # of fourth order (Fritsch, Shafer and Crowley)
        r = theta - w - jnp.log(w)
        s = (1 + w) * (1 + w + 2 / 3 * r)
        w = w * (1 + r / (1 + w) * (s - r / 2) / (s - r))
    # θ − w is log w without another logarithm, until it cancels; e^θ is w where w is tiny.
    log_w = jnp.where(theta < 1e8, theta - w, log_large)
    tiny = theta < -30
    return jnp.where(tiny, e, w), jnp.where(tiny, theta, log_w)


class Weights(NamedTuple):
    """Weights of the margins, their logarithms, and what was spent on finding them."""

    p: Any
    log_p: Any
    transforms: Any


class Stage(NamedTuple):
    """The solution of one Euler step."""

    q: Any  # increment of P
    log_q: Any
    growth: Any  # Ψq, the increment of log a
    soft_minimum: Any  # M
    solved: Any
    transforms: Any


class Operator(NamedTuple):
    """Ψ and sums over margins, in arrays padded for the trivial mode."""

    basis: Basis
    wide: bool

    @property
    def transforms(self) -> int:
        """Transforms that one product with entries that are not negative costs."""
        return 2 if self.wide and isinstance(self.basis, Sylvester) else 1

    def psi(self, v):
        return _once(self.basis.padded_psi(lax.optimization_barrier(v)))

    def positive(self, v):
        v = lax.optimization_barrier(v)
        return _once((self.basis.positive_psi if self.wide else self.basis.padded_psi)(v))

    def total(self, v):
        weights = self.basis.weights
        return jnp.sum(v if weights is None else v * weights)


def _once(v):
    """A barrier that keeps a processor from computing `v` anew in every pass that reads it.

    So do those before the products, everywhere. On accelerators, whose products are stored anyway, it
    would only cost another pass.
    """
    return lax.optimization_barrier(v) if jax.default_backend() == "cpu" else v


def solve_stage(op: Operator, z, h, guess: Weights, tolerance) -> Stage:
    """Euler's step of length `h` from z = log a, to `tolerance` in log a.

    With margins in units of the smallest one and x = q + ε log q, ε the temperature in that unit,
    Newton's equation is near the identity in the soft regime and in the hard one. Zero modes are z = −∞.
    """
    total, log_h = op.total, jnp.log(h)
    # More digits than rounding leaves to log a cannot be asked for.
    tolerance = jnp.maximum(tolerance, _rounding(op.basis, h))

    def look(q, log_q, growth) -> _Look:
        rescale = h / total(q)  # keeps the sum of the weights exactly
        q, growth, log_q = q * rescale, growth * rescale, log_q + jnp.log(rescale)
        now = with_front(z + growth, -jnp.inf)
        size = jnp.max(now)
        a = jnp.exp(now - size)
        margins = with_front(op.positive(a), jnp.inf)
        smallest = jnp.min(margins)
        # Where even the smallest margin is below the temperature, that is the unit.
        unit = jnp.maximum(smallest, jnp.exp(-jnp.clip(size, -_LARGEST_LOG, _LARGEST_LOG)))
        log_unit = size + jnp.log(unit)
        epsilon = jnp.exp(-jnp.minimum(log_unit, _LARGEST_LOG))
        epsilon = jnp.maximum(epsilon, _COLDEST)
        # Counted from the smallest: a mean of order one would round all of a million forces alike.
        force = with_front(-((margins - smallest) / unit + epsilon * log_q), 0.0)
        slope = _slope(q, epsilon)
        mean = total(slope * force) / total(slope)
        rest = total(slope * (force - mean) ** 2)
        least = (smallest / unit - mean) * jnp.exp(jnp.minimum(log_unit, _LARGEST_LOG))
        return _Look(q, log_q, growth, a / unit, force, epsilon, mean, rest, least - log_h)

    def newton(state):
        count, seen, _, transforms = state
        q, log_q, growth, a, force, epsilon, mean, rest, _ = seen
        slope = _slope(q, epsilon)
        active, share = slope > 0, total(slope)
        log_rate = jnp.where(active, epsilon / jnp.where(active, q, 1.0), 0.0)

        def conjugate(c):
            k, dq, bent, r, v, rz, _ = c
            curved = op.psi(a * op.psi(v))
            full = curved + log_rate * v
            length = rz / total(v * full)
            dq, bent = dq + length * v, bent + length * curved
            r = jnp.where(active, r - length * full, force - bent)
            mean = total(slope * r) / share
            rest = total(slope * (r - mean) ** 2)
            return k + 1, dq, bent, r, slope * (r - mean) + rest / rz * v, rest, mean

        # Never none at all while there is something to do: that alone need not converge.
        least = (0.1 * tolerance / _LEAST_GAIN) ** 2
        enough = jnp.maximum(_GRADIENT_REDUCTION**2 * rest, least)
        zero = jnp.zeros_like(q)
        k, dq, bent, _, _, _, mean = lax.while_loop(
            lambda c: (c[0] < _GRADIENT_LIMIT) & (c[5] > enough),
            conjugate,
            (jnp.asarray(0), zero, zero, force, slope * (force - mean), rest, mean),
        )
        x, dx = q + epsilon * log_q, force - mean - bent + dq

        def trial(t):
            theta = (x + t * dx) / epsilon - jnp.log(epsilon)
            w, log_w = lax.optimization_barrier(wright_omega(theta))
            new = with_front(epsilon * w, 0.0)
            grown = op.positive(new)
            moved = jnp.max(jnp.abs(grown - growth))
            moved = jnp.where(jnp.isfinite(moved), moved, jnp.inf)
            return t, new, with_front(log_w + jnp.log(epsilon), 0.0), grown, moved

        def shorter(c):
            tries, t, *_, moved = c
            return tries + 1, *trial(t * jnp.clip(1 / moved, 0.05, 0.5))

        tries, t, new, log_new, grown, moved = lax.while_loop(
            lambda c: (c[0] < 12) & (c[5] > _LARGEST_MOVE),
            shorter,
            (jnp.asarray(1), *trial(jnp.ones_like(h))),
        )
        seen = look(new, log_new, grown)
        moved = jnp.where(t < 1, jnp.inf, jnp.maximum(moved, jnp.abs(total(new) - h)))
        # What another iteration would move log a by, from what this one did to so much force.
        gain = jnp.maximum(_LEAST_GAIN, 3 * moved / jnp.maximum(jnp.sqrt(rest), 1e-150))
        left = jnp.minimum(moved, gain * jnp.sqrt(seen.rest))
        spent = (1 + tries) * op.transforms + 2 * k
        return count + 1, seen, left, transforms + spent

    q, log_q = with_front(h * guess.p, 0.0), with_front(guess.log_p + log_h, 0.0)
    begin = look(q, log_q, op.positive(q))
    _, seen, left, transforms = lax.while_loop(
        lambda s: (s[0] < _NEWTON_LIMIT) & ~(s[2] < tolerance),
        newton,
        (jnp.asarray(0), begin, jnp.asarray(jnp.inf), jnp.asarray(2 * op.transforms)),
    )
    return Stage(seen.q, seen.log_q, seen.growth, seen.soft_minimum, left < tolerance, transforms)


class _Look(NamedTuple):
    """An iterate of a stage, and what Newton's equation there is made of."""

    q: Any
    log_q: Any
    growth: Any
    a: Any  # in units of the smallest margin, as the temperature `epsilon` and the forces are
    force: Any
    epsilon: Any
    mean: Any  # force of all, at the solution
    rest: Any  # square of the forces left over
    soft_minimum: Any


def _slope(q, epsilon):
    """dq/dx. Weights below the normal numbers are none: their reciprocals would overflow."""
    return jnp.where(q > _NO_WEIGHT, q / (q + epsilon), 0.0)


class OrbitState(NamedTuple):
    r"""P, padded in front, and two clocks that stay of ordinary size.

    `lag` is $t e^{-M}$, which counts for nothing in $\log t$ beyond M = `LATE`, and `reach` the path
    length over $\|a\|_1$.
    """

    P: Any
    lag: Any
    reach: Any


class OrbitArguments(NamedTuple):
    """What an orbit is integrated with: its start, its tolerance, and the target's number."""

    log_a0: Any  # padded in front
    tolerance: Any
    target: Any


class DualEuler(diffrax.AbstractAdaptiveSolver):
    """Extrapolated implicit Euler with dual stages: `rank` results of 1, 2, … partial steps each.

    The state is an `OrbitState`, the arguments are `OrbitArguments`, the solver state is the last
    weights, as a guess. The error of P is returned as that of log a. A stage that cannot be solved makes
    the error infinite.
    """

    basis: Basis
    rank: int
    wide: bool
    collapse: bool  # is the target collapse, which needs `fineness`?
    term_structure: ClassVar = diffrax.AbstractTerm
    interpolation_cls: ClassVar[Callable[..., Any]] = diffrax.LocalLinearInterpolation

    def order(self, terms) -> int:
        return self.rank

    def error_order(self, terms) -> float:
        return float(self.rank)

    @property
    def operator(self) -> Operator:
        return Operator(self.basis, self.wide)

    def init(self, terms, t0, t1, y0, args):
        return soft_weights(self.operator, log_a(self.operator, y0.P, args.log_a0))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        op, h = self.operator, t1 - t0
        now = read(op, y0, args.log_a0)
        place = _place(now)
        best_weights, error_weights = _extrapolation(self.rank)
        tolerance = _STAGE_SHARE / float(np.abs(best_weights).sum()) * args.tolerance
        if self.collapse:
            tolerance = tolerance * fineness(self.basis, self.rank, now, args)

        def result(guess, parts):
            """Increments by `parts` Euler steps; one loop for all, so that a stage compiles once."""
            y, guess, solved = _partial_steps(op, place, y0, h, parts, guess, tolerance)
            return guess, (jax.tree.map(lambda a, b: a - b, y, y0), solved)

        guess, (moves, solved) = lax.scan(result, solver_state, jnp.arange(1, self.rank + 1))
        solved = jnp.all(solved)
        best = jax.tree.map(lambda y, m: y + best_weights @ m, y0, moves)
        error = jax.tree.map(lambda m: jnp.where(solved, error_weights @ m, jnp.inf), moves)
        error = error._replace(P=jnp.where(solved, op.psi(error.P), jnp.inf))
        # Extrapolation may leave the clocks below what is possible by less than their error.
        last = jax.tree.map(lambda y, m: y + m[-1], y0, moves)
        best = best._replace(
            lag=jnp.where(best.lag > 0, best.lag, last.lag),
            reach=jnp.where(best.reach > 0, best.reach, last.reach),
        )
        # The readings before and after the step, of two products each, and that of the error.
        state = guess._replace(transforms=guess.transforms + 4 * op.transforms + 1)
        return best, error, {"y0": y0, "y1": best}, state, diffrax.RESULTS.successful

    def func(self, terms, t0, y0, args):
        return OrbitState(self.init(terms, t0, t0, y0, args).p, jnp.ones(()), jnp.ones(()))


def _extrapolation(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the results of 1, …, `rank` parts: the limit of ever more, and its error estimate.

    The value at zero of the polynomial in 1/parts through all of them; the estimate is its distance
    from that through all but the first.
    """

    def limit(first: int) -> np.ndarray:
        x = 1.0 / np.arange(first, rank + 1)
        others = [np.delete(x, i) for i in range(len(x))]
        inner = [np.prod(o / (o - xi)) for o, xi in zip(others, x, strict=True)]
        return np.concatenate([np.zeros(first - 1), inner])

    return limit(1), limit(1) - limit(2)


def _partial_steps(op, place, y: OrbitState, h, parts, guess: Weights, tolerance):
    """`parts` Euler steps, of length `h` together, from `place` = (log a, M, log‖a‖₁)."""
    length = h / parts.astype(h.dtype)

    def one(_, carry):
        (z, M, size), y, guess, solved = carry
        stage = solve_stage(op, z, length, guess, tolerance)
        z = z + stage.growth
        new_size, share = shares(op, z)
        # M never falls; where it is cut off it stands still.
        rise, growth = jnp.maximum(stage.soft_minimum - M, 0.0), new_size - size
        slope = jnp.exp(jnp.minimum(new_size, _LARGEST_LOG)) * op.total(share * stage.growth**2)
        passed = _time_behind(slope / length, rise) + jnp.exp(-stage.soft_minimum)
        lag = y.lag * jnp.exp(-rise) + length * passed
        speed = jnp.sqrt(op.total((share * stage.growth) ** 2)) / length
        reach = y.reach * jnp.exp(-growth) + length * speed * _mean_decay(growth)
        spent = guess.transforms + stage.transforms
        guess = Weights(stage.q / length, stage.log_q - jnp.log(length), spent)
        place = z, stage.soft_minimum, new_size
        return place, OrbitState(y.P + stage.q, lag, reach), guess, solved & stage.solved

    _, y, guess, solved = lax.fori_loop(0, parts, one, (place, y, guess, jnp.asarray(True)))
    return y, guess, solved


@functools.partial(jax.jit, static_argnames=("op",))
def euler_step(op: Operator, y: OrbitState, args: OrbitArguments, guess: Weights, h, tolerance):
    """One Euler step, however long: (state, weights, whether it was solved)."""
    place = _place(read(op, y, args.log_a0))
    return _partial_steps(op, place, y, h, jnp.asarray(1), guess, tolerance)


def _place(now: "Reading"):
    return with_front(now.log_a, 0.0), now.soft_minimum, now.log_norm


def _mean_decay(x):
    """Mean of e^{−s} for s from 0 to x."""
    small = jnp.abs(x) < 1e-6
    safe = jnp.where(small, 1.0, x)
    return jnp.where(small, 1 - x / 2, -jnp.expm1(-safe) / safe)


def _time_behind(x, rise):
    r"""$\int_0^1e^{M(s) - M(1)}ds$ where M rises by `rise`, with slope x = M'(1) at the end.

    M is a parabola, $M(1) - M(s) = xr - dr^2$ with $r = 1 - s$, taken to first order in d: right to
    second order where x is small, and $1/x$, as it must be, where the last moment is all that counts.
    """
    small = x < 1e-2
    safe = jnp.where(small, 1.0, jnp.minimum(x, 1e100))
    second = (2 - jnp.exp(-safe) * (safe * safe + 2 * safe + 2)) / safe / safe / safe
    second = jnp.where(small, 1 / 3 - x / 4 + x * x / 10, second)
    return _mean_decay(x) + jnp.maximum(x - rise, 0.0) * second


def shares(op, z):
    """log‖a‖₁ and a/‖a‖₁, zero in front."""
    z = with_front(z, -jnp.inf)
    largest = jnp.max(z)
    a = jnp.exp(z - largest)
    total = op.total(a)
    return largest + jnp.log(total), a / total


def log_a(op: Operator, P, log_a0):
    """Log a = log a₀ + ΨP; the front entry is zero."""
    return log_a0 + op.positive(P)


def soft_weights(op: Operator, z) -> Weights:
    """The weights themselves, softmax(−Ψa), where ‖a‖ is small enough to compute them."""
    size, share = shares(op, z)
    margins = with_front(op.positive(share), jnp.inf)
    smallest = jnp.min(margins)
    scale = jnp.exp(jnp.clip(size, -_LARGEST_LOG, _LARGEST_LOG))
    scale = jnp.minimum(scale, 1 / (_COLDEST * jnp.maximum(smallest, 1e-280)))  # as stages count
    # The smallest is taken off before they are scaled, so that it is zero exactly.
    log_p = (smallest - margins) * scale
    log_p = with_front(log_p - jnp.log(op.total(jnp.exp(log_p))), 0.0)
    return Weights(with_front(jnp.exp(log_p), 0.0), log_p, jnp.asarray(op.transforms))


def fineness(basis: Basis, rank: int, now: "Reading", args: OrbitArguments):
    """How much more accurate log a must be than log‖a‖₁ at collapse, which is to be located.

    By the slope of the deviation δ: it decays like e^{−μ}, μ = ‖a‖₁/(K−1), so that the slope is μδ; at
    hard margins it falls by 1/K for every margin that is still out. With thousands of classes collapse is
    so far in the hard regime that steps are exact, and asking for more would ask for less than rounding.
    What rounding leaves of a step is the limit for all.
    """
    target = args.target
    mean = jnp.exp(jnp.minimum(now.log_norm, 100.0)) / (basis.classes - 1)
    slope = jnp.maximum(mean, 1.0) * jnp.maximum(now.deviation, target)
    last = now.deviation < _LAST_STRETCH * target
    least = max(_LAST_MARGINS / basis.classes, _FINEST)
    slope = jnp.where(last, jnp.minimum(slope, least), slope)
    rounding = _rounding(basis, longest_step(now)) * float(np.abs(_extrapolation(rank)[0]).sum())
    return jnp.minimum(jnp.maximum(slope, rounding / args.tolerance), 1.0)


def longest_step(now: "Reading"):
    """No step leads from the soft regime into the hard one past all that happens between them.

    Partial steps that are all too long to see it would agree with each other on the hard-margin path
    from where they began, which is another orbit.
    """
    return 0.5 + 0.25 * jnp.abs(now.log_margin)


def _rounding(basis: Basis, h):
    """What rounding leaves uncertain in log a after a stage of length `h`."""
    return 4 * jnp.finfo(jnp.float64).eps * (1 + h) * basis.classes.bit_length()


class Reading(NamedTuple):
    """What a state of the orbit means."""

    log_a: Any  # padded in front
    log_norm: Any
    deviation: Any  # max |(K−1)â − 1|
    soft_minimum: Any  # M, cut off where it overflows
    log_margin: Any  # log of the smallest margin
    log_time: Any  # natural log of t; infinite where it overflows
    log_path: Any


def read(op: Operator, y: OrbitState, log_a0) -> Reading:
    """The singular values and the clocks of a state."""
    z = log_a(op, y.P, log_a0)
    size, share = shares(op, z)
    count = op.basis.classes - 1
    deviation = jnp.max(jnp.abs(with_front(share * count, 1.0) - 1))
    margins = with_front(op.positive(share), jnp.inf)
    smallest = jnp.min(margins)
    scale = jnp.exp(jnp.clip(size, -_LARGEST_LOG, _LARGEST_LOG))
    tail = op.total(with_front(jnp.exp((smallest - margins) * scale), 0.0))
    M = smallest * scale - jnp.log(tail)
    log_time = jnp.where(M < LATE, M + jnp.log(y.lag), smallest * jnp.exp(size))
    log_time = jnp.where(y.lag > 0, log_time, -jnp.inf)  # nothing has happened yet
    return Reading(
        with_front(z, -jnp.inf), size, deviation, M, size + jnp.log(smallest), log_time,
        size + jnp.log(y.reach),
    )  # fmt: skip
