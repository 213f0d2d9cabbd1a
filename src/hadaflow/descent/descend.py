r"""Descent by any optimizer, on the matrices as they are trained and as its exact reduced map.

From a Hadamard start, descent moves only the singular values: with $h_i = \eta\sqrt n\,g_i$,
$\alpha_i^+ = \alpha_i + h_i\beta_i$ and $\beta_i^+ = \beta_i + h_i\alpha_i$. So does every rule that
commutes with rotations; one that acts entry by entry is the same rule on one row of each matrix.
"""

import contextlib
import dataclasses
import math
import time
from typing import Any

import numpy as np

from hadaflow.base.checks import check_positive, check_whole_number
from hadaflow.base.errors import InputError, failures_told, shown
from hadaflow.base.interruption import held_back
from hadaflow.base.precision import double_precision
from hadaflow.base.progress import Report, check_progress
from hadaflow.descent.lifts import meant_rotation, reduced_places
from hadaflow.descent.loop import NOT_YET, Marched, Watched, march
from hadaflow.descent.optimizers import named
from hadaflow.descent.optimizers.optimizer import Optimizer, Own, is_transformation
from hadaflow.descent.rules import Rule, descent_of, rule_of
from hadaflow.descent.stability import check_momentum
from hadaflow.descent.systems import MatrixDescent, System, spectral_descent
from hadaflow.model.fitting import as_spectrum, check_parameters, fitted, result_units, with_phases
from hadaflow.model.layers import differences, layer_axes, layer_values
from hadaflow.model.starts import compress
from hadaflow.model.states import RAW, Parameters, Spectrum
from hadaflow.model.ufm import UFM, check_model
from hadaflow.results.batch import made_of, said_of
from hadaflow.results.trajectory import Trajectory
from hadaflow.runs.many import for_each_model
from hadaflow.runs.recording import add_angles
from hadaflow.runs.targets import Collapse, Norm, Target, parse_target


@for_each_model
def descend(
    model: UFM,
    start: Any,
    steps: int,
    optimizer: Any = None,
    *,
    learning_rate: Any = None,
    momentum: float = 0.0,
    until: Target | str | None = None,
    rotation: str | None = None,
    points: int = 100,
    units: str | None = None,
    progress: str | Report | None = "auto",
) -> Trajectory:
    r"""Train from `start` for so many steps, states kept at about `points` geometric iterations.

    Args:
        model: The problem; or a list of problems, or names with problems, for as many results.
        start: `Parameters` for training of the matrices, a spectrum, a list of singular values or the
            spelling of a start for its exact reduced map. A batch of starts runs side by side in one
            compiled loop.
        steps: Number of iterations.
        optimizer: A learning rate, for gradient descent; one of `hadaflow.optimizers`, or its spelling;
            or an optax transformation: any in the full view, which sees the tuple of matrices, and in
            the reduced one those that `hadaflow.optimizers.elementwise` or `spectral` take.
        learning_rate: In place of `optimizer`: step size $\eta$ of the matrices (raw), so that time is
            $\eta$ times the iteration. A list of them gives a batch.
        momentum: Heavy-ball momentum of gradient descent, from 0 (plain) to below 1.
        until: `Collapse` or `Norm`, or their spelling: each run stops at the first iteration that meets
            it, `reached_iteration`. In the full view every iteration then takes a singular value
            decomposition, and collapse is that of `collapse_deviation`, singular vectors included.
        rotation: Which matrices an elementwise optimizer is meant to move, in the reduced view:
            "identity" or "circulant", as `hadamard` makes them. Left out, the first of those that the
            model has; `settings` of the run say which.
        points: About how many iterations to keep, besides the start.
        units: "scaled" or "raw", of a spectrum without its own, and of everything returned.
        progress: As in `solve`.

    Returns:
        A `Trajectory` with `iterations`, and with a time if it is plain descent or heavy ball; status
        "reached", or what the target says, or "interrupted" with the finished part, or "failed" when the
        iterates overflow.

    Examples:
        >>> import hadaflow as hf
        >>> adam = hf.optimizers.adam(0.01)
        >>> run = hf.descend(hf.UFM(8), "figure1", 20_000, adam, until="collapse:0.1")
        >>> run.status, run.reached_iteration
        ('collapsed', 8270)
    """
    return follow(
        model, start, steps, optimizer, learning_rate=learning_rate, momentum=momentum, until=until,
        rotation=rotation, points=points, units=units, progress=progress,
    )[0]  # fmt: skip


def follow(
    model: UFM, start: Any, steps: int, optimizer: Any, *, learning_rate: Any = None,
    momentum: float = 0.0, until: Any = None, rotation: str | None = None, points: int = 100,
    units: str | None = None, progress: Any = None, levels: tuple[float, ...] = (),
) -> tuple[Trajectory, np.ndarray]:  # fmt: skip
    """`descend`, and the first iterations at which max|(K−1)â − 1| is below each of the `levels`."""
    check_model(model)
    steps = check_whole_number("steps", steps, most=10**15)
    points = check_whole_number("points", points, most=10**6)
    full = isinstance(start, Parameters)
    chosen = _chosen(optimizer, learning_rate, momentum)
    chosen.check(steps)
    _check_decay(model, chosen)
    check_progress(progress)
    target = _check_until(model, until, full)
    if full and rotation is not None:
        raise InputError(
            "Argument `rotation` says which matrices singular values stand for, but `start` has matrices "
            "of its own."
        )
    kept = np.unique(np.append(np.rint(np.geomspace(1, steps, points)).astype(int), steps))
    spelled = {"start": start} if isinstance(start, str) else {}
    if not full:
        start = as_spectrum(model, start)
        rotation = meant_rotation(model, chosen, rotation)
    units = result_units(start, units)
    began = time.perf_counter()
    batch = start.batch if full else fitted(model, start, units).a.shape[:-1]
    if len(batch) > 1:
        raise InputError(f"Argument `start` must be one start or a list, but has batch {batch}.")
    descent = chosen.descent
    settings = spelled | {
        "steps": steps,
        "optimizer": str(chosen),
        "learning_rate": _told_rate(chosen.learning_rate),
        "momentum": None if descent is None else float(descent[1]),
        "until": None if target is None else str(target),
        "rotation": rotation,
        "points": points,
        "seed": getattr(start, "seed", None),
        "units": units,
    }
    unit = 1.0 if units != RAW else model.singular_value_scale
    go = _Driver(kept, Watched.of(target, unit, full, levels), progress)
    if full:
        state = _for_rates(check_parameters(model, start), chosen)
        arrays, found = _descend_matrices(model, state, chosen, go)
        batch = state.batch
    else:
        state = _for_rates(fitted(model, start, units), chosen)
        arrays, found = _descend_spectrum(model, state, units, chosen, rotation, go)
        batch = state.a.shape[:-1]
    ended = _Ended.of(arrays, found, batch, target, chosen.rates is not None)
    diagnostics = {"wall_seconds": time.perf_counter() - began} | ended.said
    run = made_of(
        model=model,
        view="full" if full else "reduced",
        arrays=ended.arrays,
        log10_time=None
        if descent is None
        else _log10_time(model, ended.iterations, descent[0], units),
        iterations=ended.iterations,
        status=ended.status,
        message=ended.message,
        units=units,
        steps=int(np.max(ended.iterations)),
        settings=settings,
        diagnostics=diagnostics,
    )
    return run, found.reached[1:]


# --- what is asked for ---------------------------------------------------------------------------


def _chosen(optimizer: Any, learning_rate: Any, momentum: Any) -> Optimizer:
    """The optimizer: by its object, its spelling, or as the learning rate of descent."""
    momentum = check_momentum(momentum)
    if isinstance(optimizer, str):
        if momentum:
            raise InputError(f"Argument `momentum` goes with gradient descent alone: {_SPELLED}.")
        named.check_once(optimizer, learning_rate)
        return named.parse(optimizer, learning_rate)
    if isinstance(optimizer, Optimizer) or is_transformation(optimizer):
        for name, given in {"learning_rate": learning_rate, "momentum": momentum or None}.items():
            if given is not None:
                raise InputError(f"Argument `{name}` goes with gradient descent alone: {_SPELLED}.")
        return optimizer if isinstance(optimizer, Optimizer) else Own(optimizer)
    if (optimizer is None) == (learning_rate is None):
        raise InputError("Give one of `optimizer` and `learning_rate`, which is that of descent.")
    if callable(optimizer) and optimizer in named.FUNCTIONS.values():
        name = optimizer.__name__
        raise InputError(
            f"Argument `optimizer` must be an optimizer, such as {name}(0.01), but is the function "
            f"{name}."
        )
    rate = learning_rate if optimizer is None else optimizer
    if optimizer is not None and not callable(rate) and np.asarray(rate).dtype.kind not in "fiub":
        raise InputError(
            "Argument `optimizer` must be a learning rate, one of hadaflow.optimizers or an optax "
            f"transformation, but is {shown(rate)}."
        )
    if not callable(rate) and np.ndim(rate) == 0:
        rate = check_positive("learning_rate", rate)
    return named.sgd(rate, momentum or None)


_SPELLED = "other optimizers are given their own"


def _told_rate(rate: Any) -> Any:
    if callable(rate):
        return "schedule"
    return list(rate) if isinstance(rate, tuple) else rate


def _check_decay(model: UFM, optimizer: Optimizer) -> None:
    if model.penalized and optimizer.weight_decay:
        raise InputError(
            f"Argument `weight_decay` is given twice, {max(model.decays):g} by the model (part of the "
            f"loss) and {optimizer.weight_decay:g} by the optimizer (beside it): one of them must be 0."
        )


def _check_until(model: UFM, until: Any, full: bool) -> Target | None:
    if until is None:
        return None
    target = parse_target(until, (Collapse, Norm)) if isinstance(until, str) else until
    if not isinstance(target, Collapse | Norm):
        raise InputError(
            "Argument `until` must be Collapse or Norm, or spelled as collapse[:NUMBER] or norm:NUMBER, "
            f"in a descent, which ends after `steps` otherwise, but is {shown(until)}."
        )
    target.check(model, 1.0, full)
    return target


@dataclasses.dataclass(frozen=True)
class _Driver:
    """How the loop is run, whatever it moves."""

    kept: np.ndarray
    watched: Watched
    progress: Any

    def __call__(
        self, system: System, rule: Rule, x0: Any, runs: int | None, met: list[np.ndarray]
    ) -> Marched:
        """From `x0`, of which `met` says whether it meets each of the targets."""
        reached = [np.where(already, 0, NOT_YET) for already in met]
        shape = () if runs is None else (runs,)
        first = np.array(reached, dtype=np.int64).reshape(len(reached), *shape)
        return march(system, rule, x0, runs, self.kept, self.watched, first, self.progress)


def _for_rates(start: Any, optimizer: Optimizer) -> Any:
    """The start as often as there are learning rates, if it is one."""
    rates = optimizer.rates
    if rates is None:
        return start
    batch = start.batch if isinstance(start, Parameters) else start.a.shape[:-1]
    if batch == rates.shape:
        return start
    if batch not in ((), (1,)):
        raise InputError(
            f"Argument `learning_rate` must be one number or as many as there are starts ({batch[0]}), "
            f"but is {len(rates)} of them."
        )

    def repeated(values: np.ndarray) -> np.ndarray:
        single = values.reshape(values.shape[len(batch) :])
        return np.broadcast_to(single, (len(rates), *single.shape)).copy()

    if isinstance(start, Parameters):
        return dataclasses.replace(start, factors=tuple(map(repeated, start.factors)))
    angles = None if start.angles is None else repeated(start.angles)
    return dataclasses.replace(start, a=repeated(start.a), C=repeated(start.C), angles=angles)


# --- what is answered ----------------------------------------------------------------------------


def _log10_time(model: UFM, iterations: np.ndarray, rate: np.ndarray, units: str) -> np.ndarray:
    """Of plain descent and heavy ball, iterations times the learning rate."""
    with np.errstate(divide="ignore"):
        found = np.log10(iterations * (rate[:, None] if rate.ndim else rate))
    return found if units == RAW else found + math.log10(model.time_scale)


@dataclasses.dataclass(frozen=True)
class _Ended:
    """States up to where each run is usable, and how it ended."""

    arrays: dict[str, np.ndarray]
    iterations: np.ndarray
    status: str
    message: str
    said: dict[str, Any]

    @classmethod
    def of(
        cls, arrays: dict[str, np.ndarray], found: Marched, batch: tuple[int, ...],
        target: Target | None, own: bool,
    ) -> "_Ended":  # fmt: skip
        """`own`: has each run of a batch an end of its own? So it has with a target."""
        iterations = np.array(found.iterations)
        reached = found.reached[0] if target is not None else np.full(batch, NOT_YET)
        if batch and (own or target is not None):
            return cls._of_each(arrays, iterations, found, reached, target)
        usable = _usable(arrays, len(batch))
        arrays = {
            name: v[(slice(None),) * len(batch) + (slice(usable),)] for name, v in arrays.items()
        }
        whole = usable == len(iterations)
        iterations = iterations[:usable]
        at = int(np.ravel(reached)[0]) if np.size(reached) else NOT_YET
        said = {} if target is None else {"reached_iteration": at if whole and at >= 0 else None}
        status, message = _ending(int(iterations[-1]), found.interrupted, whole, target, at)
        return cls(arrays, iterations, status, message, said)

    @classmethod
    def _of_each(
        cls, arrays: dict[str, np.ndarray], iterations: np.ndarray, found: Marched,
        reached: np.ndarray, target: Target | None,
    ) -> "_Ended":  # fmt: skip
        """Runs that stop earlier repeat their last state."""
        each = [_usable({n: v[i] for n, v in arrays.items()}, 0) for i in range(len(reached))]
        arrays = {name: np.array(v[:, : max(each)]) for name, v in arrays.items()}
        times = np.tile(iterations[: max(each)], (len(reached), 1))
        endings = []
        for i, (at, usable) in enumerate(zip(reached, each, strict=True)):
            for values in arrays.values():
                values[i, usable:] = values[i, usable - 1]
            times[i, usable:] = times[i, usable - 1]
            if at >= 0:
                times[i] = np.minimum(times[i], at)
            whole = usable == len(iterations)
            endings.append(_ending(int(times[i, -1]), found.interrupted, whole, target, int(at)))
        statuses = [status for status, _ in endings]
        said: dict[str, Any] = {"statuses": statuses, "messages": [m for _, m in endings]}
        if target is not None:
            said["reached_iteration"] = [int(at) if at >= 0 else None for at in reached]
        return cls(arrays, times, *said_of(statuses, {"until": target}), said)


def _ending(
    last: int, interrupted: bool, finite: bool, target: Target | None, at: int
) -> tuple[str, str]:
    if not finite:
        return "failed", (
            f"After iteration {last} a value overflowed or a singular value turned negative: the "
            "steps overshoot. The part before is here."
        )
    if target is not None and at >= 0:
        return target.reached(f"iteration {at}" if at else "the start")
    if interrupted:
        return "interrupted", f"Interrupted after iteration {last}; the finished part is here."
    rest = "" if target is None else f" The target {target} was not reached."
    return "reached", f"All {last} iterations done.{rest}"


def _usable(arrays: dict[str, np.ndarray], time_axis: int) -> int:
    """How many of the kept states, from the first on, are of a size that no metric overflows at.

    log 0 = −∞ is a state too.
    """
    good = np.array(True)
    for values in arrays.values():
        rows = np.moveaxis((np.abs(values) < 1e30) | (values == -np.inf), time_axis, 0)
        good = good & rows.reshape(len(rows), -1).all(axis=1)
    return len(good) if good.all() else max(int(np.argmin(good)), 1)


# --- between states and the arrays of the loop ---------------------------------------------------


def _descend_matrices(
    model: UFM, start: Parameters, optimizer: Optimizer, go: _Driver
) -> tuple[dict[str, np.ndarray], Marched]:
    descent = optimizer.descent
    # Only what commutes with rotations of the features may be followed in a narrower model.
    unchanged = model, start, lambda small: small
    narrow, state, expand = unchanged if descent is None else compress(model, start)
    batch = start.batch
    # Runs of the batch on the last axis inside the loop, on the first ones outside.
    x0 = tuple(np.moveaxis(f.reshape(-1, *f.shape[-2:]), 0, -1) for f in state.factors)
    if descent is None:
        rule = rule_of(
            optimizer, of_values=False, in_logs=False, runs=optimizer.apart, shapes=()
        )  # fmt: skip
    else:
        rule = descent_of(*descent)
    system = MatrixDescent(narrow.full_view)
    with _told_of(optimizer):
        found = go(system, rule, x0, x0[0].shape[-1], go.watched.met_in(system, x0))
    states = found.states
    with held_back():
        times_first = [
            np.moveaxis(np.stack(f), -1, 1).reshape(len(states), *batch, *f[0].shape[:2])
            for f in zip(*states, strict=True)
        ]
        wide = expand(Parameters(tuple(times_first))).factors
        arrays = {}
        for name, values, first in zip(model.factor_names, wide, start.factors, strict=True):
            arrays[name] = np.array(np.moveaxis(values, 0, len(batch)))
            arrays[name][..., 0, :, :] = first  # not rotated there and back
        return arrays, found


def _told_of(optimizer: Optimizer) -> Any:
    """What code of a user raises is told in a sentence."""
    if not isinstance(optimizer, Own):
        return contextlib.nullcontext()
    return failures_told(lambda why: f"Argument `optimizer` fails at these matrices: {why}.")


def _descend_spectrum(
    model: UFM, start: Spectrum, units: str, optimizer: Optimizer, rotation: str | None, go: _Driver
) -> tuple[dict[str, np.ndarray], Marched]:
    descent, given = optimizer.descent, start
    places = reduced_places(model, start, optimizer, rotation)
    if places is None:
        start = with_phases(model, start)
        system = spectral_descent(model, start.angles)
        assert descent is not None
        rule = descent_of(*descent)
    else:
        system = places
        apart = start.a.ndim > 1 and optimizer.apart
        rule = rule_of(
            optimizer, of_values=not optimizer.on_diagonals, in_logs=True, runs=apart,
            shapes=model.factor_shapes,
        )  # fmt: skip
    scale, difference_scale = model.singular_value_scale, model.difference_scale
    raw_a, raw_C = start.a * scale, start.C * difference_scale
    # Modes first inside the loop, with the runs of the batch last; outside the other way round.
    layers = [f.T for f in layer_values(model.depth, raw_a, raw_C)]
    with double_precision():
        begun = system.begin(layers, None if start.angles is None else start.angles.T)
    runs = start.a.shape[0] if start.a.ndim > 1 else None
    found = go(system, rule, tuple(begun), runs, go.watched.met(model.nontrivial(start.a)))
    with np.errstate(over="ignore", invalid="ignore"):  # `_usable` cuts off what has overflowed
        with double_precision():
            states = [system.layers(state) for state in found.states]
        layers, angles = system.end([np.stack(f, axis=1) for f in zip(*states, strict=True)])
        by_layer = np.stack([f.T for f in layers])
        product, C = np.prod(by_layer, axis=0), differences(by_layer)
    first = (..., 0, *(slice(None),) * layer_axes(model.depth))
    product[..., 0, :], C[first] = raw_a, raw_C
    unit, unit_C = (1.0, 1.0) if units == RAW else (scale, difference_scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        arrays = {"log_a": np.log(product / unit), "C": C / unit_C}
    if angles is not None:
        turned = angles.T
        turned[..., 0, :] = start.phases
        add_angles(arrays, given, turned)
    return arrays, found
