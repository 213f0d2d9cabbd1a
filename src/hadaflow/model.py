r"""The unconstrained features model: one problem statement, two views.

*Full view*: the parameter matrices, logits $Z = WH$, gradient flow of the loss (Eqs. 1 and 2).
*Reduced view*: the logit singular values $a$ from a Hadamard start, in scaled units (Eq. 9):

$$\frac{da_i}{dt} = a_i\,\frac{b_i}{D},\qquad b = \Psi e^{-\Psi a},\quad D = 1 + \sum_j e^{-(\Psi a)_j}.$$

Both views describe their velocity by a *drive*: a direction of ordinary size and the logarithm of
the factor by which the flow is slower than that. The factor reaches $e^{-10^5}$ and beyond, where
the textbook form $1 - \nu$ has long rounded to zero.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.bases import AbelianGroup, Sylvester, check_group, make_basis, pad, with_front
from hadaflow.errors import InputError, check_whole_number
from hadaflow.labels import check_labels, difference_table
from hadaflow.precision import float64
from hadaflow.states import RAW, Parameters, Spectrum, check_units, spectrum

CROSS_ENTROPY, MSE = "cross_entropy", "mse"


@dataclasses.dataclass(frozen=True)
class UFM:
    r"""The unconstrained features model (Eq. 1): free features, linear classifier.

    Args:
        classes: Number of classes K, a power of two.
        samples: Samples per class n.
        width: Feature dimension d; K when left out.
        depth: Number of factors of the logit matrix: 2 is the paper's $Z = WH$, 1 is direct
            optimization of the logits (Eq. 13).
        loss: "cross_entropy" or "mse" ($\frac12\|Y - Z\|_F^2$).
        reduction: "sum" over samples as in Eq. 1, or "mean", which makes raw time run Kn times
            slower and changes nothing in scaled units.
        group: Orders of the cyclic factors of an abelian group on the classes, such as (10,) or
            (2, 4), whose characters replace the Sylvester columns; $Z_2^m$ when left out. A reduced
            state then has one singular value for each pair of conjugate characters.
        label_smoothing: Share s of every label that is spread evenly over all classes.
        label_distribution: Soft labels instead: the probability of each class for a sample of class
            0, classes in the order of the group; for class h shifted by h. The same for g and −g.
        temperature: Logits are divided by it before the softmax.
        weight_decay: λ_W and λ_H of the penalties $\frac{\lambda_W}2\|W\|^2 + \frac{\lambda_H}2\|H\|^2$,
            one number for both or a pair, in the units of the matrices. Depth 2.

    Examples:
        >>> UFM(classes=8).modes
        7
    """

    classes: int
    samples: int = 1
    width: int | None = None
    depth: int = 2
    loss: str = CROSS_ENTROPY
    reduction: str = "sum"
    group: tuple[int, ...] | None = None
    label_smoothing: float = 0.0
    label_distribution: tuple[float, ...] | None = None
    temperature: float = 1.0
    weight_decay: float | tuple[float, float] = 0.0

    def __post_init__(self) -> None:
        for name in ("classes", "samples", "depth"):
            object.__setattr__(self, name, check_whole_number(name, getattr(self, name)))
        if self.group is not None:
            object.__setattr__(self, "group", check_group(self.group))
            if math.prod(self.group) != self.classes:
                raise InputError(
                    f"Argument `group` must have `classes` = {self.classes} elements, but "
                    f"{self.group} has {math.prod(self.group)}."
                )
        make_basis(self.classes, self.group)  # refuses a number of classes it does not fit
        if self.depth > 2:
            raise InputError(
                f"Argument `depth` must be 1 (direct logits) or 2 (Z = WH), but is {self.depth}."
            )
        if self.width is None:
            object.__setattr__(self, "width", self.classes)
        elif self.depth == 1:
            raise InputError(
                f"Argument `width` does not apply at depth 1 (there are no features), "
                f"but is {self.width}."
            )
        object.__setattr__(self, "width", check_whole_number("width", self.width))
        if self.loss not in (CROSS_ENTROPY, MSE):
            raise InputError(
                f'Argument `loss` must be "cross_entropy" or "mse", but is {self.loss!r}.'
            )
        if self.reduction not in ("sum", "mean"):
            raise InputError(
                f'Argument `reduction` must be "sum" or "mean", but is {self.reduction!r}.'
            )

        self._check_labels()
        object.__setattr__(self, "weight_decay", _check_decay(self.weight_decay, self.depth))

    def _check_labels(self) -> None:
        for name in ("label_smoothing", "temperature"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
                raise InputError(f"Argument `{name}` must be a number, but is {value!r}.")
            object.__setattr__(self, name, float(value))
        if not 0 <= self.label_smoothing < 1:
            raise InputError(
                "Argument `label_smoothing` must be from 0 to below 1, "
                f"but is {self.label_smoothing!r}."
            )
        if not 0 < self.temperature < math.inf:
            raise InputError(
                f"Argument `temperature` must be a positive number, but is {self.temperature!r}."
            )
        if self.label_distribution is not None:
            if self.label_smoothing:
                raise InputError(
                    "Give one of `label_smoothing` and `label_distribution`, but not both."
                )
            checked = check_labels(self.label_distribution, self.basis)
            object.__setattr__(self, "label_distribution", None if checked[0] == 1 else checked)
        if self.loss == MSE and (self.soft_labels or self.temperature != 1):
            raise InputError(
                'Soft labels and temperature need loss = "cross_entropy": with MSE there is no '
                "softmax."
            )

    # --- shape and scale -------------------------------------------------------------------------

    @functools.cached_property
    def basis(self) -> Sylvester | AbelianGroup:
        return make_basis(self.classes, self.group)

    @property
    def modes(self) -> int:
        """Entries of a reduced state: the free modes of the basis, K − 1 for Sylvester.

        One more for MSE, the constant mode first, because it learns too.
        """
        return self.basis.modes + (self.loss == MSE)

    @property
    def factor_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the parameter matrices: W and H, or Z."""
        K, N, d = self.classes, self.classes * self.samples, self.feature_width
        return ((K, N),) if self.depth == 1 else ((K, d), (d, N))

    @property
    def factor_names(self) -> tuple[str, ...]:
        """Names of the parameter matrices."""
        return ("Z",) if self.depth == 1 else ("W", "H")

    @property
    def feature_width(self) -> int:
        assert self.width is not None
        return self.width

    @property
    def singular_value_scale(self) -> float:
        """Raw singular value per scaled one, K√n."""
        return self.classes * math.sqrt(self.samples)

    @property
    def time_scale(self) -> float:
        """Scaled time per raw time: 2√n at depth 2, 1/K at depth 1; Kn times less for a mean."""
        n, N = self.samples, self.depth
        scale = N * math.sqrt(n) * self.singular_value_scale ** (1 - 2 / N)
        return scale / self.loss_divisor

    @property
    def loss_divisor(self) -> int:
        return self.classes * self.samples if self.reduction == "mean" else 1

    @property
    def soft_labels(self) -> bool:
        """Is any label other than one-hot? Then the flow settles at a finite point."""
        return self.label_smoothing > 0 or self.label_distribution is not None

    @property
    def settles(self) -> bool:
        """Does the flow end at a finite point, instead of growing for ever?"""
        return self.loss == MSE or self.soft_labels or self.penalized

    @property
    def penalized(self) -> bool:
        return self.decays != (0.0, 0.0)

    @property
    def decays(self) -> tuple[float, float]:
        """λ_W and λ_H."""
        assert isinstance(self.weight_decay, tuple)
        return self.weight_decay

    @property
    def scaled_decays(self) -> tuple[float, float]:
        """λ_W and λ_H per unit of scaled time."""
        return self.decays[0] / self.time_scale, self.decays[1] / self.time_scale

    @property
    def decay_strength(self) -> float:
        r"""$\bar\lambda = \sqrt{\lambda_W\lambda_H/n}$ (Kn times it for a mean): at 1 all modes die."""
        return math.sqrt(self.decays[0] * self.decays[1] / self.samples) * self.loss_divisor

    @functools.cached_property
    def label_probabilities(self) -> np.ndarray:
        """q: the probability of every class for a sample of class 0."""
        if self.label_distribution is not None:
            return np.array(self.label_distribution)
        smooth = np.full(self.classes, self.label_smoothing / self.classes)
        smooth[0] += 1 - self.label_smoothing
        return smooth

    @functools.cached_property
    def _folded_labels(self) -> np.ndarray:
        """Q at the first member of every class of the basis, the trivial one in front."""
        return self.label_probabilities[self.basis.representatives]

    def scaled(self, start: Any, units: str | None = None) -> Spectrum:
        """`start` (a spectrum or a list of numbers) checked against the model, in scaled units.

        A spectrum that names its own units is read in those; else in `units`; else as scaled.
        """
        given = start if isinstance(start, Spectrum) else spectrum(start)
        if given.modes != self.modes:
            kind = "free modes of " + " × ".join(f"Z_{n}" for n in self.basis.group)
            if self.group is None:
                kind = "K − 1 modes"
            if self.loss == MSE:
                kind = "the constant mode first, then " + kind
            raise InputError(
                f"Argument `start` must have {self.modes} singular values for `classes` = "
                f"{self.classes} and {self.loss} ({kind}), but has {given.modes}."
            )
        if self.depth == 1 and np.any(given.C):
            raise InputError("Argument `C` must be zero at depth 1: there is only one factor.")
        if check_units(given.units or units or "scaled") == RAW:
            s = self.singular_value_scale
            return Spectrum(given.a / s, given.C / s, "scaled")
        return Spectrum(given.a, given.C, "scaled")

    @staticmethod
    def result_units(start: Any, units: str | None) -> str:
        """The one units setting of a run: `units` if given, else the start's own, else scaled."""
        own = start.units if isinstance(start, Spectrum) else None
        return check_units(units or own or "scaled")

    # --- reduced view, in scaled units -----------------------------------------------------------

    @float64
    def drive(self, a):
        r"""Reduced force $g = b/D$ as (direction, log slowness): $g$ = direction · exp(−slowness).

        Cross-entropy: direction $\Psi p$ with weights $p = \mathrm{softmax}(-\Psi a)$ and slowness
        $\log(1 + e^M)$, $M = -\log\sum_j e^{-(\Psi a)_j}$. MSE: direction $1 - Ka$, slowness 0.
        """
        if self.loss == MSE:
            return 1.0 - self.classes * a, jnp.zeros_like(a[..., 0])
        direction, slowness = self.padded_drive(pad(a))
        return direction[..., 1:], slowness

    def padded_drive(self, a):
        r"""`drive` of an array with a zero in front for the trivial mode; so has the direction.

        Soft labels: $y - \nu$ itself, which has no slowness, with $1 - y = \Psi q$.
        """
        x = self.basis.padded_psi(a)
        if self.temperature != 1:
            x = x / self.temperature
        margins = with_front(x, jnp.inf)
        weights = self.basis.weights
        smallest = jnp.min(margins, axis=-1, keepdims=True)
        e = jnp.exp(smallest - margins)
        counted = e if weights is None else e * weights
        total = jnp.sum(counted, axis=-1, keepdims=True)
        soft_minimum = (smallest - jnp.log(total))[..., 0]
        direction, slowness = self.basis.padded_psi(e) / total, jax.nn.softplus(soft_minimum)
        if self.soft_labels:
            missing = self.basis.padded_psi(jnp.asarray(self._folded_labels, a.dtype))
            direction = direction * jnp.exp(-slowness)[..., None] - missing
            slowness = jnp.zeros_like(slowness)
        if self.temperature != 1:
            direction = direction / self.temperature
        return direction, slowness

    @float64
    def mobility(self, a, C=0.0):
        r"""$w(a)$ in $\dot a = w(a)\,g$: $\sqrt{a^2 + C^2/4}$ at depth 2 (so $a$ if balanced), or 1."""
        if self.depth == 1:
            return jnp.ones_like(a)
        return jnp.hypot(a, jnp.broadcast_to(jnp.asarray(C, a.dtype) / 2, a.shape))

    @float64
    def velocity(self, a, C=0.0):
        r"""$da/dt$ in scaled units, Eq. (9): $w(a)\,b/D$. Leading axes batched."""
        direction, slowness = self.drive(a)
        return self.mobility(a, C) * direction * jnp.exp(-slowness)[..., None]

    def decay(self, a, C):
        """What the penalties take from a and C per unit of scaled time."""
        w, (first, second) = self.mobility(a, C), self.scaled_decays
        return (first + second) * a, (2 * first) * (w + C / 2) - (2 * second) * (w - C / 2)

    def displaced(self, log_a0, excess, delta) -> Any:
        r"""Singular values after the force has acted by $\delta = \int g\,dt$ on $a_0$.

        Depth 2: $a = a_0 e^\delta + (w_0 - a_0)\sinh\delta$ solves $da/d\delta = w(a)$ exactly, for
        every $C$, and adds only positive terms. `excess` is $w_0 - a_0$, or None when balanced.
        Depth 1: $a = a_0 + \delta$.
        """
        xp = np if isinstance(delta, np.ndarray) else jnp
        if self.depth == 1:
            return xp.exp(log_a0) + delta
        grown = xp.exp(log_a0 + delta)
        if excess is None:
            return grown
        # sinh alone overflows where its product with a small excess does not: two factors of e^{δ/2}.
        small = excess * xp.sinh(xp.clip(delta, -30.0, 30.0))
        half = xp.exp(xp.clip(delta, 0.0, 1400.0) / 2)
        return grown + xp.where(delta > 30.0, excess * half * half / 2, small)

    @staticmethod
    def excess(a: np.ndarray, C: np.ndarray) -> np.ndarray:
        """w(a) − a = (C²/4)/(a + w), without cancellation; zero for balanced modes."""
        half = np.abs(C) / 2
        return half * (half / np.maximum(a + np.hypot(a, half), np.finfo(float).tiny))

    @float64
    def energy(self, a):
        r"""Loss of one sample: $E = \log(1 + \sum_j e^{-(\Psi a)_j})$ (Eq. 8 over Kn), or its MSE."""
        if self.loss == MSE:
            return jnp.sum(self.all_values((1.0 - self.classes * a) ** 2), axis=-1) / (
                2 * self.classes
            )
        energy = jax.nn.softplus(self._log_wrong(a))
        if not self.soft_labels:
            return energy
        counted = self._folded_labels[1:] * self.basis.multiplicity / self.temperature
        return energy + jnp.asarray(self.basis.psi(a)) @ counted

    @float64
    def log_energy(self, a):
        """Log of `energy`, exact where the energy itself underflows."""
        if self.settles:
            return jnp.log(self.energy(a))
        return log_softplus(self._log_wrong(a))

    def _log_wrong(self, a):
        """Log Σ e^{−margin} over the wrong classes."""
        exponents = -jnp.asarray(self.basis.psi(a)) / self.temperature
        if self.basis.weights is not None:
            exponents = exponents + np.log(self.basis.weights[1:])
        return jax.nn.logsumexp(exponents, axis=-1)

    def nontrivial(self, a):
        """The K − 1 non-trivial singular values of a reduced state, multiplicities written out."""
        return self.basis.expand(a[..., -self.basis.modes :])

    def all_values(self, a):
        """`nontrivial`, with the constant mode in front where the state has one (MSE)."""
        if self.loss != MSE:
            return self.nontrivial(a)
        if self.basis.weights is None:
            return a
        xp = np if isinstance(a, np.ndarray) else jnp
        return xp.concatenate([a[..., :1], self.nontrivial(a)], axis=-1)

    # --- full view, raw units --------------------------------------------------------------------

    @functools.cached_property
    def one_hot(self) -> np.ndarray:
        """I ⊗ 1ᵀ, K × Kn: the class of every sample, samples in class order."""
        return np.kron(np.eye(self.classes), np.ones((1, self.samples)))

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """Label matrix Y, K × Kn: one-hot, or the soft labels of every sample."""
        if not self.soft_labels:
            return self.one_hot
        shifted = self.label_probabilities[difference_table(self.basis.group)]
        return np.repeat(shifted, self.samples, axis=1)

    def _labels_like(self, Z):
        return jnp.broadcast_to(jnp.asarray(self.one_hot, Z.dtype), Z.shape)

    def logits(self, factors):
        """Z, the product of the factors; leading axes batched."""
        return factors[0] if len(factors) == 1 else factors[0] @ factors[1]

    def full_drive(self, Z):
        r"""$Y - P(Z)$ as (direction, log slowness), without ever forming $1 - p$.

        The entry of the right class is the summed probability of the wrong ones. For MSE $Y - Z$.
        """
        Y = self._labels_like(Z)
        if self.loss == MSE:
            return Y - Z, jnp.zeros_like(Z[..., 0, 0])
        log_p = jax.nn.log_softmax(Z / self.temperature, axis=-2)
        if self.soft_labels:
            residual = jnp.asarray(self.labels, Z.dtype) - jnp.exp(log_p)
            return residual / self.temperature, jnp.zeros_like(Z[..., 0, 0])
        wrong_log_p = jnp.where(Y == 0, log_p, -jnp.inf)
        largest = jnp.max(wrong_log_p, axis=(-2, -1), keepdims=True)
        wrong = jnp.exp(wrong_log_p - largest)
        direction = Y * jnp.sum(wrong, axis=-2, keepdims=True) - wrong
        if self.temperature != 1:
            direction = direction / self.temperature
        return direction, -largest[..., 0, 0]

    @float64
    def residual(self, Z):
        """Softmax residual Y − P(Z) (Y − Z for MSE), accurate when 1 − p is far below 1e-16."""
        direction, slowness = self.full_drive(Z)
        return direction * jnp.exp(-slowness)[..., None, None]

    def pull_back(self, factors, residual):
        """Minus the gradient with respect to each factor, given the residual (Eq. 2)."""
        residual = residual / self.loss_divisor
        if len(factors) == 1:
            return (residual,)
        W, H = factors
        return residual @ jnp.swapaxes(H, -1, -2), jnp.swapaxes(W, -1, -2) @ residual

    def gradient(self, state: Parameters) -> Parameters:
        """Gradient of the loss, penalties included, with respect to the parameter matrices."""
        self.check_parameters(state)

        @float64
        def gradient(*factors):
            Z = self.logits(factors)
            moved = self.pull_back(factors, jnp.asarray(self.residual(Z)))
            return tuple(-p for p in self.decayed(factors, moved))

        return Parameters(tuple(gradient(*state.factors)))

    def decayed(self, factors, moved):
        """Velocities of the factors with the pull of the penalties added; raw time."""
        if not self.penalized:
            return moved
        return tuple(v - d * f for v, f, d in zip(moved, factors, self.decays, strict=True))

    def log_losses(self, Z):
        """Natural log of the loss of every sample, shape (…, Kn)."""
        Y = self._labels_like(Z)
        if self.loss == MSE:
            return jnp.log(jnp.sum((Y - Z) ** 2, axis=-2) / 2)
        Z = Z / self.temperature
        if self.soft_labels:
            mean = jnp.sum(jnp.asarray(self.labels, Z.dtype) * Z, axis=-2)
            return jnp.log(jax.nn.logsumexp(Z, axis=-2) - mean)
        right = jnp.sum(Y * Z, axis=-2, keepdims=True)
        wrong = jnp.where(Y == 0, Z - right, -jnp.inf)
        return log_softplus(jax.nn.logsumexp(wrong, axis=-2))

    def check_parameters(self, state: Parameters) -> Parameters:
        """Refuse matrices whose shapes do not fit the model."""
        if not isinstance(state, Parameters):
            raise InputError(
                f"A full state is needed here (`Parameters`), but a {type(state).__name__} was given."
            )
        shapes = tuple(f.shape[-2:] for f in state.factors)
        if shapes != self.factor_shapes:
            raise InputError(
                f"Argument `start` must have matrices of shapes {self.factor_shapes}, "
                f"but has {shapes}."
            )
        return state


def _check_decay(value: Any, depth: int) -> tuple[float, float]:
    """Both penalties as numbers that are not negative."""
    pair = value if isinstance(value, tuple | list) else (value, value)
    numbers = [
        v for v in pair if isinstance(v, int | float | np.floating) and not isinstance(v, bool)
    ]
    if len(pair) != 2 or len(numbers) != 2 or not all(0 <= v < math.inf for v in numbers):
        raise InputError(
            "Argument `weight_decay` must be a number that is not negative, or a pair of them for W "
            f"and H, but is {value!r}."
        )
    if any(numbers) and depth != 2:
        raise InputError("Argument `weight_decay` penalizes W and H and needs `depth` = 2.")
    if any(numbers) and not all(numbers):
        raise InputError(
            "Argument `weight_decay` must penalize both W and H or neither (with one alone there is "
            f"no fixed point), but is {value!r}."
        )
    return float(numbers[0]), float(numbers[1])


def log_softplus(x):
    """log(log(1 + eˣ)), which is x itself where eˣ is below rounding."""
    tiny = x < -40.0
    return jnp.where(tiny, x, jnp.log(jax.nn.softplus(jnp.where(tiny, 0.0, x))))
