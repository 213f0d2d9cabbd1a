r"""One implicit Euler step of the orbit, solved for the weights of the margins.

A step of length $h$ from $z = \log a$ asks for $q \ge 0$ with $\sum q = h$ and

$$\Psi e^{z + \Psi q} + \log q = \mathrm{const}.$$

That is the minimum of a convex function of $q$, found by Newton's method with conjugate gradients:
products with $\Psi$ only, never a matrix. Once $\|a\|$ exceeds 1e13 or so the weights
$p = \mathrm{softmax}(-\Psi a)$ cannot be computed from $a$ any more (the margins lose digits like
$\|a\|$ times the rounding), but $q$ still can.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from hadaflow.algebra.bases import Basis
from hadaflow.algebra.padding import with_front
from hadaflow.algebra.shapes import Number, Padded

# Temperatures below this are zero to every digit of the weights.
_COLDEST = 1e-25
LARGEST_LOG = 600.0  # where an exponential is cut off before it overflows
_NO_WEIGHT = 1e-280
_NEWTON_LIMIT = 60
_GRADIENT_LIMIT = 200
_GRADIENT_REDUCTION = 0.1
_LARGEST_MOVE, _MOST_TRIES = 1.5, 12  # of log a, in one Newton step
_LEAST_GAIN = 30.0  # of log a over the norm of the forces that move it; random ones give about 5


def wright_omega(theta: Padded) -> tuple[Padded, Padded]:
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
    """Weights of the margins, and their logarithms."""

    p: Any
    log_p: Any


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
        return self.basis.positive_transforms if self.wide else 1

    def psi(self, v: Padded) -> Padded:
        return _once(self.basis.padded_psi(lax.optimization_barrier(v)))

    def positive(self, v: Padded) -> Padded:
        v = lax.optimization_barrier(v)
        return _once((self.basis.positive_psi if self.wide else self.basis.padded_psi)(v))

    def total(self, v: Padded) -> Number:
        weights = self.basis.weights
        return jnp.sum(v if weights is None else v * weights)


def _once(v):
    """A barrier that keeps a processor from computing `v` anew in every pass that reads it.

    So do those before the products, everywhere. On accelerators, whose products are stored anyway, it
    would only cost another pass.
    """
    return lax.optimization_barrier(v) if jax.default_backend() == "cpu" else v


def solve_stage(op: Operator, z: Padded, h: Number, guess: Weights, tolerance: Number) -> Stage:
    """Euler's step of length `h` from z = log a, to `tolerance` in log a.

    With margins in units of the smallest one and x = q + ε log q, ε the temperature in that unit,
    Newton's equation is near the identity in the soft regime and in the hard one. Zero modes are z = −∞.
    """
    # More digits than rounding leaves to log a cannot be asked for.
    tolerance = jnp.maximum(tolerance, rounding(op.basis, h))
    q, log_q = with_front(h * guess.p, 0.0), with_front(guess.log_p + jnp.log(h), 0.0)
    begin = _look(op, z, h, q, log_q, op.positive(q))

    def newton(state):
        count, seen, _, transforms = state
        dx, products = _newton_direction(op, seen, tolerance)
        tries, trial = _longest_move(op, seen, dx, jnp.ones_like(h))
        new = _look(op, z, h, trial.q, trial.log_q, trial.growth)
        moved = jnp.maximum(trial.moved, jnp.abs(op.total(trial.q) - h))
        moved = jnp.where(trial.share < 1, jnp.inf, moved)
        # What another iteration would move log a by, from what this one did to so much force.
        gain = jnp.maximum(_LEAST_GAIN, 3 * moved / jnp.maximum(jnp.sqrt(seen.rest), 1e-150))
        left = jnp.minimum(moved, gain * jnp.sqrt(new.rest))
        spent = (1 + tries) * op.transforms + products
        return count + 1, new, left, transforms + spent

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


def _look(op: Operator, z: Padded, h: Number, q: Padded, log_q: Padded, growth: Padded) -> _Look:
    """What Newton's equation is made of at an increment `q`, whose Ψq is `growth`."""
    total = op.total
    rescale = h / total(q)  # keeps the sum of the weights exactly
    q, growth, log_q = q * rescale, growth * rescale, log_q + jnp.log(rescale)
    now = with_front(z + growth, -jnp.inf)
    size = jnp.max(now)
    a = jnp.exp(now - size)
    margins = with_front(op.positive(a), jnp.inf)
    smallest = jnp.min(margins)
    # Where even the smallest margin is below the temperature, that is the unit.
    unit = jnp.maximum(smallest, jnp.exp(-jnp.clip(size, -LARGEST_LOG, LARGEST_LOG)))
    log_unit = size + jnp.log(unit)
    epsilon = jnp.exp(-jnp.minimum(log_unit, LARGEST_LOG))
    epsilon = jnp.maximum(epsilon, _COLDEST)
    # Counted from the smallest: a mean of order one would round all of a million forces alike.
    force = with_front(-((margins - smallest) / unit + epsilon * log_q), 0.0)
    slope = _slope(q, epsilon)
    mean = total(slope * force) / total(slope)
    rest = total(slope * (force - mean) ** 2)
    least = (smallest / unit - mean) * jnp.exp(jnp.minimum(log_unit, LARGEST_LOG))
    return _Look(q, log_q, growth, a / unit, force, epsilon, mean, rest, least - jnp.log(h))


class _Gradients(NamedTuple):
    """The state of the conjugate gradients."""

    count: Any
    dq: Any
    bent: Any  # ΨaΨ dq
    residual: Any
    along: Any
    rest: Any  # square of the residual
    mean: Any  # of the residual


def _newton_direction(op: Operator, seen: _Look, tolerance: Number) -> tuple[Padded, Number]:
    """Newton's step in x, by conjugate gradients, and the transforms spent on it."""
    total, slope = op.total, _slope(seen.q, seen.epsilon)
    active, share = slope > 0, total(slope)
    log_rate = jnp.where(active, seen.epsilon / jnp.where(active, seen.q, 1.0), 0.0)

    def further(c: _Gradients) -> _Gradients:
        curved = op.psi(seen.a * op.psi(c.along))
        full = curved + log_rate * c.along
        length = c.rest / total(c.along * full)
        dq, bent = c.dq + length * c.along, c.bent + length * curved
        residual = jnp.where(active, c.residual - length * full, seen.force - bent)
        mean = total(slope * residual) / share
        rest = total(slope * (residual - mean) ** 2)
        along = slope * (residual - mean) + rest / c.rest * c.along
        return _Gradients(c.count + 1, dq, bent, residual, along, rest, mean)

    # Never none at all while there is something to do: that alone need not converge.
    least = (0.1 * tolerance / _LEAST_GAIN) ** 2
    enough = jnp.maximum(_GRADIENT_REDUCTION**2 * seen.rest, least)
    zero, along = jnp.zeros_like(seen.q), slope * (seen.force - seen.mean)
    found = lax.while_loop(
        lambda c: (c.count < _GRADIENT_LIMIT) & (c.rest > enough),
        further,
        _Gradients(jnp.asarray(0), zero, zero, seen.force, along, seen.rest, seen.mean),
    )
    return seen.force - found.mean - found.bent + found.dq, 2 * found.count


class _Trial(NamedTuple):
    """A share of Newton's step, and where it leads."""

    share: Any
    q: Any
    log_q: Any
    growth: Any
    moved: Any  # the largest change of log a


def _longest_move(op: Operator, seen: _Look, dx: Padded, whole: Number) -> tuple[Number, _Trial]:
    """The longest share of Newton's step that moves log a by no more than is sane, and the tries."""
    epsilon = seen.epsilon
    x = seen.q + epsilon * seen.log_q

    def trial(share) -> _Trial:
        theta = (x + share * dx) / epsilon - jnp.log(epsilon)
        w, log_w = lax.optimization_barrier(wright_omega(theta))
        q = with_front(epsilon * w, 0.0)
        growth = op.positive(q)
        moved = jnp.max(jnp.abs(growth - seen.growth))
        moved = jnp.where(jnp.isfinite(moved), moved, jnp.inf)
        return _Trial(share, q, with_front(log_w + jnp.log(epsilon), 0.0), growth, moved)

    def shorter(c):
        tries, now = c
        return tries + 1, trial(now.share * jnp.clip(1 / now.moved, 0.05, 0.5))

    return lax.while_loop(
        lambda c: (c[0] < _MOST_TRIES) & (c[1].moved > _LARGEST_MOVE),
        shorter,
        (jnp.asarray(1), trial(whole)),
    )


def _slope(q: Padded, epsilon: Number) -> Padded:
    """dq/dx. Weights below the normal numbers are none: their reciprocals would overflow."""
    return jnp.where(q > _NO_WEIGHT, q / (q + epsilon), 0.0)


def rounding(basis: Basis, h):
    """What rounding leaves uncertain in log a after a stage of length `h`."""
    return 4 * jnp.finfo(jnp.float64).eps * (1 + h) * basis.classes.bit_length()


def shares(op: Operator, z: Padded) -> tuple[Number, Padded]:
    """log‖a‖₁ and a/‖a‖₁, zero in front."""
    z = with_front(z, -jnp.inf)
    largest = jnp.max(z)
    a = jnp.exp(z - largest)
    total = op.total(a)
    return largest + jnp.log(total), a / total


def soft_weights(op: Operator, z: Padded) -> Weights:
    """The weights themselves, softmax(−Ψa), where ‖a‖ is small enough to compute them."""
    size, share = shares(op, z)
    margins = with_front(op.positive(share), jnp.inf)
    smallest = jnp.min(margins)
    scale = jnp.exp(jnp.clip(size, -LARGEST_LOG, LARGEST_LOG))
    scale = jnp.minimum(scale, 1 / (_COLDEST * jnp.maximum(smallest, 1e-280)))  # as stages count
    # The smallest is taken off before they are scaled, so that it is zero exactly.
    log_p = (smallest - margins) * scale
    log_p = with_front(log_p - jnp.log(op.total(jnp.exp(log_p))), 0.0)
    return Weights(with_front(jnp.exp(log_p), 0.0), log_p)
