"""Where a run starts, and the way between the two views: lift and project."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hadaflow.errors import InputError, check_whole_number
from hadaflow.model import UFM
from hadaflow.states import RAW, Parameters, Spectrum, spectrum


def hadamard(
    model: UFM, start: Any, rotation: str | int | np.ndarray = "identity", units: str | None = None
) -> Parameters:
    r"""Hadamard initialization (Theorem 2): $W = U D_W R^\top$, $H = R D_H V^\top$, $V = U\otimes Q$.

    Args:
        model: The model; its width must be at least its number of classes.
        start: Spectrum or list of singular values. Cross-entropy takes the K − 1 non-trivial modes,
            or all K, the trivial (constant) one first: it stays frozen. Leading axes are a batch.
        rotation: R: "identity", a seed for a random rotation, or an orthogonal d × d matrix.
        units: Units of a start that does not name its own.

    For n > 1 the value $\beta_i$ belongs to column $(i-1)n + 1$ of V, not to column i: every
    sample of a class has the same features.
    """
    alpha, beta = _layer_spectra(model, start, units)
    U = model.basis.vectors
    n = model.samples
    if model.depth == 1:
        class_logits = (U * (alpha * beta)[..., None, :]) @ U.T
        return Parameters((np.repeat(class_logits, n, axis=-1) / np.sqrt(n),))
    d = model.feature_width
    if d < model.classes:
        raise InputError(
            f"Argument `width` must be at least `classes` = {model.classes} for a Hadamard start, "
            f"but is {d}."
        )
    R = _rotation(rotation, d)[:, : model.classes]
    W = (U * alpha[..., None, :]) @ R.T
    class_features = (R * beta[..., None, :]) @ U.T
    return Parameters((W, np.repeat(class_features, n, axis=-1) / np.sqrt(n)))


def lift(model: UFM, start: Any, units: str | None = None) -> Parameters:
    """A full state with the given singular values: `hadamard` with R = I."""
    return hadamard(model, start, units=units)


def project(model: UFM, state: Parameters) -> Spectrum:
    r"""Singular values of the Hadamard part of a full state, in raw units.

    $a = \mathrm{diag}(U^\top Z V_1)$ and $C = \mathrm{diag}(U^\top WW^\top U - V_1^\top H^\top H V_1)$
    with $V_1 = U\otimes 1/\sqrt n$: exact on Hadamard states whatever their rotation, the nearest
    diagonal otherwise. A negative diagonal entry counts as zero.
    """
    tilted = _hadamard_coordinates(model, state)
    if model.depth == 1:
        a = np.diagonal(tilted[0], axis1=-2, axis2=-1)
        C = np.zeros_like(a)
    else:
        W, H = tilted
        a = np.sum(W * H, axis=-1)
        C = np.sum(W**2, axis=-1) - np.sum(H**2, axis=-1)
    skip = model.basis.modes + 1 - model.modes
    a, C = (
        np.concatenate([v[..., :1], model.basis.fold(v[..., 1:])], axis=-1)[..., skip:]
        for v in (a, C)
    )
    return Spectrum(np.maximum(a, 0.0), C, RAW)


def distance_from_hadamard(model: UFM, state: Parameters) -> Any:
    r"""How far a full state is from the Hadamard subspace: 0 on it, of order 1 far away.

    In Hadamard coordinates a Hadamard state consists of parallel pairs $\alpha_i r_i$, $\beta_i r_i$
    with orthonormal $r_i$. The distance is the share of the Gram matrix of all rows and columns that
    contradicts this (at depth 1: the share of Z off the diagonal).
    """
    K, n = model.classes, model.samples
    tilted = _hadamard_coordinates(model, state)
    if model.depth == 1:
        diagonal = np.diagonal(tilted[0], axis1=-2, axis2=-1)
        signal = np.sum(np.maximum(diagonal, 0.0) ** 2, axis=-1)
        total = np.sum(state.Z**2, axis=(-2, -1))
        return np.sqrt(np.maximum(1 - signal / total, 0.0))
    W, means = tilted
    grouped = state.H.reshape(*state.batch, -1, K, n)
    within = (grouped - grouped.mean(axis=-1, keepdims=True)).reshape(state.H.shape)
    rows = np.concatenate([W, means, np.swapaxes(within, -1, -2)], axis=-2)
    gram = rows @ np.swapaxes(rows, -1, -2)
    alpha, beta = np.linalg.norm(W, axis=-1), np.linalg.norm(means, axis=-1)
    expected = np.zeros_like(gram)
    i = np.arange(K)
    expected[..., i, i], expected[..., K + i, K + i] = alpha**2, beta**2
    expected[..., i, K + i] = expected[..., K + i, i] = alpha * beta
    norm = np.linalg.norm
    return norm(gram - expected, axis=(-2, -1)) / norm(gram, axis=(-2, -1))


def gaussian(model: UFM, scale: float, seed: int | Sequence[int]) -> Parameters:
    """Independent normal entries of standard deviation `scale` in every matrix.

    A list of seeds gives a batch, entry by entry the same as one seed at a time.
    """
    if not isinstance(scale, int | float | np.floating) or not 0 < scale < np.inf:
        raise InputError(f"Argument `scale` must be a positive number, but is {scale!r}.")
    if isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str):
        if len(seed) == 0:
            raise InputError("Argument `seed` must hold at least one seed, but is empty.")
        seeds = [_check_seed(s) for s in seed]
        runs = [gaussian(model, scale, s).factors for s in seeds]
        return Parameters(tuple(np.stack(f) for f in zip(*runs, strict=True)), seeds)
    checked = _check_seed(seed)
    rng = np.random.default_rng(checked)
    return Parameters(tuple(scale * rng.standard_normal(s) for s in model.factor_shapes), checked)


def matched_spectrum(model: UFM, start: Parameters, order: str | int = "descending") -> Spectrum:
    """The spectrum with which the paper pairs a random start: singular values of its logits.

    Args:
        model: The model.
        start: A full state, usually from `gaussian`; leading axes are a batch.
        order: Which mode gets which value, since for K ≥ 8 the flow depends on it: "descending",
            "ascending", or a seed for a random order.

    The largest K − 1 of them (all K for MSE), balanced (D_W = D_H = √σ(Z)), in raw units. A pair of
    conjugate characters, in groups other than $Z_2^m$, takes the mean of two.
    """
    Z = model.check_parameters(start).Z
    shown = model.classes - (model.modes == model.basis.modes)
    values = np.linalg.svd(Z, compute_uv=False)[..., :shown]
    if order == "ascending":
        values = values[..., ::-1]
    elif not isinstance(order, str):
        values = np.random.default_rng(_check_seed(order)).permuted(values, axis=-1)
    elif order != "descending":
        raise InputError(
            f'Argument `order` must be "descending", "ascending" or a seed, but is {order!r}.'
        )
    if shown == model.classes:
        values = np.concatenate([values[..., :1], model.basis.fold(values[..., 1:])], axis=-1)
    else:
        values = model.basis.fold(values)
    return spectrum(values, units=RAW)


def layer_singular_values(a: np.ndarray, C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """α and β with αβ = a and α² − β² = C; the smaller one by division, without cancellation."""
    larger = np.sqrt((np.hypot(C, 2 * a) + np.abs(C)) / 2)
    smaller = np.divide(a, larger, out=np.zeros_like(a), where=larger > 0)
    return np.where(C >= 0, larger, smaller), np.where(C >= 0, smaller, larger)


def _layer_spectra(model: UFM, start: Any, units: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Raw α and β for all K modes; the trivial mode is zero unless given."""
    given = start if isinstance(start, Spectrum) else spectrum(start)
    if given.modes == model.basis.modes + 1 and model.modes == model.basis.modes:
        # The trivial mode of a cross-entropy start: check the others, keep it.
        nontrivial = Spectrum(given.a[..., 1:], given.C[..., 1:], given.units)
        model.scaled(nontrivial, units)
        raw = model.result_units(given, given.units or units) == RAW
        factor = 1.0 if raw else model.singular_value_scale
        values = [v * factor for v in (given.a, given.C)]
    else:
        scaled = model.scaled(given, units)
        factor = model.singular_value_scale
        pad = [(0, 0)] * (scaled.a.ndim - 1) + [(model.basis.modes + 1 - model.modes, 0)]
        values = [np.pad(v * factor, pad) for v in (scaled.a, scaled.C)]
    a, C = (np.concatenate([v[..., :1], model.nontrivial(v)], axis=-1) for v in values)
    return layer_singular_values(a, C)


def _hadamard_coordinates(model: UFM, state: Parameters) -> tuple[np.ndarray, ...]:
    """(UᵀW, (H V₁)ᵀ), both K × d; at depth 1 (UᵀZV₁,)."""
    model.check_parameters(state)
    U, K, n = model.basis.vectors, model.classes, model.samples
    last = state.factors[-1]
    class_sums = last.reshape(*last.shape[:-1], K, n).sum(axis=-1) / np.sqrt(n)
    if model.depth == 1:
        return (U.T @ class_sums @ U,)
    return U.T @ state.W, np.swapaxes(class_sums @ U, -1, -2)


def _rotation(rotation: Any, d: int) -> np.ndarray:
    if isinstance(rotation, str):
        if rotation == "identity":
            return np.eye(d)
        raise InputError(
            f'Argument `rotation` must be "identity", a seed or a {d}×{d} orthogonal matrix, '
            f"but is {rotation!r}."
        )
    if isinstance(rotation, int | np.integer):
        gaussian_matrix = np.random.default_rng(_check_seed(rotation)).standard_normal((d, d))
        Q, R = np.linalg.qr(gaussian_matrix)
        return Q * np.sign(np.diagonal(R))
    matrix = np.asarray(rotation, dtype=float)
    if matrix.shape != (d, d) or not np.allclose(matrix @ matrix.T, np.eye(d), atol=1e-10):
        raise InputError(
            f"Argument `rotation` must be an orthogonal {d}×{d} matrix, but the given one has "
            f"shape {matrix.shape}" + (" and is not orthogonal." if matrix.shape == (d, d) else ".")
        )
    return matrix


def _check_seed(seed: Any) -> int:
    return check_whole_number("seed", seed, least=0)


def compress(
    model: UFM, state: Parameters
) -> tuple[UFM, Parameters, Callable[[Parameters], Parameters]]:
    """The same state in the span of W's rows and H's columns, which the flow never leaves.

    Returns the narrower model, the state rotated into it, and the way back. Width beyond K(1 + n)
    costs nothing this way.
    """
    span = model.classes * (1 + model.samples)
    if model.depth == 1 or model.feature_width <= span:
        return model, state, lambda small: small
    W, H = state.factors
    Q, _ = np.linalg.qr(np.concatenate([np.swapaxes(W, -1, -2), H], axis=-1))
    Qt = np.swapaxes(Q, -1, -2)

    def expand(small: Parameters) -> Parameters:
        return Parameters((small.W @ Qt, Q @ small.H))

    return dataclasses.replace(model, width=span), Parameters((W @ Q, Qt @ H)), expand
