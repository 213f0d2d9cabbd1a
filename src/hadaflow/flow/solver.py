"""`solve(model, start, until)`: a trajectory of the gradient flow, to any time."""

import time
from typing import Any

from hadaflow.base.progress import Report
from hadaflow.flow.batches import solve_batch
from hadaflow.flow.choice import carry_out, check_method, choose
from hadaflow.model.fitting import as_spectrum, check_parameters, fitted
from hadaflow.model.states import Parameters
from hadaflow.model.ufm import UFM, check_model
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.many import for_each_model
from hadaflow.runs.requests import make_request
from hadaflow.runs.targets import Target


@for_each_model
def solve(
    model: UFM,
    start: Any,
    until: Target | str | None = None,
    *,
    times: Any = None,
    log10_times: Any = None,
    units: str | None = None,
    points: int | None = None,
    rtol: float = 1e-8,
    method: str = "auto",
    geometry: str = "euclidean",
    decay: float = 0.0,
    progress: str | Report | None = "auto",
) -> Trajectory:
    """Follow the gradient flow of `model` from `start`, or steepest descent in another geometry.

    Args:
        model: The problem; or a list of problems, or names with problems, for as many results.
        start: Singular values (a list, `spectrum`, or the spelling of a start, "uniform:0.1:1:0") for
            the reduced view, `Parameters` for the full one. A batch of spectra is solved at once, with
            a result whose first axis is the run.
        until: `Time`, `Collapse`, `PredictedCollapse`, `Norm`, `PathLength` or `Steady`, or as it is
            spelled, "collapse:1e-6". If nothing is said `Collapse(1e-6)`, or `Steady()` where the flow
            settles: soft labels, penalties on all layers, MSE.
        times: Times at which to keep the state, beside the start: up to the last of them or, with
            `until`, those before its end, and the end.
        log10_times: The same by their logarithm, for times beyond 1e308.
        units: "scaled" or "raw": of the times asked for and everything returned, and of a start
            without its own; left out, those of the start, or scaled.
        points: Number of saved points, the start included: where the state changes; with dual steps
            the steps themselves, at most so many. Left out: 200, fewer where K is large, and 2 for each
            run of a batch, its start and its end.
        rtol: Global relative error promised for the singular values and for log time.
        method: "auto", or a solver by name: tsit5, dopri8 (explicit), kvaerno5 (implicit, dense),
            dual (implicit, matrix-free: balanced cross-entropy of depth 2). `diagnostics` of the
            result say which it was, and why.
        geometry: "euclidean", the gradient flow; or steepest descent where a step has the largest entry
            ("sign") or the largest singular value ("spectral") of one size: the limits of sign descent,
            and of spectral descent and Muon, in closed form. Hard labels, balanced classes; "sign" at
            depth 1, and at depth 2 for classes Z_2 × … × Z_2 and matrices with R = I.
        decay: Decoupled decay per unit of raw time, in these two.
        progress: "auto" shows a line on a terminal after a second, None is silent, a function of
            (text, fraction) is called instead.

    Returns:
        A `Trajectory`; its `status` and `message` say how it ended. A run that fails or is
        interrupted returns the finished part. Of a list of starts a `Batch`; of a list of models, or
        of names with models, a list of results, or names with results.

    Examples:
        >>> from hadaflow import Time
        >>> run = solve(UFM(classes=4), [0.1, 0.2, 0.3], Time(log10=100))
        >>> run.status, bool(abs(run.a_hat[-1] - 1 / 3).max() < 1e-12)
        ('reached', True)
    """
    check_model(model)
    spelled = {"start": start} if isinstance(start, str) else {}
    if not isinstance(start, Parameters):
        start = as_spectrum(model, start)
    request = make_request(
        model,
        start,
        until,
        times,
        log10_times,
        units,
        points,
        rtol,
        method,
        progress,
        geometry,
        decay,
    )
    check_method(method)
    began = time.perf_counter()
    if isinstance(start, Parameters):
        state = check_parameters(model, start, batch=False)
        request = choose(request, state)
        request.method.memory(request, state)
        run = request.method.run(request, state)
    else:
        scaled = fitted(model, start, units)
        if scaled.a.ndim == 1:
            request = choose(request, scaled)
            request.method.memory(request, scaled)
            run = carry_out(request, scaled)
        else:
            run = solve_batch(request, scaled)
    run.settings.update(spelled)
    run.diagnostics["wall_seconds"] = time.perf_counter() - began
    return run
