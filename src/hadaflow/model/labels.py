"""Group-invariant labels: which class a sample of class 0 is said to be, with which probability.

A sample of class h then has label g with probability q_{g−h}, differences taken in the group.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hadaflow.algebra.bases import Basis, check_group, negatives
from hadaflow.base.checks import as_numbers
from hadaflow.base.errors import InputError, shown

_ROUNDING = 4 * float(np.finfo(float).eps)  # what division leaves of a sum of one


def hierarchical_labels(masses: Sequence[float], group: Sequence[int]) -> tuple[float, ...]:
    """Labels on a tree of classes, whose levels are the cyclic factors, the coarsest first.

    Args:
        masses: Probability of the class itself, of the rest of its finest branch, of the rest of the
            next coarser one, and so on: one more than the group has factors, with sum 1.
        group: Orders of the cyclic factors: how many branches each level has.

    Examples:
        >>> hierarchical_labels((0.7, 0.15, 0.1, 0.05), (2, 2, 2))[:4]
        (0.7, 0.15, 0.05, 0.05)
    """
    orders = check_group(group)
    given = _probabilities("masses", masses)
    if len(given) != len(orders) + 1:
        raise InputError(
            f"Argument `masses` must have {len(orders) + 1} entries, one more than the factors of "
            f"`group` = {orders}, but has {len(given)}."
        )
    # A class that differs first in factor j belongs to the branch that level j splits off.
    elements = np.indices(orders).reshape(len(orders), -1)
    differs = elements != 0
    first = np.where(differs.any(axis=0), differs.argmax(axis=0), len(orders))
    level = len(orders) - first
    counts = np.bincount(level)
    return tuple(float(given[k] / counts[k]) for k in level)


def check_labels(q: Any, basis: Basis) -> tuple[float, ...]:
    """Label probabilities as a tuple: one for each class, sum 1, the same for g and −g."""
    given = _probabilities("label_distribution", q)
    if len(given) != basis.classes:
        raise InputError(
            f"Argument `label_distribution` must have `classes` = {basis.classes} entries, "
            f"but has {len(given)}."
        )
    if not np.allclose(given, given[negatives(basis.group)], rtol=0, atol=1e-12):
        raise InputError(
            "Argument `label_distribution` must be the same for g and −g of the group "
            f"{basis.group}, but is not."
        )
    return tuple(float(v) for v in given)


def difference_table(group: tuple[int, ...]) -> np.ndarray:
    """The index of g − h in row g, column h."""
    elements = np.indices(group).reshape(len(group), -1)
    orders = np.array(group)[:, None, None]
    differences = (elements[:, :, None] - elements[:, None, :]) % orders
    return np.asarray(np.ravel_multi_index(tuple(differences), group))


def _probabilities(name: str, values: Any) -> np.ndarray:
    given = as_numbers(name, values)
    if given.ndim != 1 or not np.all(np.isfinite(given)) or np.any(given < 0):
        raise InputError(
            f"Argument `{name}` must be a list of probabilities, but is {shown(values)}."
        )
    total = math.fsum(given)
    if not math.isclose(total, 1.0, abs_tol=1e-9):
        raise InputError(f"Argument `{name}` must have sum 1, but has sum {total:.12g}.")
    # What is normalized already stays as it is: a model read back from its document is the same one.
    return given if abs(total - 1.0) <= _ROUNDING else given / total
