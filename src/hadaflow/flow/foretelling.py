"""`predict_collapse`: where collapse happens, from one state of the orbit."""

import math
from typing import Any, NamedTuple

import numpy as np

from hadaflow.base.errors import InputError
from hadaflow.base.notebooks import shown_in_notebook
from hadaflow.flow.methods.dual import knows
from hadaflow.flow.predictions import collapse_log_norms, log10_log10_time_at_collapse
from hadaflow.model.fitting import fitted, result_units
from hadaflow.model.states import RAW
from hadaflow.model.ufm import UFM, check_model
from hadaflow.runs.targets import PredictedCollapse


class CollapsePrediction(NamedTuple):
    """Where collapse happens in the hard-margin limit, in the units of the anchor."""

    log_norm: float  # log‖a‖₁ where max|(K−1)â − 1| has fallen to the tolerance
    log_norm_uniform: float  # where the last margin joins the smallest ones
    log10_log10_time: float  # at `log_norm`

    def __str__(self) -> str:
        return (
            f"collapse foretold at log‖a‖₁ = {self.log_norm:.8g}, log10 log10 t = "
            f"{self.log10_log10_time:.8g}; the direction is uniform from log‖a‖₁ = "
            f"{self.log_norm_uniform:.8g} on"
        )

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)


def predict_collapse(
    model: UFM, anchor: Any, tolerance: float = 1e-3, units: str | None = None
) -> CollapsePrediction:
    r"""Collapse foretold from a state of the orbit by water filling; see `predictions`.

    Heuristic, and better the harder the margins are at the anchor: `solve` with `PredictedCollapse`
    takes $\lVert a\rVert_1 = 12\sqrt K$ (scaled) and checks the condition of the jump.

    Examples:
        >>> import numpy as np
        >>> anchor = np.exp(np.random.default_rng(0).normal(0, 1, 1023))
        >>> round(predict_collapse(UFM(1024), anchor).log_norm, 2)  # integrated: 115.12
        115.12
    """
    check_model(model)
    start = fitted(model, anchor, units)
    if not knows(model, start) or start.a.ndim != 1:
        raise InputError(
            "Argument `anchor` must be one balanced spectrum of depth 2 with hard labels and "
            "cross-entropy or another function of the probability: collapse of others is not foretold."
        )
    tolerance = PredictedCollapse(tolerance).tolerance
    with np.errstate(divide="ignore"):
        level, uniform = collapse_log_norms(
            model.basis, np.log(start.a / model.temperature), tolerance
        )
    shift = math.log(model.temperature)
    if result_units(anchor, units) == RAW:
        shift += math.log(model.singular_value_scale)
    return CollapsePrediction(
        level + shift,
        uniform + shift,
        log10_log10_time_at_collapse(model.classes, level, float(model.loss_kind.steepness)),
    )
