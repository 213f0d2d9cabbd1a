r"""The unconstrained features model: one problem statement, two views.

*Full view*: the parameter matrices, logits $Z = WH$, gradient flow of the loss (Eqs. 1 and 2).
*Reduced view*: the logit singular values $a$ from a Hadamard start, in scaled units (Eq. 9). Their
equations are in `views`, made from what is said here.
"""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hadaflow.algebra.bases import Basis, check_group
from hadaflow.algebra.making import make_basis
from hadaflow.algebra.padding import modes_first, modes_last
from hadaflow.base.checks import as_number, check_positive, check_whole_number
from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import jnp
from hadaflow.base.precision import float64
from hadaflow.model.blocks import BlockBasis, check_imbalance
from hadaflow.model.description import document_of, in_short, in_words
from hadaflow.model.labels import check_labels, difference_table
from hadaflow.model.layers import check_decays
from hadaflow.model.losses import CrossEntropy, Loss, MeanSquaredError, Own, parse_loss
from hadaflow.model.states import Parameters, check_factors

if TYPE_CHECKING:
    from hadaflow.model.views.full import FullView
    from hadaflow.model.views.reduced import ReducedView

CROSS_ENTROPY, MSE = CrossEntropy.name, MeanSquaredError.name
_MOST_SAMPLES = 10**12  # per class, and of the width: what is made of them stays within doubles


@dataclasses.dataclass(frozen=True)
class UFM:
    r"""The unconstrained features model (Eq. 1): free features, linear classifier.

    Args:
        classes: Number of classes $K$, from 2 on.
        samples: Samples per class, $n$.
        width: Feature dimension $d$; $K$ when left out.
        depth: Number $N$ of factors of the logit matrix: 2 is the paper's $Z = WH$, 1 is direct
            optimization of the logits (Eq. 13), more is $Z = W_1 W_2\cdots H$.
        loss: A loss as it is spelled, such as "cross_entropy", "mse", "focal:2", "siglip:10:-10"; one of
            `losses`, which becomes its spelling; or a function `loss(logits, label)` of your own, in JAX.
        reduction: "sum" over samples as in Eq. 1, or "mean", which makes raw time run $Kn$
            times slower and changes nothing in scaled units.
        group: Orders of the cyclic factors of an abelian group on the classes, such as (10,) or
            (2, 4), whose characters are the basis. Left out: $Z_2^m$ (Sylvester) when $K$ is a power of
            two, else the cyclic group. A reduced state has one singular value for each pair of
            conjugate characters. With `imbalance`, a pair of groups, one for each block.
        label_smoothing: Share $s$ of every label that is spread evenly over all classes.
        label_distribution: Soft labels instead: the probability of each class for a sample of class
            0, classes in the order of the group; for class $h$ shifted by $h$. The same for $g$ and
            $-g$.
        temperature: Logits are divided by it before the softmax.
        weight_decay: $\lambda$ of the penalties $\frac{\lambda_W}2\|W\|^2 + \frac{\lambda_H}2\|H\|^2$,
            one number for all layers or one for each, in the units of the matrices.
        imbalance: Blocks of (classes, samples of each) instead of `samples`, such as
            ((4, 5), (4, 1)). Two blocks have a reduced view.

    Examples:
        >>> UFM(classes=8).modes, UFM(classes=10).modes
        (7, 5)
    """

    classes: int
    samples: int = 1
    width: int | None = None
    depth: int = 2
    loss: Any = CROSS_ENTROPY
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
        object.__setattr__(self, "weight_decay", check_decays(self.weight_decay, self.depth))

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
        loss = parse_loss(self.loss)
        if isinstance(loss, Own):
            object.__setattr__(self, "loss", loss.probed(self.classes))
        else:  # as it is spelled, so that equal models are equal and can be written down
            object.__setattr__(self, "loss", str(loss))
        if self.reduction not in ("sum", "mean"):
            raise InputError(
                f'Argument `reduction` must be "sum" or "mean", but is {shown(self.reduction)}.'
            )

    def _check_labels(self) -> None:
        object.__setattr__(self, "temperature", check_positive("temperature", self.temperature))
        smoothing = as_number("label_smoothing", self.label_smoothing)
        object.__setattr__(self, "label_smoothing", smoothing)
        if not 0 <= smoothing < 1:
            raise InputError(
                "Argument `label_smoothing` must be from 0 to below 1, "
                f"but is {shown(self.label_smoothing)}."
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
        if self.temperature != 1 and not self.loss_kind.takes_temperature:
            raise InputError(
                f"Argument `temperature` is that of a softmax, which loss = {self.loss} has not: it must "
                f"be 1, but is {self.temperature:g}."
            )
        if self.soft_labels and not self.loss_kind.takes_soft_labels:
            raise InputError(
                "Soft labels need loss = cross_entropy, brier or one_vs_rest, but it is "
                f"{self.loss}."
            )

    # --- words -----------------------------------------------------------------------------------

    def describe(self, short: bool = False) -> str:
        """The model in words, with everything that is not a default; `short` for titles.

        Examples:
            >>> print(UFM(8, weight_decay=0.1).describe(short=True))
            K = 8, weight decay 0.1
        """
        return in_short(self) if short else in_words(self)

    def to_document(self) -> dict[str, Any]:
        """The options by name, as plain data: `UFM(**model.to_document())` is the same model."""
        return document_of(self)

    # --- shape -----------------------------------------------------------------------------------

    @property
    def _orders(self) -> tuple[int, ...] | None:
        return self.group  # pyright: ignore[reportReturnType] (one group, when classes are balanced)

    @functools.cached_property
    def basis(self) -> Basis:
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
    def modes_of_view(self) -> Basis | BlockBasis:
        """What the modes of a reduced state are: of one group, or of two blocks."""
        return self.basis if self.imbalance is None else self.blocks

    @property
    def modes(self) -> int:
        """Entries of a reduced state: the free modes of the basis, $K-1$ for Sylvester.

        One more for MSE, the constant mode first, because it learns too.
        """
        return self.modes_of_view.modes + self.has_constant_mode

    @property
    def has_constant_mode(self) -> bool:
        return self.loss_kind.moves_constant

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
        r"""Raw singular value per scaled one, $K\sqrt n$."""
        return self.classes * math.sqrt(self.mean_samples)

    @property
    def difference_scale(self) -> float:
        r"""Raw difference $C$ of squared layer singular values per scaled one, $(K\sqrt n)^{2/N}$."""
        return self.singular_value_scale ** (2 / max(self.depth, 2))

    @property
    def time_scale(self) -> float:
        r"""Scaled per raw time: $2\sqrt n$ at depth 2, $1/K$ at depth 1; $Kn$ times less for a mean."""
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
        r"""$\lambda$ of every layer: $\lambda_W$ and $\lambda_H$ at depth 2."""
        assert isinstance(self.weight_decay, tuple)
        return self.weight_decay

    @property
    def scaled_decays(self) -> tuple[float, ...]:
        r"""$\lambda$ of every layer per unit of scaled time."""
        return tuple(decay / self.time_scale for decay in self.decays)

    @property
    def decay_strength(self) -> float:
        r"""$\bar\lambda = (\prod_l\lambda_l)^{1/N}/\sqrt n$ (times $Kn$ for a mean).

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
        return self.loss_kind.settles or settled_labels or all(self.decays)

    @property
    def settling_time(self) -> float:
        """The scaled time, roughly, in which a flow that settles comes e-fold nearer to its end.

        Where it ends the force is of the size of the smallest probability or of the penalty.
        """
        if self.loss_kind.settles:
            return 1.0
        softness = float(np.min(self.label_probabilities)) if self.soft_labels else 0.0
        return 1 / max(softness, min(self.scaled_decays, default=0.0), 1e-300)

    # --- labels ----------------------------------------------------------------------------------

    @property
    def soft_labels(self) -> bool:
        """Is any label other than one-hot? Then the flow settles at a finite point."""
        return self.label_smoothing > 0 or self.label_distribution is not None

    def may_change_sign(self, C: np.ndarray) -> bool:
        r"""Can labels or a loss pull a mode through zero?

        Balanced ones die there; others go on, with phase $\pi$.


        Hard labels only push upwards. Soft ones hold a mode back while others are large, whatever its
        own fixed point is.
        """
        unbalanced = self.depth == 1 or bool(np.any(C))
        pulls = self.soft_labels or self.loss_kind.pulls_back
        return pulls and unbalanced and not self.modes_of_view.turns

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

    @property
    def largest_value(self) -> float:
        """A singular value up to which it and the sum of all, in either units, are doubles."""
        return self.loss_kind.largest / (self.classes * self.singular_value_scale)

    @property
    def largest_rank(self) -> int:
        """What no logit matrix of this model can exceed: classes, or the width where that is less."""
        return self.classes if self.depth == 1 else min(self.classes, self.feature_width)

    @property
    def rounding_of_logits(self) -> float:
        """Singular values of the logits below this share of the largest are rounding."""
        return max(self.classes, self.total_samples) * float(np.finfo(float).eps)

    @property
    def multiplicity_of_modes(self) -> np.ndarray:
        """How many singular values each entry of a reduced state stands for."""
        own = self.modes_of_view.multiplicity
        return np.concatenate([[1], own]) if self.has_constant_mode else own

    @property
    def modes_in_words(self) -> str:
        kind = self.modes_of_view.modes_in_words
        return "the constant mode first, then " + kind if self.has_constant_mode else kind

    # --- views and losses -------------------------------------------------------------------------

    @property
    def loss_per_energy(self) -> np.float64:
        """What turns the loss of one sample into the loss: $Kn$ for a sum, 1 for a mean."""
        return np.float64(self.total_samples / self.loss_divisor)

    @property
    def traced_decays(self) -> np.ndarray | None:
        r"""$\lambda$ of every layer per unit of scaled time, None without penalties."""
        return np.array(self.scaled_decays) if self.penalized else None

    @functools.cached_property
    def loss_kind(self) -> Loss:
        """The loss without the numbers of the model."""
        return parse_loss(self.loss)

    @functools.cached_property
    def asymmetry(self) -> str:
        """Why the loss has no reduced view: what it does not treat alike; else nothing."""
        return self.loss_kind.asymmetry(self.basis)

    @property
    def is_cross_entropy(self) -> bool:
        return self.loss == CROSS_ENTROPY

    @property
    def has_orbit_of_cross_entropy(self) -> bool:
        """Is the reduced flow that of cross-entropy with hard labels, but for its clock?"""
        alone = self.loss_kind.of_probability and not (self.soft_labels or self.penalized)
        return alone and self.imbalance is None

    def loss_function(self, labels: Any) -> Loss:
        """The loss with its numbers; `labels`, if they are soft, in the form of a view."""
        return self.loss_kind.of(self.temperature, labels if self.soft_labels else None)

    @property
    def loss_of_modes(self) -> Loss:
        """Labels at the first member of every class {g, −g} but the trivial one."""
        return self.loss_function(self.label_probabilities[self.basis.representatives][1:])

    @property
    def loss_of_classes(self) -> Loss:
        """Labels of all wrong classes."""
        return self.loss_function(self.label_probabilities[1:])

    @property
    def loss_of_blocks(self) -> Loss:
        """The same label for every wrong class."""
        return self.loss_function([self.label_smoothing / self.classes])

    @property
    def loss_of_matrices(self) -> Loss:
        """Labels of all samples."""
        return self.loss_function(self.labels if self.soft_labels else None)

    @functools.cached_property
    def view(self) -> "ReducedView":
        """The equations of the reduced view: of symmetric states, or of two blocks of classes."""
        from hadaflow.model.views.blocks import BlockView
        from hadaflow.model.views.reduced import SymmetricView

        return SymmetricView.of(self) if self.imbalance is None else BlockView.of(self)

    def view_of(self, angles: Any) -> "ReducedView":
        """`view`, or that of modes with phases, where balanced classes have angles."""
        if angles is None or self.modes_of_view.turns:
            return self.view
        from hadaflow.model.views.circulant import CirculantView

        return CirculantView.of(self)

    @functools.cached_property
    def full_view(self) -> "FullView":
        """The equations of the parameter matrices."""
        from hadaflow.model.views.full import FullView

        return FullView.of(self)

    def nontrivial(self, a):
        """The $K-1$ non-trivial singular values of a reduced state, multiplicities written out."""
        return self.modes_of_view.expand(a[..., -self.modes_of_view.modes :])

    # --- the equations for NumPy arrays, scaled units ----------------------------------------------

    @float64
    def drive(self, a):
        r"""Reduced force $g = b/D$ as (direction, log slowness): direction times $e^{-slowness}$.

        Cross-entropy: direction $\Psi p$ with weights $p = \mathrm{softmax}(-\Psi a)$ and slowness
        $\log(1 + e^m)$, $m = -\log\sum_j e^{-(\Psi a)_j}$. MSE: direction $1 - Ka$, slowness 0.
        """
        along, _, slowness = self.view.force(modes_first(a))
        batch = a.shape[:-1]
        return modes_last(along, batch), modes_last(slowness, batch)[..., 0]

    @float64
    def mobility(self, a, C=0.0):
        r"""$w(a)$ in $\dot a = w(a)\,g$: $a^{2-2/N}$ if balanced; at depth 2 $\sqrt{a^2 + C^2/4}$."""
        return self.view.mobility(a, C)

    @float64
    def velocity(self, a, C=0.0):
        r"""$da/dt$ in scaled units, Eq. (9): $w(a)\,b/D$. Leading axes batched."""
        along, _, slowness = self.view.force(modes_first(a))
        force = modes_last(along * jnp.exp(-slowness), a.shape[:-1])
        return self.view.mobility(a, C) * force

    @float64
    def energy(self, a, angles=None):
        r"""Loss of one sample: $E = \log(1 + \sum_j e^{-(\Psi a)_j})$ (Eq. 8 over $Kn$), or its MSE.

        The mean over all samples, where classes differ.
        """
        return jnp.exp(self.log_energy(a, angles))

    @float64
    def log_energy(self, a, angles=None):
        """Log of `energy`, exact where the energy itself underflows."""
        turned = None if angles is None else modes_first(angles)
        found = self.view_of(angles).log_energy(modes_first(a), turned)
        return found.reshape(a.shape[:-1])

    @float64
    def residual(self, Z):
        """Minus the slope by the logits, $Y - P(Z)$ of cross-entropy, accurate far below 1e-16."""
        direction, slowness = self.full_view.drive(Z)
        return direction * jnp.exp(-slowness)[..., None, None]

    def gradient(self, state: Parameters) -> Parameters:
        """Gradient of the loss, penalties included, with respect to the parameter matrices."""

        @float64
        def gradient(*factors):
            return tuple(-v for v in self.full_view.velocity(factors))

        return Parameters(tuple(gradient(*check_factors(state, self.factor_shapes).factors)))


def check_model(model: Any) -> None:
    """Refuse what is no model."""
    if not isinstance(model, UFM):
        raise InputError(f"Argument `model` must be a UFM, but is {type(model).__name__}.")
