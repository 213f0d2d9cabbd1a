"""Is a start one of this model's? Checked here once, and put into scaled units."""

import dataclasses
import math
from typing import Any

import numpy as np

from hadaflow.base.checks import as_numbers
from hadaflow.base.errors import InputError
from hadaflow.model.layers import balanced_like
from hadaflow.model.named_starts import parse
from hadaflow.model.states import RAW, Parameters, Spectrum, check_factors, check_units, spectrum
from hadaflow.model.ufm import UFM


def fitted(model: UFM, start: Any, units: str | None = None, bounded: bool = True) -> Spectrum:
    """`start` (a spectrum or a list of numbers) checked against the model, in scaled units.

    A spectrum that names its own units is read in those; else in `units`; else as scaled. Values
    whose sums overflow, infinite ones even, are for looking at, if not `bounded`.
    """
    check_reduced_view(model)
    given = as_spectrum(model, start)
    if given.modes != model.modes:
        raise InputError(
            f"Argument `start` must have {model.modes} singular values for `classes` = "
            f"{model.classes} and {model.loss} ({model.modes_in_words}), but has {given.modes}."
        )
    if bounded and np.any(given.a > model.largest_value):
        raise InputError(
            f"Argument `start` must hold values of at most {model.largest_value:.3g} for `classes` = "
            f"{model.classes} (sums of larger ones overflow), but has {given.a.max():g}."
        )
    C, angles = _fitting_differences(model, given), fitting_angles(model, given)
    check_width(model, given.a, C)
    if check_units(given.units or units or "scaled") == RAW:
        return Spectrum(
            given.a / model.singular_value_scale, C / model.difference_scale, "scaled", angles
        )
    return Spectrum(given.a, C, "scaled", angles)


def check_width(model: UFM, a: np.ndarray, C: np.ndarray) -> None:
    """Refuse singular values of more modes than matrices of this width can have."""
    if model.largest_rank == model.classes:
        return
    count = model.multiplicity_of_modes
    needed = int(np.max(np.sum(_present(model, a, C) * count, axis=-1), initial=0))
    if needed > model.largest_rank:
        raise InputError(
            f"Argument `start` must have singular values of rank {model.largest_rank} at most for "
            f"`width` = {model.width}, the others zero, but has rank {needed}: no matrices of this "
            "width have them."
        )


def check_all_modes(model: UFM) -> None:
    """Refuse a model so narrow that no state has all its modes."""
    if model.largest_rank < model.multiplicity_of_modes.sum():
        raise InputError(
            f"Argument `model` must have `width` of at least {model.multiplicity_of_modes.sum()}, "
            f"one for each mode, but has {model.width}: states with all modes do not exist there."
        )


def as_spectrum(model: UFM, start: Any) -> Spectrum:
    """Singular values, listed or spelled, as a reduced start; matrices are pointed to their place."""
    if isinstance(start, Spectrum):
        return _numbers_of(start)
    if isinstance(start, str):
        return parse(model, start)
    if isinstance(start, Parameters):
        raise InputError(
            "Argument `start` must be singular values here, but is a full state: `project` it."
        )
    parts = start if isinstance(start, tuple | list) else [start]
    shapes = tuple(getattr(part, "shape", None) for part in parts)
    logits = (model.classes, model.total_samples)
    if shapes == model.factor_shapes or (shapes == (logits,) and logits[1] != model.modes):
        raise InputError(
            "Argument `start` must be singular values, or a full state made with `parameters`: "
            f"write parameters({', '.join(model.factor_names)})."
        )
    try:
        return spectrum(start)
    except InputError as error:  # which calls them `a`
        raise InputError(str(error).replace("`a`", "`start`")) from None


def check_reduced_view(model: UFM) -> None:
    """Refuse a model that has none."""
    if model.imbalance is None:
        if why := model.asymmetry:
            raise InputError(
                f"There is no reduced view of this loss, as under it {why}: use the full view, with a "
                "start from `hadamard` or `gaussian`."
            )
        return
    blocks = len(model.imbalance)
    reason = ""
    if blocks != 2:
        reason = f"two blocks have one, but {model.samples_in_words} are {blocks}"
    elif model.has_constant_mode:
        reason = f"with loss = {model.loss} the constant mode, which two blocks share, learns too"
    elif not model.loss_kind.alike:
        reason = f"loss = {model.loss} does not see every sample by itself, or wrong classes alike"
    if reason:
        raise InputError(
            f"There is no reduced view of this imbalance ({reason}): use the full view, with a "
            "start from `gaussian` or `parameters`."
        )


def _fitting_differences(model: UFM, given: Spectrum) -> np.ndarray:
    """`C` in the shape that the depth needs."""
    if model.depth > 2:
        if not np.any(given.C):
            return balanced_like(model.depth, given.a)
        wanted = (*given.a.shape[:-1], model.depth - 1, model.modes)
        if given.C.ndim == given.a.ndim:  # one row stands for all layers
            return np.repeat(given.C[..., None, :], model.depth - 1, axis=-2)
        if given.C.shape != wanted:
            raise InputError(
                f"Argument `C` must have shape {wanted} at depth {model.depth}, the squares of "
                "layer 1 minus those of each other layer, but has shape "
                f"{given.C.shape}."
            )
        return given.C
    if given.C.ndim != given.a.ndim:
        raise InputError(
            f"Argument `C` must have one row of differences at depth {model.depth}, but has "
            f"shape {given.C.shape}."
        )
    if model.depth == 1 and np.any(given.C):
        raise InputError("Argument `C` must be zero at depth 1: there is only one factor.")
    return given.C


def fitting_angles(model: UFM, given: Spectrum) -> np.ndarray | None:
    """The angles of a start, which must be such as the model has."""
    if model.modes_of_view.turns:
        if given.angles is None:
            return np.full((*given.a.shape[:-1], 1), model.blocks.balanced_angle)
        if given.angles.shape[-1] != 1 or np.any((given.angles < 0) | (given.angles > math.pi / 2)):
            raise InputError(
                "Argument `angles` must be one angle from 0 to π/2, of the mode between the two "
                f"blocks, but is {given.angles.tolist()}."
            )
        return given.angles
    if given.angles is None:
        return None
    if given.angles.shape[-1] != given.modes:
        raise InputError(
            "Argument `angle` is that of the mode between two blocks of classes, which a model without "
            "`imbalance` does not have."
        )
    real = model.multiplicity_of_modes == 1
    turned = np.abs(np.sin(given.angles[..., real])) > 1e-12
    if np.any(turned):
        mode = int(np.flatnonzero(real)[np.nonzero(turned)[-1][0]]) + 1
        raise InputError(
            f"Argument `values` must be real for modes of multiplicity 1, but mode {mode} is not."
        )
    return given.angles


def with_phases(model: UFM, start: Spectrum) -> Spectrum:
    """The start, with phases if labels may pull its modes through zero, beyond which they have some."""
    if start.angles is None and model.may_change_sign(start.C):
        return dataclasses.replace(start, angles=start.phases)
    return start


def result_units(start: Any, units: str | None) -> str:
    """The one units setting of a run: `units` if given, else the start's own, else scaled."""
    own = start.units if isinstance(start, Spectrum | Parameters) else None
    return check_units(units or own or "scaled")


def check_parameters(model: UFM, state: Parameters, batch: bool = True) -> Parameters:
    """Refuse matrices whose shapes do not fit the model, and several of them if not `batch`."""
    return check_factors(state, model.factor_shapes, batch)


def _present(model: UFM, a: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Which modes have a layer that is not zero: each of them takes a feature direction."""
    return (a > 0) | (np.any(C, axis=-2) if C.ndim > a.ndim else C != 0)


def _numbers_of(given: Spectrum) -> Spectrum:
    """A spectrum that was not made by `spectrum`, checked as that would."""
    a, C = as_numbers("a", given.a, copy=None), as_numbers("C", given.C, copy=None)
    angles = None if given.angles is None else as_numbers("angles", given.angles, copy=None)
    if a.ndim == 0 or C.ndim < a.ndim or C.shape[-1] != a.shape[-1]:
        raise InputError(
            "Argument `start` must be a spectrum with one `a` and one `C` for every mode, but they have "
            f"shapes {a.shape} and {C.shape}."
        )
    if not np.all(a >= 0):
        bad = a[~(a >= 0)].flat[0]
        raise InputError(
            f"Argument `a` must hold singular values that are not negative, but has {bad}."
        )
    if not np.all(np.isfinite(C)) or (angles is not None and not np.all(np.isfinite(angles))):
        raise InputError("Arguments `C` and `angles` must hold finite numbers.")
    return Spectrum(a, C, given.units, angles, given.seed)
