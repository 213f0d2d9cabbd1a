"""The figures of the paper as a table: what each computes, draws, shows, and where we differ."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from hadaflow.model.ufm import UFM
from hadaflow.paper import ambiguities, orbit_figures
from hadaflow.paper.drawing import six_panels
from hadaflow.paper.experiment import Experiment, largest_rise
from hadaflow.paper.settings import Settings


@dataclasses.dataclass(frozen=True)
class Check:
    """A sentence about a figure that its own numbers decide."""

    statement: str
    value: float
    holds: bool


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """One drawing: `compute` makes its data, `draw` the picture, `check` reads it."""

    name: str
    where: str
    title: str
    caption: str
    differs: str
    compute: Callable[[Settings, Any], xr.Dataset]
    draw: Callable[[xr.Dataset, str], Any]
    check: Callable[[xr.Dataset], list[Check]]
    weight: float = 1.0  # rough cost, so that the long ones start first
    experiment: Experiment | None = None
    shares: str | None = None  # figures with the same mark are made one after the other, and faster
    adjustable: bool = True  # do the settings change it?

    def validate(self, settings: Settings) -> None:
        """Refuse, before any work, settings that this figure cannot be drawn with."""
        if settings.classes is not None:
            UFM(settings.classes)
        if self.experiment is not None:
            self.experiment.model(settings)

    def as_in_paper(self, settings: Settings) -> bool:
        """Is it drawn as the paper has it? Adaptive solutions instead of descent change no curve."""
        return not self.adjustable or dataclasses.replace(settings, quick=False) == Settings()


# --- what the numbers must say -------------------------------------------------------------------


def _check_nonmonotone(data: xr.Dataset) -> list[Check]:
    kl, r = data["kl"].values, data["a_hat"].values[-1] * 7 - 1
    points = orbit_figures.turning_points(data)
    falling = bool(np.all(np.diff(kl)[kl[1:] > 1e-14] < 0))
    return [
        Check("KL falls between all saved points", float(np.diff(kl).max()), falling),
        Check("M has its dip at log10 t", points["dip"], points["dip"] < 0),
        Check(
            "M has its peak at log10 t, beyond the paper's times",
            points["peak"],
            points["peak"] > 6,
        ),
        Check(
            "M is down to half of its peak at log10 t, long after it",
            points["half of peak"],
            points["half of peak"] > 10 * points["peak"],
        ),
        Check(
            "M is down to half of M(0) at log10 t, later still",
            points["half of start"],
            points["half of start"] > points["half of peak"],
        ),
        Check(
            "max|(K−1)â − 1| at the end", float(np.abs(r).max()), bool(np.abs(r).max() < 1.01e-6)
        ),
    ]


def _check_experiment(data: xr.Dataset, wide: bool = False) -> list[Check]:
    frozen = float(data["off_diagonal"].sel(init="hadamard").max())
    values = data["singular_value"]
    gap = float(np.abs(values.sel(init="hadamard") / values.sel(init="ode") - 1).max())
    # A step multiplies a by (1 + h)², the flow by e^{2h}: with h ≤ η they part by η per e-fold.
    ode = values.sel(init="ode")
    allowed = data.attrs["learning_rate"] * float(
        np.log(ode.isel(iteration=-1) / ode.isel(iteration=0)).max()
    )
    kl = data["kl"].mean("run")
    rise = {i: float(kl.sel(init=i).max() - kl.sel(init=i)[0]) for i in ("random", "hadamard")}
    M = (data["alignment_z"] ** 2 / 2).mean("run")
    back = {i: float(largest_rise(M.sel(init=i).values)) for i in ("random", "hadamard")}
    loss = data["loss"].mean("run").sel(init="hadamard").values
    drop = float(data["iteration"][int(np.argmax(loss < 0.9 * loss[0]))])
    deviation = abs(data["normalized"].sel(init="random") * data.sizes["mode"] - 1).max("mode")
    first, final = (float(deviation.isel(iteration=i).mean()) for i in (0, -1))
    return [
        Check("Hadamard vectors stay frozen: share of Z off the diagonal", frozen, frozen < 1e-6),
        Check(f"the ODE follows descent: largest relative gap of a singular value, below {allowed:.2g}",
              gap, gap < allowed),
        Check("KL of Hadamard never rises above its start", rise["hadamard"], rise["hadamard"] <= 1e-12),
        _check_alignment_phase(kl.sel(init="random").values, wide),
        *(Check(f"M of {init.capitalize()}: largest rise, as a share of M(0), below 1 %",
                back[init] / float(M.sel(init=init)[0]), back[init] < 0.01 * float(M.sel(init=init)[0]))
          for init in ("random", "hadamard")),
        Check("the loss has fallen by a tenth at iteration", drop, drop > 1),
        Check(f"Random at the end: mean of max|(K−1)â − 1|, at first {first:.3g}", final, final < first),
    ]  # fmt: skip


def _check_alignment_phase(kl: np.ndarray, wide: bool) -> Check:
    """At d = K the random start raises KL while it turns its vectors; surplus width prevents that."""
    rise = float(kl.max() - kl[0])
    if wide:
        return Check(
            "KL of Random does not rise above its start by more than", rise, rise < 0.05 * kl[0]
        )
    return Check("KL of Random rises before it falls, by", rise, rise > 0)


def _check_logits(data: xr.Dataset) -> list[Check]:
    uniform, other = (float(m) for m in data["margin"].values)
    return [
        Check("smallest normalized margin of a* is 1/2", uniform, abs(uniform - 0.5) < 1e-12),
        Check("smallest normalized margin of a_conv is 4/5", other, abs(other - 0.8) < 1e-12),
    ]


def _check_normalized(data: xr.Dataset) -> list[Check]:
    tau, M = data["path_length"].values, data["l2"].values
    down = int(np.argmax(M))
    half = float(np.interp(-data.attrs["l2_at_start"] / 2, -M[down:], tau[down:]))
    return [
        Check("M is down to half of M(0) at path length", half, 100 < half < 10_000),
        Check("collapse to 1e-6 at path length", float(tau[-1]), bool(tau[-1] < 10_000)),
        Check(
            "singular values are large when M is down to half of M(0): the largest is",
            float(np.interp(half, tau, data["a"].values.max(axis=1))),
            bool(np.interp(half, tau, data["a"].values.max(axis=1)) > 10),
        ),
    ]


def _check_readings(data: xr.Dataset) -> list[Check]:
    end = data["kl"].mean("run").isel(iteration=-1).sel(scale="delta = 6")
    summed = end.sel(reading="summed, descending")
    order = float(abs(end.sel(reading="summed, ascending") / summed - 1))
    rows = [Check("order of the spectrum changes the final KL, relatively, by", order, order > 0)]
    iteration, K = data["iteration"].values, int(data.attrs["classes"])
    for scale in data["scale"].values:
        ends = {}
        for loss in ("summed", "averaged"):
            energy = data["energy"].mean("run").sel(scale=scale, reading=f"{loss}, descending")
            ends[loss] = float(iteration[int(np.argmax(energy.values < energy.values[0] / 2))])
        # Iterations are saved on a grid, so the factor K is seen to within a point or two.
        stretch = ends["averaged"] / ends["summed"]
        told = f"{scale}: the loss halves at {ends['summed']:g} (summed), {ends['averaged']:g} (averaged)"
        rows.append(Check(f"{told}, later by a factor", stretch, 0.7 * K < stretch < 1.4 * K))
    return rows


# --- the table -----------------------------------------------------------------------------------

_SIX = (
    "Gradient descent on W and H from random Gaussian entries (blue) and from Hadamard "
    "initialization with the same singular values of the logits (orange), and the reduced flow "
    "(green, dotted): means over the seeds, bands of one standard error. Hadamard vectors stay "
    "frozen, so descent follows the reduced flow; the random start first turns its vectors "
    "(residual energy falls, KL rises) and then converges alike."
)
_COMMON = (
    "Entries have total deviation e^{−δ}/√K; the loss is summed over samples (Eq. 1) unless said "
    "otherwise; D_W = D_H = √σ(Z), largest singular value on the first non-trivial column; KL of "
    "Random is that of its largest K − 1 singular values; the residual is taken with normalized U."
)


def _six(name: str, where: str, title: str, experiment: Experiment, extra: str, weight: float):
    check = functools.partial(_check_experiment, wide=experiment.wide > 1)
    return PaperFigure(
        name, where, title, _SIX, f"{_COMMON} {extra}".strip(), experiment.compute, six_panels,
        check, weight, experiment, f"K = {experiment.classes}, wide {experiment.wide > 1}",
    )  # fmt: skip


_ALL = [
    PaperFigure(
        "nonmonotone",
        "Figure 1",
        "K = 8 from a(0) = (1, 1, 1, 1, .001, .001, .001): above, the paper's times; below, to collapse",
        "From this start the four large singular values first head for the low-rank direction "
        "(1, 1, 1, 2, 0, 0, 0), so M rises while the Lyapunov function KL falls. Continued to "
        "collapse, M peaks just beyond the times of the paper and is gone by log10 t ≈ 3615.",
        "The paper stops at t = 10^6; the lower row is ours.",
        orbit_figures.compute_nonmonotone,
        orbit_figures.draw_nonmonotone,
        _check_nonmonotone,
        shares="orbit of Figure 1",
        adjustable=False,
    ),
    _six("k4", "Figure 2", "K = 4", Experiment(4), "", 3),
    _six("k8", "Figure 4", "K = 8", Experiment(8),
         "The burn-in the paper quotes for K = 8 (5·10³ iterations) fits an averaged loss; with the "
         "summed loss of Eq. (1) it is K times shorter (see the readings).", 10),
    _six("k16", "Figure 5", "K = 16", Experiment(16), "", 90),
    _six("k4-standard-scale", "Figure 6", "K = 4, standard scale (δ = 0)",
         Experiment(4, delta=0.0), "", 3),
    _six("k8-standard-scale", "Figure 7", "K = 8, standard scale (δ = 0)", Experiment(8, delta=0.0),
         "The burn-in of 5·10² iterations quoted for δ = 0 fits an averaged loss.", 10),
    _six("k4-wide5", "Figure 8", "K = 4, width 5K", Experiment(4, wide=5), "", 5),
    _six("k4-wide10", "Figure 9", "K = 4, width 10K", Experiment(4, wide=10),
         "The caption says K = 8, its label and the figure it refers to K = 4: both are drawn.", 5),
    _six("k8-wide10", "Figure 9, as captioned", "K = 8, width 10K", Experiment(8, wide=10),
         "The caption says K = 8, its label and the figure it refers to K = 4: both are drawn.", 20),
    PaperFigure(
        "logits",
        "Figure 3",
        "Normalized logits: the uniform direction has the smaller margin",
        "Logit matrices of a* and a_conv, each divided by ‖a‖₁. The smallest margin (diagonal minus "
        "off-diagonal) is larger for the non-uniform direction, which is why the flow prefers it "
        "on these four modes.",
        "The colour scale is ours, and the margins are written out.",
        orbit_figures.compute_logits,
        orbit_figures.draw_logits,
        _check_logits,
        adjustable=False,
    ),
    PaperFigure(
        "normalized",
        "Figure 10",
        "Normalized flow (solid, against path length) and regular flow (dashed, against time)",
        "The normalized flow has the orbit of the regular one on another clock, its path length. "
        "What takes the regular flow until t ≈ 10^3615 is done at a path length of about 2900.",
        "Drawn from one integration with two clocks instead of two integrations.",
        orbit_figures.compute_nonmonotone,
        orbit_figures.draw_normalized,
        _check_normalized,
        shares="orbit of Figure 1",
        adjustable=False,
    ),
    PaperFigure(
        "readings",
        "ours",
        "How the open readings change the curves (reduced flow, K = 8)",
        "The paper leaves open whether the loss is summed or averaged, and in which order matched "
        "singular values go to Hadamard columns. Averaging stretches time by K; the order matters "
        "from K = 8 on, because the flow is invariant under GL(m, 2) only.",
        "Not in the paper.",
        ambiguities.compute_readings,
        ambiguities.draw_readings,
        _check_readings,
        4,
    ),
]  # fmt: skip

FIGURES = {figure.name: figure for figure in _ALL}
