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

from hadaflow.algebra.bases import Basis, Sylvester
from hadaflow.algebra.padding import with_front

# Temperatures below this are zero to every digit of the weights.
_COLDEST = 1e-25
LARGEST_LOG = 600.0  # where an exponential is cut off before it overflows
_NO_WEIGHT = 1e-280
_NEWTON_LIMIT = 60
_GRADIENT_LIMIT = 200
_GRADIENT_REDUCTION = 0.1
_LARGEST_MOVE = 1.5  # of log a, in one Newton step
_LEAST_GAIN = 30.0  # of log a over the norm of the forces that move it; random ones give about 5


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
    tolerance = jnp.maximum(tolerance, rounding(op.basis, h))

    def look(q, log_q, growth) -> _Look:
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


def rounding(basis: Basis, h):
    """What rounding leaves uncertain in log a after a stage of length `h`."""
    return 4 * jnp.finfo(jnp.float64).eps * (1 + h) * basis.classes.bit_length()


def shares(op, z):
    """log‖a‖₁ and a/‖a‖₁, zero in front."""
    z = with_front(z, -jnp.inf)
    largest = jnp.max(z)
    a = jnp.exp(z - largest)
    total = op.total(a)
    return largest + jnp.log(total), a / total


def soft_weights(op: Operator, z) -> Weights:
    """The weights themselves, softmax(−Ψa), where ‖a‖ is small enough to compute them."""
    size, share = shares(op, z)
    margins = with_front(op.positive(share), jnp.inf)
    smallest = jnp.min(margins)
    scale = jnp.exp(jnp.clip(size, -LARGEST_LOG, LARGEST_LOG))
    scale = jnp.minimum(scale, 1 / (_COLDEST * jnp.maximum(smallest, 1e-280)))  # as stages count
    # The smallest is taken off before they are scaled, so that it is zero exactly.
    log_p = (smallest - margins) * scale
    log_p = with_front(log_p - jnp.log(op.total(jnp.exp(log_p))), 0.0)
    return Weights(with_front(jnp.exp(log_p), 0.0), log_p, jnp.asarray(op.transforms))
