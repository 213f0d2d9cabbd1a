"""The six-panel comparison of Section 6: Random and Hadamard initialization and the reduced ODE."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from hadaflow.base.errors import InputError
from hadaflow.descent.descend import descend
from hadaflow.flow.solver import solve
from hadaflow.metrics.measures import measure
from hadaflow.model.starts import gaussian, hadamard, matched_spectrum
from hadaflow.model.states import RAW, Parameters, Spectrum
from hadaflow.model.ufm import UFM
from hadaflow.paper.settings import Settings

RANDOM, HADAMARD, ODE = "random", "hadamard", "ode"
INITS = (RANDOM, HADAMARD, ODE)
SCALARS = ("loss", "alignment_w", "alignment_h", "alignment_z", "kl", "residual", "off_diagonal")
_FULL_ONLY = ("residual", "off_diagonal")
Report = Callable[[str, float | None], None]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One of the paper's runs: K classes, width `wide`·K, entries of deviation e^{−delta}/√K."""

    classes: int
    wide: int = 1
    delta: float = 6.0

    def model(self, settings: Settings) -> UFM:
        """The model with the user's changes; refuses those that no Hadamard start fits."""
        K = settings.classes or self.classes
        width = settings.width or self.wide * K
        if width < K:
            raise InputError(
                f"Argument `width` must be at least `classes` = {K} for a Hadamard start, "
                f"but is {width}."
            )
        return UFM(K, width=width, reduction=settings.reduction)

    def compute(self, settings: Settings, report: Report) -> xr.Dataset:
        """Everything the six panels show, for every seed."""
        model = self.model(settings)
        K = model.classes
        scale = settings.scale or math.exp(-self.delta) / math.sqrt(K)
        random = gaussian(model, scale, settings.all_seeds)
        spectrum = matched_spectrum(model, random, order=settings.order, units=RAW)
        paired = hadamard(model, spectrum)
        iterations = np.unique(
            np.rint(np.geomspace(1, settings.steps, settings.points)).astype(int)
        )
        times = iterations * settings.learning_rate
        both = Parameters(
            tuple(np.concatenate(f) for f in zip(random.factors, paired.factors, strict=True))
        )
        if settings.quick:
            states = _flow_states(model, both, times, report)
        else:
            states = _descent_states(model, both, settings, report)
        ode = _ode_states(model, spectrum, times)
        data = _measured(model, states, ode, settings.seeds, iterations)
        data.attrs = {**settings.plain(), "classes": K, "width": model.width, "scale": scale}
        return data


def _descent_states(
    model: UFM, start: Parameters, settings: Settings, report: Report
) -> list[np.ndarray]:
    run = descend(
        model, start, settings.steps, settings.learning_rate, points=settings.points,
        units=RAW, progress=report,
    )  # fmt: skip
    return [f[:, 1:] for f in run.parameters.factors]


def _flow_states(
    model: UFM, start: Parameters, times: np.ndarray, report: Report
) -> list[np.ndarray]:
    """The gradient flow that descent follows, solved adaptively, one run at a time."""
    runs = []
    for i in range(len(start.W)):
        one = Parameters(tuple(f[i] for f in start.factors))
        run = solve(model, one, times=times, units=RAW, rtol=1e-6, progress=None)
        runs.append([f[1:] for f in run.parameters.factors])
        report(f"run {i + 1} of {len(start.W)}", (i + 1) / len(start.W))
    return [np.stack(f) for f in zip(*runs, strict=True)]


def _ode_states(model: UFM, spectrum: Spectrum, times: np.ndarray) -> np.ndarray:
    """Reduced singular values, raw units, (runs, times, modes)."""
    return np.stack(
        [
            solve(model, Spectrum(a, c, RAW), times=times, progress=None).a[1:]
            for a, c in zip(spectrum.a, spectrum.C, strict=True)
        ]
    )


def _measured(
    model: UFM, factors: list[np.ndarray], ode: np.ndarray, seeds: int, iterations: np.ndarray
) -> xr.Dataset:
    states = Parameters(tuple(factors))
    values = np.linalg.svd(states.Z, compute_uv=False)[..., : model.modes]
    spectra = np.stack([values[:seeds], values[seeds:], -np.sort(-ode, axis=-1)])
    variables: dict[str, Any] = {}
    dims = ("init", "run", "iteration")
    for name in SCALARS:
        full = measure(name, model, states, units=RAW)
        if name in _FULL_ONLY:
            reduced = np.full(ode.shape[:2], np.nan)
        else:
            reduced = measure(name, model, Spectrum(ode, np.zeros_like(ode), RAW))
        variables[name] = (dims, np.stack([full[:seeds], full[seeds:], reduced]))
    variables["singular_value"] = ((*dims, "mode"), spectra)
    variables["normalized"] = ((*dims, "mode"), spectra / spectra.sum(axis=-1, keepdims=True))
    coords = {
        "init": list(INITS),
        "run": np.arange(seeds, dtype=np.int32),
        "iteration": iterations.astype(np.int32),
        "mode": np.arange(1, model.modes + 1, dtype=np.int32),
    }
    return xr.Dataset(variables, coords)


def largest_rise(series: np.ndarray) -> float:
    """The largest amount by which a series exceeds an earlier value."""
    return float(np.max(series - np.minimum.accumulate(series)))
