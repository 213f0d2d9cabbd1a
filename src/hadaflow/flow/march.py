"""The compiled parts of a march: steps, chunks of them, side steps and the search for events.

diffrax supplies the Runge–Kutta steps. The control of their length is written out here, since it measures
errors relative to the singular values rather than to the integrated coordinates, and works on one run and
on many side by side.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.algebra.padding import row
from hadaflow.base.compiling import SMALL, SOON, compiled
from hadaflow.base.lazy import diffrax
from hadaflow.flow.kinds.flow import Course, Flow

FIRST_STEP = 1e-3
CHUNK = 2048  # steps between two returns to Python: hundredths of a second, mostly
_SAFETY, _MOST_SHRUNK, _MOST_GROWN = 0.9, 0.2, 10.0  # of the length of a step
# Events are located to this, relatively: closer rounding decides, and takes as many steps again.
_LOCATED = 32 * float(np.finfo(float).eps)
_CHUNK_NUMBERS = 2**22  # kept of a chunk
_BLOCK = 8  # steps of K = 8 whose records stay below the kilobyte that XLA calls small


class March(NamedTuple):
    """State of the loop between two returns to Python."""

    u: Any
    next_u: Any
    y: Any
    solver_state: Any
    accepted: Any
    rejected: Any
    work: Any  # transforms, where a solver counts them: those of steps in vain too
    reached: Any  # the event lies between u and next_u
    stuck: Any


class Status(NamedTuple):
    """What Python needs to know of a `March`, in one transfer."""

    u: float
    accepted: int
    rejected: int
    reached: bool
    stuck: bool

    @classmethod
    def begin(cls) -> "Status":
        return cls(0.0, 0, 0, False, False)

    @classmethod
    def read(cls, packed) -> "Status":
        u, accepted, rejected, reached, stuck = np.asarray(packed).tolist()
        return cls(u, int(accepted), int(rejected), bool(reached), bool(stuck))


def _pack(m: March):
    parts = (m.u, m.accepted, m.rejected, m.reached, m.stuck)
    return jnp.stack([p.astype(m.u.dtype) for p in parts])


def stepper(flow: Flow, method: Any, brief: bool = False) -> tuple[Any, Any]:
    solver = method.brief_solver(flow) if brief else method.solver(flow)
    return diffrax.ODETerm(lambda u, y, _: flow.velocity(u, y)), solver


def _chunk_length(flow: Flow, y) -> int:
    """Steps between two returns to Python: fewer where they are long, or where many are too much."""
    most = flow.steps_per_chunk or CHUNK
    return max(1, min(most, _CHUNK_NUMBERS // numbers_of(y)))


def numbers_of(y) -> int:
    return sum(np.size(x) for x in jax.tree.leaves(y))


def where(condition, new, old):
    """For all arrays; a condition for each run is one for their last axis."""

    def choose(a, b):
        wide = condition[None] if jnp.ndim(a) > condition.ndim > 0 else condition
        return jnp.where(wide, a, b)

    return jax.tree.map(choose, new, old)


# For a structure, never for a number: the numbers of a course are its leaves.
_of_structure = {"static_argnames": ("structure", "method")}
_often = compiled(**_of_structure)


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """What code is compiled for, one object of each: told apart by its address, not field by field."""

    tree: Any


_structure = functools.lru_cache(maxsize=256)(Structure)


def taken_apart(whole: Course | Flow) -> tuple[Structure, list[Any]]:
    """The structure of a course, or of a flow alone, and its numbers."""
    numbers, tree = jax.tree.flatten(whole)
    return _structure(tree), numbers


def put_together(structure: Structure, numbers: list[Any]) -> Any:
    """The course or the flow again."""
    return jax.tree.unflatten(structure.tree, numbers)


def step(course: Course, method: Any, tolerance, m: March, end, going=None) -> March:
    """One attempt at a step, not beyond `end`; only of the runs that are `going`, if not all are."""
    term, solver = stepper(course.flow, method)
    target = jnp.minimum(m.next_u, end)
    longest = course.flow.longest_step(m.y)
    if longest is not None:
        target = jnp.minimum(target, m.u + longest)
    y, error, told, solver_state, result = solver.step(
        term, m.u, target, m.y, None, m.solver_state, made_jump=False
    )
    # A step into overflow, or with an unsolved implicit stage, is shrunk by an infinite error.
    error = _relative_error(course.flow, error, y, target, tolerance) / tolerance
    error = jnp.where(diffrax.is_okay(result), error, jnp.inf)
    good = error < 1
    keep = good if going is None else good & going
    # The step that reaches the event is not taken: `locate` starts from the state before it.
    reached = keep & (course.left(target, y) <= 0)
    taken = keep & ~reached
    rejected = ~taken if going is None else ~taken & going
    y, kept_state = where(taken, (y, solver_state), (m.y, m.solver_state))
    u = jnp.where(taken, target, m.u)
    next_u = u + (target - m.u) * _stretch(error, good, solver.error_order(term))
    # A step that ends where it is told to says nothing against the longer one that was wanted.
    next_u = jnp.where(good & (end < m.next_u), jnp.maximum(next_u, m.next_u), next_u)
    stuck = ~good & (next_u - u < 4 * jnp.finfo(u.dtype).eps * jnp.maximum(u, 1e-290))
    next_u = jnp.where(reached, target, next_u)
    if going is not None:
        next_u = jnp.where(going, next_u, m.next_u)
        reached, stuck = m.reached | reached, jnp.where(going, stuck, m.stuck)
    return March(
        u=u,
        next_u=next_u,
        y=y,
        solver_state=kept_state,
        accepted=m.accepted + jnp.where(taken, 1, 0),
        rejected=m.rejected + jnp.where(rejected, 1, 0),
        work=m.work + told.get("work", 0),
        reached=reached,
        stuck=stuck,
    )


def _stretch(error, good, order):
    """The next step over this one, whose error is told in units of the tolerance.

    An integral controller, which needs fewer steps here than diffrax's other settings. After a good
    step it is never shorter.
    """
    wanted = _SAFETY * jnp.where(error > 0, error, 1e-30) ** (-1 / order)
    return jnp.clip(
        wanted, jnp.where(good, 1.0, _MOST_SHRUNK), jnp.where(good, _MOST_GROWN, _SAFETY)
    )


def _relative_error(flow: Flow, error, y, u, tolerance):
    """The largest error of a step against its scale; what is less than rounding counts for nothing.

    In log time the rates of a flow that settles are differences of ever larger terms. What rounding
    leaves of them is no error: such a flow forgets it.
    """
    scale, least = flow.error_scale(y), flow.rounding(u)
    if least is not None:
        scale = jax.tree.map(lambda s: jnp.maximum(s, row(least / tolerance)), scale)
    largest = flow.largest(jax.tree.map(lambda e, s: e / s, error, scale))
    return jnp.where(jnp.isfinite(largest), largest, jnp.inf)


def _chunk(course: Course, method: Any, tolerance, march, end, most):
    """Steps towards the event or `end`; records of all states passed, the first included.

    Unused rows of the records lie at u = ∞, so that they are never looked up. Steps are taken in
    blocks with a small record of their own: XLA runs a loop much faster when all it touches is small.
    """
    length = _chunk_length(course.flow, march.y)
    block_length = min(_BLOCK, length)
    limit = march.accepted + march.rejected + jnp.minimum(length, most)

    def buffer(rows):
        return jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), (march.u, march.y))

    def going(m):
        return ~m.reached & ~m.stuck & (m.u < end) & (m.accepted + m.rejected < limit)

    def one_step(carry):
        m, block, count = carry
        new = step(course, method, tolerance, m, end)
        # A step that is not taken is written too, where the next one will write again.
        block = _write(block, (new.u, new.y), count)
        return new, block, count + (new.accepted - m.accepted)

    def one_block(carry):
        m, records, count = carry
        m, block, taken = lax.while_loop(
            lambda c: going(c[0]) & (c[2] < block_length),
            one_step,
            (m, buffer(block_length), jnp.asarray(0)),
        )
        records = jax.tree.map(
            lambda r, b: lax.dynamic_update_slice_in_dim(r, b, count, 0), records, block
        )
        return m, records, count + taken

    records = _write(buffer(length + 1 + block_length), (march.u, march.y), 0)
    march, (us, ys), count = lax.while_loop(
        lambda c: going(c[0]), one_block, (march, records, jnp.asarray(1))
    )
    return march, (jnp.where(jnp.arange(len(us)) < count, us, jnp.inf), ys)


def _write(records, row, index):
    return jax.tree.map(lambda r, x: lax.dynamic_update_index_in_dim(r, x, index, 0), records, row)


def _steps_aside(structure, method, numbers, u0, y0, u1):
    """Many single steps side by side, each from (u0, y0) to u1."""
    flow = put_together(structure, numbers)
    term, solver = stepper(flow, method)

    def one(u0, y0, u1):
        state = solver.init(term, u0, u1, y0, None)
        y1, _, _, _, result = solver.step(term, u0, u1, y0, None, state, made_jump=False)
        # Part of a step that was solved is solved too, unless nothing but rounding moves: then the
        # state before it serves as well.
        return where((u1 > u0) & diffrax.is_okay(result), y1, y0)

    return jax.vmap(one)(u0, y0, u1)


side_steps_of_few_numbers = compiled(SMALL, **_of_structure)(_steps_aside)
side_steps = _often(_steps_aside)


@compiled(SOON, **_of_structure)
def first_march(structure, method, numbers, y0) -> March:
    """The state of the loop before its first step; apart, so that the steps are compiled once."""
    flow = put_together(structure, numbers)
    term, solver = stepper(flow, method)
    runs = flow.runs(y0)
    u0, u1 = jnp.zeros(runs), jnp.full(runs, FIRST_STEP, float)
    zero, no = jnp.zeros(runs, dtype=int), jnp.zeros(runs, dtype=bool)
    return March(u0, u1, y0, solver.init(term, u0, u1, y0, None), zero, zero, zero, no, no)


def _chunk_of_steps(structure, method, numbers, march, tolerance, end, most):
    """At most so many steps towards the event or `end`, and the records of them."""
    course: Course = put_together(structure, numbers)
    march, records = _chunk(course, method, tolerance, march, end, most)
    return march, records, _pack(march)


chunk_of_steps = _often(_chunk_of_steps)
chunk_of_few_numbers = compiled(SMALL, **_of_structure)(_chunk_of_steps)


@_often
def probe(structure, method, numbers, march, tolerance, u):
    """A step from the march to `u`: (state, what is watched there, error over the tolerance, work)."""
    course: Course = put_together(structure, numbers)
    term, solver = stepper(course.flow, method)
    y, error, told, _, _ = solver.step(
        term, march.u, u, march.y, None, march.solver_state, made_jump=False
    )
    error = _relative_error(course.flow, error, y, u, tolerance) / tolerance
    return y, course.left(u, y), error, told.get("work", 0)


def _locate(structure, method, numbers, march, brief=False):
    """Where the event happens, by stepping again from the state before it; of every run.

    Regula falsi with the Illinois rule on the length of the last step; the result lies on the far
    side, so that the target has been reached there. Also the state, and its sensitivity: how much more
    u errs, relatively, than what is watched.
    """
    course: Course = put_together(structure, numbers)
    term, solver = stepper(course.flow, method, brief)
    u0, y0 = march.u, march.y

    def at(u):
        y = solver.step(term, u0, u, y0, None, march.solver_state, made_jump=False)[0]
        return y, course.left(u, y)

    def apart(s):
        _, low, high, *_ = s
        return high - low > _LOCATED * high

    def body(s):
        count, low, high, f_low, f_high, y_high, side, slope = s
        first = count == 0  # the whole step, where the event has been seen
        guess = (low * f_high - high * f_low) / (f_high - f_low)
        inside = (guess > low) & (guess < high) & (count % 3 != 0)
        middle = jnp.where(inside, guess, low + (high - low) / 2)
        middle = jnp.where(first, high, middle)
        y, f = at(middle)
        moving = apart(s)
        reached, ahead = moving & ((f <= 0) | first), moving & ~((f <= 0) | first)
        f_low = jnp.where(reached & (side == 1), f_low / 2, f_low)
        f_high = jnp.where(ahead & (side == -1), f_high / 2, f_high)
        side = jnp.where(reached, 1, jnp.where(ahead, -1, side))
        return (
            count + 1,
            jnp.where(ahead, middle, low),
            jnp.where(reached, middle, high),
            jnp.where(ahead, f, f_low),
            jnp.where(reached, f, f_high),
            where(reached, y, y_high),
            jnp.where(first, 0, side),
            jnp.where(first, (f_low - f) / (high - low), slope),
        )

    zero, none = jnp.asarray(0), jnp.zeros_like(u0)
    begin = (
        zero, u0, march.next_u, course.left(u0, y0), none, y0, jnp.zeros_like(march.accepted), none,
    )  # fmt: skip
    found = lax.while_loop(lambda s: (s[0] < 100) & jnp.any(apart(s)), body, begin)
    return found[2], found[5], 1 / (found[7] * found[2])


locate = _often(_locate)


@compiled(SMALL, **_of_structure)
def locate_one(structure, method, numbers, march):
    """Of one run, once."""
    return _locate(structure, method, numbers, march, brief=True)
