"""What a run will cost: its method, its memory and roughly its time, before it begins."""

import dataclasses
import math
from typing import Any

import numpy as np

from hadaflow.base.memory import in_words
from hadaflow.base.notebooks import shown_in_notebook
from hadaflow.flow.batches import check_memory, compile_seconds, sample
from hadaflow.flow.choice import check_method, choose
from hadaflow.flow.lanes import cores
from hadaflow.model.fitting import check_parameters, fitted
from hadaflow.model.states import Parameters, check_batch
from hadaflow.runs.requests import Request, make_request
from hadaflow.runs.targets import Target


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What `estimate` found."""

    method: str
    reason: str
    memory_bytes: float
    seconds: float
    compile_seconds: float  # before them; 0 where that is done, here or in the cache

    def __str__(self) -> str:
        first = "compiled already"
        if self.compile_seconds:
            first = f"after about {self.compile_seconds:.2g} s of compilation, once"
        known = math.isfinite(self.seconds)
        time = f"{self.seconds:.2g} s" if known else "a time that is not foreseen"
        return (
            f"{self.method} ({self.reason}): about {in_words(self.memory_bytes)} of memory and "
            f"{time}, {first}"
        )

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)


def estimate(
    model: Any,
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
) -> Estimate:
    """Method, memory and time of a run that `solve` would do with the same arguments.

    The memory is what `solve` refuses to exceed; the time is rough, within a factor of a few where the
    direction has no long stops on the way. So is the time of the compilation before it, which a run of
    the same structure in this process, or with a cache in another one (`enable_cache`), has spared.

    Examples:
        >>> from hadaflow import UFM, Collapse
        >>> estimate(UFM(8), [1.0, 1, 1, 1, 0.1, 0.1, 0.1], Collapse(1e-3)).method
        'tsit5'
    """
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
        None,
        geometry,
        decay,
    )
    check_method(method)
    full = isinstance(start, Parameters)
    state = check_parameters(model, start) if full else fitted(model, start, units)
    if full or state.a.ndim == 1:  # pyright: ignore[reportAttributeAccessIssue]
        return _of_one(choose(request, state), state)
    check_batch(state)  # pyright: ignore[reportArgumentType]
    return _of_many(request, state)


def _of_one(request: Request, state: Any) -> Estimate:
    assert request.choice is not None
    method = request.method
    return Estimate(
        method.name, request.choice.reason, method.memory(request, state),
        method.seconds(request, state), method.compile_seconds(request, state),
    )  # fmt: skip


def _of_many(request: Request, starts: Any) -> Estimate:
    """Of a batch, by a sample of its runs."""
    rows = sample(starts)
    chosen = [choose(request, row) for row in rows]
    each = np.mean([c.method.seconds(c, row) for c, row in zip(chosen, rows, strict=True)])
    return Estimate(
        " and ".join(sorted({c.method.name for c in chosen})),
        f"{len(starts.a)} runs, of which {len(rows)} were looked at",
        check_memory(chosen, starts),
        float(each) * len(starts.a) / cores(),
        compile_seconds(chosen, rows, starts),
    )
