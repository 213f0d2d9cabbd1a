"""Runge–Kutta steps in log time: explicit ones, and implicit ones where the flow settles."""

import math
from typing import Any, ClassVar

import numpy as np

from hadaflow.base.lazy import diffrax, optimistix
from hadaflow.base.memory import require_memory
from hadaflow.base.precision import double_precision
from hadaflow.flow.following import (
    NORM_LIMIT,
    FullWay,
    ReducedWay,
    follow,
    is_compiled,
    not_begun,
    recorded,
)
from hadaflow.flow.methods.dual import PATIENCE, knows, log_norm_ahead
from hadaflow.flow.steppers import Tsit5Steps
from hadaflow.model.states import Parameters
from hadaflow.model.ufm import UFM
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.methods import Method
from hadaflow.runs.outcomes import Ending
from hadaflow.runs.requests import Request

_LARGEST_STIFF = 1024  # numbers in a state; the implicit method solves dense systems
_MOST_STEPS = 2e7  # minutes
_MOST_IMPLICIT_STEPS = 20_000  # hundreds are usual
_STEPS_AT_KINKS, _STEPS_PER_KINK = (
    20_000,
    50,
)  # at most: what slides along a kink takes no end of them
_MOST_STEPS_AT_REST = 10**6  # of an explicit method where the implicit one is at home
# What the promised error is divided by for one step, as measured on thousands of random models.
_SAFETY, _SAFETY_OF_COLLAPSE, _SAFETY_OF_SUMS, _SAFETY_OF_LONG_STEPS = 6.0, 15.0, 25.0, 100.0
# Looser local errors would keep the direction from settling at all.
_LOOSEST = 1e-5
_FINEST = 1e-15
_MOST_SENSITIVE = 4.0  # the error of what is watched is usually a tenth of the promise
# Measured on two cores of a server; other machines differ by a factor of a few.
_EXPLICIT = 1e-9  # seconds of an explicit stage, times K log2 K
_IMPLICIT, _IMPLICIT_PER_NUMBER = 5e-5, 2e-9  # of an implicit step, and times the cube of the state
_EXPLICIT_ARRAYS, _FULL_ARRAYS = 40, 30  # working copies of a state


class RungeKutta(Method):
    """Steps of the march, of any flow to any target."""

    dense: ClassVar[bool] = False  # does a step solve a dense system?

    def solver(self, flow: Any) -> Any:
        """The diffrax solver of its steps."""
        raise NotImplementedError

    def brief_solver(self, flow: Any) -> Any:
        """The same for what is called once in a run: compiled sooner, if it can be."""
        return self.solver(flow)

    def local_tolerance(self, request: Request) -> float:
        """The flow of the paper contracts errors, which add up to less than the local tolerance.

        The time and the norm of collapse amplify them by about K. Elsewhere they add up: log a of a mode
        that dies, or that depth makes grow ever faster, forgets none of them.
        """
        return min(request.rtol / self._safety(request), _LOOSEST)

    def _safety(self, request: Request) -> float:
        model, safety = request.model, _SAFETY
        if request.event is not None and request.event.uniform:
            safety = max(_SAFETY_OF_COLLAPSE, 0.8 * model.classes)
        if not request.full and (model.depth != 2 or model.settles or model.penalized):
            safety = max(safety, _SAFETY_OF_SUMS)
        return safety

    def sharpened(self, request: Request, sensitivity: float) -> float | None:
        """The tolerance with which to go again, where the time of the event is ill-conditioned.

        What hardly changes reaches a value at a time that small errors shift by much.
        """
        if sensitivity <= _MOST_SENSITIVE or request.event is None:
            return None
        if request.event.uniform:  # whose safety allows for it
            return None
        return max(self.local_tolerance(request) / sensitivity, _FINEST)

    def too_many(self, request: Request, steps: int) -> str:
        """What to say after so many steps, if they are too many; else nothing."""
        at_rest = request.model.penalized or request.model.settles
        kinked = request.model.loss_kind.kinked
        most = _MOST_STEPS_AT_REST if at_rest else _MOST_STEPS
        if kinked:
            most = min(most, _STEPS_AT_KINKS + _STEPS_PER_KINK * request.model.classes**2)
        if steps <= most:
            return ""
        told = f"{steps} steps of {self.name} were taken"
        if kinked:
            return (
                f"{told}: the flow slides along the kink of loss = {request.model.loss}, where it has no "
                "velocity; `squared_hinge` has none, and `descend` steps over it"
            )
        if not at_rest:
            return told
        return (
            told
            + ", which log time makes ever shorter for a flow that settles: method auto has longer ones"
        )

    def run(self, request: Request, start: Any) -> Trajectory:
        if isinstance(start, Parameters):
            way = FullWay(request, start)
            with double_precision():
                early = way.decided()
            return follow(way) if early is None else recorded(
                way, not_begun(way.flow, Ending.EVENT), early
            )  # fmt: skip
        impatient = knows(request.model, start) and not request.forced
        return follow(ReducedWay(request, start, PATIENCE if impatient else NORM_LIMIT))

    def is_compiled(self, request: Request, start: Any) -> bool:
        full = isinstance(start, Parameters)
        return is_compiled(FullWay(request, start) if full else ReducedWay(request, start))

    def memory(self, request: Request, start: Any) -> float:
        model, points = request.model, request.saved_points
        if isinstance(start, Parameters):
            size = sum(f.size for f in start.factors)
            return require_memory(
                size * (points + _FULL_ARRAYS) + model.classes**2 * _FULL_ARRAYS,
                f"A full run with {model.classes} classes",
                "the reduced view needs K numbers, not K² (`spectrum`, `matched_spectrum`)",
            )
        state, runs = state_size(model), start.a.size // model.modes
        return require_memory(
            8.0 * runs * points * (state + 3) + _EXPLICIT_ARRAYS * state + 2**22,
            f"A run with {model.classes} classes and {points} saved points",
            "ask for fewer `points`",
        )

    def seconds(self, request: Request, start: Any) -> float:
        if isinstance(start, Parameters):
            return math.nan
        K = request.model.classes
        return _steps(request, start) * 6 * (2e-7 + _EXPLICIT * K * math.log2(K))


def state_size(model: UFM) -> int:
    """Numbers of a reduced state that are integrated, nearly."""
    return model.modes * (model.depth if model.penalized or model.has_constant_mode else 1)


def _steps(request: Request, start: Any) -> float:
    """Roughly, of an explicit march."""
    far = 5.0
    if not request.model.settles:
        far = float(np.max(log_norm_ahead(request, np.atleast_2d(start.a))))
    return 100 + 0.5 * math.exp(min(far, 30.0)) + request.saved_points


class Tsit5(RungeKutta):
    """What is taken where nothing else is better."""

    name: ClassVar[str] = "tsit5"
    compilation: ClassVar[float] = 2.0

    def suits(self, request: Request, start: Any) -> str | None:
        if isinstance(start, Parameters):
            return "explicit: the full view has no other method"
        size = state_size(request.model)
        if size > _LARGEST_STIFF and _stiff(request.model):
            return f"explicit: a dense Jacobian of {size} numbers squared is too large"
        if knows(request.model, start):
            far = float(log_norm_ahead(request, start.a))
            return f"explicit: the way to ‖a‖₁ ≈ e^{far:.3g} is short"
        return "explicit: the way is short"

    def solver(self, flow: Any) -> Any:
        return Tsit5Steps()

    def brief_solver(self, flow: Any) -> Any:
        return Tsit5Steps(brief=True)


class Dopri8(RungeKutta):
    name: ClassVar[str] = "dopri8"
    compilation: ClassVar[float] = 1.5

    def solver(self, flow: Any) -> Any:
        return diffrax.Dopri8()


class Kvaerno5(RungeKutta):
    """Of the long steps each makes nearly the error it may."""

    name: ClassVar[str] = "kvaerno5"
    compilation: ClassVar[float] = 4.0
    dense: ClassVar[bool] = True

    def suits(self, request: Request, start: Any) -> str | None:
        """In log time a flow that settles is stiff: its rate, of order one in t, grows like t."""
        if isinstance(start, Parameters) or state_size(request.model) > _LARGEST_STIFF:
            return None
        if not _stiff(request.model):
            return None
        return "implicit, dense: a flow that settles is stiff in log time"

    def solver(self, flow: Any) -> Any:
        # Newton with a new Jacobian at each iteration: where stages are stiff, chord iterations that
        # keep an old one fail so often that they need a thousand times as many steps.
        return diffrax.Kvaerno5(root_finder=optimistix.Newton(rtol=1e-8, atol=1e-8))

    def _safety(self, request: Request) -> float:
        return _SAFETY_OF_LONG_STEPS

    def too_many(self, request: Request, steps: int) -> str:
        if steps <= _MOST_IMPLICIT_STEPS:
            return ""
        return (
            "rounding, which log time magnifies, leaves the implicit method no steps of ordinary size "
            f"({steps} were taken): ask for an earlier time or a looser tolerance"
        )

    def memory(self, request: Request, start: Any) -> float:
        if isinstance(start, Parameters):
            return super().memory(request, start)
        state, runs = state_size(request.model), start.a.size // request.model.modes
        return require_memory(
            6.0 * state**2 + 8.0 * runs * request.saved_points * (state + 3),
            f"The dense Jacobian of {state} numbers that method {self.name!r} needs",
            'use method "tsit5", or "dual" where the model allows it',
        )

    def seconds(self, request: Request, start: Any) -> float:
        if isinstance(start, Parameters):
            return math.nan
        each = _IMPLICIT + _IMPLICIT_PER_NUMBER * state_size(request.model) ** 3
        return _steps(request, start) * each


def _stiff(model: UFM) -> bool:
    """In log time; what stops at a kink does not come near its end ever more slowly."""
    settles = model.soft_labels or model.penalized or model.settles
    return settles and not model.loss_kind.kinked
