r"""What a loss is: the energy of one sample, and how its residual pushes the logits.

A push is told as a direction of ordinary size and the logarithm of the factor by which it is smaller
than that, its *slowness*: the factor reaches $e^{-10^5}$ and beyond, where $1 - p$ has long rounded to
zero.
"""

import dataclasses
from typing import Any, ClassVar, Self

import numpy as np

from hadaflow.algebra.padding import column, pad, with_front
from hadaflow.algebra.shapes import Logits, Margins, Modes, Number, One, Padded, Samples
from hadaflow.base.lazy import jax, jnp


class Loss:
    """Base of all losses. Their numbers are traced: another temperature compiles nothing.

    Margins are those of one sample over the wrong classes, on the first axis; an infinite one stands
    for no class. `counts` says for how many classes each stands, None for one each. Labels, where they
    are soft, are given in the form of the margins, or of the logits. Runs of a batch are the last axis.
    """

    name: ClassVar[str]
    parameters: ClassVar[tuple[str, ...]] = ()  # its numbers of its own, as they are spelled
    numbers: ClassVar[tuple[str, ...]] = ()  # its fields that are traced; the others are structure
    moves_constant: bool = False  # does it see a constant added to all logits?
    settles: bool = False  # does the flow of hard labels end at a finite point?
    only_pushes: bool = False  # are all pulls away from wrong classes positive, however small?
    pulls_back: bool = False  # may hard labels pull a positive singular value down?
    alike: ClassVar[bool] = (
        True  # does it see each sample by itself, and all its wrong classes alike?
    )
    takes_temperature: ClassVar[bool] = False
    takes_soft_labels: ClassVar[bool] = False
    kinked: ClassVar[bool] = False  # does its slope jump, where a penalty may hold it for ever?
    # An increasing function of cross-entropy of the same sample has its orbit, with another clock.
    of_probability: ClassVar[bool] = False
    # At large margins its log is minus the smallest one times this, if it has such a limit.
    steepness: Any = 1.0
    log_form: bool = True  # does its force go on where doubles underflow?
    largest: ClassVar[float] = 1e307  # sum of singular values whose forces are doubles

    def __str__(self) -> str:
        """As it is spelled."""
        numbers = [f"{float(getattr(self, name)):.17g}" for name in self.parameters]
        return ":".join([self.name, *(_short(n) for n in numbers)])

    def of(self, temperature: float, labels: Any) -> Self:
        """With the numbers of a model; `labels` are None where they are hard."""
        given: dict[str, Any] = {n: np.float64(getattr(self, n)) for n in self.parameters}
        if self.takes_temperature:
            given["temperature"] = np.float64(temperature)
        if self.takes_soft_labels:
            given["labels"] = None if labels is None else np.asarray(labels)
        return dataclasses.replace(self, **given) if given else self  # pyright: ignore

    def asymmetry(self, basis: Any) -> str:
        """Why the reduced view cannot have it: which symmetry of the classes it breaks; else nothing."""
        return ""

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        """The pull away from every wrong class, as (direction, slowness); the latter has length 1.

        Of losses that see margins alone.
        """
        raise NotImplementedError

    def pull(self, c: Margins, counts: Any = None) -> tuple[Margins, One]:
        """Minus the slope by the logits of one sample, that of its own class first; likewise."""
        raise NotImplementedError

    def drive(self, basis: Any, a: Padded) -> tuple[Padded, One]:
        """Force on the modes of a symmetric state, as (direction, slowness).

        Of singular values with a zero in front for the trivial mode, or with the constant one; so has
        the direction.
        """
        raise NotImplementedError

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        """Log of the loss of one sample from its margins, exact where the loss itself underflows."""
        raise NotImplementedError

    def log_energy_of_modes(self, basis: Any, a: Modes) -> Number:
        """The same from the entries of a symmetric state."""
        raise NotImplementedError

    def log_energy_of_logits(self, c: Margins) -> Number:
        """The same from the logits of one sample, that of its own class first."""
        return self.log_energy(c[:1] - c[1:])

    def fixed_point(self, basis: Any) -> Modes:
        """The symmetric state at which the labels are met, where there is one."""
        raise NotImplementedError

    def matrix_drive(self, Z: Logits, one_hot: Any) -> tuple[Logits, Number]:
        """Minus the gradient with respect to the logits, classes × samples, as (direction, slowness)."""
        raise NotImplementedError

    def residual_of_runs(self, Z: Any, one_hot: Any) -> Any:
        """Minus the gradient with respect to logits of ordinary size, the runs of a batch last."""
        Z = jnp.moveaxis(Z, -1, 0)
        direction, slowness = self.matrix_drive(Z, jnp.broadcast_to(one_hot, Z.shape))
        return jnp.moveaxis(direction * jnp.exp(-slowness)[:, None, None], 0, -1)

    def log_losses(self, Z: Logits, one_hot: Any) -> Samples:
        """Log of the loss of every sample (last axis) from the logits."""
        raise NotImplementedError


class MarginLoss(Loss):
    """Sees how far the right class is ahead of every wrong one, and treats the wrong ones alike."""

    def drive(self, basis: Any, a: Padded) -> tuple[Padded, One]:
        margins = with_front(basis.padded_psi(a), jnp.inf)
        direction, slowness = self._padded.push(margins, basis.weights)
        return basis.padded_psi(with_front(direction, 0.0)), slowness

    @property
    def _padded(self) -> "MarginLoss":
        """With labels, if there are any, like margins with an entry in front."""
        return self

    def log_energy_of_modes(self, basis: Any, a: Modes) -> Number:
        margins, weights = basis.padded_psi(pad(a))[1:], basis.weights
        return self.log_energy(margins, None if weights is None else weights[1:])

    def matrix_drive(self, Z: Logits, one_hot: Any) -> tuple[Logits, Number]:
        """The right class is pulled by all wrong ones together: nothing cancels."""
        loss = self._of_samples(Z, one_hot)
        weights, slowness = loss.push(jnp.moveaxis(_margins_of(Z, one_hot), -2, 0))
        least = jnp.min(slowness, axis=-1, keepdims=True)
        weights = jnp.moveaxis(weights * jnp.exp(least - slowness), 0, -2)
        right = one_hot * jnp.sum(weights, axis=-2, keepdims=True)
        return right - weights, least[0, ..., 0]

    def residual_of_runs(self, Z: Any, one_hot: Any) -> Any:
        loss = self._of_samples(Z[:, :, 0], one_hot)
        one_hot = one_hot[:, :, None]
        weights, slowness = loss.push(_margins_of(Z, one_hot, 0))
        weights = weights * jnp.exp(-slowness)
        return one_hot * jnp.sum(weights, axis=0, keepdims=True) - weights

    def log_losses(self, Z: Logits, one_hot: Any) -> Samples:
        loss = self._of_samples(Z, one_hot)
        return loss.log_energy(jnp.moveaxis(_margins_of(Z, one_hot), -2, 0))

    def _of_samples(self, Z: Logits, one_hot: Any) -> "MarginLoss":
        """With labels, if there are any, like the margins of logits, classes first."""
        return self


class LogitLoss(Loss):
    """Sees the logits themselves, a constant added to all of them too: the constant mode moves."""

    moves_constant = True

    def drive(self, basis: Any, a: Padded) -> tuple[Padded, One]:
        r"""$f_\chi = \sum_g r_g\chi(g)$ with the constant one in front."""
        direction, slowness = self.pull(logits_of(basis, a), basis.weights)
        everything = jnp.sum(counted(direction, basis.weights), axis=0, keepdims=True)
        missing = basis.padded_psi(with_front(direction, 0.0))
        return everything - with_front(missing, 0.0), slowness

    def log_energy_of_modes(self, basis: Any, a: Modes) -> Number:
        return self.log_energy_of_logits(logits_of(basis, a), basis.weights)

    def log_energy_of_logits(self, c: Margins, counts: Any = None) -> Number:
        raise NotImplementedError


def logits_of(basis: Any, a: Padded) -> Padded:
    """Logits of one sample, its own class first, from a symmetric state with the constant mode."""
    inner = with_front(a, 0.0)
    right = a[:1] + jnp.sum(counted(inner, basis.weights), axis=0, keepdims=True)
    return right - with_front(basis.padded_psi(inner), 0.0)


def _margins_of(Z: Any, one_hot: Any, axis: int = -2) -> Any:
    """Margins of every sample over the wrong classes; infinite for its own."""
    right = jnp.sum(one_hot * Z, axis=axis, keepdims=True)
    return jnp.where(one_hot == 0, right - Z, jnp.inf)


def counted(x: Margins, counts: Any) -> Margins:
    """Entries times the number of classes that each stands for."""
    return x if counts is None else x * column(counts, x)


def log_sum(logs: Margins, counts: Any = None) -> Number:
    """Log of the sum over the first axis of what has these logs, each as often as it stands for."""
    if counts is not None:
        logs = logs + column(jnp.log(counts), logs)
    return jax.nn.logsumexp(logs, axis=0)


def log_of(total: Number) -> Number:
    """Log of a sum that may have come to zero: minus infinity, which no longer moves."""
    there = total > 0
    return jnp.where(there, jnp.log(jnp.where(there, total, 1.0)), -jnp.inf)


def log_softplus(x: Number) -> Number:
    """log(log(1 + eˣ)), which is x itself where eˣ is below rounding."""
    tiny = x < -40.0
    return jnp.where(tiny, x, jnp.log(jax.nn.softplus(jnp.where(tiny, 0.0, x))))


def _short(number: str) -> str:
    """The shortest text that is the same number."""
    return (
        f"{float(number):g}"
        if float(f"{float(number):g}") == float(number)
        else repr(float(number))
    )
