r"""Metrics of a full state: functions of the factors of the logits."""

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.metrics.distances import kl, log_ratio, norm, reverse_kl, smallest
from hadaflow.model.views.full import FullView


def _etf(view: FullView):
    """S = I − 11ᵀ/K, the simplex equiangular tight frame."""
    return jnp.asarray(np.eye(view.classes) - 1 / view.classes)


def _simplex(view: FullView):
    """S ⊗ 1ᵀ, the direction of the collapsed logits."""
    return _etf(view) @ jnp.asarray(view.one_hot)


def classifier_and_features(factors) -> tuple[Any, Any]:
    """W, the first factor, and H, the features it sees: the product of all others."""
    return factors[0], functools.reduce(jnp.matmul, factors[1:])


def _sizes(factors) -> list[Any]:
    """The largest entry of every factor, one where that is zero."""
    sizes = [jnp.max(jnp.abs(f)) for f in factors]
    return [jax.lax.stop_gradient(jnp.where(s > 0, s, 1.0)) for s in sizes]


def of_ordinary_size(factors) -> Any:
    """Every factor over its largest entry, a constant: no distance of directions sees it.

    The product of tiny matrices would underflow, that of huge ones overflow.
    """
    return tuple(f / s for f, s in zip(factors, _sizes(factors), strict=True))


def _shown(view: FullView, factors) -> Any:
    """The factors that distances to collapse look at, of ordinary size.

    As the paper takes them for cross-entropy; for MSE without the trivial mode, which learns too and
    is no part of the simplex.
    """
    factors = of_ordinary_size(factors)
    if not view.loss.moves_constant:
        return factors
    first, *rest = factors
    centred = (first - jnp.mean(first, axis=0, keepdims=True), *rest)
    if len(centred) == 1:
        return centred
    *others, H = centred
    return (*others, H - jnp.mean(H, axis=1, keepdims=True))


def _signal_subspace(view: FullView):
    """Right vectors V₁ = U ⊗ 1/√n of the class means, Kn × K."""
    n = view.samples
    return jnp.asarray(np.kron(view.basis.vectors, np.full((n, 1), n**-0.5)))


def singular_values(view: FullView, factors):
    """The largest K − 1 singular values of the logits, descending."""
    return _direction_values(view, factors) * math.prod(_sizes(factors))


def _direction_values(view: FullView, factors):
    """`singular_values` up to one factor for all.

    Those that are rounding are zero: what the width forbids, and what is less than the last digit of
    the largest.
    """
    Z = view.logits(_shown(view, factors))
    values = jnp.linalg.svd(Z, compute_uv=False)
    known = jnp.arange(values.size) < view.largest_rank
    resolved = values > values[0] * view.rounding_of_logits
    return jnp.where(known & resolved, values, 0.0)[: view.classes - 1]


def _distance(matrix, target, nuclear: bool):
    """Frobenius distance of two matrices, each divided by its nuclear or Frobenius norm."""
    size = (lambda m: jnp.linalg.norm(m, "nuc")) if nuclear else jnp.linalg.norm
    return norm(matrix / size(matrix) - target / size(target))


def _alignment_z(view, factors):
    return _distance(view.logits(_shown(view, factors)), _simplex(view), nuclear=True)


def _alignment_w(view, factors):
    W, _ = classifier_and_features(_shown(view, factors))
    return _distance(W @ W.T, _etf(view), nuclear=True)


def _alignment_h(view, factors):
    _, H = classifier_and_features(_shown(view, factors))
    target = _simplex(view)
    return _distance(H.T @ H, target.T @ target, nuclear=True)


def _residual(view, factors):
    r"""Share of Z outside the signal subspace, $\|Z - U U^\top Z V V^\top\|_F/\|Z\|_F$, U normalized."""
    Z = view.logits(of_ordinary_size(factors))
    U, V = jnp.asarray(view.basis.vectors)[:, 1:], _signal_subspace(view)[:, 1:]
    return jnp.linalg.norm(Z - U @ (U.T @ Z @ V) @ V.T) / jnp.linalg.norm(Z)


def _off_diagonal(view, factors):
    """Share of Z that is not diagonal in the Hadamard basis: zero while the vectors are frozen."""
    Z = view.logits(of_ordinary_size(factors))
    U, V = jnp.asarray(view.basis.vectors), _signal_subspace(view)
    diagonal = jnp.diagonal(U.T @ Z @ V)
    return jnp.linalg.norm(Z - (U * diagonal[None, :]) @ V.T) / jnp.linalg.norm(Z)


def _margin(view, factors):
    Z = view.logits(factors)
    Y = jnp.asarray(view.one_hot)
    right = jnp.sum(Y * Z, axis=0, keepdims=True)
    return smallest(jnp.where(Y == 0, right - Z, jnp.inf))


def _class_means(view, factors):
    """Class means of the features, d × K, and the deviations of the features from them, d × Kn.

    Up to one factor for both, which no measure of collapse sees.
    """
    _, H = classifier_and_features(of_ordinary_size(factors))
    Y = jnp.asarray(view.one_hot)
    means = (H @ Y.T) / np.array(view.samples_by_class, dtype=float)[None, :]
    return means, H - means @ Y


def _nc1_parts(view, factors):
    """Deviations within the classes, each weighing one over the samples of its class, and between."""
    means, within = _class_means(view, factors)
    weights = 1 / np.sqrt(np.repeat(view.samples_by_class, view.samples_by_class).astype(float))
    return within * weights[None, :], means - jnp.mean(means, axis=1, keepdims=True)


def _nc1_quot(view, factors):
    r"""$\mathrm{tr}\,\Sigma_W / \mathrm{tr}\,\Sigma_B$: within-class over between-class variance."""
    within, between = _nc1_parts(view, factors)
    return jnp.sum(within**2) / jnp.sum(between**2)


def _nc1_pinv(view, factors):
    r"""$\mathrm{tr}(\Sigma_W\Sigma_B^+)/K$ (Papyan et al. 2020)."""
    within, between = _nc1_parts(view, factors)
    K = view.classes
    inverse = jnp.linalg.pinv(between @ between.T / K, rtol=1e-10)
    return jnp.sum(within * (inverse @ within)) / K / K


def _nc1_cdnv(view, factors):
    """Class-distance normalized variance, averaged over pairs (Galanti et al. 2022)."""
    means, within = _class_means(view, factors)
    squares = jnp.sum(within**2, axis=0)
    variance = (jnp.asarray(view.one_hot) @ squares) / np.array(view.samples_by_class, dtype=float)
    pair = np.triu_indices(view.classes, 1)
    gaps = jnp.sum((means[:, pair[0]] - means[:, pair[1]]) ** 2, axis=0)
    return jnp.mean((variance[pair[0]] + variance[pair[1]]) / (2 * gaps))


def _nc2_etf_err(view, factors):
    r"""$\|\bar H^\top\bar H/\|\cdot\|_F - S/\|S\|_F\|_F$."""
    means, _ = _class_means(view, factors)
    return _distance(means.T @ means, _etf(view), nuclear=False)


def _nc3_etf_err(view, factors):
    r"""$\|WW^\top/\|\cdot\|_F - S/\|S\|_F\|_F$, the paper's NC3."""
    W, _ = classifier_and_features(of_ordinary_size(factors))
    return _distance(W @ W.T, _etf(view), nuclear=False)


def _nc3_dual_err(view, factors):
    r"""$\|W^\top/\|W\|_F - \bar H/\|\bar H\|_F\|_F$, self-duality of classifier and class means."""
    W, _ = classifier_and_features(of_ordinary_size(factors))
    means, _ = _class_means(view, factors)
    return _distance(W.T, means, nuclear=False)


def _of_singular_values(function):
    return lambda view, factors: function(_direction_values(view, factors))


def _log_loss(view, factors):
    total = jax.nn.logsumexp(view.log_losses(view.logits(factors)))
    return total - jnp.log(view.loss_divisor)


FULL: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "kl": _of_singular_values(kl),
        "reverse_kl": _of_singular_values(reverse_kl),
        "log_ratio": _of_singular_values(log_ratio),
        "l2": lambda view, factors: _alignment_z(view, factors) ** 2 / 2,
        "frobenius": lambda view, factors: (
            _distance(view.logits(_shown(view, factors)), _simplex(view), nuclear=False) ** 2
        ),
        "collapse_deviation": lambda view, factors: full_collapse_deviation(view, factors),
        "energy": lambda view, factors: jnp.exp(_log_loss(view, factors)) / view.loss_per_energy,
        "log_energy": lambda view, factors: (
            _log_loss(view, factors) - jnp.log(view.loss_per_energy)
        ),
        "loss": lambda view, factors: jnp.exp(_log_loss(view, factors)),
        "log_loss": _log_loss,
        "margin": _margin,
        "alignment_w": _alignment_w,
        "alignment_h": _alignment_h,
        "alignment_z": _alignment_z,
        "residual": _residual,
        "off_diagonal": _off_diagonal,
        "nc1_pinv": _nc1_pinv,
        "nc1_quot": _nc1_quot,
        "nc1_cdnv": _nc1_cdnv,
        "nc2_etf_err": _nc2_etf_err,
        "nc3_etf_err": _nc3_etf_err,
        "nc3_dual_err": _nc3_dual_err,
    }
)


def full_collapse_deviation(view: FullView, factors):
    r"""Spectral distance of the centred logits from the simplex, (K−1)·‖Z/‖Z‖_* − S/‖S‖_*‖₂.

    On a Hadamard state it is $\max_i|(K-1)\hat a_i - 1|$. The class-constant part of the logits,
    which the softmax does not see and the flow does not move, is left out.
    """
    Z = view.logits(of_ordinary_size(factors))
    centred = Z - jnp.mean(Z, axis=0, keepdims=True)
    target = _simplex(view) * ((view.classes - 1) * view.mean_samples**0.5) ** -1
    gap = centred / jnp.linalg.norm(centred, "nuc") - target
    return (view.classes - 1) * jnp.linalg.norm(gap, 2)
