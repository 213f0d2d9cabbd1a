"""Losses, each in a file of its own."""

from hadaflow.model.losses.cross_entropy import CrossEntropy
from hadaflow.model.losses.loss import Loss
from hadaflow.model.losses.mse import MeanSquaredError

LOSSES: dict[str, type[Loss]] = {kind.name: kind for kind in (CrossEntropy, MeanSquaredError)}
