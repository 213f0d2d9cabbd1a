"""What is hunted: a metric along a flow, and how starts climb to where its rate has the wrong sign."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.symmetries import canonical_order, generators
from hadaflow.base.compiling import Compiled, compiled
from hadaflow.base.errors import InputError, failures_told, shown
from hadaflow.base.progress import Pace
from hadaflow.lab.own_metrics import load_metric, metric_name
from hadaflow.metrics.measures import Metric, as_function, check_metric
from hadaflow.model.fitting import check_all_modes, fitted
from hadaflow.model.layers import balanced_like
from hadaflow.model.states import spectrum
from hadaflow.model.ufm import UFM, check_model

RISE, FALL = "rise", "fall"
_FALLING = ("margin",)  # conjectured to rise, so that a fall is the counterexample
_CLIMB, _REFINE = 150, 100  # steps
_WIDE = (-14.0, 7.0)  # bounds of log a in the search
READABLE = (math.log(0.02), math.log(20.0))
KEPT = 32  # states of a batch that are refined
OPTIONS = 40  # states that are compared at once
_MOST_MODES = 255
NOWHERE = -1e9  # stands for the log of a rate that has the right sign
_NOISE = 1e-10  # a rate below so much of its terms may be rounding


@dataclasses.dataclass(frozen=True, eq=False)
class Quarry:
    """A metric along the flow of a model, with the sign that would refute its monotonicity."""

    metric: Metric
    name: str
    model: UFM
    C: np.ndarray
    given_C: Any
    sign: int
    function: Callable[..., Any]
    _programs: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False)

    @classmethod
    def make(cls, metric: Metric, model: Any, C: Any, seek: str | None) -> "Quarry":
        check_model(model)
        if model.imbalance is not None:
            raise InputError("A hunt needs balanced classes, but `imbalance` is given.")
        check_all_modes(model)
        if model.modes > _MOST_MODES:
            raise InputError(
                f"A hunt goes to {_MOST_MODES} free modes, but the model has {model.modes}."
            )
        name = metric_name(metric)
        if isinstance(metric, str) and ":" in metric:
            metric = load_metric(metric)
        check_metric(metric, "reduced", model)
        if seek is None:
            seek = FALL if metric in _FALLING else RISE
        if seek not in (RISE, FALL):
            raise InputError(f'Argument `seek` must be "rise" or "fall", but is {shown(seek)}.')
        start = fitted(model, spectrum(np.ones(model.modes), C))
        given = None if not np.any(start.C) else _decimals(C)
        differences = start.C if given is not None else balanced_like(model.depth, start.a)
        sign = 1 if seek == RISE else -1
        return cls(metric, name, model, differences, given, sign, as_function(metric, model.view))

    def check_value(self) -> None:
        """Refuse a metric that fails, or is no number, at an ordinary state."""
        a = np.linspace(0.6, 1.4, self.model.modes)
        if self.model.loss_kind.settles:  # where the margins are small enough that it moves
            a = a / (4 * self.model.classes)
        with failures_told(lambda why: f"Metric `{self.name}` cannot be traced by JAX ({why})."):
            value, change = Compiled(self._change, {})(a)
        if not (np.isfinite(value) and np.isfinite(change)):
            shown = ", ".join(f"{v:g}" for v in a[:8])
            raise InputError(
                f"Metric `{self.name}` must be a finite number with a finite rate, but is "
                f"{float(value):g} with rate {float(change):g} at a = ({shown}"
                f"{', …' if len(a) > 8 else ''})."
            )

    def _rates(self, a):
        """Rates of a and C per unit of path length."""
        C = jnp.asarray(self.C)
        # Balanced layers have the mobility a^{2−2/N}; differences of zero would hide that.
        short = self.given_C is None and self.model.depth > 2 and not self.model.penalized
        shown = jnp.zeros(()) if short else C
        da, dC, *_ = self.model.view.velocity(a, shown, normalized=True)
        return da, jnp.zeros_like(C) if short else dC

    def _change(self, a):
        """The metric, and its rate per unit of path length."""
        return jax.jvp(self.function, (a, jnp.asarray(self.C)), self._rates(a))

    def wrong(self, z):
        """How far the rate per unit of log path length has the wrong sign."""
        a = jnp.exp(z)
        return self.sign * self._change(a)[1] * jnp.sum(a)

    def log_speed(self, z):
        """Log of |dm/dt| where its sign is wrong; elsewhere far below, and rising to where it is."""
        a = jnp.exp(z)
        change = self.sign * self._change(a)[1]
        positive = change > 0
        found = jnp.log(jnp.where(positive, change, 1.0)) + self._log_velocity(a)
        return jnp.where(positive, found, change * jnp.sum(a) + NOWHERE)

    def _log_velocity(self, a):
        """Log of |da/dt|, exact where the velocity itself underflows."""
        C = jnp.zeros(()) if self.given_C is None and self.model.depth > 2 else jnp.asarray(self.C)
        if self.model.penalized:
            moved = self.model.view.velocity(a, jnp.asarray(self.C))[0]
            return jnp.log(jnp.linalg.norm(self.model.view.all_values(moved)))
        along, _, slowness = self.model.view.force(a)
        moved = self.model.view.all_values(self.model.view.mobility(a, C) * along)
        return jnp.log(jnp.linalg.norm(moved)) - slowness[0]

    # --- climbing --------------------------------------------------------------------------------

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Starts of every kind, as log a: lognormal shapes and few levels, norms from 0.1 to 1000.

        Of a loss that settles, which moves nothing far out, one of the margins is from 0.3 to 3 instead.
        Of starts that symmetry maps to the same pattern of levels one is kept.
        """
        n, rows, seen = self.model.modes, [], set()
        symmetric = self.symmetric
        for attempt in range(20 * count):
            if len(rows) == count:
                break
            norm = 10 ** rng.uniform(-1, 3)
            if attempt % 3 == 0:
                shape = np.exp(rng.standard_normal(n) * 10 ** rng.uniform(-1.5, 0.7))
            else:
                levels = 10 ** rng.uniform(-3, 0, rng.integers(2, 5))
                chosen = rng.integers(0, len(levels), n)
                if symmetric:
                    chosen = chosen[self.order(levels[chosen])]
                    if (pattern := (len(levels), *chosen)) in seen and attempt < 10 * count:
                        continue
                    seen.add(pattern)
                shape = levels[chosen] * np.exp(0.03 * rng.standard_normal(n))
            size = shape.sum()
            if self.model.loss_kind.settles:
                margins = self.model.basis.dense_psi @ shape[-self.model.basis.modes :]
                norm, size = 10 ** ((np.log10(norm) - 1) / 4), rng.choice(margins)
            rows.append(np.log(shape / size * norm))
        return np.clip(np.array(rows), *_WIDE)

    @functools.cached_property
    def symmetric(self) -> bool:
        """Do the symmetries of the group keep the rate? With unequal differences they do not."""
        if self.given_C is not None or self.model.label_distribution is not None:
            return False
        if isinstance(self.metric, str):
            return True
        a = np.random.default_rng(0).uniform(0.5, 1.5, self.model.modes)
        turned = [a[self._behind(p)] for p in generators(self.model.basis)]
        values = [float(self.function(jnp.asarray(v), jnp.asarray(self.C))) for v in [a, *turned]]
        return bool(np.allclose(values, values[0], rtol=1e-9))

    def order(self, a: np.ndarray) -> np.ndarray:
        """The permutation to the standard one of the states that symmetry maps to each other."""
        if not self.symmetric:
            return np.arange(len(a))
        return self._behind(canonical_order(self.model.basis, a[-self.model.basis.modes :]))

    def _behind(self, order: np.ndarray) -> np.ndarray:
        """The constant mode, where there is one, stays in front."""
        front = self.model.modes - len(order)
        return np.concatenate([np.arange(front), front + order])

    def climb(
        self, z: np.ndarray, count: int | None = None, told: Callable[[float], None] | None = None
    ) -> np.ndarray:
        """Where the first `count` starts came to, those of the wrong sign, the best first.

        `told` is told on the way which share of the steps is done.
        """
        climber = self._climber("wrong", _CLIMB, *_WIDE)
        value, reached = climber(z, 0.3, told or (lambda share: None))
        value, reached = np.asarray(value)[:count], np.asarray(reached)[:count]
        order = np.argsort(-value)
        reached = reached[order[value[order] > 0]][:KEPT]
        return reached[self.beyond_rounding(reached)] if len(reached) else reached

    def refine(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rates and states after climbing dm/dt, readable ones if there are any, the fastest first."""
        found = []
        for low, high in (READABLE, _WIDE):
            inside = self._inside(z, low, high)
            if not len(inside):
                continue
            climber = self._climber("log_speed", _REFINE, low, high)
            value, reached = climber(inside, 0.1)
            value, reached = np.asarray(value), np.asarray(reached)
            order = np.argsort(-value)
            order = order[value[order] > NOWHERE / 2]
            found = value[order], reached[order]
            if len(order):
                break
        return found if len(found) else (np.zeros(0), np.zeros((0, self.model.modes)))

    def _inside(self, z: np.ndarray, low: float, high: float) -> np.ndarray:
        """The states moved into the box, each at the norm of its fastest wrong rate, if it keeps one."""
        log_norms = np.log(np.array([0.5, 1, 2, 4, 8, 16, 32, 64]))
        shift = log_norms - np.log(np.exp(z).sum(axis=1, keepdims=True))
        moved = np.concatenate([z[:, None, :], z[:, None, :] + shift[:, :, None]], axis=1)
        moved = np.clip(moved, low, high)
        speed = np.array([self.log_speeds(np.exp(rows)) for rows in moved])
        best = np.argmax(speed, axis=1)
        chosen = moved[np.arange(len(z)), best]
        inside = chosen[speed[np.arange(len(z)), best] > NOWHERE / 2]
        # A fixed number of rows, so that one compiled program serves.
        return inside[np.arange(KEPT) % len(inside)] if len(inside) else inside

    def beyond_rounding(self, z: np.ndarray) -> np.ndarray:
        """At which states is the wrong rate more than the rounding of the terms it is the sum of?"""
        if "terms" not in self._programs:

            def share(z):
                rates = self._log_rates(z)
                terms = jnp.sum(jnp.abs(jax.jacfwd(self._value)(z) * rates))
                # Where the derivatives themselves are rounding, it is that of the value.
                value = 1e-3 * jnp.abs(self._value(z)) * jnp.sum(jnp.abs(rates))
                return self.wrong(z) / jnp.maximum(terms + value, jnp.finfo(z.dtype).tiny)

            self._programs["terms"] = Compiled(jax.vmap(share), {})
        rows = z[np.arange(KEPT) % len(z)]
        return np.asarray(self._programs["terms"](rows))[: len(z)] > _NOISE

    def _value(self, z):
        return self.function(jnp.exp(z), jnp.asarray(self.C))

    def _log_rates(self, z):
        """Rates of log a, per unit of log path length."""
        a = jnp.exp(z)
        return self._rates(a)[0] / a * jnp.sum(a)

    def log_speeds(self, a: np.ndarray) -> np.ndarray:
        """`log_speed` at some states, padded so that one compiled program serves.

        Where nothing moves, as where a loss has settled, there is no rate, and none that is wrong.
        """
        rows = np.log(a)[np.arange(OPTIONS) % len(a)]
        if "log_speeds" not in self._programs:
            self._programs["log_speeds"] = Compiled(jax.vmap(self.log_speed), {})
        found = np.asarray(self._programs["log_speeds"](rows))[: len(a)]
        return np.where(np.isnan(found), NOWHERE, found)

    def _climber(self, name: str, steps: int, low: float, high: float) -> Callable[..., Any]:
        """Gradient ascent on `wrong` or `log_speed`, in a box of any size."""
        if name not in self._programs:
            self._programs[name] = _ascent(getattr(self, name), steps)
        return functools.partial(self._programs[name], (low, high))


def _decimals(C: Any) -> Any:
    """Numbers as text, floats as the decimals they print as: what is searched is what is certified."""
    if isinstance(C, str):
        return C
    if np.ndim(C) == 0:
        return repr(float(C))
    return [_decimals(v) for v in C]


def _ascent(function: Callable[..., Any], steps: int) -> Callable[..., Any]:
    """Gradient ascent (Adam on unit gradients), many starts at once; the best point each one met.

    Gradients by forward mode: the one-sided derivatives of maxima have no transpose.
    """
    value_and_gradient = jax.vmap(lambda z: (function(z), jax.jacfwd(function)(z)))

    def step(low, high, i, carry):
        z, mean, square, best, place, first = carry
        value, gradient = value_and_gradient(z)
        value = jnp.where(jnp.isnan(value), -jnp.inf, value)
        better = value > best
        best = jnp.where(better, value, best)
        place = jnp.where(better[:, None], z, place)
        gradient = jnp.nan_to_num(gradient)
        length = jnp.linalg.norm(gradient, axis=1, keepdims=True)
        gradient = gradient / (length + 1e-300)
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.95 * square + 0.05 * gradient**2
        size = first * 0.05 ** (i / steps)
        z = jnp.clip(z + size * mean / (jnp.sqrt(square) + 1e-3), low, high)
        return z, mean, square, best, place, first

    @compiled({})
    def some(begin, end, box, carry):
        return jax.lax.fori_loop(begin, end, functools.partial(step, *box), carry)

    pace = Pace(steps)

    def run(box, z, first, told=lambda share: None):
        zeros, at = np.zeros_like(z), 0
        carry = (z, zeros, zeros, np.full(z.shape[:1], -np.inf), z, np.float64(first))
        while at < steps:  # in parts, between which Ctrl-C is heard
            told(at / steps)
            count, began = min(pace.steps, steps - at), time.perf_counter()
            carry = jax.block_until_ready(some(at, at + count, box, carry))
            pace.took(count, time.perf_counter() - began)
            at += count
        return carry[3:5]

    return run
