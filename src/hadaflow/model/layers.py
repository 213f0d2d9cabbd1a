r"""Singular values of the layers of one mode: product $a$, conserved differences $C$, mobility.

A mode of $N$ layers has the singular values $\sigma_1, \dots, \sigma_N$, $a = \prod_l\sigma_l$. The flow
moves all squares $\sigma_l^2$ alike, so their differences stay: $C_l = \sigma_1^2 - \sigma_{l+1}^2$.

Arrays have the modes on the last axis. $C$ has the shape of $a$ at depth 2, and one axis of length
$N - 1$ before the modes for deeper models. Everything works on NumPy and on JAX arrays.
"""

import functools
import math
from typing import Any

import numpy as np

from hadaflow.base.checks import as_number
from hadaflow.base.errors import InputError, shown
from hadaflow.base.lazy import jnp, lax

# Newton's method on a convex, increasing function, from above: far more than it needs.
_NEWTON_STEPS = 40


def array_module(*arrays: Any) -> Any:
    return np if all(isinstance(x, np.ndarray | float | int | np.floating) for x in arrays) else jnp


def balanced_like(depth: int, a: np.ndarray) -> np.ndarray:
    """Differences of zero for singular values `a`."""
    return np.zeros((*a.shape[:-1], depth - 1, a.shape[-1]) if depth > 2 else a.shape)


def check_decays(value: Any, depth: int) -> tuple[float, ...]:
    """The penalties of all layers as numbers that are not negative."""
    several = "" if depth == 1 else f", or {depth} of them, one for each layer"
    allowed = f"a number that is not negative{several}"
    given = value if isinstance(value, tuple | list) else (value,) * depth
    numbers = tuple(as_number("weight_decay", v, allowed) for v in given)
    if len(numbers) != depth or not all(0 <= v < math.inf for v in numbers):
        raise InputError(f"Argument `weight_decay` must be {allowed}, but is {shown(value)}.")
    return numbers


def layer_axes(depth: int) -> int:
    """How many axes an array of differences has behind the batch and time axes."""
    return 2 if depth > 2 else 1


def layer_values(depth: int, a, C) -> Any:
    r"""Singular values of the layers with product `a` and differences `C`, layers on the first axis.

    The smallest square $v$ solves $\prod_l(v + d_l) = a^2$, $d_l \ge 0$: only positive terms, so that
    nothing cancels.
    """
    xp = array_module(a, C)
    if depth == 1:
        return a[None]
    if depth == 2:
        larger = xp.sqrt((xp.hypot(C, 2 * a) + xp.abs(C)) / 2)
        smaller = xp.where(larger > 0, a / xp.where(larger > 0, larger, 1.0), 0.0)
        return xp.stack([xp.where(C >= 0, larger, smaller), xp.where(C >= 0, smaller, larger)])
    v, offsets = smallest_square(depth, a, C)
    return xp.sqrt(v[None] + offsets)


def smallest_square(depth: int, a, C) -> tuple[Any, Any]:
    """The smallest square v of the layers, and how far each square lies above it, layers first."""
    xp = array_module(a, C)
    below_first = xp.concatenate([xp.zeros_like(C[..., :1, :]), C], axis=-2)
    offsets = xp.moveaxis(xp.max(below_first, axis=-2, keepdims=True) - below_first, -2, 0)
    positive = a > 0
    goal = 2 * xp.log(xp.where(positive, a, 1.0))

    def improved(_, q):
        v = xp.exp(q)[None]
        total = xp.sum(xp.log(v + offsets), axis=0) - goal
        return q - total / xp.sum(v / (v + offsets), axis=0)

    if xp is np:
        q = functools.reduce(lambda q, step: improved(step, q), range(_NEWTON_STEPS), goal / depth)
    else:
        q = lax.fori_loop(0, _NEWTON_STEPS, improved, goal / depth)
    return xp.where(positive, xp.exp(q), 0.0), offsets


def differences(layers) -> Any:
    """Differences C of layer singular values, layers on the first axis."""
    found = differences_by_layer(layers)
    return array_module(found).moveaxis(found, 0, -2) if len(layers) > 2 else found


def differences_by_layer(layers) -> Any:
    """`differences` with the layers first, whatever the other axes are."""
    if len(layers) == 1:
        return array_module(layers).zeros_like(layers[0])
    gaps = (layers[:1] - layers[1:]) * (layers[:1] + layers[1:])
    return gaps[0] if len(layers) == 2 else gaps


def others(values) -> list[Any]:
    """For every layer the product of all other layers: no division, so zeros may be among them."""
    if len(values) == 2:
        return [values[1], values[0]]
    xp = array_module(values[0])
    before, after = [xp.ones_like(values[0])], [xp.ones_like(values[0])]
    for k in range(len(values) - 1):
        before.append(before[-1] * values[k])
        after.append(after[-1] * values[-1 - k])
    return [b * c for b, c in zip(before, after[::-1], strict=True)]


def mobility(depth: int, a, C) -> Any:
    r"""$w$ in $\dot a = w\,g$, scaled units: $\frac1N\sum_l\prod_{m\ne l}\sigma_m^2$.

    Balanced $a^{2-2/N}$; at depth 2 $\sqrt{a^2 + C^2/4}$, at depth 1 one.
    """
    xp = array_module(a, C)
    if depth == 1:
        return xp.ones_like(a)
    if depth == 2:
        return xp.hypot(a, C / 2)
    return sum(others(layer_values(depth, a, C) ** 2)) / depth


def excess(a: np.ndarray, C: np.ndarray) -> np.ndarray:
    """w(a) − a = (C²/4)/(a + w) at depth 2, without cancellation; zero for balanced modes."""
    half = np.abs(C) / 2
    return half * (half / np.maximum(a + np.hypot(a, half), np.finfo(float).tiny))


def displaced(depth: int, log_a0, excess0, delta) -> Any:
    r"""Singular values after the force has acted by $\delta = \int g\,dt$ on $a_0$, at depth 1 or 2.

    Depth 2: $a = a_0 e^\delta + (w_0 - a_0)\sinh\delta$ solves $da/d\delta = w(a)$ exactly, for
    every $C$, and adds only positive terms. `excess0` is $w_0 - a_0$, or None when balanced.
    Depth 1: $a = a_0 + \delta$.
    """
    xp = array_module(delta)
    if depth == 1:
        return xp.exp(log_a0) + delta
    grown = xp.exp(log_a0 + delta)
    if excess0 is None:
        return grown
    # sinh alone overflows where its product with a small excess does not: two factors of e^{δ/2}.
    small = excess0 * xp.sinh(xp.clip(delta, -30.0, 30.0))
    half = xp.exp(xp.clip(delta, 0.0, 1400.0) / 2)
    return grown + xp.where(delta > 30.0, excess0 * half * half / 2, small)
