r"""What a loss is: the energy of one sample, and how its residual pushes the logits.

A push is told as a direction of ordinary size and the logarithm of the factor by which it is smaller
than that, its *slowness*: the factor reaches $e^{-10^5}$ and beyond, where $1 - p$ has long rounded to
zero.
"""

from typing import Any, ClassVar


class Loss:
    """Base of all losses. Their numbers are traced: another temperature compiles nothing.

    Margins are those of one sample over the wrong classes, on the last axis; an infinite one stands for
    no class. `counts` says for how many classes each stands, None for one each. Labels, where they are
    soft, are given in the form of the margins, or of the logits.
    """

    name: ClassVar[str]
    moves_constant: ClassVar[bool] = False  # does it see a constant added to all logits?

    def push(self, x: Any, counts: Any = None) -> tuple[Any, Any]:
        """The pull away from every wrong class, as (direction, slowness), from the margins."""
        raise NotImplementedError

    def drive(self, basis: Any, a: Any) -> tuple[Any, Any]:
        """Force on the modes of a symmetric state, as (direction, slowness).

        Of singular values with a zero in front for the trivial mode; so has the direction.
        """
        raise NotImplementedError

    def log_energy(self, x: Any, counts: Any = None) -> Any:
        """Log of the loss of one sample from its margins, exact where the loss itself underflows."""
        raise NotImplementedError

    def matrix_drive(self, Z: Any, one_hot: Any) -> tuple[Any, Any]:
        """Minus the gradient with respect to the logits, classes × samples, as (direction, slowness)."""
        raise NotImplementedError

    def residual_of_runs(self, Z: Any, one_hot: Any) -> Any:
        """Minus the gradient with respect to logits of ordinary size, the runs of a batch last."""
        raise NotImplementedError

    def log_losses(self, Z: Any, one_hot: Any) -> Any:
        """Log of the loss of every sample (last axis) from the logits."""
        raise NotImplementedError
