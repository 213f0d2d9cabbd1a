"""Where a run starts, and the way between the two views: lift and project."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hadaflow.base.checks import as_numbers, check_positive
from hadaflow.base.errors import InputError, shown
from hadaflow.base.memory import require_memory
from hadaflow.model.fitting import (
    as_spectrum,
    check_parameters,
    check_reduced_view,
    fitted,
    result_units,
)
from hadaflow.model.layers import differences, layer_values
from hadaflow.model.named_starts import check_seed, check_seeds, small, uniform
from hadaflow.model.states import RAW, SCALED, Parameters, Spectrum, spectrum
from hadaflow.model.ufm import UFM, check_model

_LARGEST_LOGITS = 270.0  # log10 of a product of entries, one of each factor


def hadamard(
    model: UFM, start: Any, rotation: str | int | np.ndarray = "identity", units: str | None = None
) -> Parameters:
    r"""Hadamard initialization (Theorem 2): $W = U D_W R^\top$, $H = R D_H V^\top$, $V = U\otimes Q$.

    Args:
        model: The model; its width must be at least the number of modes that are not zero.
        start: Spectrum or list of singular values. Cross-entropy takes the free non-trivial modes, or
            the trivial (constant) one before them: it stays frozen. Leading axes are a batch.
        rotation: $R$: "identity", a seed for a random rotation, "circulant" ($R = U$, so that all
            matrices are circulant and rules that act entry by entry keep them so), or an orthogonal
            $d\times d$ matrix.
            Deeper models have one between any two layers: the same matrix, or different ones from the
            seed.
        units: Units of a start that does not name its own.

    For $n > 1$ the value $\beta_i$ belongs to column $(i-1)n + 1$ of $V$, not to column $i$: every
    sample of a class has the same features. A start with phases (`circulant`) has them in $H$.
    """
    check_model(model)
    given = as_spectrum(model, start)
    layers, angles = _layer_spectra(model, given, units)
    _check_fits(model, int(np.prod(layers[0].shape[:-1])))
    U, V = model.modes_of_view.vectors, model.modes_of_view.right_vectors(model.samples, angles)
    transposed = np.swapaxes(V, -1, -2)
    if model.depth == 1:
        return Parameters(
            ((U * layers[0][..., None, :]) @ transposed,), given.seed, given.units or units
        )
    rotations = _rotations(model, rotation, model.feature_width, model.depth - 1)
    columns = _feature_columns(model, np.any(layers > 0, axis=0))
    left, factors = U, []
    for sigma, R in zip(layers[:-1], rotations, strict=True):
        features = _take_columns(R, columns)
        factors.append((left * sigma[..., None, :]) @ np.swapaxes(features, -1, -2))
        left = features
    last = (left * layers[-1][..., None, :]) @ transposed
    return Parameters((*factors, last), given.seed, given.units or units)


def _feature_columns(model: UFM, present: np.ndarray) -> np.ndarray:
    """The feature direction of every mode, −1 for those that have none; leading axes batched.

    One after the other; where the width is too small for all, those that are zero go without.
    """
    if model.feature_width >= model.classes:
        return np.arange(model.classes)
    columns = np.cumsum(present, axis=-1) - 1
    needed = int(columns.max(initial=-1)) + 1
    if needed > model.feature_width:
        raise InputError(
            f"Argument `width` must be at least {needed}, one for each singular value that is not "
            f"zero, for a Hadamard start, but is {model.feature_width}."
        )
    return np.where(present, columns, -1)


def _take_columns(R: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Columns of R by number, zero for −1."""
    taken = np.moveaxis(R[:, columns], 0, -2)
    return np.where(columns[..., None, :] < 0, 0.0, taken)


def _check_fits(model: UFM, runs: int) -> None:
    size = sum(math.prod(shape) for shape in model.factor_shapes)
    require_memory(
        3.0 * runs * size,
        f"The parameter matrices of {model.classes} classes",
        "the reduced view needs K numbers, not K² (`spectrum`)",
    )


def lift(
    model: UFM, start: Any, units: str | None = None, rotation: str | int | np.ndarray = "identity"
) -> Parameters:
    """A full state with the given singular values: `hadamard`, with $R = I$ unless something is said."""
    return hadamard(model, start, rotation, units)


def project(model: UFM, state: Parameters, units: str | None = None) -> Spectrum:
    r"""Singular values of the Hadamard part of a full state: what `lift` makes it from.

    $a = \mathrm{diag}(U^\top Z V_1)$ and $C = \mathrm{diag}(U^\top WW^\top U - V_1^\top H^\top H V_1)$
    with $V_1 = U\otimes 1/\sqrt n$: exact on Hadamard states whatever their rotation, the nearest
    diagonal otherwise. A negative diagonal entry counts as zero. For two blocks of classes the mode
    between them comes with its angle. Of modes with phases only the symmetric part is seen,
    $a\cos\varphi$.
    Of matrices too narrow for all modes, off the Hadamard subspace, it may have more modes than a run
    of this width can start with.

    In `units`; left out, in those of the state's own run, or scaled.
    """
    check_model(model)
    state = _with_logits(check_parameters(model, state))
    check_reduced_view(model)
    a, angles, V = model.modes_of_view.read_logits(state.Z, model.samples)
    C = _layer_differences(model, state, model.modes_of_view.vectors, V)

    def folded(values):
        kept = model.modes_of_view.fold(values[..., 1:])
        return np.concatenate([values[..., :1], kept], axis=-1) if model.has_constant_mode else kept

    values, gaps = np.maximum(folded(a), 0.0), folded(C)
    if model.largest_rank < model.classes:  # what is rounding is no mode
        size = np.max(values, axis=-1, keepdims=True)
        square = size ** (2 / model.depth)  # of a layer, of which differences are made
        square = square[..., None, :] if gaps.ndim > values.ndim else square
        values, gaps = (
            np.where(np.abs(v) > s * model.rounding_of_logits, v, 0.0)
            for v, s in ((values, size), (gaps, square))
        )
    return _in_units(model, Spectrum(values, gaps, RAW, angles, state.seed), state, units)


def _in_units(model: UFM, raw: Spectrum, state: Parameters, units: str | None) -> Spectrum:
    """Singular values of matrices in the units in which a run from there is answered."""
    if result_units(state, units) == RAW:
        return raw
    a, C = raw.a / model.singular_value_scale, raw.C / model.difference_scale
    return Spectrum(a, C, SCALED, raw.angles, raw.seed)


def _with_logits(state: Parameters) -> Parameters:
    """The state, if its logits are numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.all(np.isfinite(state.Z)):
            return state
    raise InputError("Argument `state` must have logits, which are numbers, but they overflow.")


def _layer_differences(model: UFM, state: Parameters, U: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Differences of the squared layer singular values in all K modes of a full state.

    Products of layers seen from the left give the first ones by division, up to a layer that is zero;
    products seen from the right give the others.
    """
    if model.depth == 1:
        return np.zeros((*state.batch, model.classes))

    def lengths(rows: np.ndarray) -> np.ndarray:
        found = np.linalg.norm(rows, axis=-1)
        if rows.shape[-2] > model.classes:  # the two columns of the mode between blocks
            found[..., -2] = np.hypot(found[..., -2], found[..., -1])
        return found[..., : model.classes]

    left, right = [U.T @ state.factors[0]], [np.swapaxes(state.factors[-1] @ V, -1, -2)]
    for k in range(1, model.depth - 1):
        left.append(left[-1] @ state.factors[k])
        right.append(right[-1] @ np.swapaxes(state.factors[-1 - k], -1, -2))
    forward = [np.ones((*state.batch, model.classes)), *map(lengths, left)]
    backward = [np.ones((*state.batch, model.classes)), *map(lengths, right)]
    layers = [forward[1]]
    for k in range(1, model.depth - 1):
        before, after = forward[k], backward[model.depth - 1 - k]
        from_left = np.divide(forward[k + 1], before, out=np.zeros_like(before), where=before > 0)
        from_right = np.divide(
            backward[model.depth - k], after, out=np.zeros_like(after), where=after > 0
        )
        layers.append(np.where(before > 0, from_left, from_right))
    return differences(np.stack([*layers, backward[1]]))


def distance_from_hadamard(model: UFM, state: Parameters) -> Any:
    r"""How far a full state is from the Hadamard subspace: 0 on it, of order 1 far away.

    In Hadamard coordinates a Hadamard state consists of parallel pairs $\alpha_i r_i$, $\beta_i r_i$
    with orthonormal $r_i$. The distance is the share of the Gram matrix of all rows and columns that
    contradicts this (at depth 1: the share of Z off the diagonal). In deeper models the largest one,
    over all ways to part the product in two. For balanced classes.
    """
    check_model(model)
    factors = check_parameters(model, state).factors
    with np.errstate(over="ignore", invalid="ignore"):
        if model.depth == 1:
            found = _distance_of_logits(model, factors[0])
        else:
            cuts = [
                _distance_of_pair(model, Parameters(factors[:k]).Z, Parameters(factors[k:]).Z)
                for k in range(1, model.depth)
            ]
            found = np.max(cuts, axis=0)
    if not np.all(np.isfinite(found)):
        raise InputError(
            "Argument `state` must have matrices whose squares are numbers, but they overflow."
        )
    return found[()]


def _distance_of_logits(model: UFM, Z: np.ndarray) -> Any:
    U, V = model.basis.vectors, model.basis.right_vectors(model.samples)
    diagonal = np.diagonal(U.T @ Z @ V, axis1=-2, axis2=-1)
    signal = np.sum(np.maximum(diagonal, 0.0) ** 2, axis=-1)
    total = np.sum(Z**2, axis=(-2, -1))
    return np.sqrt(np.maximum(1 - _over(signal, total, 1.0), 0.0))


def _over(part: Any, whole: Any, nothing: float) -> Any:
    """Their quotient, `nothing` where both are zero: such a state is a Hadamard one."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), nothing)


def _distance_of_pair(model: UFM, left: np.ndarray, right: np.ndarray) -> Any:
    K, n = model.classes, model.samples
    W = model.basis.vectors.T @ left
    means = np.swapaxes(right @ model.basis.right_vectors(model.samples), -1, -2)
    grouped = right.reshape(*right.shape[:-1], K, n)
    within = (grouped - grouped.mean(axis=-1, keepdims=True)).reshape(right.shape)
    rows = np.concatenate([W, means, np.swapaxes(within, -1, -2)], axis=-2)
    gram = rows @ np.swapaxes(rows, -1, -2)
    alpha, beta = np.linalg.norm(W, axis=-1), np.linalg.norm(means, axis=-1)
    expected = np.zeros_like(gram)
    i = np.arange(K)
    expected[..., i, i], expected[..., K + i, K + i] = alpha**2, beta**2
    expected[..., i, K + i] = expected[..., K + i, i] = alpha * beta
    norm = np.linalg.norm
    return _over(norm(gram - expected, axis=(-2, -1)), norm(gram, axis=(-2, -1)), 0.0)


def gaussian(model: UFM, scale: float | None = None, seed: int | Sequence[int] = 0) -> Parameters:
    r"""Independent normal entries of standard deviation `scale` in every matrix.

    Left out, it is the paper's $e^{-6}/\sqrt K$. A list of seeds gives a batch, entry by entry the
    same as one seed at a time.
    """
    check_model(model)
    scale = check_scale(model, default_scale(model) if scale is None else scale)
    seeds, several = check_seeds(seed)
    _check_fits(model, len(seeds))
    rngs = [np.random.default_rng(s) for s in seeds]
    runs = [[scale * rng.standard_normal(s) for s in model.factor_shapes] for rng in rngs]
    if not several:
        return Parameters(tuple(runs[0]), seeds[0])
    return Parameters(tuple(np.stack(f) for f in zip(*runs, strict=True)), seeds)


def uniform_spectrum(
    model: UFM, low: float, high: float, seed: int | Sequence[int] = 0, C: Any = None,
    units: str | None = None,
) -> Spectrum:  # fmt: skip
    """`hadaflow.starts.uniform`: singular values drawn evenly between `low` and `high`."""
    check_seeds(seed)
    return uniform(model, low, high, seed, C=C, units=units)


def random_hadamard(
    model: UFM, scale: float | None = None, seed: int | Sequence[int] = 0, C: Any = None,
    rotation: str | int | np.ndarray = "identity", units: str | None = None,
) -> Parameters:  # fmt: skip
    r"""Hadamard starts of the size that Gaussian ones of standard deviation `scale` have.

    Singular values between half and three halves of the square of `scale` (scaled), with differences
    `C` in `units` and a `rotation` as in `hadamard`.
    """
    check_model(model)
    scale = check_scale(model, default_scale(model) if scale is None else scale)
    size = scale**2 * (model.singular_value_scale if result_units(None, units) == RAW else 1.0)
    check_seeds(seed)
    return hadamard(model, small(model, size, seed, C=C, units=units), rotation)


def default_scale(model: UFM) -> float:
    """Standard deviation of an entry of the paper's small Gaussian starts, e^−6/√K."""
    return math.exp(-6) / math.sqrt(model.classes)


def check_scale(model: UFM, scale: Any) -> float:
    """Refuse entries whose products are no numbers."""
    scale = check_positive("scale", scale)
    largest = 10 ** (_LARGEST_LOGITS / model.depth)
    if scale > largest:
        raise InputError(
            f"Argument `scale` must be at most {largest:.3g} at depth {model.depth} (the logits of "
            f"larger entries overflow), but is {scale:g}."
        )
    return scale


def matched_spectrum(
    model: UFM, start: Parameters, order: str | int = "descending", units: str | None = None
) -> Spectrum:
    r"""The spectrum with which the paper pairs a random start: singular values of its logits.

    Args:
        model: The model.
        start: A full state, usually from `gaussian`; leading axes are a batch.
        order: Which mode gets which value, since for $K\ge8$ the flow depends on it: "descending",
            "ascending", or a seed for a random order.
        units: "scaled" or "raw", of the answer; left out, those of the state's own run, or scaled.

    The largest $K-1$ of them (all $K$ for MSE), balanced ($D_W = D_H = \sqrt{\sigma(Z)}$). A pair of
    conjugate characters, in groups other than $Z_2^m$, takes the mean of two.
    """
    check_model(model)
    count = model.classes - (not model.has_constant_mode)
    state = _with_logits(check_parameters(model, start))
    values = np.exp(log_singular_values(model, state, count))
    if order == "ascending":
        values = values[..., ::-1]
    elif not isinstance(order, str):
        values = np.random.default_rng(check_seed(order)).permuted(values, axis=-1)
    elif order != "descending":
        raise InputError(
            f'Argument `order` must be "descending", "ascending" or a seed, but is {shown(order)}.'
        )
    if count == model.classes:
        folded = model.modes_of_view.fold(values[..., 1:])
        values = np.concatenate([values[..., :1], folded], axis=-1)
    else:
        values = model.modes_of_view.fold(values)
    balanced = spectrum(values)
    raw = Spectrum(balanced.a, balanced.C, RAW, seed=state.seed)
    return _in_units(model, raw, state, units)


def _layer_spectra(
    model: UFM, given: Spectrum, units: str | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Raw singular values of the layers for all K modes, the trivial one zero unless given; angles."""
    check_reduced_view(model)
    trivial = None
    if (
        given.modes == model.modes + 1
        and not model.has_constant_mode
        and not model.modes_of_view.turns
    ):
        # The trivial mode of a cross-entropy start: check the others, keep it.
        trivial = Spectrum(given.a[..., :1], given.C[..., :1], given.units, given.angles)
        kept = None if given.angles is None else given.angles[..., 1:]
        given = Spectrum(given.a[..., 1:], given.C[..., 1:], given.units, kept)
    scaled = fitted(model, given, units)
    a, C = scaled.a * model.singular_value_scale, scaled.C * model.difference_scale
    if model.has_constant_mode:
        trivial_a, trivial_C = a[..., :1], C[..., :1]
    else:
        trivial_a, trivial_C = np.zeros_like(a[..., :1]), np.zeros_like(C[..., :1])
    if trivial is not None:
        in_raw = result_units(given, given.units or units) == RAW
        trivial_a = trivial.a * (1.0 if in_raw else model.singular_value_scale)
        if np.any(trivial.C):
            trivial_C = trivial.C * (1.0 if in_raw else model.difference_scale)
    a = np.concatenate([trivial_a, model.nontrivial(a)], axis=-1)
    C = np.concatenate([trivial_C, model.nontrivial(C)], axis=-1)
    return layer_values(model.depth, a, C), scaled.angles


def _rotations(model: UFM, rotation: Any, d: int, count: int) -> list[np.ndarray]:
    """One rotation for every place between two layers."""
    if isinstance(rotation, str) and rotation == "circulant":
        rotation = _circulant(model, d)
    seeded = isinstance(rotation, int | np.integer) and count > 1
    chosen = [(check_seed(rotation), k) for k in range(count)] if seeded else [rotation] * count
    return [_rotation(r, d) for r in chosen]


def _circulant(model: UFM, d: int) -> np.ndarray:
    """R = U, and the identity on features beyond the first K."""
    if d < model.classes:
        raise InputError(
            f"Argument `width` must be at least {model.classes} for circulant matrices, but is {d}."
        )
    R = np.eye(d)
    R[: model.classes, : model.classes] = model.basis.vectors
    return R


def _rotation(rotation: Any, d: int) -> np.ndarray:
    if isinstance(rotation, str):
        if rotation == "identity":
            return np.eye(d)
        raise InputError(
            f'Argument `rotation` must be "identity", "circulant", a seed or a {d}×{d} orthogonal '
            f"matrix, but is {shown(rotation)}."
        )
    if isinstance(rotation, int | np.integer | tuple):
        seed = rotation if isinstance(rotation, tuple) else check_seed(rotation)
        gaussian_matrix = np.random.default_rng(seed).standard_normal((d, d))
        Q, R = np.linalg.qr(gaussian_matrix)
        return Q * np.sign(np.diagonal(R))
    matrix = as_numbers("rotation", rotation)
    if matrix.shape != (d, d) or not np.allclose(matrix @ matrix.T, np.eye(d), atol=1e-10):
        raise InputError(
            f"Argument `rotation` must be an orthogonal {d}×{d} matrix, but the given one has "
            f"shape {matrix.shape}" + (" and is not orthogonal." if matrix.shape == (d, d) else ".")
        )
    return matrix


def compress(
    model: UFM, state: Parameters
) -> tuple[UFM, Parameters, Callable[[Parameters], Parameters]]:
    """The same state in the span of W's rows and H's columns, which the flow never leaves.

    Returns the narrower model, the state rotated into it, and the way back. Width beyond K(1 + n)
    costs nothing this way, at depth 2.
    """
    span = model.classes + model.total_samples
    if model.depth != 2 or model.feature_width <= span:
        return model, state, lambda small: small
    W, H = state.factors
    Q, _ = np.linalg.qr(np.concatenate([np.swapaxes(W, -1, -2), H], axis=-1))
    Qt = np.swapaxes(Q, -1, -2)

    def expand(small: Parameters) -> Parameters:
        return Parameters((small.W @ Qt, Q @ small.H))

    return dataclasses.replace(model, width=span), Parameters((W @ Q, Qt @ H)), expand


def log_singular_values(model: UFM, state: Parameters, count: int) -> np.ndarray:
    """Natural logs of the largest `count` singular values of the logits, −∞ for those that are zero.

    Zero is what the width forbids, and what is less than the last digit of the largest. Leading axes
    batched.
    """
    sizes = [np.max(np.abs(f), axis=(-2, -1), keepdims=True) for f in state.factors]
    sizes = [np.where(s > 0, s, 1.0) for s in sizes]
    scaled = Parameters(tuple(f / s for f, s in zip(state.factors, sizes, strict=True)))
    values = np.linalg.svd(scaled.Z, compute_uv=False)
    values[..., model.largest_rank :] = 0.0
    values[values <= values[..., :1] * model.rounding_of_logits] = 0.0
    with np.errstate(divide="ignore"):
        return np.log(values[..., :count]) + sum(np.log(s[..., 0]) for s in sizes)
