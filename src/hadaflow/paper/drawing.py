"""How the figures of the paper look. Draws labelled arrays; computes nothing but means."""

from typing import Any

import numpy as np
import xarray as xr

from hadaflow.results.plotting import canvas, house_style

COLORS = {"random": "#0072B2", "hadamard": "#D55E00", "ode": "#009E73"}
LABELS = {"random": "Random", "hadamard": "Hadamard", "ode": "ODE"}
STYLES = {"random": "-", "hadamard": "-", "ode": (0, (2, 1.5))}
WIDTHS = {"random": 1.6, "hadamard": 2.2, "ode": 1.4}


def blank(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure with its axes, in the house style."""
    with house_style():
        figure, axes = canvas(rows, columns, size)
        return figure, np.reshape(axes, (rows, columns))


def six_panels(data: xr.Dataset, title: str) -> Any:
    """Panels (a)–(f) of Section 6: means over seeds with bands of one standard error."""
    figure, axes = blank(2, 3, (12, 6.8))
    x = data["iteration"].values
    (loss, alignment, kl), (singular, normalized, residual) = axes
    _band(loss, x, data["loss"], "(a) cross-entropy loss")
    _alignments(alignment, x, data)
    _band(kl, x, data["kl"], r"(c) $D_{\mathrm{KL}}$ of the singular values")
    _modes(singular, x, data["singular_value"], "(d) singular values of Z")
    _modes(normalized, x, data["normalized"], "(e) normalized singular values")
    normalized.axhline(1 / data.sizes["mode"], color="0.4", ls=":", lw=1, zorder=0)
    _band(residual, x, data["residual"], "(f) residual energy", skip=("ode",))
    loss.set_yscale("log")
    singular.set_yscale("log")
    loss.legend(loc="lower left", frameon=False)
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_xlabel("iteration")
        axis.set_xlim(x[0], x[-1])
    figure.suptitle(title, fontsize=11)
    return figure


def _mean_and_error(values: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    runs = values.sizes["run"]
    error = values.std("run", ddof=1) / np.sqrt(runs) if runs > 1 else 0 * values.mean("run")
    return values.mean("run").values, error.values


def _band(axis: Any, x: np.ndarray, values: xr.DataArray, title: str, skip: tuple = ()) -> None:
    for init in values["init"].values:
        if init in skip:
            continue
        mean, error = _mean_and_error(values.sel(init=init))
        axis.plot(x, mean, color=COLORS[init], ls=STYLES[init], lw=WIDTHS[init], label=LABELS[init])
        axis.fill_between(x, mean - error, mean + error, color=COLORS[init], alpha=0.18, lw=0)
    axis.set_title(title, fontsize=10)


def _alignments(axis: Any, x: np.ndarray, data: xr.Dataset) -> None:
    """WWᵀ, HᵀH and Z against the simplex: one colour per start, one line style per matrix."""
    styles = {"alignment_w": (0, (5, 1.5)), "alignment_h": (0, (1, 1.2)), "alignment_z": "-"}
    names = {"alignment_w": "$WW^T$", "alignment_h": "$H^TH$", "alignment_z": "$Z$"}
    for init in ("random", "hadamard"):
        for metric, style in styles.items():
            mean, error = _mean_and_error(data[metric].sel(init=init))
            label = names[metric] if init == "random" else None
            axis.plot(x, mean, color=COLORS[init], ls=style, lw=1.5, label=label)
            axis.fill_between(x, mean - error, mean + error, color=COLORS[init], alpha=0.12, lw=0)
    axis.legend(loc="lower left", frameon=False)
    axis.set_title("(b) distance from the simplex", fontsize=10)


def _modes(axis: Any, x: np.ndarray, values: xr.DataArray, title: str) -> None:
    for init in values["init"].values:
        for mode in values["mode"].values:
            mean, error = _mean_and_error(values.sel(init=init, mode=mode))
            axis.plot(x, mean, color=COLORS[init], ls=STYLES[init], lw=0.75 * WIDTHS[init])
            if init != "ode" and values.sizes["mode"] <= 7:
                axis.fill_between(
                    x, mean - error, mean + error, color=COLORS[init], alpha=0.1, lw=0
                )
    axis.set_title(title, fontsize=10)
