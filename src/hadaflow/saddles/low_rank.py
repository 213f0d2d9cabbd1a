"""Directions that never collapse: at depth three and more low-rank directions attract."""

import numpy as np

from hadaflow.base.lazy import jnp
from hadaflow.base.precision import double_precision
from hadaflow.model.layers import layer_values, mobility
from hadaflow.model.ufm import UFM

_NEVER = "The direction never becomes uniform:"


def low_rank_limit(
    model: UFM, a: np.ndarray, C: np.ndarray, angles: np.ndarray | None = None
) -> str:
    r"""What to say of a state some of whose modes provably lose their share for ever; else nothing.

    Depth $N\ge3$, hard labels, scaled units. Let $M = -\log\sum_j e^{-x_j}$ be the soft minimum of the
    margins, $R = (\frac1N\sum\sigma_{l,i}^2)^{N/2}$, which is the norm up to a bounded factor, and
    $\gamma = M/R$. In units of $\sum_j e^{-x_j}/D$, with $\beta = \Psi p$, $p = \mathrm{softmax}(-x)$,

    - $\frac{d}{dt}\log R = \langle x\rangle_p R^{-2/N} \ge \gamma R^q$, $q = 1 - 2/N$, since
      $\langle x\rangle_p \ge M$;
    - $\frac{d}{dt}\log M = \sum w_i\beta_i^2/M \ge \langle x\rangle_p^2R^{-2/N}/M$ by Cauchy–Schwarz, so
      $\gamma$ does not fall while $M > 0$;
    - $\frac{d}{dt}\log a_k = \beta_kw_k/a_k \le 2w_k/a_k$.

    A mode with $2w_k/a_k < \gamma R^q$ loses its share, and goes on to lose it: $w_k/a_k = a_k^q$ grows
    less than $R^q$. With phases $a$ are the moduli. Unbalanced, where it may grow like $a_k$,
    $2w_k/a_k < q\gamma R^q$ is enough.
    """
    N = model.depth
    if N < 3 or not model.has_orbit_of_cross_entropy:
        return ""
    # The margins, and with them M, are those of the logits over the temperature.
    soft_minimum = -_log_wrong(model, a, angles) * model.temperature
    if soft_minimum <= 0:
        return ""
    squares = layer_values(N, a, C) ** 2
    A, q = model.nontrivial(a).sum(), 1 - 2 / N
    R = (sum(model.nontrivial(s).sum() for s in squares) / N) ** (N / 2)
    w = mobility(N, a, C)
    relative = np.divide(w, a, out=np.where(w > 0, np.inf, 0.0), where=a > 0)
    slack = q if np.any(C) else 1.0
    dying = 2 * relative < slack * soft_minimum * R ** (q - 1)
    if not dying.any():
        return ""
    kept = np.flatnonzero(~dying)
    rank = int(model.basis.multiplicity[kept].sum())
    share = a[kept] / model.basis.multiplicity[kept].dot(a[kept])
    verb = "loses" if dying.sum() == 1 else "lose"
    shares = ", ".join(f"{v:.3g}" for v in share[:8]) + (", …" if len(kept) > 8 else "")
    return (
        f"{_NEVER} at depth {N} low-rank directions attract, and {_listed(np.flatnonzero(dying))} "
        f"provably {verb} all share for ever. The limit has rank {rank} at most, on {_listed(kept)}, "
        f"whose shares of each other are ({shares}) now; the norm is {A:.4g} (scaled)."
    )


def _log_wrong(model: UFM, a: np.ndarray, angles: np.ndarray | None) -> float:
    """Log Σ e^{−margin/τ} over the wrong classes."""
    with double_precision():
        margins = np.asarray(model.view_of(angles).margins(jnp.asarray(a), angles)[0])
    counts = model.basis.multiplicity if angles is None else 1.0
    exponents = -margins / model.temperature + np.log(counts)
    return float(np.logaddexp.reduce(exponents))


def _listed(modes: np.ndarray) -> str:
    """Modes by number, from 1."""
    some = ", ".join(str(i + 1) for i in modes[:8]) + (", …" if len(modes) > 8 else "")
    return f"mode{'s' * (len(modes) > 1)} {some}"
