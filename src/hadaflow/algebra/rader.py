r"""The cosine sums of a prime cyclic group, by Rader's way."""

import dataclasses
from typing import Any

import numpy as np

from hadaflow.base.lazy import jnp

# A real Fourier transform whose length has no larger prime factor is faster than a padded one.
_FAST_FACTOR = 11


@dataclasses.dataclass(frozen=True, eq=False)
class PrimeConvolution:
    r"""$\sum_g (1 - \cos(2\pi kg/p))\,v_g$ for even $v$ and prime $p$, by Rader's way.

    The powers of a primitive root list the classes {g, −g} in an order in which the sum becomes a
    cyclic convolution of $r = (p-1)/2$ real numbers; padded to a length whose transform is fast,
    unless $r$ itself is one. Its kernel, $2 - 2\cos$, is not negative, so nothing cancels.
    """

    inward: np.ndarray
    outward: np.ndarray
    kernel: np.ndarray
    length: int

    @classmethod
    def of(cls, p: int) -> "PrimeConvolution | None":
        factors = _prime_factors(p - 1)
        if p < 3 or _prime_factors(p) != {p}:
            return None
        r = (p - 1) // 2
        root = next(g for g in range(2, p) if all(pow(g, (p - 1) // q, p) != 1 for q in factors))
        powers = np.ones(1, dtype=np.int64)
        while len(powers) < r:  # twice as many with one product
            powers = np.concatenate([powers, powers * pow(root, len(powers), p) % p])
        powers = powers[:r]
        number = np.minimum(powers, p - powers) - 1  # of the class at each power
        kernel = 4 * np.sin(np.pi * powers / p) ** 2
        length = r if max(_prime_factors(r), default=1) <= _FAST_FACTOR else _fast_length(2 * r - 1)
        if length != r:
            padded = np.zeros(length)
            padded[:r], padded[length - r + 1 :] = kernel, kernel[1:]
            kernel = padded
        return cls(number[-np.arange(r)], np.argsort(number), np.fft.rfft(kernel), length)

    def apply(self, v):
        """For an array with a zero in front for the trivial mode; so has the result."""
        x = v[..., 1:][..., self.inward]
        spectrum = jnp.fft.rfft(x, n=self.length)
        kernel = jnp.broadcast_to(jnp.asarray(self.kernel, spectrum.dtype), spectrum.shape)
        y = jnp.fft.irfft(spectrum * kernel, n=self.length)[..., self.outward]
        return jnp.concatenate([jnp.zeros_like(v[..., :1]), y], axis=-1)


def _prime_factors(n: int) -> set[int]:
    found, q = set(), 2
    while q * q <= n:
        while n % q == 0:
            found.add(q)
            n //= q
        q += 1
    return found | ({n} if n > 1 else set())


def _fast_length(least: int) -> int:
    import scipy.fft  # heavy, and needed for few groups

    length: Any = scipy.fft.next_fast_len(least, real=True)
    return length
