"""What several runs have in common: means, and how sure they are."""

import math
from typing import NamedTuple

import numpy as np

from hadaflow.base.notebooks import shown_in_notebook


class Statistics(NamedTuple):
    """Of several runs, at every saved point."""

    mean: np.ndarray
    standard_error: np.ndarray  # of the mean; NaN for a single run

    def __str__(self) -> str:
        ends = [f"{self.mean[i]:.6g} ± {self.standard_error[i]:.2g}" for i in (0, -1)]
        return f"mean ± standard error over runs: {' → '.join(ends)} ({len(self.mean)} points)"

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)


def statistics_of(values: np.ndarray) -> Statistics:
    """Of values whose first axis is the runs, of any size."""
    runs = len(values)
    if runs < 2:
        return Statistics(values[0], np.full_like(values[0], np.nan))
    with np.errstate(invalid="ignore"):  # an infinite value has no error
        size = np.maximum(np.max(np.abs(values), axis=0), np.finfo(float).tiny)
        error = (values / size).std(axis=0, ddof=1) / math.sqrt(runs) * size
    return Statistics(values.mean(axis=0), error)
