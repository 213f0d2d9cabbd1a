"""Many small runs side by side, each with its own steps: explicit steps of the balanced flow.

The same steps that `integrate` takes for one run (Tsit5 in u = log(1 + t), the same step-size control,
events located by stepping again), written with the runs along the last axis, where a processor works on
several at once. A lane whose run has ended takes the next start from the queue after a few steps, so that
a slow run holds nobody up; two threads share the queue.
"""

import dataclasses
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hadaflow.base.precision import double_precision
from hadaflow.flow.integrate import FIRST_STEP
from hadaflow.flow.stages import Basis
from hadaflow.runs.targets import Target, Time

_LANES = 128
_STEPS = 64  # between two looks at which lanes have ended
_SAFETY, _SHRINK, _GROWTH = 0.9, 0.2, 10.0  # diffrax's, whose controller one run uses


def cores() -> int:
    """Threads that a batch runs on."""
    return min(os.cpu_count() or 1, 8)


class Lanes(NamedTuple):
    """States of the runs, which are the last axis; `y` is the path length above δ."""

    log_a0: Any
    u: Any
    next_u: Any
    y: Any
    slope: Any
    reached: Any
    accepted: Any
    rejected: Any


@dataclasses.dataclass(frozen=True)
class LaneFlow:
    """The reduced flow of several runs, balanced, depth 2, hard labels, temperature one."""

    basis: Basis
    target: type[Target]

    def _psi(self, v):
        # So small a matrix times many columns is faster than any transform of them.
        return jnp.asarray(np.pad(self.basis.dense_psi, ((1, 0), (1, 0)))) @ v

    def weights(self, shape):
        weights = self.basis.weights
        return None if weights is None else jnp.broadcast_to(jnp.asarray(weights)[:, None], shape)

    def singular_values(self, log_a0, y):
        """a, zero in the first row."""
        return _with_top(jnp.exp(log_a0 + y), 0.0)

    def velocity(self, u, y, log_a0):
        a = self.singular_values(log_a0, y)
        margins = _with_top(self._psi(a), jnp.inf)
        smallest = jnp.min(margins, axis=0)
        e = jnp.exp(smallest[None] - margins)
        weights = self.weights(e.shape)
        total = jnp.sum(e if weights is None else e * weights, axis=0)
        slowness = jax.nn.softplus(smallest - jnp.log(total))
        force = self._psi(e) / total[None] * jnp.exp(u - slowness)[None]
        moved = a * force * 1e120  # tiny squares must not underflow
        squares = moved**2 if weights is None else moved**2 * weights
        return _with_top(force, jnp.sqrt(jnp.sum(squares, axis=0))[None] * 1e-120)

    def error(self, error, y, log_a0):
        a = self.singular_values(log_a0, y)
        scale = _with_top(jnp.ones_like(y), jnp.maximum(y[:1] + jnp.sum(a, axis=0)[None], 1e-290))
        largest = jnp.max(jnp.abs(error / scale), axis=0)
        return jnp.where(jnp.isfinite(largest), largest, jnp.inf)

    def watch(self, u, y, log_a0, value):
        """Positive until the target is reached."""
        return self.target.left(LaneReading(self, u, y, log_a0), value)

    def step(self, u, target, y, slope, log_a0):
        """One Tsit5 step: (state, its slope, error estimate)."""
        tableau, h, slopes, new = diffrax.Tsit5.tableau, target - u, [slope], y
        for row, c in zip(tableau.a_lower, tableau.c, strict=True):
            new = y + h[None] * _combination(row, slopes)
            slopes.append(self.velocity(u + float(c) * h, new, log_a0))
        return new, slopes[-1], h[None] * _combination(tableau.b_error, slopes)


@dataclasses.dataclass(frozen=True)
class LaneReading:
    """Of all lanes, side by side."""

    flow: LaneFlow
    u: Any
    y: Any
    log_a0: Any

    def _values_and_total(self):
        a = self.flow.singular_values(self.log_a0, self.y)
        weights = self.flow.weights(a.shape)
        return a, jnp.sum(a if weights is None else a * weights, axis=0)

    @property
    def deviation(self) -> Any:
        a, total = self._values_and_total()
        mean = total / (self.flow.basis.classes - 1)
        return jnp.max(_with_top(jnp.abs(a / mean[None] - 1.0), 0.0), axis=0)

    @property
    def log_norm(self) -> Any:
        return jnp.log(self._values_and_total()[1])

    @property
    def log_path(self) -> Any:
        return jnp.log(self.y[0])

    @property
    def fastest(self) -> Any:
        raise NotImplementedError("this flow never settles")


def _combination(weights, slopes):
    return sum(float(w) * k for w, k in zip(weights, slopes, strict=True) if w != 0)


def _with_top(v, value):
    row = lax.broadcasted_iota(int, v.shape, 0)
    return jnp.where(row == 0, value, v)


@functools.partial(jax.jit, static_argnames=("flow",))
def _begin(flow: LaneFlow, log_a0) -> Lanes:
    lanes = log_a0.shape[1]
    zero, y, none = jnp.zeros(lanes), jnp.zeros_like(log_a0), jnp.zeros(lanes, dtype=bool)
    slope = flow.velocity(zero, y, log_a0)
    count = jnp.zeros(lanes, dtype=int)
    return Lanes(log_a0, zero, zero + FIRST_STEP, y, slope, none, count, count)


@functools.partial(jax.jit, static_argnames=("flow",), donate_argnums=(1,))
def _march(flow: LaneFlow, lanes: Lanes, tolerance, value) -> Lanes:
    def one(_, m: Lanes) -> Lanes:
        target = jnp.minimum(m.next_u, value) if flow.target is Time else m.next_u
        y, slope, error = flow.step(m.u, target, m.y, m.slope, m.log_a0)
        error = flow.error(error, y, m.log_a0) / tolerance
        going = ~m.reached
        keep = going & (error < 1)
        # The integral controller of diffrax.
        power = jnp.where(error > 0, error, 1e-30) ** -0.2
        low, high = jnp.where(keep, 1.0, _SHRINK), jnp.where(keep, _GROWTH, _SAFETY)
        factor = jnp.clip(_SAFETY * power, low, high)
        reached = keep & (flow.watch(target, y, m.log_a0, value) <= 0)
        taken = keep & ~reached
        h = (target - m.u) * factor
        u = jnp.where(taken, target, m.u)
        next_u = jnp.where(reached, target, u + h)
        return Lanes(
            m.log_a0,
            u,
            jnp.where(going, next_u, m.next_u),
            jnp.where(taken[None], y, m.y),
            jnp.where(taken[None], slope, m.slope),
            m.reached | reached,
            m.accepted + taken.astype(int),
            m.rejected + (going & ~taken).astype(int),
        )

    return lax.fori_loop(0, _STEPS, one, lanes)


@functools.partial(jax.jit, static_argnames=("flow",))
def _locate(flow: LaneFlow, m: Lanes, value):
    """`integrate._locate` for every lane: regula falsi with the Illinois rule on the last step."""

    def at(u):
        y = flow.step(m.u, u, m.y, m.slope, m.log_a0)[0]
        return y, flow.watch(u, y, m.log_a0, value)

    def apart(s):
        _, low, high, *_ = s
        return high - low > 2 * jnp.finfo(high.dtype).eps * high

    def body(s):
        count, low, high, f_low, f_high, y_high, side = s
        moving = apart(s)
        guess = (low * f_high - high * f_low) / (f_high - f_low)
        inside = (guess > low) & (guess < high) & (count % 3 != 2)
        middle = jnp.where(inside, guess, low + (high - low) / 2)
        y, f = at(middle)
        below, above = moving & (f <= 0), moving & (f > 0)
        halve_low, halve_high = below & (side == 1), above & (side == -1)
        return (
            count + 1,
            jnp.where(above, middle, low),
            jnp.where(below, middle, high),
            jnp.where(above, f, jnp.where(halve_low, f_low / 2, f_low)),
            jnp.where(below, f, jnp.where(halve_high, f_high / 2, f_high)),
            jnp.where(below[None], y, y_high),
            jnp.where(below, 1, jnp.where(above, -1, side)),
        )

    y1, f1 = at(m.next_u)
    f0 = flow.watch(m.u, m.y, m.log_a0, value)
    begin = (jnp.asarray(0), m.u, m.next_u, f0, f1, y1, jnp.zeros_like(m.accepted))
    found = lax.while_loop(lambda s: (s[0] < 100) & jnp.any(apart(s)), body, begin)
    return found[2], found[5]


class Ends(NamedTuple):
    """How the runs ended, runs first.

    `ok` is False where one has not reached its target, `ended` is False after an interruption.
    """

    ended: np.ndarray
    ok: np.ndarray
    u: np.ndarray
    log_a: np.ndarray
    path: np.ndarray
    accepted: np.ndarray
    rejected: np.ndarray


def run_lanes(
    flow: LaneFlow, a: np.ndarray, tolerance: float, value: float, norm_limit: float,
    report: Callable[[int], None], threads: int = 2,
) -> Ends:  # fmt: skip
    """Every start of `a` (runs, modes) to the target; after Ctrl-C, those that have ended by then."""
    runs, modes = a.shape
    log_a0 = np.zeros((modes + 1, runs))
    log_a0[1:] = np.log(a).T
    ends = Ends(
        np.zeros(runs, dtype=bool), np.zeros(runs, dtype=bool), np.zeros(runs),
        np.zeros((runs, modes)), np.zeros(runs), np.zeros(runs, dtype=int),
        np.zeros(runs, dtype=int),
    )  # fmt: skip
    queue = _Queue(runs)
    width = min(_LANES, -(-runs // threads))

    def work() -> None:
        with double_precision():
            _drive(flow, log_a0, tolerance, value, norm_limit, queue, width, ends)

    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(work) for _ in range(threads)]
        try:
            while not all(job.done() for job in jobs):
                report(int(ends.ended.sum()))
                wait(jobs, timeout=0.2)
        except KeyboardInterrupt:
            queue.stopped = True
        for job in jobs:
            job.result()
    return ends


class _Queue:
    """Numbers of the starts that no lane has taken yet."""

    def __init__(self, count: int) -> None:
        self._lock, self._next, self._count = threading.Lock(), 0, count
        self.stopped = False

    def take(self, wanted: int) -> np.ndarray:
        with self._lock:
            first = self._count if self.stopped else self._next
            self._next = min(self._count, first + wanted)
            return np.arange(first, self._next)


def _drive(
    flow, log_a0, tolerance, value, norm_limit, queue: _Queue, width: int, ends: Ends
) -> None:
    """One thread: lanes are filled from the queue until it is empty and all have ended."""
    owner = queue.take(width)
    if not len(owner):
        return
    spare = width - len(owner)
    owner = np.concatenate([owner, np.full(spare, -1)])
    lanes = _begin(flow, log_a0[:, np.maximum(owner, 0)])
    lanes = lanes._replace(reached=np.asarray(lanes.reached) | (owner < 0))
    while not queue.stopped:
        lanes = jax.tree.map(np.asarray, _march(flow, lanes, tolerance, value))
        norms = np.exp(lanes.log_a0[1:] + lanes.y[1:]).sum(axis=0)
        lost = ~lanes.reached & ((norms > norm_limit) | (lanes.next_u <= lanes.u))
        done = np.flatnonzero((owner >= 0) & (lanes.reached | lost))
        running = (owner >= 0) & ~lanes.reached & ~lost
        if len(done) < len(owner) // 8 and np.any(running):
            continue  # wait for a few more to end: refilling costs as much as some steps
        _finish(flow, lanes, lost, done, owner, value, ends)
        fresh = queue.take(len(done))
        owner[done] = -1
        owner[done[: len(fresh)]] = fresh
        if not np.any(owner >= 0):
            return
        lanes = _refill(flow, lanes, log_a0, owner, done[: len(fresh)], done[len(fresh) :])
        if len(fresh) < len(done) and np.sum(owner >= 0) <= len(owner) // 4 and len(owner) > 8:
            # Nothing is left to fill up with: the few that still run need fewer lanes.
            order = np.argsort(owner < 0, kind="stable")[: len(owner) // 4]
            owner, lanes = owner[order], jax.tree.map(lambda x, i=order: x[..., i], lanes)


def _finish(flow, lanes: Lanes, lost, done, owner, value, ends: Ends) -> None:
    """Locate the events of the lanes that are done; a fixed number at a time, to compile once."""
    block = min(256, len(owner))
    for first in range(0, len(done), block):
        part = done[first : first + block]
        index = np.concatenate([part, np.full(block - len(part), part[0])])
        some = jax.tree.map(lambda x, index=index: x[..., index], lanes)
        u, y = jax.tree.map(np.asarray, _locate(flow, some, value))
        runs, n = owner[part], len(part)
        ends.ended[runs] = True
        ends.ok[runs] = lanes.reached[part] & ~lost[part]
        ends.u[runs], ends.path[runs] = u[:n], y[0, :n]
        ends.log_a[runs] = (some.log_a0[1:, :n] + y[1:, :n]).T
        ends.accepted[runs], ends.rejected[runs] = lanes.accepted[part], lanes.rejected[part]


def _refill(flow, lanes: Lanes, log_a0, owner, fresh, idle) -> Lanes:
    """Lanes with new starts in `fresh`; `idle` ones rest."""
    lanes = jax.tree.map(np.array, lanes)
    if len(fresh):
        width = len(owner)
        index = np.zeros(width, dtype=int)
        index[: len(fresh)] = owner[fresh]
        begun = jax.tree.map(np.asarray, _begin(flow, log_a0[:, index]))
        for old, new in zip(lanes, begun, strict=True):
            old[..., fresh] = new[..., : len(fresh)]
    lanes.reached[idle] = True
    return lanes
