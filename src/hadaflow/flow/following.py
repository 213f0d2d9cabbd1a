"""What is followed by a march: a reduced start or matrices, and one driver for both."""

import bisect
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.base.errors import InputError
from hadaflow.base.interruption import held_back
from hadaflow.base.precision import double_precision
from hadaflow.base.progress import Progress
from hadaflow.flow.integrate import Integration
from hadaflow.flow.kinds.amplitudes import AmplitudeFlow
from hadaflow.flow.kinds.displacement import DisplacementFlow
from hadaflow.flow.kinds.flow import Course, Flow, SpectrumFlow
from hadaflow.flow.kinds.layers import LayerFlow
from hadaflow.flow.kinds.matrices import MatrixFlow
from hadaflow.metrics.matrix_metrics import FULL
from hadaflow.model.fitting import fitted, with_phases
from hadaflow.model.layers import layer_values
from hadaflow.model.losses import Own
from hadaflow.model.starts import compress, distance_from_hadamard, log_singular_values, project
from hadaflow.model.states import Parameters, Spectrum
from hadaflow.model.ufm import UFM
from hadaflow.model.views.circulant import CirculantView
from hadaflow.model.views.reduced import SymmetricView
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.outcomes import Ending, Outcome, Stop
from hadaflow.runs.recording import Clocks, dying_modes, record, spectra, status_of
from hadaflow.runs.requests import Request
from hadaflow.runs.spacing import Profile
from hadaflow.runs.targets import Steady, deviation
from hadaflow.saddles.low_rank import low_rank_limit

_STEP_LIMIT = 2e7  # steps: minutes
_NO_FORCE = 1e-290  # relative speed per unit of time
_REST_TOLERANCE = 1e-10  # largest relative speed per unit of time
# An explicit step in log time is of order one however large ‖a‖ is, so work grows like ‖a‖. This is ten
# times the collapse norm up to which an end is promised, seconds of work; for full states, whose steps
# cost more, as much.
NORM_LIMIT, _FULL_NORM_LIMIT = 1e6, 1e5
# States on the way that are asked how they change; fewer of large matrices.
_LOOKED_AT, _FEWEST_LOOKED_AT, _PRODUCTS = 8192, 64, 2**28


class Way:
    """A run of the march: its flow, and what Python asks of its states."""

    request: Any  # whose method is one of steps
    flow: Any
    norm_limit: float

    def singular_values(self, y: Any) -> np.ndarray:
        """The K − 1 non-trivial ones, scaled."""
        raise NotImplementedError

    def path(self, y: Any) -> float:
        raise NotImplementedError

    def smallest_margin(self, y: Any) -> float:
        """Of all samples."""
        raise NotImplementedError

    def never(self, y: Any) -> str:
        """Why the direction will never be uniform, where that is proven; else nothing."""
        raise NotImplementedError

    def profile(self, ys: Any) -> Profile:
        """What changes from state to state."""
        raise NotImplementedError

    def kept(self, us: np.ndarray, ys: Any) -> np.ndarray:
        """The u at which states are kept, by those on the way."""
        some = np.unique(np.linspace(0, len(us) - 1, self.looked_at).astype(int))
        return self.request.kept(
            us[some], lambda: self.profile(jax.tree.map(lambda y: y[some], ys))
        )

    @property
    def looked_at(self) -> int:
        """How many states on the way are asked how they change."""
        return _LOOKED_AT

    def arrays(self, ys: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What a trajectory holds of the states, the start first; and their path lengths."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class ReducedWay(Way):
    """Of singular values."""

    request: Request
    start: Spectrum
    norm_limit: float = NORM_LIMIT

    @functools.cached_property
    def flow(self) -> SpectrumFlow:
        return reduced_flow(self.request.model, self.start)

    def singular_values(self, y: Any) -> np.ndarray:
        return self.request.model.nontrivial(self.flow.values(y).a)

    def path(self, y: Any) -> float:
        return float(y[0])

    def smallest_margin(self, y: Any) -> float:
        a, _, angles = self.flow.values(y)
        found = self.request.model.view_of(angles).margins(jnp.asarray(a), angles)
        return min(float(jnp.min(x)) for x in found)

    def never(self, y: Any) -> str:
        a, C, angles = self.flow.values(y)
        return low_rank_limit(self.request.model, a, self.start.C if C is None else C, angles)

    def profile(self, ys: Any) -> Profile:
        model, a = self.request.model, self.flow.values(ys.T).a.T
        with np.errstate(divide="ignore"):
            return Profile.of_logs(np.log(model.nontrivial(a)))

    def arrays(self, ys: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        found = self.flow.values(ys.T)
        a = np.moveaxis(found.a, -1, 0)
        C, angles = (None if x is None else np.moveaxis(x, -1, 0) for x in found[1:])
        with np.errstate(divide="ignore"):
            return spectra(self.request, self.start, np.log(a), C, angles), ys[:, 0]


def reduced_flow(model: UFM, start: Spectrum, beside: Any = None) -> SpectrumFlow:
    """The kind of flow that can follow this start, or these."""
    start = with_phases(model, start)
    view = model.view_of(start.angles)
    view = view if beside is None else beside(view)
    if isinstance(view, CirculantView):
        return AmplitudeFlow.of(view, start)
    if isinstance(view, SymmetricView) and view.decays is None and not view.has_constant_mode:
        return DisplacementFlow.of(view, start)
    zeros = np.sum(layer_values(model.depth, start.a, start.C) == 0, axis=0)
    if np.any(zeros == 1):
        raise InputError(
            "Argument `start` must have positive singular values (or zeros that stay zero) for "
            "this model, whose reduced view follows their logarithms; the full view (`hadamard`) "
            "follows such a start."
        )
    return LayerFlow.of(view, start)


@dataclasses.dataclass(frozen=True)
class FullWay(Way):
    """Of parameter matrices, as narrow as they can be made without loss."""

    request: Request
    start: Parameters
    norm_limit: float = _FULL_NORM_LIMIT

    @functools.cached_property
    def _narrow(self) -> Any:
        return compress(self.request.model, self.start)

    @functools.cached_property
    def flow(self) -> MatrixFlow:
        model, state, _ = self._narrow
        return MatrixFlow.of(model.full_view, state)

    def singular_values(self, y: Any) -> np.ndarray:
        model = self.request.model
        logs = log_singular_values(self._narrow[0], Parameters(y[0]), model.classes - 1)
        return np.exp(logs) / model.singular_value_scale

    def path(self, y: Any) -> float:
        return float(y[1])

    def smallest_margin(self, y: Any) -> float:
        return float(FULL["margin"](self.flow.view, y[0]))

    def never(self, y: Any) -> str:
        """The certificate of the reduced view, for a deep full state that is a Hadamard one."""
        model, state = self._narrow[0], Parameters(y[0])
        if model.depth < 3 or model.feature_width < model.classes:
            return ""
        if distance_from_hadamard(model, state) > 1e-9:
            return ""
        scaled = fitted(model, project(model, state))
        return low_rank_limit(model, scaled.a, scaled.C)

    @property
    def looked_at(self) -> int:
        model = self._narrow[0]
        products = model.classes * model.total_samples * model.feature_width * model.depth
        return int(np.clip(_PRODUCTS // products, _FEWEST_LOOKED_AT, _LOOKED_AT))

    def profile(self, ys: Any) -> Profile:
        """Of the logits, whose singular vectors move, too."""
        factors, _ = ys
        Z = functools.reduce(np.matmul, factors).reshape(len(factors[0]), -1)
        size = np.linalg.norm(Z, axis=1)
        size = np.where(size > 0, size, 1.0)
        return Profile(Z / size[:, None], np.log(size))

    def arrays(self, ys: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        factors, path = ys
        states = self._narrow[2](Parameters(tuple(factors)))
        rows = [
            np.concatenate([f[None], s])
            for f, s in zip(self.start.factors, states.factors, strict=True)
        ]
        return dict(zip(self.request.model.factor_names, rows, strict=True)), path

    def decided(self) -> tuple[str, str] | None:
        """Status and message of a run that needs no integration."""
        request, start = self.request, self._narrow[1]
        modes, event = request.model.classes - 1, request.event
        if event is None:
            return None
        if len(start.factors) > 1:
            pairs = itertools.pairwise(start.factors)
            ranks = [int(np.linalg.matrix_rank(np.concatenate([A.T, B], axis=1))) for A, B in pairs]
            if event.uniform and min(ranks) < modes:
                between = "W and H span" if len(ranks) == 1 else "Two neighbouring factors span"
                return "never-collapses", (
                    f"{between} {min(ranks)} feature directions to double precision and never more, "
                    f"but collapse needs {modes}: ask for a time, a norm or a path length instead, or "
                    "for the reduced view, which resolves singular values of any size."
                )
            if event.grows and max(ranks) == 0:
                return "failed", "All matrices are zero: nothing moves."
        left = Course.towards(self.flow, request).left(0.0, self.flow.begin())
        return status_of(request, Ending.EVENT, 0.0) if float(left) <= 0 else None


def follow(way: Way) -> Trajectory:
    """March along a flow to the request's end."""
    with double_precision():
        outcome = _march(way)
        with held_back():
            return recorded(way, outcome)


def is_compiled(way: Way) -> bool:
    """Is the code of this march at hand?"""
    request = way.request
    with double_precision():
        course = Course.towards(way.flow, request)
        tolerance = request.method.local_tolerance(request)
        march = Integration(course, request.method, tolerance, lambda u: None, lambda *_: None)
        return march.is_compiled


def recorded(way: Way, outcome: Outcome, decided: tuple[str, str] | None = None) -> Trajectory:
    """The trajectory of a march that has ended."""
    request = way.request
    arrays, path = way.arrays(outcome.ys)
    ended = decided or status_of(request, outcome.ending, outcome.last, outcome.reason)
    if isinstance(request.event, Steady) and ended[0] == "steady" and not request.full:
        dying = dying_modes(arrays["log_a"][:, -request.model.modes_of_view.modes :])
        ended = request.event.reached(request.where(outcome.last), dying)
    return record(request, arrays, Clocks.at(request, outcome.us, path), *ended, outcome)


def not_begun(flow: Flow, ending: Ending) -> Outcome:
    """The outcome of a march that has nothing to do."""
    none = jax.tree.map(lambda x: np.zeros((0, *np.shape(x))), flow.begin())
    return Outcome(ending, np.zeros(0), none)


def _march(way: Way) -> Outcome:
    """March to the request's end.

    A flow that settles comes to rest before a late time, or short of another target: it is stopped
    there, since the noise of rounding, which log time magnifies, would only cost steps.
    """
    request, flow = way.request, way.flow
    goals, event, end = request.goals, request.event, request.end
    if end == 0:  # only time 0 was asked for
        return not_begun(flow, Ending.DONE)
    with Progress(request.progress, "solve") as progress:

        def report(u: float) -> None:
            if progress.heard:
                progress.report(request.where(u), None if end is None else u / end)

        course = Course.towards(flow, request)
        at_rest = dataclasses.replace(course, number=_REST_TOLERANCE, kind=Steady)

        def rests(u: float, y: Any) -> bool:
            if not _may_rest(request.model) or (event is not None and event.rests):
                return False
            return float(at_rest.left(u, y)) <= 0

        def stop(u: float, y: Any, steps: int) -> Stop | None:
            if rests(u, y):
                return Stop(Ending.REST)
            if _is_still(way, y):
                return Stop(Ending.GIVEN_UP)
            return _give_up(way, u, y, steps)

        tolerance = request.method.local_tolerance(request)
        integration = Integration(course, request.method, tolerance, report, stop)
        last = math.inf if end is None else end
        if goals is not None and request.until is None:
            outcome = integration.to_goals(goals)
        else:
            outcome = integration.to_end(last, way.kept)
            sharper = request.method.sharpened(request, outcome.sensitivity)
            if outcome.ending is Ending.EVENT and sharper is not None:
                again = dataclasses.replace(integration, tolerance=sharper)
                sharp = again.to_end(last, way.kept)
                if sharp.ending is Ending.INTERRUPTED:  # what is finished is kept
                    sharp = dataclasses.replace(outcome, ending=Ending.INTERRUPTED)
                outcome = sharp
        if isinstance(request.model.loss_kind, Own) and outcome.ending is Ending.STUCK:
            reason = f"{outcome.reason}, as where loss = {request.model.loss} has no finite slope"
            outcome = dataclasses.replace(outcome, reason=reason)
        if not len(outcome.us):
            return outcome
        if not request.model.loss_kind.log_form:
            outcome = _stopped_by_rounding(way, outcome)
        if request.model.loss_kind.kinked and outcome.ending is Ending.REST:
            outcome = _cut(outcome, lambda y: rests(0.0, y))
        final = jax.tree.map(lambda y: y[-1], outcome.ys)
        stopped = outcome.ending in (Ending.GIVEN_UP, Ending.NEVER, Ending.STUCK)
        if outcome.ending is not Ending.REST and not (
            stopped and rests(float(outcome.us[-1]), final)
        ):
            return outcome
        return _at_rest(request, outcome, way.singular_values(final))


def _stopped_by_rounding(way: Way, outcome: Outcome) -> Outcome:
    """The part before the force of a loss without a log form vanished, if it has."""
    model = way.request.model
    if not _is_still(way, jax.tree.map(lambda y: y[-1], outcome.ys)):
        return outcome
    cut = _cut(outcome, lambda y: _is_still(way, y))
    margin = way.smallest_margin(jax.tree.map(lambda y: y[-1], cut.ys))
    reason = (
        f"no force is left of loss = {model.loss} at a smallest margin of {margin:.4g}: rounding stops a "
        "loss without `log_loss` there, or it has its least value"
    )
    return dataclasses.replace(cut, ending=Ending.GIVEN_UP, reason=reason)


def _is_still(way: Way, y: Any) -> bool:
    """Has the force of a loss without a log form vanished?"""
    model = way.request.model
    if model.loss_kind.log_form or model.settles:
        return False
    return float(way.flow.read(y).at(0.0).fastest) < _NO_FORCE


def _cut(outcome: Outcome, still: Callable[[Any], bool]) -> Outcome:
    """Up to the first state in which nothing moves any more, as in all that follow."""

    def moves(i: int) -> bool:
        return not still(jax.tree.map(lambda y: y[i], outcome.ys))

    last = bisect.bisect_left(range(len(outcome.us)), True, key=lambda i: not moves(i))
    kept = jax.tree.map(lambda y: y[: last + 1], outcome.ys)
    return dataclasses.replace(outcome, us=outcome.us[: last + 1], ys=kept)


def _may_rest(model: UFM) -> bool:
    """Where some label is zero a logit may fall for ever, or modes die and the others settle."""
    return model.settles or model.soft_labels


def _at_rest(request: Request, outcome: Outcome, a: np.ndarray) -> Outcome:
    """The outcome of a flow that has come to rest: later times see the same state."""
    goals, since = request.goals, request.where(float(outcome.us[-1]))
    if request.end is None:
        assert request.event is not None
        shares = ", ".join(f"{v:.3g}" for v in (a / a.sum())[:8]) if a.sum() > 1e-12 else "zero"
        more = ", …" if len(a) > 8 else ""
        if request.event.uniform:
            reason = (
                "The direction never becomes uniform: the flow has come to rest at the direction "
                f"({shares}{more})."
            )
            return dataclasses.replace(outcome, ending=Ending.NEVER, reason=reason)
        reason = f"the flow settles at a finite point, with ‖a‖₁ = {a.sum():.6g} (scaled)"
        return dataclasses.replace(outcome, ending=Ending.GIVEN_UP, reason=reason)
    if goals is None:  # what has been kept up to now, and the end
        goals = np.append(outcome.us[max(0, len(outcome.us) + 2 - request.points) :], request.end)
    elif request.until is not None:
        goals = np.append(goals[goals < request.end], request.end)
    row = np.minimum(np.searchsorted(outcome.us, goals), len(outcome.us) - 1)
    ys = jax.tree.map(lambda y: y[row], outcome.ys)
    return dataclasses.replace(
        outcome, ending=Ending.DONE, us=goals, ys=ys, reason=f"at rest since {since}"
    )


def _give_up(way: Way, u: float, y: Any, steps: int) -> Stop | None:
    """Stop where the target is out of reach, or tens of millions of steps away at the pace so far.

    Or where it is still not reached after so many: every march has an end.
    """
    request, event = way.request, way.request.event
    a = way.singular_values(y)
    norm = float(a.sum())
    if event is not None and event.uniform:
        if limit := way.never(y):
            return Stop(Ending.NEVER, limit)
        if norm > way.norm_limit:
            return Stop(
                Ending.GIVEN_UP,
                f"‖a‖₁ has reached {norm:.3g} (scaled) and max|(K−1)â − 1| is still "
                f"{deviation(a):.3g}; an explicit method needs of the order of ‖a‖₁ steps",
            )
    if reason := request.method.too_many(request, steps):
        return Stop(Ending.GIVEN_UP, reason)
    share = None
    if request.end is not None:
        share = u / request.end
    elif event is not None:
        share = event.share(norm, way.path(y), request.target_value)
    if share is None or steps < 10**4 or steps < _STEP_LIMIT * share:
        return None
    reason = f"the way there would take about {steps / share:.1e} steps of {request.method.name}"
    return Stop(Ending.GIVEN_UP, reason)
