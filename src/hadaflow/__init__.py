"""hadaflow: a laboratory for cross-entropy training dynamics.

The names below are all of the public interface. They are imported on first use, so that the command
line can answer `--help` without waiting for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hadaflow.bases import AbelianGroup, Sylvester, cyclic, diagonalizes_softmax
    from hadaflow.closed_forms import fixed_point, linearized, mse_exact
    from hadaflow.descent import descend, stability_limit
    from hadaflow.errors import InputError
    from hadaflow.estimates import Estimate, estimate
    from hadaflow.initial import (
        distance_from_hadamard,
        gaussian,
        hadamard,
        lift,
        matched_spectrum,
        project,
    )
    from hadaflow.labels import hierarchical_labels
    from hadaflow.maxmargin import MaxMargin, margins, max_margin
    from hadaflow.metrics import measure, metric_names, rate
    from hadaflow.model import UFM
    from hadaflow.orbit_runs import CollapsePrediction, predict_collapse
    from hadaflow.solver import solve
    from hadaflow.states import Parameters, Spectrum, circulant, parameters, spectrum
    from hadaflow.targets import Collapse, Norm, PathLength, PredictedCollapse, Steady, Time
    from hadaflow.theory.atlas import Atlas, atlas
    from hadaflow.theory.certify import Certificate, certify, recheck
    from hadaflow.theory.hunt import Hunt, hunt
    from hadaflow.theory.portrait import portrait
    from hadaflow.theory.rise import Rise, worst_rise
    from hadaflow.trajectory import Trajectory, load
    from hadaflow.transforms import walsh_hadamard

_HOME = {
    "bases": ["AbelianGroup", "Sylvester", "cyclic", "diagonalizes_softmax"],
    "closed_forms": ["fixed_point", "linearized", "mse_exact"],
    "descent": ["descend", "stability_limit"],
    "errors": ["InputError"],
    "estimates": ["Estimate", "estimate"],
    "initial": [
        "distance_from_hadamard",
        "gaussian",
        "hadamard",
        "lift",
        "matched_spectrum",
        "project",
    ],
    "labels": ["hierarchical_labels"],
    "maxmargin": ["MaxMargin", "margins", "max_margin"],
    "metrics": ["measure", "metric_names", "rate"],
    "model": ["UFM"],
    "orbit_runs": ["CollapsePrediction", "predict_collapse"],
    "solver": ["solve"],
    "states": ["Parameters", "Spectrum", "circulant", "parameters", "spectrum"],
    "targets": ["Collapse", "Norm", "PathLength", "PredictedCollapse", "Steady", "Time"],
    "theory.atlas": ["Atlas", "atlas"],
    "theory.certify": ["Certificate", "certify", "recheck"],
    "theory.hunt": ["Hunt", "hunt"],
    "theory.portrait": ["portrait"],
    "theory.rise": ["Rise", "worst_rise"],
    "trajectory": ["Trajectory", "load"],
    "transforms": ["walsh_hadamard"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [  # noqa: RUF022 (in the order of use)
    "UFM", "Sylvester", "AbelianGroup", "cyclic", "diagonalizes_softmax",
    "spectrum", "circulant", "Spectrum", "parameters", "Parameters",
    "hadamard", "gaussian", "matched_spectrum", "lift", "project", "distance_from_hadamard",
    "solve", "Time", "Collapse", "PredictedCollapse", "Norm", "PathLength", "Steady", "descend",
    "estimate", "Estimate", "predict_collapse", "CollapsePrediction",
    "Trajectory", "load", "measure", "rate", "metric_names",
    "certify", "Certificate", "recheck", "hunt", "Hunt", "worst_rise", "Rise", "atlas", "Atlas",
    "portrait",
    "margins", "max_margin", "MaxMargin", "linearized", "mse_exact",
    "fixed_point", "hierarchical_labels", "stability_limit", "walsh_hadamard", "InputError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("hadaflow")
    if name == "expressions":  # a module of helpers, `hf.expressions`
        return importlib.import_module("hadaflow.expressions")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hadaflow' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hadaflow.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "expressions", "__version__"]
