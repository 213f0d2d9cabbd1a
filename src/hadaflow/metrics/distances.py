r"""Distances to neural collapse, as functions of the non-trivial singular values.

They are written in $r_i = (K-1)\hat a_i - 1$, which sums to zero, so that they keep several digits
down to 1e-20, where the textbook forms have long cancelled.
"""

import jax
import jax.numpy as jnp

# --- largest, smallest, norm, with their one-sided derivatives -----------------------------------
#
# A metric with a maximum in it has a kink where two entries tie. Its derivative along the flow is
# the one to the right: the largest rate among the tied entries, not their average, which is what
# JAX would take.


@jax.custom_jvp
def largest(x):
    return jnp.max(x)


@largest.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    top = jnp.max(x)
    return top, jnp.max(jnp.where(x == top, dx, -jnp.inf))


def smallest(x):
    return -largest(-x)


@jax.custom_jvp
def norm(x):
    """Euclidean norm; at zero its derivative is the norm of the velocity."""
    return jnp.sqrt(jnp.sum(x**2))


@norm.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    length = norm(x)
    slope = jnp.sum(x * dx) / jnp.where(length > 0, length, 1.0)
    return length, jnp.where(length > 0, slope, jnp.sqrt(jnp.sum(dx**2)))


# --- distances to collapse, functions of the non-trivial singular values -------------------------


def deviations(a):
    r"""$r_i = (K-1)\hat a_i - 1$: how far each singular value is from the mean, relatively."""
    return a / jnp.mean(a) - 1.0


def kl(a):
    r"""$D_{KL}(\frac1{K-1}1 \| \hat a)$, the Lyapunov function (Theorem 3), as mean of r − log(1+r)."""
    r = deviations(a)
    # Where a share is far below the mean, 1 + r has lost it.
    logs = jnp.where(r < -0.5, jnp.log(a) - jnp.log(jnp.mean(a)), jnp.log1p(r))
    return jnp.mean(r - logs)


def reverse_kl(a):
    r"""$D_{KL}(\hat a \| \frac1{K-1}1) = \log(K-1) + \sum \hat a_i \log \hat a_i$."""
    r = deviations(a)
    grown = 1.0 + r
    log = jnp.log1p(jnp.where(grown > 0, r, 0.0))
    return jnp.mean(grown * log - r)


def l2(a):
    r"""$M = \frac12\sum_i(\hat a_i - \frac1{K-1})^2$ (Eq. 12)."""
    return jnp.sum((deviations(a) / a.size) ** 2) / 2


def frobenius(a):
    r"""$\tilde M = \sum_i (a_i/\|a\|_2 - 1/\sqrt{K-1})^2$, the squared Frobenius distance."""
    return jnp.sum((a / jnp.linalg.norm(a) - a.size**-0.5) ** 2)


def log_ratio(a):
    r"""$M_{LR} = \max_i \log a_i - \min_j \log a_j$."""
    return jnp.log(largest(a)) - jnp.log(smallest(a))


def collapse_deviation(a):
    r"""$\max_i |(K-1)\hat a_i - 1|$, what `Collapse` watches."""
    r = deviations(a)
    return largest(jnp.concatenate([r, -r]))


def alignment(values):
    r"""$\sqrt{2M}$: Frobenius distance of the nuclear-normalized matrix from the simplex."""
    return norm(deviations(values) / values.size)
