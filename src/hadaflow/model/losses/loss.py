r"""What a loss is: the energy of one sample, and how its residual pushes the logits.

A push is told as a direction of ordinary size and the logarithm of the factor by which it is smaller
than that, its *slowness*: the factor reaches $e^{-10^5}$ and beyond, where $1 - p$ has long rounded to
zero.
"""

from typing import Any, ClassVar

from hadaflow.algebra.padding import pad
from hadaflow.algebra.shapes import Logits, Margins, Modes, Number, One, Padded, Samples


class Loss:
    """Base of all losses. Their numbers are traced: another temperature compiles nothing.

    Margins are those of one sample over the wrong classes, on the first axis; an infinite one stands
    for no class. `counts` says for how many classes each stands, None for one each. Labels, where they
    are soft, are given in the form of the margins, or of the logits. Runs of a batch are the last axis.
    """

    name: ClassVar[str]
    numbers: ClassVar[tuple[str, ...]] = ()  # its fields that are traced; the others are structure
    moves_constant: ClassVar[bool] = False  # does it see a constant added to all logits?
    softmax: ClassVar[bool] = False  # is it a softmax, with temperature and soft labels?
    settles: ClassVar[bool] = False  # does the flow of hard labels end at a finite point?
    largest: ClassVar[float] = 1e307  # sum of singular values whose forces are doubles

    @classmethod
    def of(cls, temperature: float, labels: Any) -> "Loss":
        """With the numbers of a model; `labels` are None where they are hard."""
        return cls()

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        """The pull away from every wrong class, as (direction, slowness); the latter has length 1."""
        raise NotImplementedError

    def drive(self, basis: Any, a: Padded) -> tuple[Padded, One]:
        """Force on the modes of a symmetric state, as (direction, slowness).

        Of singular values with a zero in front for the trivial mode; so has the direction.
        """
        raise NotImplementedError

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        """Log of the loss of one sample from its margins, exact where the loss itself underflows."""
        raise NotImplementedError

    def log_energy_of_modes(self, basis: Any, a: Modes) -> Number:
        """The same from the entries of a symmetric state."""
        margins, weights = basis.padded_psi(pad(a))[1:], basis.weights
        return self.log_energy(margins, None if weights is None else weights[1:])

    def fixed_point(self, basis: Any) -> Modes:
        """The symmetric state at which the labels are met, where there is one."""
        raise NotImplementedError

    def matrix_drive(self, Z: Logits, one_hot: Any) -> tuple[Logits, Number]:
        """Minus the gradient with respect to the logits, classes × samples, as (direction, slowness)."""
        raise NotImplementedError

    def residual_of_runs(self, Z: Any, one_hot: Any) -> Any:
        """Minus the gradient with respect to logits of ordinary size, the runs of a batch last."""
        raise NotImplementedError

    def log_losses(self, Z: Logits, one_hot: Any) -> Samples:
        """Log of the loss of every sample (last axis) from the logits."""
        raise NotImplementedError
