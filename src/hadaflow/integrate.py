"""Adaptive stepping of a flow in log time, resumable and interruptible. Talks to diffrax.

diffrax supplies the Runge–Kutta steps and the step-size control; the loop around them is our own,
because it must do what `diffeqsolve` does not: return to Python every fraction of a second (so that
progress shows and Ctrl-C leaves the finished part), land exactly on the saved points instead of
interpolating, locate events by stepping again from the last state before them, and measure errors
relative to the singular values rather than to the integrated coordinates.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_SOLVERS: dict[str, Callable[[], Any]] = {
    "tsit5": diffrax.Tsit5,
    "dopri8": diffrax.Dopri8,
    "kvaerno5": lambda: diffrax.Kvaerno5(root_finder=diffrax.VeryChord(rtol=1e-9, atol=1e-9)),
}
METHODS = tuple(_SOLVERS)

_FIRST_STEP = 1e-3
_CHUNK = 4096  # steps between two returns to Python: hundredths of a second to tenths
_RECORD_LIMIT = 2**23  # numbers kept of the way to an event before a second pass is cheaper


class Flow(Protocol):
    """What is integrated: hashable, so that compiled code is shared between runs."""

    def velocity(self, u, y, args) -> Any: ...

    def error_scale(self, y, args) -> Any:
        """The size, like `y`, against which an error in `y` counts as relative."""
        ...

    def watch(self, y, args) -> Any:
        """A number that is positive until the target is reached."""
        ...

    def disarmed(self, args) -> Any:
        """`args` with a target that is never reached."""
        ...


class March(NamedTuple):
    """State of the loop between two returns to Python."""

    u: Any
    next_u: Any
    y: Any
    solver_state: Any
    controller_state: Any
    accepted: Any
    rejected: Any
    reached: Any  # the event lies between u and next_u
    stuck: Any


@dataclasses.dataclass
class Outcome:
    """How an integration ended: "done", "event", "gave up", "stuck" or "interrupted"."""

    ending: str
    us: np.ndarray
    ys: Any
    accepted: int = 0
    rejected: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Integration:
    """One integration from u = 0 on. Must be used in float64.

    `report(u)` is called after every chunk of steps; `give_up(u, y, steps)` may end the run by
    returning a reason.
    """

    flow: Flow
    method: str
    y0: Any
    args: Any
    tolerance: float
    report: Callable[[float], None]
    give_up: Callable[[float, Any, int], str]

    def to_goals(self, goals: np.ndarray) -> Outcome:
        """States at the increasing `goals`."""
        goals_, march = jnp.asarray(goals), self._begin()
        saved = jax.tree.map(lambda x: jnp.zeros((len(goals), *x.shape), x.dtype), self.y0)
        count, ending, reason = jnp.asarray(0), "", ""
        try:
            while not ending:
                march, saved, count = jax.block_until_ready(
                    _to_goals(self.flow, self.method, march, saved, count, self.args, goals_,
                              self.tolerance)
                )  # fmt: skip
                ending, reason = self._judge(march)
                ending = "done" if int(count) == len(goals) else ending
        except KeyboardInterrupt:
            ending = "interrupted"
        us, ys = np.array(goals[: int(count)]), _numpy(saved, int(count))
        if ending != "done" and float(march.u) > (us[-1] if len(us) else 0.0):
            us, ys = _append(us, ys, float(march.u), march.y)
        return Outcome(ending, us, ys, int(march.accepted), int(march.rejected), reason)

    def to_event(self, grid: Callable[[float], np.ndarray]) -> Outcome:
        """States on `grid(end)` where `end` is the u at which the event happens."""
        march, records, ending, reason = self._begin(), [], "", ""
        try:
            while not ending:
                march, us, ys, count = jax.block_until_ready(
                    _to_event(self.flow, self.method, march, self.args, self.tolerance)
                )
                records.append((np.array(us)[: int(count)], _numpy(ys, int(count))))
                if _size(records) > _RECORD_LIMIT:
                    records = [_thinned(records)]
                ending, reason = self._judge(march)
        except KeyboardInterrupt:
            ending = "interrupted"
        last = float(march.u), _numpy(march.y)
        if ending == "event":
            u, y = _locate(self.flow, self.method, march, self.args)
            last = float(u), _numpy(y)
        steps = int(march.accepted), int(march.rejected)
        us, ys = self._on_grid(records, last, grid, accepted=steps[0])
        return Outcome(ending, us, ys, *steps, reason)

    def _on_grid(self, records, last, grid, accepted: int):
        """Every step was recorded: one more from the record before each grid point leads to it."""
        end, y_end = last
        if end == 0:
            return np.zeros(0), jax.tree.map(lambda x: np.zeros((0, *x.shape)), self.y0)
        us = np.concatenate([[0.0], *(u for u, _ in records)])
        goals = grid(end)
        if len(us) <= accepted:  # thinned: go the known way once more
            disarmed = self.flow.disarmed(self.args)
            again = dataclasses.replace(self, args=disarmed, give_up=lambda *_: "").to_goals(goals)
            if again.ending != "done":  # interrupted
                return again.us, again.ys
            ys = again.ys
        else:
            first = jax.tree.map(lambda x: np.asarray(x)[None], self.y0)
            ys = jax.tree.map(lambda *x: np.concatenate(x), first, *(y for _, y in records))
            index = np.searchsorted(us, goals, side="right") - 1
            ys = jax.tree.map(lambda y: jnp.asarray(y[index]), ys)
            before = jnp.asarray(us[index])
            ys = _numpy(_steps(self.flow, self.method, before, ys, goals, self.args))
        # The located state itself ends the run: there the target is met to the last digit.
        for rows, row in zip(jax.tree.leaves(ys), jax.tree.leaves(y_end), strict=True):
            rows[-1] = row
        return goals, ys

    def _begin(self) -> March:
        return _begin(self.flow, self.method, self.y0, self.args, self.tolerance)

    def _judge(self, march: March) -> tuple[str, str]:
        u, steps = float(march.u), int(march.accepted) + int(march.rejected)
        self.report(u)
        if bool(march.reached):
            return "event", ""
        if bool(march.stuck):
            return "stuck", "the step size fell below the resolution of log time"
        reason = self.give_up(u, _numpy(march.y), steps)
        return ("gave up" if reason else ""), reason


def _numpy(tree, count: int | None = None):
    return jax.tree.map(lambda x: np.array(x)[:count] if count is not None else np.array(x), tree)


def _append(us, ys, u, y):
    more = jax.tree.map(lambda a, b: np.concatenate([a, np.asarray(b)[None]]), ys, y)
    return np.append(us, u), more


def _size(records) -> int:
    return sum(leaf.size for _, ys in records for leaf in jax.tree.leaves(ys))


def _thinned(records):
    us = np.concatenate([u for u, _ in records])[1::2]
    return us, jax.tree.map(lambda *x: np.concatenate(x)[1::2], *(y for _, y in records))


# --- compiled parts ------------------------------------------------------------------------------


def _parts(flow: Flow, method: str, tolerance):
    # An I controller: measured to need fewer steps here than the PI settings diffrax suggests.
    controller = diffrax.PIDController(rtol=0.0, atol=tolerance, norm=_largest)
    return diffrax.ODETerm(flow.velocity), _SOLVERS[method](), controller


def _largest(tree):
    return jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(tree)]))


def _where(condition, new, old):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


_compiled = functools.partial(jax.jit, static_argnames=("flow", "method"))


@_compiled
def _begin(flow, method, y0, args, tolerance) -> March:
    term, solver, controller = _parts(flow, method, tolerance)
    u0, u1 = jnp.zeros(()), jnp.asarray(_FIRST_STEP)
    order = solver.error_order(term)
    _, controller_state = controller.init(term, u0, u1, y0, u1, args, solver.func, order)
    zero, no = jnp.zeros((), dtype=int), jnp.asarray(False)
    solver_state = solver.init(term, u0, u1, y0, args)
    return March(u0, u1, y0, solver_state, controller_state, zero, zero, no, no)


def _step(flow, parts, m: March, args, goal) -> March:
    """One attempt at a step, not beyond `goal`."""
    term, solver, controller = parts
    target = jnp.minimum(m.next_u, goal)
    y, error, _, solver_state, _ = solver.step(
        term, m.u, target, m.y, args, m.solver_state, made_jump=False
    )
    # A step into overflow has no finite error; infinity makes the controller shrink it.
    error = jax.tree.map(lambda e, s: e / s, error, flow.error_scale(y, args))
    error = jax.tree.map(lambda e: jnp.where(jnp.isfinite(e), e, jnp.inf), error)
    order = solver.error_order(term)
    # The error is scaled already; m.y stands in for y, which may have overflowed (0·∞ is NaN).
    keep, u, next_u, _, controller_state, _ = controller.adapt_step_size(
        m.u, target, m.y, m.y, args, error, order, m.controller_state
    )
    # A step cut short to land on a goal says nothing about the step after it.
    clipped = keep & (target < m.next_u)
    next_u = jnp.where(clipped, jnp.maximum(next_u, u + (m.next_u - m.u)), next_u)
    # The step that reaches the event is not taken: `_locate` starts from the state before it.
    reached = keep & ~(flow.watch(y, args) > 0)
    taken = keep & ~reached
    y, solver_state = _where(taken, (y, solver_state), (m.y, m.solver_state))
    return March(
        u=jnp.where(reached, m.u, u),
        next_u=jnp.where(reached, target, next_u),
        y=y,
        solver_state=solver_state,
        controller_state=controller_state,
        accepted=m.accepted + jnp.where(taken, 1, 0),
        rejected=m.rejected + jnp.where(taken, 0, 1),
        reached=reached,
        stuck=next_u - u < 4 * jnp.finfo(u.dtype).eps * jnp.maximum(u, 1e-290),
    )


def _going(m: March, limit):
    return ~m.reached & ~m.stuck & (m.accepted + m.rejected < limit)


@_compiled
def _to_goals(flow, method, march, saved, count, args, goals, tolerance):
    """A chunk of steps: an inner loop from goal to goal, an outer one that saves."""
    parts = _parts(flow, method, tolerance)
    limit = march.accepted + march.rejected + _CHUNK

    def next_goal(carry):
        m, saved, count = carry
        goal = goals[count]
        m = lax.while_loop(
            lambda m: _going(m, limit) & (m.u < goal),
            lambda m: _step(flow, parts, m, args, goal),
            m,
        )
        landed = m.u >= goal
        row = jnp.where(landed, count, len(goals))  # out of range is dropped
        saved = jax.tree.map(lambda s, x: s.at[row].set(x, mode="drop"), saved, m.y)
        return m, saved, count + jnp.where(landed, 1, 0)

    return lax.while_loop(
        lambda c: _going(c[0], limit) & (c[2] < len(goals)), next_goal, (march, saved, count)
    )


@_compiled
def _to_event(flow, method, march, args, tolerance):
    """A chunk of steps towards the event, every accepted one recorded."""
    parts = _parts(flow, method, tolerance)
    limit = march.accepted + march.rejected + _CHUNK
    buffer = jax.tree.map(lambda x: jnp.zeros((_CHUNK, *x.shape), x.dtype), (march.u, march.y))

    def body(carry):
        m, records, count = carry
        new = _step(flow, parts, m, args, jnp.inf)
        records = jax.tree.map(
            lambda r, x: lax.dynamic_update_index_in_dim(r, x, count, 0), records, (new.u, new.y)
        )
        return new, records, count + (new.accepted - m.accepted)

    begin = (march, buffer, jnp.zeros((), dtype=int))
    march, (us, ys), count = lax.while_loop(lambda c: _going(c[0], limit), body, begin)
    return march, us, ys, count


@_compiled
def _steps(flow, method, u0, y0, u1, args):
    """Many single steps side by side, each from (u0, y0) to u1."""
    term, solver, _ = _parts(flow, method, 1.0)

    def one(u0, y0, u1):
        state = solver.init(term, u0, u1, y0, args)
        y1 = solver.step(term, u0, u1, y0, args, state, made_jump=False)[0]
        return _where(u1 > u0, y1, y0)

    return jax.vmap(one)(u0, y0, jnp.asarray(u1))


@_compiled
def _locate(flow, method, march, args):
    """Where the event happens, by stepping again from the state before it.

    Regula falsi with the Illinois rule on the length of the last step; the result lies on the far
    side, so that the target has been reached there.
    """
    term, solver, _ = _parts(flow, method, 1.0)
    u0, y0 = march.u, march.y

    def at(u):
        y = solver.step(term, u0, u, y0, args, march.solver_state, made_jump=False)[0]
        return y, flow.watch(y, args)

    def going(s):
        count, low, high, *_ = s
        return (count < 100) & (high - low > 2 * jnp.finfo(high.dtype).eps * high)

    def body(s):
        count, low, high, f_low, f_high, y_high, side = s
        guess = (low * f_high - high * f_low) / (f_high - f_low)
        inside = (guess > low) & (guess < high) & (count % 3 != 2)
        middle = jnp.where(inside, guess, low + (high - low) / 2)
        y, f = at(middle)
        reached = ~(f > 0)
        halve_low, halve_high = reached & (side == 1), ~reached & (side == -1)
        return (
            count + 1,
            jnp.where(reached, low, middle),
            jnp.where(reached, middle, high),
            jnp.where(reached, jnp.where(halve_low, f_low / 2, f_low), f),
            jnp.where(reached, f, jnp.where(halve_high, f_high / 2, f_high)),
            _where(reached, y, y_high),
            jnp.where(reached, 1, -1),
        )

    zero, (y1, f1) = jnp.asarray(0), at(march.next_u)
    begin = (zero, u0, march.next_u, flow.watch(y0, args), f1, y1, zero)
    _, _, high, _, _, y, _ = lax.while_loop(going, body, begin)
    return high, y
