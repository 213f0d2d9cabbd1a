"""The problem itself: what is given, checked once, and the sizes and scales that follow from it."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from hadaflow.algebra.bases import AbelianGroup, Sylvester, check_group, make_basis
from hadaflow.base.checks import as_number, as_numbers
from hadaflow.base.errors import InputError, check_whole_number, shown
from hadaflow.model.blocks import BlockBasis, check_imbalance
from hadaflow.model.labels import check_labels, difference_table
from hadaflow.model.layers import balanced_like
from hadaflow.model.states import RAW, Parameters, Spectrum, check_units, spectrum

CROSS_ENTROPY, MSE = "cross_entropy", "mse"
_MOST_SAMPLES = 10**12  # per class, and of the width: what is made of them stays within doubles


@dataclasses.dataclass(frozen=True)
class Problem:
    """Arguments of a model, and the sizes and scales that follow. See `UFM`, which adds the flow."""

    classes: int
    samples: int = 1
    width: int | None = None
    depth: int = 2
    loss: str = CROSS_ENTROPY
    reduction: str = "sum"
    group: tuple[int, ...] | tuple[tuple[int, ...], ...] | None = None
    label_smoothing: float = 0.0
    label_distribution: tuple[float, ...] | None = None
    temperature: float = 1.0
    weight_decay: float | tuple[float, ...] = 0.0
    imbalance: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        for name, most in (("classes", None), ("samples", _MOST_SAMPLES), ("depth", None)):
            checked = check_whole_number(name, getattr(self, name), most=most)
            object.__setattr__(self, name, checked)
        self._check_shape()
        self._check_loss()
        self._check_labels()
        object.__setattr__(self, "weight_decay", _check_decay(self.weight_decay, self.depth))

    def _check_shape(self) -> None:
        if self.imbalance is not None:
            checked = check_imbalance(self.imbalance, self.classes, self.samples)
            object.__setattr__(self, "imbalance", checked)
        if self.group is not None and self.imbalance is None:
            orders = check_group(self.group)
            object.__setattr__(self, "group", orders)
            if math.prod(orders) != self.classes:
                raise InputError(
                    f"Argument `group` must have `classes` = {self.classes} elements, but "
                    f"{orders} has {math.prod(orders)}."
                )
        if self.imbalance is None:
            make_basis(self.classes, self._orders)  # refuses a number of classes it does not fit
        elif self.group is not None or len(self.imbalance) == 2:
            groups = BlockBasis.make(self.imbalance, self.group).groups
            object.__setattr__(self, "group", None if self.group is None else groups)
        if self.depth > 100:
            raise InputError(f"Argument `depth` must be from 1 to 100, but is {shown(self.depth)}.")
        if self.width is None:
            object.__setattr__(self, "width", self.classes)
        elif self.depth == 1:
            raise InputError(
                f"Argument `width` does not apply at depth 1 (there are no features), "
                f"but is {self.width}."
            )
        object.__setattr__(
            self, "width", check_whole_number("width", self.width, most=_MOST_SAMPLES)
        )

    def _check_loss(self) -> None:
        if self.loss not in (CROSS_ENTROPY, MSE):
            raise InputError(
                f'Argument `loss` must be "cross_entropy" or "mse", but is {shown(self.loss)}.'
            )
        if self.reduction not in ("sum", "mean"):
            raise InputError(
                f'Argument `reduction` must be "sum" or "mean", but is {shown(self.reduction)}.'
            )

    def _check_labels(self) -> None:
        for name in ("label_smoothing", "temperature"):
            object.__setattr__(self, name, as_number(name, getattr(self, name)))
        if not 0 <= self.label_smoothing < 1:
            raise InputError(
                "Argument `label_smoothing` must be from 0 to below 1, "
                f"but is {shown(self.label_smoothing)}."
            )
        if not 0 < self.temperature < math.inf:
            raise InputError(
                f"Argument `temperature` must be a positive number, but is {shown(self.temperature)}."
            )
        if self.label_distribution is not None:
            if self.label_smoothing:
                raise InputError(
                    "Give one of `label_smoothing` and `label_distribution`, but not both."
                )
            if self.imbalance is not None:
                raise InputError(
                    "Argument `label_distribution` is invariant under one group on all classes and "
                    "does not go with `imbalance`; `label_smoothing` does."
                )
            checked = check_labels(self.label_distribution, self.basis)
            object.__setattr__(self, "label_distribution", None if checked[0] == 1 else checked)
        if self.loss == MSE and (self.soft_labels or self.temperature != 1):
            raise InputError(
                'Soft labels and temperature need loss = "cross_entropy": with MSE there is no '
                "softmax."
            )

    # --- shape -----------------------------------------------------------------------------------

    @property
    def _orders(self) -> tuple[int, ...] | None:
        return self.group  # pyright: ignore[reportReturnType] (one group, when classes are balanced)

    @functools.cached_property
    def basis(self) -> Sylvester | AbelianGroup:
        """The basis of a model with balanced classes."""
        if self.imbalance is not None:
            raise InputError(
                f"Classes with samples {self.samples_in_words} have no basis in common; what needs "
                "one needs `imbalance` left out."
            )
        return make_basis(self.classes, self._orders)

    @functools.cached_property
    def blocks(self) -> BlockBasis:
        """The bases of the two blocks of an imbalanced model."""
        assert self.imbalance is not None
        return BlockBasis.make(self.imbalance, self.group)

    @functools.cached_property
    def modes_of_view(self) -> Sylvester | AbelianGroup | BlockBasis:
        """What the modes of a reduced state are: of one group, or of two blocks."""
        return self.basis if self.imbalance is None else self.blocks

    @property
    def modes(self) -> int:
        """Entries of a reduced state: the free modes of the basis, K − 1 for Sylvester.

        One more for MSE, the constant mode first, because it learns too.
        """
        return self.modes_of_view.modes + self.has_constant_mode

    @property
    def has_constant_mode(self) -> bool:
        return self.loss == MSE

    @functools.cached_property
    def samples_by_class(self) -> np.ndarray:
        """Number of samples of every class."""
        if self.imbalance is None:
            return np.full(self.classes, self.samples)
        return np.concatenate([np.full(count, n) for count, n in self.imbalance])

    @property
    def total_samples(self) -> int:
        return int(self.samples_by_class.sum())

    @property
    def mean_samples(self) -> float:
        """Samples per class, n; their mean if classes differ."""
        return self.total_samples / self.classes

    @property
    def samples_in_words(self) -> str:
        """The blocks of an imbalanced model, classes × samples of each."""
        return ", ".join(f"{count}×{n}" for count, n in self.imbalance or ())

    @property
    def factor_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the parameter matrices: W and H, or Z, with d × d ones between if deeper."""
        K, N, d = self.classes, self.total_samples, self.feature_width
        if self.depth == 1:
            return ((K, N),)
        return ((K, d), *((d, d),) * (self.depth - 2), (d, N))

    @property
    def factor_names(self) -> tuple[str, ...]:
        """Names of the parameter matrices: W and H, or Z, or W1, W2, …, H."""
        if self.depth < 3:
            return ("Z",) if self.depth == 1 else ("W", "H")
        return (*(f"W{layer}" for layer in range(1, self.depth)), "H")

    @property
    def feature_width(self) -> int:
        assert self.width is not None
        return self.width

    # --- scale -----------------------------------------------------------------------------------

    @property
    def singular_value_scale(self) -> float:
        """Raw singular value per scaled one, K√n."""
        return self.classes * math.sqrt(self.mean_samples)

    @property
    def difference_scale(self) -> float:
        """Raw difference C of squared layer singular values per scaled one, (K√n)^{2/N}."""
        return self.singular_value_scale ** (2 / max(self.depth, 2))

    @property
    def time_scale(self) -> float:
        """Scaled time per raw time: 2√n at depth 2, 1/K at depth 1; Kn times less for a mean."""
        N = self.depth
        scale = N * math.sqrt(self.mean_samples) * self.singular_value_scale ** (1 - 2 / N)
        return scale / self.loss_divisor

    @property
    def loss_divisor(self) -> int:
        return self.total_samples if self.reduction == "mean" else 1

    @property
    def penalized(self) -> bool:
        return any(self.decays)

    @property
    def decays(self) -> tuple[float, ...]:
        """λ of every layer: λ_W and λ_H at depth 2."""
        assert isinstance(self.weight_decay, tuple)
        return self.weight_decay

    @property
    def scaled_decays(self) -> tuple[float, ...]:
        """λ of every layer per unit of scaled time."""
        return tuple(decay / self.time_scale for decay in self.decays)

    @property
    def decay_strength(self) -> float:
        r"""$\bar\lambda = (\prod_l\lambda_l)^{1/N}/\sqrt n$ (times Kn for a mean).

        At depth 2 $\sqrt{\lambda_W\lambda_H/n}$, and from 1 on all modes die.
        """
        if not all(self.decays):
            return 0.0
        mean_log = math.fsum(math.log(decay) for decay in self.decays) / self.depth
        return math.exp(mean_log) * self.loss_divisor / math.sqrt(self.mean_samples)

    @property
    def settles(self) -> bool:
        """Does the flow end at a finite point, instead of growing for ever?"""
        settled_labels = self.soft_labels and bool(np.all(self.label_probabilities > 0))
        return self.loss == MSE or settled_labels or all(self.decays)

    # --- labels ----------------------------------------------------------------------------------

    @property
    def soft_labels(self) -> bool:
        """Is any label other than one-hot? Then the flow settles at a finite point."""
        return self.label_smoothing > 0 or self.label_distribution is not None

    def may_change_sign(self, C: np.ndarray) -> bool:
        """Can labels pull a mode through zero? Balanced modes die there; others go on, with phase π.

        Hard labels only push upwards. Soft ones hold a mode back while others are large, whatever its
        own fixed point is.
        """
        unbalanced = self.depth == 1 or bool(np.any(C))
        return self.soft_labels and self.imbalance is None and unbalanced

    @functools.cached_property
    def label_probabilities(self) -> np.ndarray:
        """q: the probability of every class for a sample of class 0."""
        if self.label_distribution is not None:
            return np.array(self.label_distribution)
        smooth = np.full(self.classes, self.label_smoothing / self.classes)
        smooth[0] += 1 - self.label_smoothing
        return smooth

    @functools.cached_property
    def one_hot(self) -> np.ndarray:
        """The class of every sample, K × (all samples), samples in class order."""
        return np.repeat(np.eye(self.classes), self.samples_by_class, axis=1)

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """Label matrix Y, K × (all samples): one-hot, or the soft labels of every sample."""
        if not self.soft_labels:
            return self.one_hot
        if self.label_distribution is None:
            s = self.label_smoothing
            return (1 - s) * self.one_hot + s / self.classes
        shifted = self.label_probabilities[difference_table(self.basis.group)]
        return np.repeat(shifted, self.samples_by_class, axis=1)

    # --- starts, checked -------------------------------------------------------------------------

    def scaled(self, start: Any, units: str | None = None, bounded: bool = True) -> Spectrum:
        """`start` (a spectrum or a list of numbers) checked against the model, in scaled units.

        A spectrum that names its own units is read in those; else in `units`; else as scaled. Values
        whose sums overflow, infinite ones even, are for looking at, if not `bounded`.
        """
        self.check_reduced_view()
        given = self.as_spectrum(start)
        if given.modes != self.modes:
            raise InputError(
                f"Argument `start` must have {self.modes} singular values for `classes` = "
                f"{self.classes} and {self.loss} ({self._modes_in_words}), but has {given.modes}."
            )
        if bounded and np.any(given.a > self.largest_value):
            raise InputError(
                f"Argument `start` must hold values of at most {self.largest_value:.3g} for `classes` = "
                f"{self.classes} (sums of larger ones overflow), but has {given.a.max():g}."
            )
        C, angles = self._fitting_differences(given), self.fitting_angles(given)
        self.check_width(given.a, C)
        if check_units(given.units or units or "scaled") == RAW:
            return Spectrum(
                given.a / self.singular_value_scale, C / self.difference_scale, "scaled", angles
            )
        return Spectrum(given.a, C, "scaled", angles)

    @property
    def largest_value(self) -> float:
        """A singular value up to which it and the sum of all, in either units, are doubles.

        With MSE, whose forces grow with the values, their squares are, too.
        """
        largest = 1e150 if self.loss == MSE else 1e307
        return largest / (self.classes * self.singular_value_scale)

    @property
    def largest_rank(self) -> int:
        """What no logit matrix of this model can exceed: classes, or the width where that is less."""
        return self.classes if self.depth == 1 else min(self.classes, self.feature_width)

    @property
    def rounding_of_logits(self) -> float:
        """Singular values of the logits below this share of the largest are rounding."""
        return max(self.classes, self.total_samples) * float(np.finfo(float).eps)

    def present(self, a: np.ndarray, C: np.ndarray) -> np.ndarray:
        """Which modes have a layer that is not zero: each of them takes a feature direction."""
        return (a > 0) | (np.any(C, axis=-2) if C.ndim > a.ndim else C != 0)

    def check_width(self, a: np.ndarray, C: np.ndarray) -> None:
        """Refuse singular values of more modes than matrices of this width can have."""
        if self.largest_rank == self.classes:
            return
        count = self.multiplicity_of_modes
        needed = int(np.max(np.sum(self.present(a, C) * count, axis=-1), initial=0))
        if needed > self.largest_rank:
            raise InputError(
                f"Argument `start` must have singular values of rank {self.largest_rank} at most for "
                f"`width` = {self.width}, the others zero, but has rank {needed}: no matrices of this "
                "width have them."
            )

    def check_all_modes(self) -> None:
        """Refuse a model so narrow that no state has all its modes."""
        if self.largest_rank < self.multiplicity_of_modes.sum():
            raise InputError(
                f"Argument `model` must have `width` of at least {self.multiplicity_of_modes.sum()}, "
                f"one for each mode, but has {self.width}: states with all modes do not exist there."
            )

    @property
    def multiplicity_of_modes(self) -> np.ndarray:
        """How many singular values each entry of a reduced state stands for."""
        own = self.modes_of_view.multiplicity
        return np.concatenate([[1], own]) if self.has_constant_mode else own

    def as_spectrum(self, start: Any) -> Spectrum:
        """A list of singular values as a reduced start; matrices are pointed to where they belong."""
        if isinstance(start, Spectrum):
            return _numbers_of(start)
        if isinstance(start, Parameters):
            raise InputError(
                "Argument `start` must be singular values here, but is a full state: `project` it."
            )
        parts = start if isinstance(start, tuple | list) else [start]
        shapes = tuple(getattr(part, "shape", None) for part in parts)
        logits = (self.classes, self.total_samples)
        if shapes == self.factor_shapes or (shapes == (logits,) and logits[1] != self.modes):
            raise InputError(
                "Argument `start` must be singular values, or a full state made with `parameters`: "
                f"write parameters({', '.join(self.factor_names)})."
            )
        return spectrum(start)

    def check_reduced_view(self) -> None:
        """Refuse a model that has none."""
        if self.imbalance is None:
            return
        if len(self.imbalance) != 2 or self.loss == MSE:
            reason = (
                f"two blocks have one, but {self.samples_in_words} are {len(self.imbalance)}"
                if len(self.imbalance) != 2
                else "with MSE the constant mode, which two blocks share, learns too"
            )
            raise InputError(
                f"There is no reduced view of this imbalance ({reason}): use the full view, with a "
                "start from `gaussian` or `parameters`."
            )

    @property
    def _modes_in_words(self) -> str:
        kind = "K − 1 modes"
        if self.imbalance is not None:
            kind = "free modes inside the two blocks, then the one between them"
        elif not isinstance(self.basis, Sylvester):
            kind = "free modes of " + " × ".join(f"Z_{n}" for n in self.basis.group)
        return "the constant mode first, then " + kind if self.has_constant_mode else kind

    def _fitting_differences(self, given: Spectrum) -> np.ndarray:
        """`C` in the shape that the depth needs."""
        if self.depth > 2:
            if not np.any(given.C):
                return balanced_like(self.depth, given.a)
            wanted = (*given.a.shape[:-1], self.depth - 1, self.modes)
            if given.C.ndim == given.a.ndim:  # one row stands for all layers
                return np.repeat(given.C[..., None, :], self.depth - 1, axis=-2)
            if given.C.shape != wanted:
                raise InputError(
                    f"Argument `C` must have shape {wanted} at depth {self.depth}, the squares of "
                    "layer 1 minus those of each other layer, but has shape "
                    f"{given.C.shape}."
                )
            return given.C
        if given.C.ndim != given.a.ndim:
            raise InputError(
                f"Argument `C` must have one row of differences at depth {self.depth}, but has "
                f"shape {given.C.shape}."
            )
        if self.depth == 1 and np.any(given.C):
            raise InputError("Argument `C` must be zero at depth 1: there is only one factor.")
        return given.C

    def fitting_angles(self, given: Spectrum) -> np.ndarray | None:
        """The angles of a start, which must be such as the model has."""
        if self.imbalance is not None:
            if given.angles is None:
                balanced = math.atan2(
                    *(math.sqrt(count) for count, _ in self.imbalance)
                )  # what the mode would have without the imbalance
                return np.full((*given.a.shape[:-1], 1), balanced)
            if given.angles.shape[-1] != 1 or np.any(
                (given.angles < 0) | (given.angles > math.pi / 2)
            ):
                raise InputError(
                    "Argument `angles` must be one angle from 0 to π/2, of the mode between the two "
                    f"blocks, but is {given.angles.tolist()}."
                )
            return given.angles
        if given.angles is None:
            return None
        if self.loss == MSE:
            raise InputError(
                "A circulant start (modes with phases) needs cross-entropy; for MSE give the "
                "matrices, as `parameters`, to the full view."
            )
        real = self.basis.multiplicity == 1
        turned = np.abs(np.sin(given.angles[..., real])) > 1e-12
        if np.any(turned):
            mode = int(np.flatnonzero(real)[np.nonzero(turned)[-1][0]]) + 1
            raise InputError(
                f"Argument `values` must be real for modes of multiplicity 1, but mode {mode} is not."
            )
        return given.angles

    @staticmethod
    def result_units(start: Any, units: str | None) -> str:
        """The one units setting of a run: `units` if given, else the start's own, else scaled."""
        own = start.units if isinstance(start, Spectrum) else None
        return check_units(units or own or "scaled")

    def check_parameters(self, state: Parameters) -> Parameters:
        """Refuse matrices whose shapes do not fit the model."""
        if not isinstance(state, Parameters):
            raise InputError(
                f"A full state is needed here (`parameters(W, H)`), but a {type(state).__name__} was "
                "given."
            )
        factors = tuple(as_numbers("start", f, copy=None) for f in state.factors)
        shapes = tuple(f.shape[-2:] for f in factors)
        if shapes != self.factor_shapes or len({f.shape[:-2] for f in factors}) > 1:
            raise InputError(
                f"Argument `start` must have matrices of shapes {self.factor_shapes}, "
                f"but has {shapes}."
            )
        if not all(np.all(np.isfinite(f)) for f in factors):
            raise InputError("Argument `start` must have matrices of finite numbers.")
        return Parameters(factors, state.seed)


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
    return Spectrum(a, C, given.units, angles)


def _check_decay(value: Any, depth: int) -> tuple[float, ...]:
    """The penalties of all layers as numbers that are not negative."""
    several = "" if depth == 1 else f", or {depth} of them, one for each layer"
    allowed = f"a number that is not negative{several}"
    given = value if isinstance(value, tuple | list) else (value,) * depth
    numbers = tuple(as_number("weight_decay", v, allowed) for v in given)
    if len(numbers) != depth or not all(0 <= v < math.inf for v in numbers):
        raise InputError(f"Argument `weight_decay` must be {allowed}, but is {shown(value)}.")
    return numbers
