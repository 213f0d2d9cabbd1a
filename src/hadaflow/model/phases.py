r"""General real group-circulant logits, $Z_{gh} = c_{g-h}$ with no symmetry between $g$ and $-g$.

Their eigenvalues $\lambda_\chi = \sum_g c_g\overline{\chi(g)}$ are complex, $\lambda_{\bar\chi} =
\overline{\lambda_\chi}$: a free mode is one of each pair, with a modulus (the logit singular value)
and a phase, which moves.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.algebra.bases import AbelianGroup, Sylvester, negatives

Basis = Sylvester | AbelianGroup


def polar(modulus, angle):
    """The complex numbers of that modulus and angle."""
    return lax.complex(modulus * jnp.cos(angle), modulus * jnp.sin(angle))


def times(factor, z):
    """Complex numbers times real ones."""
    return lax.complex(factor * z.real, factor * z.imag)


def _spread(basis: Basis, values):
    """Values at all elements of the group from those of the free modes: conjugates at −g."""
    padded = jnp.concatenate([jnp.zeros_like(values[..., :1]), values], axis=-1)
    firsts = np.minimum(np.arange(basis.classes), negatives(basis.group))
    number = np.searchsorted(basis.representatives, firsts)
    second = firsts != np.arange(basis.classes)
    taken = padded[..., number]
    second = np.broadcast_to(second, taken.shape)
    return jnp.where(second, jnp.conj(taken), taken)


def _fourier(basis: Basis, values, inverse: bool = False):
    """Σ_g v_g χ̄(g) over the group, or Σ_g v_g χ(g); leading axes batched."""
    shape = values.shape
    values = values.reshape(*shape[:-1], *basis.group)
    transform = jnp.fft.ifft if inverse else jnp.fft.fft
    for axis in range(-len(basis.group), 0):
        values = transform(values, axis=axis)
    values = values.reshape(shape)
    return times(float(basis.classes), values) if inverse else values


def margins(basis: Basis, values):
    r"""All K − 1 margins $x_g = c_0 - c_g$ of scaled complex eigenvalues."""
    c = _fourier(basis, _spread(basis, values), inverse=True).real
    return c[..., :1] - c[..., 1:]


def drive(basis: Basis, x) -> tuple[Any, Any]:
    r"""$1 - \nu_\chi$ for margins x as (complex direction, log slowness): no 1 − p is ever formed."""
    largest = jnp.max(-x, axis=-1, keepdims=True)
    e = jnp.exp(-x - largest)
    total = jnp.sum(e, axis=-1, keepdims=True)
    soft_minimum = -(largest + jnp.log(total))[..., 0]
    wrong = jnp.concatenate([jnp.zeros_like(e[..., :1]), e / total], axis=-1)
    nu = _fourier(basis, lax.complex(wrong, jnp.zeros_like(wrong)))[..., basis.representatives]
    return (nu[..., :1] - nu)[..., 1:], jax.nn.softplus(soft_minimum)
