"""Losses, each in a file of its own, and how they are spelled."""

from typing import Any

from hadaflow.base.errors import InputError, meant, shown
from hadaflow.model.losses.brier import Brier
from hadaflow.model.losses.cross_entropy import CrossEntropy
from hadaflow.model.losses.exponential import Exponential
from hadaflow.model.losses.focal import Focal
from hadaflow.model.losses.generalized_cross_entropy import GeneralizedCrossEntropy
from hadaflow.model.losses.hinge import Hinge
from hadaflow.model.losses.infonce import InfoNCE
from hadaflow.model.losses.loss import Loss
from hadaflow.model.losses.mse import MeanSquaredError
from hadaflow.model.losses.one_vs_rest import OneVsRest
from hadaflow.model.losses.own import Own
from hadaflow.model.losses.pairwise_logistic import PairwiseLogistic
from hadaflow.model.losses.poly import Poly
from hadaflow.model.losses.siglip import SigLIP
from hadaflow.model.losses.squared_hinge import SquaredHinge

_KINDS = (
    CrossEntropy, MeanSquaredError, Brier, Focal, Exponential, GeneralizedCrossEntropy, Poly,
    PairwiseLogistic, Hinge, SquaredHinge, OneVsRest, SigLIP, InfoNCE,
)  # fmt: skip
LOSSES: dict[str, type[Loss]] = {kind.name: kind for kind in _KINDS}


def parse_loss(given: Any) -> Loss:
    """A loss from its spelling, `focal` or `siglip:10:-10`, from a function of one's own, or as it is."""
    if isinstance(given, Loss):
        return given
    if isinstance(given, type) and issubclass(given, Loss):
        raise InputError(
            f"Argument `loss` must be a loss, such as {given.__name__}(), but is the class of them."
        )
    if callable(given):
        return Own(given)
    if not isinstance(given, str):
        raise InputError(
            "Argument `loss` must be a name, a loss or a function of logits and label, but is "
            f"{shown(given)}."
        )
    name, *numbers = given.strip().split(":")
    kind = LOSSES.get(name)
    if kind is None:
        allowed = ", ".join(spelling(k) for k in _KINDS)
        raise InputError(
            f"Argument `loss` must be {allowed}, or a function, but is {shown(given)}"
            f"{meant(name, LOSSES)}."
        )
    if len(numbers) > len(kind.parameters):
        raise InputError(f"Argument `loss` is spelled {spelling(kind)}, but is {shown(given)}.")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        raise InputError(
            f"Argument `loss` is spelled {spelling(kind)}, but is {shown(given)}."
        ) from None
    return kind(*values)


def spelling(kind: type[Loss]) -> str:
    """How a loss is written, with its numbers in brackets."""
    return kind.name + "".join(f"[:{name.upper()}]" for name in kind.parameters)
