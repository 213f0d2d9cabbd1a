"""The clock of a run, u = log(1 + t), and log10 t, in which it is told: times go far beyond 1e308."""

import math
from typing import Any

import numpy as np

LN10 = math.log(10.0)


def u_from_log10(log10_time: Any) -> Any:
    """log(1 + t) from log10 t."""
    return np.logaddexp(0.0, np.asarray(log10_time) * LN10)


def log10_from_u(u: Any) -> Any:
    """log10 t from log(1 + t)."""
    u = np.asarray(u, dtype=float)
    with np.errstate(divide="ignore"):
        return (u + np.log(-np.expm1(-u))) / LN10
