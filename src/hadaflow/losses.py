"""Losses, as objects: `UFM(8, loss=losses.Focal(2))` is `UFM(8, loss="focal:2")`.

`Own` is a loss of your own, `loss(logits, label)`, with or without its log.
"""

from hadaflow.model.losses import (
    Brier as Brier,
    CrossEntropy as CrossEntropy,
    Exponential as Exponential,
    Focal as Focal,
    GeneralizedCrossEntropy as GeneralizedCrossEntropy,
    Hinge as Hinge,
    InfoNCE as InfoNCE,
    Loss as Loss,
    MeanSquaredError as MeanSquaredError,
    OneVsRest as OneVsRest,
    Own as Own,
    PairwiseLogistic as PairwiseLogistic,
    Poly as Poly,
    SigLIP as SigLIP,
    SquaredHinge as SquaredHinge,
)

__all__ = [
    "Brier", "CrossEntropy", "Exponential", "Focal", "GeneralizedCrossEntropy", "Hinge", "InfoNCE",
    "Loss", "MeanSquaredError", "OneVsRest", "Own", "PairwiseLogistic", "Poly", "SigLIP", "SquaredHinge",
]  # fmt: skip
