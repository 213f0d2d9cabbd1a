"""A figure of our own: how the readings the paper leaves open change its curves."""

import math
from typing import Any

import numpy as np
import xarray as xr

from hadaflow.flow.solver import solve
from hadaflow.model.starts import gaussian, matched_spectrum
from hadaflow.model.states import RAW, Spectrum
from hadaflow.model.ufm import UFM
from hadaflow.paper.drawing import blank
from hadaflow.paper.settings import Settings

_CASES = {
    "summed, descending": ("sum", "descending"),
    "summed, ascending": ("sum", "ascending"),
    "summed, random order": ("sum", 1),
    "averaged, descending": ("mean", "descending"),
}
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_SCALES = {"delta = 6": 6.0, "delta = 0": 0.0}


def compute_readings(settings: Settings, report: Any) -> xr.Dataset:
    """Loss and KL of the reduced flow at K = 8 for each reading, at both scales, for every seed."""
    K = settings.classes or 8
    iterations = np.unique(np.rint(np.geomspace(1, settings.steps, settings.points)).astype(int))
    times = iterations * settings.learning_rate
    shape = (len(_SCALES), len(_CASES), settings.seeds, len(times))
    loss, kl = np.empty(shape), np.empty(shape)
    for s, delta in enumerate(_SCALES.values()):
        for c, (reduction, order) in enumerate(_CASES.values()):
            model = UFM(K, reduction=reduction)
            random = gaussian(model, math.exp(-delta) / math.sqrt(K), settings.all_seeds)
            start = matched_spectrum(model, random, order=order, units=RAW)
            for run_index in range(settings.seeds):
                one = Spectrum(start.a[run_index], start.C[run_index], RAW)
                run = solve(model, one, times=times, progress=None)
                kl[s, c, run_index] = run.measure("kl")[1:]
                loss[s, c, run_index] = np.exp(run.measure("log_energy")[1:])
            report(f"reading {s * len(_CASES) + c + 1} of {len(_SCALES) * len(_CASES)}", None)
    dims = ("scale", "reading", "run", "iteration")
    coords = {
        "scale": list(_SCALES),
        "reading": list(_CASES),
        "iteration": iterations.astype(np.int32),
    }
    return xr.Dataset({"energy": (dims, loss), "kl": (dims, kl)}, coords, {"classes": K})


def draw_readings(data: xr.Dataset, title: str) -> Any:
    """Loss of one sample above, KL below; small scale left, standard scale right."""
    figure, axes = blank(2, 2, (10.5, 6.8))
    x = data["iteration"].values
    for s, scale in enumerate(data["scale"].values):
        for c, reading in enumerate(data["reading"].values):
            for row, name in enumerate(("energy", "kl")):
                values = data[name].sel(scale=scale, reading=reading)
                mean, runs = values.mean("run").values, values.sizes["run"]
                band = values.std("run", ddof=min(1, runs - 1)).values / np.sqrt(runs)
                axis = axes[row, s]
                style = "--" if reading.startswith("averaged") else "-"
                axis.plot(x, mean, color=_COLORS[c], ls=style, label=reading)
                axis.fill_between(x, mean - band, mean + band, color=_COLORS[c], alpha=0.12, lw=0)
        delta = scale.split()[-1]
        axes[0, s].set_title(rf"loss of one sample, $\delta = {delta}$", fontsize=10)
        axes[1, s].set_title(rf"$D_{{\mathrm{{KL}}}}$, $\delta = {delta}$", fontsize=10)
        axes[0, s].set_yscale("log")
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_xlabel("iteration")
        axis.set_xlim(x[0], x[-1])
    axes[0, 0].legend(frameon=False, loc="lower left")
    figure.suptitle(title, fontsize=11)
    return figure
