"""The two kinds of state: singular values (reduced view) and parameter matrices (full view)."""

import dataclasses
from typing import Any

import numpy as np

from hadaflow.errors import InputError

SCALED, RAW = "scaled", "raw"


def check_units(units: str) -> str:
    if units not in (SCALED, RAW):
        raise InputError(f'Argument `units` must be "scaled" or "raw", but is {units!r}.')
    return units


@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    r"""A reduced state: logit singular values `a` and conserved differences `C`.

    $a_i = \alpha_i\beta_i$ and $C_i = \alpha_i^2 - \beta_i^2$ for the singular values $\alpha$ of W
    and $\beta$ of H. Leading axes of `a` are a batch. `units` is None when nothing was said: the
    function that uses the spectrum then decides (scaled, unless told otherwise).
    """

    a: np.ndarray
    C: np.ndarray
    units: str | None = None

    @property
    def modes(self) -> int:
        return self.a.shape[-1]


def spectrum(a: Any, C: Any = None, units: str | None = None) -> Spectrum:
    r"""A reduced start from logit singular values.

    Args:
        a: One value per mode, in the order of the Sylvester columns: the K − 1 non-trivial modes
            for cross-entropy, all K for MSE. Not negative.
        C: Conserved differences $C_i = \alpha_i^2 - \beta_i^2$, any sign; zero (balanced) when
            left out. One number stands for all modes.
        units: "scaled" (the paper's reduced equation, the default) or "raw" (the matrices').

    Examples:
        >>> spectrum([1.0, 1.0, 0.001]).a
        array([1.   , 1.   , 0.001])
    """
    if units is not None:
        check_units(units)
    values = _numbers("a", a)
    if values.ndim == 0 or values.size == 0:
        raise InputError(
            f"Argument `a` must be a list of singular values, one per mode, but is {a!r}."
        )
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        bad = values[~(np.isfinite(values) & (values >= 0))].flat[0]
        raise InputError(
            f"Argument `a` must hold finite singular values that are not negative, but has {bad}."
        )
    tiny = np.finfo(float).tiny
    if np.any((values > 0) & (values < tiny)):
        raise InputError(
            f"Argument `a` must hold zeros or values of at least {tiny:.3g} (smaller ones have too "
            f"few digits), but has {values[(values > 0) & (values < tiny)].flat[0]}."
        )
    differences = _numbers("C", 0.0 if C is None else C)
    if not np.all(np.isfinite(differences)):
        raise InputError("Argument `C` must hold finite numbers, but has a NaN or an infinity.")
    try:
        differences = np.broadcast_to(differences, values.shape).copy()
    except ValueError:
        raise InputError(
            f"Argument `C` must be one number or as many as `a` ({values.shape}), "
            f"but has shape {differences.shape}."
        ) from None
    return Spectrum(values, differences, units)


def _numbers(name: str, values: Any) -> np.ndarray:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"Argument `{name}` must hold numbers, but is {values!r}.") from None


@dataclasses.dataclass(frozen=True, eq=False)
class Parameters:
    """A full state: the factors of the logit matrix, `(W, H)`, or `(Z,)` at depth 1.

    Leading axes are a batch (one entry per seed). Always in the units of the matrices (raw).
    """

    factors: tuple[np.ndarray, ...]
    seed: Any = None  # what `gaussian` drew it with

    @property
    def W(self) -> np.ndarray:
        self._need_two("W")
        return self.factors[0]

    @property
    def H(self) -> np.ndarray:
        self._need_two("H")
        return self.factors[1]

    @property
    def Z(self) -> np.ndarray:
        """The logit matrix, product of the factors."""
        return self.factors[0] if len(self.factors) == 1 else self.factors[0] @ self.factors[1]

    @property
    def batch(self) -> tuple[int, ...]:
        return self.factors[0].shape[:-2]

    def _need_two(self, name: str) -> None:
        if len(self.factors) != 2:
            raise InputError(f"`{name}` exists at depth 2 only; this state has depth 1: use `Z`.")


def parameters(*matrices: Any) -> Parameters:
    """A full start from matrices: `parameters(W, H)`, or `parameters(Z)` for depth 1."""
    if len(matrices) not in (1, 2):
        raise InputError(
            f"A full state is made of W and H, or of Z alone, but {len(matrices)} were given."
        )
    factors = tuple(
        _numbers(name, m)
        for name, m in zip(("W", "H") if len(matrices) == 2 else ("Z",), matrices, strict=True)
    )
    for factor in factors:
        if factor.ndim < 2:
            raise InputError(
                f"A parameter matrix needs two axes, but one has shape {factor.shape}."
            )
        if not np.all(np.isfinite(factor)):
            raise InputError(
                "A parameter matrix must hold finite numbers, but has NaN or infinity."
            )
    return Parameters(factors)
