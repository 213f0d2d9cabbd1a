"""Which matrices a reduced descent speaks of, and whether an optimizer keeps them Hadamard states."""

from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, shown
from hadaflow.base.words import group_name
from hadaflow.descent.coordinates import (
    CoordinateDescent,
    Coordinates,
    all_values,
    circulant_rows,
    diagonals,
    hadamard_rows,
)
from hadaflow.descent.optimizers.optimizer import ELEMENTWISE, SPECTRAL, Optimizer
from hadaflow.descent.systems import spectral_descent
from hadaflow.model.states import Spectrum
from hadaflow.model.ufm import UFM

IDENTITY, CIRCULANT = "identity", "circulant"


def reduced_places(
    model: UFM, start: Spectrum, optimizer: Optimizer, rotation: Any
) -> CoordinateDescent | None:
    """What `optimizer` moves in the reduced view; None for descent and heavy ball.

    Those two have systems of their own, also for modes with phases and between blocks of classes.
    """
    if rotation not in (None, IDENTITY, CIRCULANT):
        raise InputError(
            f'Argument `rotation` must be "identity" or "circulant", but is {shown(rotation)}.'
        )
    if optimizer.descent is not None:
        return None
    if model.imbalance is not None:
        raise InputError(
            "Argument `optimizer` must be gradient descent, with or without momentum, for two blocks "
            f"of classes in the reduced view, but is {optimizer}: follow the matrices (`hadamard`)."
        )
    if start.angles is not None and np.any(start.angles):
        raise InputError(
            "Argument `optimizer` must be gradient descent, with or without momentum, for modes with "
            f"phases in the reduced view, but is {optimizer}: follow the matrices (`hadamard`)."
        )
    places = _PLACES.get(optimizer.reduces, _no_places)(model, optimizer, rotation)
    return CoordinateDescent(spectral_descent(model), places)


def meant_rotation(model: UFM, optimizer: Optimizer, rotation: Any) -> Any:
    """`rotation`, or where nothing is said the first that an elementwise optimizer has; else None."""
    if rotation is not None or optimizer.reduces != ELEMENTWISE:
        return rotation
    if model.depth == 1 or model.imbalance is not None:
        return None
    return IDENTITY if model.depth == 2 and not model.basis.paired else CIRCULANT


def _no_places(model: UFM, optimizer: Optimizer, rotation: Any) -> Coordinates:
    raise InputError(
        "Argument `optimizer` must say how it reduces, as hadaflow.optimizers.elementwise(…) or "
        "hadaflow.optimizers.spectral(…) of an optax transformation, in the reduced view; in the full "
        "one (`hadamard`) it is taken as it is."
    )


def _spectral_places(model: UFM, optimizer: Optimizer, rotation: Any) -> Coordinates:
    """Every rotation is as good as any other."""
    if not optimizer.on_diagonals:
        return all_values(model)
    modes = int(np.sum(model.multiplicity_of_modes))
    if model.depth > 1 and model.feature_width < modes:
        raise InputError(
            f"Argument `width` must be at least {modes}, one for each mode, for an optimizer that looks "
            f"at shapes of matrices, but is {model.width}."
        )
    return diagonals(model)


def _rows(model: UFM, optimizer: Optimizer, rotation: Any) -> Coordinates:
    """One row of each matrix, where the start is such that all rows stay alike."""
    if model.depth == 1:
        return circulant_rows(model)
    signs = not model.basis.paired
    if rotation == IDENTITY:
        _check_signs(model, optimizer, signs)
        return hadamard_rows(model)
    if model.feature_width < model.classes:
        raise InputError(
            f"Argument `width` must be at least {model.classes} for {optimizer} on circulant matrices, "
            f"which {'this group' if not signs else f'depth {model.depth}'} needs, but is {model.width}."
        )
    return circulant_rows(model)


def _check_signs(model: UFM, optimizer: Optimizer, signs: bool) -> None:
    """Are the entries of each column of one size? Then signs are all that tells rows apart."""
    if not signs:
        raise InputError(
            f'Argument `rotation` cannot be "identity" for {optimizer} and the group '
            f"{group_name(model.basis.group)}, as only characters of Z_2 × … × Z_2 are signs: say "
            '"circulant".'
        )
    if model.depth > 2:
        raise InputError(
            f'Argument `rotation` cannot be "identity" for {optimizer} at depth {model.depth}, where it '
            'makes rounding in the zeros of the inner matrices grow: say "circulant".'
        )


_PLACES = {SPECTRAL: _spectral_places, ELEMENTWISE: _rows}
