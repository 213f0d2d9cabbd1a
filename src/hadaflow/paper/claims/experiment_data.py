"""The paper's experiments as data, and how the claims read them.

The runs are those of the figures (10 seeds, learning rate 0.01, 10^6 iterations), followed by adaptive
solutions of the same flows. The thresholds of the claims hold for seeds 0–9, as in the figures, and, in
the slow tests, for seeds 10–19, 20–29 and 30–39.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import xarray as xr

from hadaflow.model.starts import gaussian, matched_spectrum
from hadaflow.model.states import RAW, Spectrum
from hadaflow.model.ufm import UFM
from hadaflow.paper.experiment import Experiment, largest_rise
from hadaflow.paper.settings import Settings

Runs = Callable[..., xr.Dataset]
SHARED = "experiments"


@functools.cache
def experiment(
    K: int, wide: int = 1, delta: float = 6.0, reduction: str = "sum", seed: int = 0
) -> xr.Dataset:
    """One of the paper's experiments, from adaptive solutions, with seeds from `seed` on."""
    settings = Settings(quick=True, reduction=reduction, seed=seed)
    return Experiment(K, wide, delta).compute(settings, lambda *_: None)


# --- readings of a run ---------------------------------------------------------------------------


def mean_series(data: xr.Dataset, name: str, init: str) -> np.ndarray:
    return data[name].sel(init=init).mean("run").values


def rise(series: np.ndarray) -> float:
    """Largest excess over an earlier value, as a share of the first."""
    return largest_rise(series) / float(series[0])


def burn_in(data: xr.Dataset, init: str) -> int:
    """First saved iteration at which the mean loss has halved."""
    loss = mean_series(data, "loss", init)
    return int(data["iteration"][int(np.argmax(loss < loss[0] / 2))])


def value_at(data: xr.Dataset, series: np.ndarray, iteration: float) -> float:
    return float(np.interp(math.log(iteration), np.log(data["iteration"].values), series))


def kept(data: xr.Dataset, name: str, init: str, iteration: float) -> float:
    """The share of its first value that a mean series has at an iteration."""
    series = mean_series(data, name, init)
    return value_at(data, series, iteration) / float(series[0])


def paired_spectra(K: int, seeds: int) -> tuple[UFM, Spectrum]:
    model = UFM(K)
    random = gaussian(model, math.exp(-6) / math.sqrt(K), range(seeds))
    return model, matched_spectrum(model, random, units=RAW)
