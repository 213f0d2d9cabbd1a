"""The two kinds of state: singular values (reduced view) and parameter matrices (full view)."""

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np

from hadaflow.base.checks import as_numbers
from hadaflow.base.errors import InputError, shown

SCALED, RAW = "scaled", "raw"
_TINY = float(np.finfo(float).tiny)


def check_units(units: str) -> str:
    if units not in (SCALED, RAW):
        raise InputError(f'Argument `units` must be "scaled" or "raw", but is {shown(units)}.')
    return units


@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    r"""A reduced state: logit singular values `a` and conserved differences `C`.

    $a_i = \alpha_i\beta_i$ and $C_i = \alpha_i^2 - \beta_i^2$ for the singular values $\alpha$ of $W$
    and $\beta$ of $H$; in deeper models the squares of layer 1 minus those of each other layer, one row
    for each. Leading axes of `a` are a batch. `units` is None when nothing was said: the function that
    uses the spectrum then decides (scaled, unless told otherwise). `angles` are the phases of the
    modes of a circulant start, or the one angle between the blocks of an imbalanced model. `seed` is
    what a random start was drawn with, one for each run of a batch.
    """

    a: np.ndarray
    C: np.ndarray
    units: str | None = None
    angles: np.ndarray | None = None
    seed: Any = None

    @property
    def modes(self) -> int:
        return self.a.shape[-1]

    @functools.cached_property
    def balanced(self) -> bool:
        """Are all layers of every mode alike?"""
        return not np.any(self.C)

    @property
    def phases(self) -> np.ndarray:
        """The angles, zero where the modes are real."""
        return np.zeros_like(self.a) if self.angles is None else self.angles

    def row(self, i: Any) -> "Spectrum":
        """One spectrum of a batch, or those of a list of numbers."""
        angles = None if self.angles is None else self.angles[i]
        seed = np.array(self.seed)[i].tolist() if isinstance(self.seed, list) else self.seed
        return Spectrum(self.a[i], self.C[i], self.units, angles, seed)


def check_batch(start: Spectrum) -> None:
    """Refuse what is not a list of at least one spectrum."""
    if start.a.ndim != 2:
        raise InputError(
            f"Argument `start` must be one spectrum or a list of them, but has shape {start.a.shape}."
        )
    if not len(start.a):
        raise InputError("Argument `start` must hold at least one spectrum, but is empty.")


def spectrum(
    a: Any, C: Any = None, units: str | None = None, *, angle: float | None = None
) -> Spectrum:
    r"""A reduced start from logit singular values.

    Args:
        a: One value per free mode, in the order of the basis: the $K-1$ non-trivial modes for
            cross-entropy with the Sylvester basis, the constant one before them for MSE. For two
            blocks of classes those inside each block, then the one between. Not negative.
        C: Conserved differences $C_i = \alpha_i^2 - \beta_i^2$, any sign; zero (balanced) when
            left out. One number stands for all modes. At depth $N\ge3$ one row for each of the layers
            2 to $N$: the squares of layer 1 minus theirs; one row alone stands for all of them.
        units: "scaled" (the paper's reduced equation, the default) or "raw" (the matrices').
        angle: For two blocks of classes: the angle from 0 to $\pi/2$ between the features of the mode
            between them and those of the first block. Left out: that of balanced classes.

    Examples:
        >>> spectrum([1.0, 1.0, 0.001]).a
        array([1.   , 1.   , 0.001])
    """
    if units is not None:
        check_units(units)
    values = as_numbers("a", a)
    if values.ndim == 0 or values.size == 0:
        raise InputError(
            f"Argument `a` must be a list of singular values, one per mode, but is {shown(a)}."
        )
    least, largest = values.min(), values.max()  # NaN if any is
    if not (least >= 0 and largest < np.inf):
        bad = values[~(np.isfinite(values) & (values >= 0))].flat[0]
        raise InputError(
            f"Argument `a` must hold finite singular values that are not negative, but has {bad}."
        )
    if least < _TINY and np.any((values > 0) & (values < _TINY)):
        raise InputError(
            f"Argument `a` must hold zeros or values of at least {_TINY:.3g} (smaller ones have too "
            f"few digits), but has {values[(values > 0) & (values < _TINY)].flat[0]}."
        )
    angles = None
    if angle is not None:
        angles = as_numbers("angle", angle)
        if angles.ndim != 0 or not np.isfinite(angles):
            raise InputError(f"Argument `angle` must be one number, but is {shown(angle)}.")
        angles = np.broadcast_to(angles, (*values.shape[:-1], 1)).copy()
    return Spectrum(values, _differences(values, C), units, angles)


def _differences(values: np.ndarray, C: Any) -> np.ndarray:
    """`C` in the shape of the singular values, or with one axis of layers before the modes."""
    if C is None:
        return np.zeros_like(values)
    differences = as_numbers("C", C)
    if not np.all(np.isfinite(differences)):
        raise InputError("Argument `C` must hold finite numbers, but has a NaN or an infinity.")
    if differences.ndim == values.ndim + 1 and differences.shape[-1] in (1, values.shape[-1]):
        layers = (*values.shape[:-1], differences.shape[-2], values.shape[-1])
        if differences.shape[:-2] == values.shape[:-1]:
            return np.broadcast_to(differences, layers).copy()
    try:
        return np.broadcast_to(differences, values.shape).copy()
    except ValueError:
        raise InputError(
            f"Argument `C` must be one number or as many as `a` ({values.shape}), "
            f"but has shape {differences.shape}."
        ) from None


def circulant(values: Any, C: Any = None, units: str | None = None) -> Spectrum:
    r"""A start whose logits are circulant without being symmetric: modes with phases, which move.

    Args:
        values: One complex eigenvalue $\lambda_\chi$ of the logits per free mode, of the first
            character of each conjugate pair; real, of either sign, for a real character.
        C: Conserved differences, as in `spectrum`.
        units: "scaled" or "raw".

    Examples:
        >>> circulant([1 + 1j, 0.5]).angles.round(3)
        array([0.785, 0.   ])
    """
    complex_values = as_numbers("values", values, np.complex128)
    start = spectrum(np.abs(complex_values), C, units)
    return Spectrum(start.a, start.C, units, np.angle(complex_values))


@dataclasses.dataclass(frozen=True, eq=False)
class Parameters:
    """A full state: the factors of the logit matrix, `(W, H)`, `(Z,)` at depth 1, or more.

    Leading axes are a batch (one entry per seed). The numbers are those of the matrices themselves;
    `units` are those in which a run from here is answered, if anything was said: a lifted start has
    those of its singular values, a state of a run those of the run.
    """

    factors: tuple[np.ndarray, ...]
    seed: Any = None  # what `gaussian` drew it with
    units: str | None = None

    def __repr__(self) -> str:
        shapes = ", ".join(" × ".join(map(str, f.shape)) for f in self.factors)
        return f"<Parameters of shapes {shapes}>"

    @property
    def W(self) -> np.ndarray:
        """The classifier: the first factor."""
        self._need_features("W")
        return self.factors[0]

    @property
    def H(self) -> np.ndarray:
        """The features that the classifier sees: the product of all other factors."""
        self._need_features("H")
        return functools.reduce(np.matmul, self.factors[1:])

    @property
    def Z(self) -> np.ndarray:
        """The logit matrix, product of the factors."""
        return functools.reduce(np.matmul, self.factors)

    @property
    def batch(self) -> tuple[int, ...]:
        return self.factors[0].shape[:-2]

    def _need_features(self, name: str) -> None:
        if len(self.factors) == 1:
            raise InputError(f"`{name}` exists from depth 2 on; this state has depth 1: use `Z`.")


def parameters(*matrices: Any) -> Parameters:
    """A full start from matrices: `parameters(W, H)`, `parameters(Z)` for depth 1, or more factors."""
    if not matrices:
        raise InputError("A full state is made of the factors of the logits, but none was given.")
    factors = tuple(as_numbers(f"matrix {i}", m) for i, m in enumerate(matrices, 1))
    for factor in factors:
        if factor.ndim < 2:
            raise InputError(
                f"A parameter matrix needs two axes, but one has shape {factor.shape}."
            )
        if not np.all(np.isfinite(factor)):
            raise InputError(
                "A parameter matrix must hold finite numbers, but has NaN or infinity."
            )
    for left, right in itertools.pairwise(factors):
        if left.shape[-1] != right.shape[-2]:
            raise InputError(
                "Parameter matrices must fit each other, but those of shapes "
                f"{left.shape} and {right.shape} do not."
            )
    return Parameters(factors)


def check_factors(
    state: Any, wanted: tuple[tuple[int, int], ...], batch: bool = True
) -> Parameters:
    """Refuse matrices that have not the shapes of a model, and several of them if not `batch`."""
    if not isinstance(state, Parameters):
        raise InputError(
            f"A full state is needed here (`parameters(W, H)`), but a {type(state).__name__} was "
            "given."
        )
    factors = tuple(as_numbers("start", f, copy=None) for f in state.factors)
    shapes = tuple(f.shape[-2:] for f in factors)
    if shapes != wanted or len({f.shape[:-2] for f in factors}) > 1:
        raise InputError(
            f"Argument `start` must have matrices of shapes {wanted}, but has {shapes}."
        )
    if not all(np.all(np.isfinite(f)) for f in factors):
        raise InputError("Argument `start` must have matrices of finite numbers.")
    checked = Parameters(factors, state.seed, state.units)
    if checked.batch and not batch:
        raise InputError(f"Argument `start` must be one state, but is a batch of {checked.batch}.")
    return checked
