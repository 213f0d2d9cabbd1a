r"""The flow of the direction at a fixed norm, and what a portrait shows of it.

The state is the direction alone, as *shares* $s_i = m_i\hat a_i$ of the free modes ($m_i$ their
multiplicities, $\sum_i s_i = 1$), at a fixed norm $\|a\|_1$ in scaled units:

$$\frac{ds_i}{d\log\|a\|_1} = \frac{m_iw(a_i)g_i}{\sum_jm_jw(a_j)g_j} - s_i,$$

which for the balanced model of depth two is $s_i(b_i/\bar b - 1)$, $\bar b = \sum_js_jb_j$. The
picture freezes the norm, which in truth grows along every orbit of hard labels.
"""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from hadaflow.base.checks import as_number
from hadaflow.base.compiling import SOON, Compiled
from hadaflow.base.errors import InputError, shown
from hadaflow.base.precision import double_precision
from hadaflow.metrics.measures import Metric, rate
from hadaflow.model.fitting import check_all_modes
from hadaflow.model.losses import Own
from hadaflow.model.ufm import UFM, check_model

# Stands for infinity where a metric needs a state: walls are then far thinner than the grid.
_FAR = 1e5
# And where orbits are drawn: walls are as thick as a line, and what slides can be followed.
SMOOTH = 500.0
# Norms over temperature: between them rounding is far below the field, and Newton converges.
SMALLEST, LARGEST = 1e-6, 300.0
_TIE = 1e-12
_SEEN = 300.0  # margins over temperature: squares of e^{−300} are doubles, with room to spare
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])


def direction_field(model: UFM, shares: Any, norm: float = 10.0) -> np.ndarray:
    r"""$ds/d\log\|a\|_1$ at `shares` $s_i = m_i\hat a_i$ and $\|a\|_1$ = `norm`, scaled units.

    Balanced layers. Where soft labels let some modes sink, the unit is $\sum_i|d a_i|/\|a\|_1$, so
    that the field points along the flow everywhere. At `norm` = inf the hard limit: all weight on
    the smallest positive margin, shared evenly where several tie. Leading axes are batched.

    Examples:
        >>> direction_field(UFM(classes=4), [0.5, 0.25, 0.25], math.inf)
        array([-0.5 ,  0.25,  0.25])
    """
    norm = check_field(model, norm)
    s = np.asarray(shares, dtype=float)
    if s.ndim == 0 or s.shape[-1] != model.modes:
        raise InputError(
            f"Argument `shares` must have last axis {model.modes} (free modes), "
            f"but has shape {s.shape}."
        )
    if not np.all(s >= 0) or not np.allclose(s.sum(axis=-1), 1, rtol=0, atol=1e-9):
        raise InputError("Argument `shares` must have shares of at least 0 with a sum of 1.")
    return _velocity(model, s, norm)


def _velocity(model: UFM, s: np.ndarray, norm: float) -> np.ndarray:
    flow = _flow(model, s, norm)
    return flow - s * flow.sum(axis=-1, keepdims=True)


def _flow(model: UFM, s: np.ndarray, norm: float) -> np.ndarray:
    """Each mode's part m w(a) g of the growth of the norm, sizes adding up to 1 (or all zero)."""
    # Scaled by its mobility at a = 1, which is common to all modes, so that the limit has one too.
    m = model.basis.multiplicity
    parts = m * (s / m) ** (2 - 2 / model.depth) * _force(model, s, norm)
    size = np.abs(parts).sum(axis=-1, keepdims=True)
    return np.divide(parts, size, out=np.zeros_like(parts), where=size > 0)


def _force(model: UFM, s: np.ndarray, norm: float) -> np.ndarray:
    """`UFM.drive` up to a common factor, and its hard limit: Ψp with weights p on the margins.

    For hard labels a margin of zero has none of the modes that are there in it, and moves none of
    them. It must not hide the others, whose pulls are smaller than its own by e^{−x}: of functions of
    the probability it is left out; other losses see it, but no farther below the others than doubles
    reach, where walls are thinner than a line.
    """
    m, Psi = model.basis.multiplicity, model.basis.dense_psi
    x, tau = s / m @ Psi.T, model.temperature
    others = np.where(x > _TIE, x, np.inf)
    smallest = others.min(axis=-1, keepdims=True)
    if not model.loss_kind.of_probability and norm < math.inf:
        if not model.soft_labels:
            x = np.where(x > _TIE, x, np.maximum(smallest - _SEEN * tau / norm, 0.0))
        return _pulls(model, norm * x) @ Psi.T
    if model.soft_labels:
        e = np.exp(-norm * x / tau)
        q = model.label_probabilities[model.basis.representatives[1:]]
        return (e / (1 + e @ m)[..., None] - q) @ Psi.T
    beyond = others - smallest
    e = beyond <= _TIE if norm == math.inf else np.exp(-norm * beyond / tau)
    return e / (e @ m)[..., None] @ Psi.T


def _pulls(model: UFM, x: np.ndarray) -> np.ndarray:
    """The pull away from every wrong class at margins `x`, up to a common factor.

    Rows are filled up to a power of two, so that few programs serve.
    """
    if not x.size:
        return x
    rows = x.reshape(-1, x.shape[-1])
    filled = rows[np.arange(1 << (len(rows) - 1).bit_length()) % len(rows)]
    with double_precision():
        found = _push(model.view.loss, np.asarray(model.basis.multiplicity, float), filled.T)
    return np.asarray(found).T[: len(rows)].reshape(x.shape)


_push = Compiled(lambda loss, counts, x: loss.push(x, counts)[0], SOON)


def _relative(model: UFM, s: np.ndarray, norm: float) -> np.ndarray:
    """Rates d log s/d log‖a‖₁ of modes that are there; 0 of others."""
    velocity = _velocity(model, s, norm)
    return np.divide(velocity, s, out=np.zeros_like(s), where=s > 0)


@dataclasses.dataclass(frozen=True)
class Triangle:
    """The directions of three free modes at shares u of their sum, all others at fixed shares."""

    model: UFM
    norm: float
    free: tuple[int, ...]
    fixed: tuple[tuple[int, float], ...]

    @property
    def room(self) -> float:
        """The part of the norm that the three modes have."""
        return 1 - math.fsum(share for _, share in self.fixed)

    def shares(self, u: np.ndarray) -> np.ndarray:
        s = np.zeros((*u.shape[:-1], self.model.modes))
        s[..., self.free] = u * self.room
        for mode, share in self.fixed:
            s[..., mode] = share
        return s

    def states(self, u: np.ndarray) -> np.ndarray:
        """Singular values in scaled units; in the limit, those of a large norm."""
        norm = self.norm if self.norm < math.inf else _FAR * self.model.temperature
        return norm * self.shares(u) / self.model.basis.multiplicity

    def velocity(self, u: np.ndarray) -> np.ndarray:
        """du/d log‖a‖₁: the field, in the three modes' shares of their own sum."""
        inside = _velocity(self.model, self.shares(u), self.norm)[..., self.free]
        return (inside - u * inside.sum(axis=-1, keepdims=True)) / self.room

    @property
    def invariant(self) -> bool:
        """Do orbits stay on it, and on its edges? At depth 1 modes that are absent come up."""
        return self.model.depth > 1 and not any(share for _, share in self.fixed)

    @property
    def uniform(self) -> np.ndarray | None:
        """Neural collapse, s_i = m_i/(K − 1), if it lies on the triangle."""
        s = self.model.basis.multiplicity / (self.model.classes - 1)
        if any(abs(share - s[mode]) > _TIE for mode, share in self.fixed):
            return None
        return s[list(self.free)] / self.room


def lattice(n: int) -> np.ndarray:
    """Barycentric coordinates of a triangular lattice, those of its edges moved a hair inside."""
    i, j = (k.ravel() for k in np.indices((n + 1, n + 1)))
    keep = i + j <= n
    u = np.stack([n - i[keep] - j[keep], i[keep], j[keep]], axis=-1) / n
    u = np.maximum(u, 1e-9)
    return u / u.sum(axis=-1, keepdims=True)


def rising_region(triangle: Triangle, metric: Metric, n: int = 160) -> tuple[np.ndarray, ...]:
    """Lattice u, rate of `metric` there per unit of path length, and where it is positive.

    Rounding leaves rates of either sign where the true one vanishes, as at collapse: a rate counts
    from 1e-12 of the largest.
    """
    u = lattice(n)
    rates = np.asarray(rate(metric, triangle.model, triangle.states(u), flow="normalized"))
    if not np.any(np.isfinite(rates)):
        raise InputError(
            "Argument `metric` must be a finite number with a finite rate, but is not."
        )
    rates = np.where(np.isfinite(rates), rates, 0.0)
    return u, rates, rates > 1e-12 * np.abs(rates).max()


def stationary(triangle: Triangle) -> list[tuple[np.ndarray, bool]]:
    """Points u where no mode's share moves, those of fixed modes included; and: do they attract?"""
    model, norm = triangle.model, triangle.norm
    found = [] if triangle.uniform is None else [triangle.uniform]
    if norm < math.inf:
        found += list(_interior_zeros(triangle))
        # A fixed mode that is there must not move either.
        moving = _velocity(model, triangle.shares(np.array(found).reshape(-1, 3)), norm)
        rest = 1e-8 * np.abs(triangle.velocity(lattice(24))).max() + 1e-15
        found = [u for u, v in zip(found, moving, strict=True) if np.abs(v).max() < rest]
    if triangle.invariant:
        found += [*np.eye(3), *_edge_zeros(triangle)]
        found += _max_margin(triangle) if norm == math.inf else []
    distinct: list[np.ndarray] = []
    for u in found:
        if all(np.abs(u - other).max() > 1e-4 for other in distinct):
            distinct.append(u)
    return [(u, _attracts(model, triangle.shares(u), norm)) for u in distinct]


def _interior_zeros(triangle: Triangle) -> np.ndarray:
    """Where all three free modes grow alike: Newton's method from a lattice, in log ratios.

    At a large norm the field is nearly constant between walls, and Newton's method may miss zeros:
    those of half the norm are starts too.
    """

    def u_of(theta: np.ndarray) -> np.ndarray:
        e = np.exp(np.concatenate([theta, np.zeros_like(theta[..., :1])], axis=-1))
        return e / e.sum(axis=-1, keepdims=True)

    def gap(theta: np.ndarray) -> np.ndarray:
        rates = _relative(triangle.model, triangle.shares(u_of(theta)), triangle.norm)
        rates = rates[..., triangle.free]
        return rates[..., :2] - rates[..., 2:]

    u = lattice(24)
    u = u[u.min(axis=-1) > 0.01]
    if triangle.norm > 10 * triangle.model.temperature:
        halved = dataclasses.replace(triangle, norm=triangle.norm / 2)
        u = np.concatenate([u, _interior_zeros(halved)])
    theta = np.log(u[:, :2] / u[:, 2:])
    h, size, J = 1e-6, np.abs(gap(theta)).max(), np.zeros((len(theta), 2, 2))
    for _ in range(25):
        value = gap(theta)
        J = np.stack(
            [(gap(theta + h * e) - gap(theta - h * e)) / (2 * h) for e in np.eye(2)], axis=-1
        )
        # A flat region, where the step has no meaning, must not stop the others.
        step = np.linalg.solve(J + 1e-15 * np.eye(2), value[..., None])[..., 0]
        theta = np.clip(theta - np.clip(step, -0.3, 0.3), -12.0, 12.0)
    # Where the field is exponentially small, with soft labels or on a line of which the limit moves
    # no point, every point would look like a zero.
    sharp = np.linalg.svd(J, compute_uv=False)[..., -1] > 1e-9 + 1e-6 * size
    return u_of(theta[(np.abs(gap(theta)).max(axis=-1) < 1e-9 * size) & sharp])


def _edge_zeros(triangle: Triangle) -> list[np.ndarray]:
    """Points inside the edges where its two modes grow alike, or the sign of the gap jumps."""
    t = 1 / (1 + np.exp(-np.linspace(-12.0, 12.0, 1502)))
    zeros = []
    for ends in itertools.combinations(np.eye(3), 2):
        pair = [triangle.free[int(end.argmax())] for end in ends]

        def point(t: np.ndarray, ends: Any = ends) -> np.ndarray:
            return np.multiply.outer(t, ends[0]) + np.multiply.outer(1 - t, ends[1])

        def gap(t: np.ndarray, point: Any = point, pair: Any = pair) -> np.ndarray:
            rates = _relative(triangle.model, triangle.shares(point(t)), triangle.norm)
            return rates[..., pair[0]] - rates[..., pair[1]]

        gaps = gap(t)
        sure = np.abs(gaps) > 1e-12  # beyond rounding
        (changes,) = np.nonzero((gaps[:-1] * gaps[1:] < 0) & sure[:-1] & sure[1:])
        low, high = t[changes], t[changes + 1]
        for _ in range(50):
            middle = (low + high) / 2
            same = (gap(middle) > 0) == (gaps[changes] > 0)
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        zeros += list(point(low))
    return zeros


def _attracts(model: UFM, s: np.ndarray, norm: float) -> bool:
    """Is a stationary direction attracting: within its modes, and against every absent one?

    Depth 2, hard labels: KL from uniform falls and is infinite at low rank, so that only full rank
    can attract. At depth 3 and more every mode loses its share once it is small enough; what counts
    is a share that can be seen.
    """
    there, absent = np.flatnonzero(s > 0), np.flatnonzero(s == 0)
    if len(absent):
        if model.depth == 2 and not model.soft_labels:
            return False
        near = np.where(s > 0, s, 1e-3)
        if np.any(_relative(model, near / near.sum(), norm)[absent] >= 0):
            return False
    if norm == math.inf or len(there) == 1:
        return True
    # Tangent vectors e_i − e_last of the simplex on the modes that are there.
    tangents = np.zeros((len(there) - 1, len(s)))
    tangents[:, there[:-1]], tangents[:, there[-1]] = np.eye(len(there) - 1), -1
    h = 1e-6 * s[there].min()
    moved = _velocity(model, s + h * tangents, norm)
    moved -= _velocity(model, s - h * tangents, norm)
    J = moved[:, there[:-1]].T / (2 * h)
    return bool(np.linalg.eigvals(J).real.max() < 0)


def _max_margin(triangle: Triangle) -> list[np.ndarray]:
    """The one direction inside of largest smallest margin, if there is: where the limit ends.

    Some weights on the margins that tie there pull all its modes alike (the conditions of Kuhn and
    Tucker), so that it is stationary. Walls meet there.
    """
    ends = np.array(find_walls(triangle)).reshape(-1, 3)
    smallest = (ends @ _margins(triangle).T).min(axis=-1)
    best = ends[smallest > smallest.max(initial=0.0) - 1e-9]
    unique = len(best) > 0 and np.ptp(best, axis=0).max() < 1e-9
    return [best[0]] if unique and best[0].min() > 1e-9 else []


def _margins(triangle: Triangle) -> np.ndarray:
    """Margins over the norm, linear in u, by their values at the corners; not those that are zero.

    A margin without any of the modes that are there is zero throughout and moves none of them.
    """
    model = triangle.model
    corners = triangle.shares(np.eye(3)) / model.basis.multiplicity @ model.basis.dense_psi.T
    return corners.T[corners.max(axis=0) > _TIE]


def find_walls(triangle: Triangle) -> list[np.ndarray]:
    """Segments (ends as u) on which two smallest margins tie; in the limit the field jumps."""
    margins, walls = _margins(triangle), []
    for i, j in itertools.combinations(range(len(margins)), 2):
        normal = margins[i] - margins[j]
        if np.abs(normal).max() < _TIE:
            continue
        line = np.cross(normal, np.ones(3))  # along the wall, within Σu = 1
        if np.abs(line).max() < _TIE:
            continue
        start = np.linalg.lstsq(np.stack([normal, np.ones(3)]), np.array([0.0, 1.0]), rcond=None)[0]
        bounds = [*np.eye(3), *(margin - margins[i] for margin in margins)]
        low, high = -math.inf, math.inf
        for bound in bounds:  # bound·(start + τ line) ≥ 0
            value, slope = bound @ start, bound @ line
            if abs(slope) < _TIE:
                if value < -1e-9:
                    low, high = 1.0, 0.0
            elif slope > 0:
                low = max(low, -value / slope)
            else:
                high = min(high, -value / slope)
        if high - low > 1e-9:
            walls.append(start + np.array([[low], [high]]) * line)
    return walls


def trace_orbits(triangle: Triangle, apart: float = 0.05) -> list[np.ndarray]:
    """Orbits (points in the plane, in the order of time) that cover the triangle.

    An orbit is drawn if it starts far enough from those before it; starts that are permutations of
    each other are not compared, so that a symmetric field has a symmetric picture.
    """
    u = np.concatenate([lattice(21), lattice(21) * 0.91 + 0.03])
    u = u[u.min(axis=-1) > 0.02]
    starts, kinds = u @ CORNERS, np.sort(u.round(6), axis=-1).tolist()
    after, before = _trace(triangle, starts, 1.0), _trace(triangle, starts, -1.0)
    whole = np.concatenate([before[:0:-1], after])
    taken: list[np.ndarray] = []
    # Edges first: what passes there, passes elsewhere too.
    order = sorted(range(len(u)), key=kinds.__getitem__)
    for _, group in itertools.groupby(order, kinds.__getitem__):
        drawn = np.concatenate([np.full((1, 2), np.inf), *taken])
        for k in group:
            if np.linalg.norm(starts[k] - drawn, axis=-1).min() > apart:
                taken.append(whole[~np.isnan(whole[:, k, 0]), k])
    return taken


def _trace(triangle: Triangle, y: np.ndarray, sign: float, step: float = 0.006) -> np.ndarray:
    """Orbits from points `y` of the plane in steps of length; nan from where one has ended.

    Across walls the field is stiff: Rosenbrock's method of order 2, L-stable, with γ = 1 − 1/√2.
    """
    gamma, h, inverse = 1 - math.sqrt(0.5), 1e-7, np.linalg.inv(lifted(CORNERS).T)

    def f(y: np.ndarray) -> np.ndarray:
        u = np.maximum(lifted(y) @ inverse.T, 0.0)
        return sign * triangle.velocity(u / u.sum(axis=-1, keepdims=True)) @ CORNERS

    points, going, scale = [y], np.arange(len(y)), np.ones(len(y))
    for _ in range(800):
        v = f(y)
        J = np.stack([(f(y + h * e) - f(y - h * e)) / (2 * h) for e in np.eye(2)], axis=-1)
        growth = np.linalg.eigvals(J).real.max(axis=-1)
        # In a direction that repels, a long implicit step would go the wrong way.
        dt = scale * step / np.maximum(np.linalg.norm(v, axis=-1), 1e-9)
        dt = np.minimum(dt, 0.5 / np.maximum(growth, 1e-9))[:, None]
        matrix = np.eye(2) - gamma * dt[..., None] * J
        k1 = np.linalg.solve(matrix, v[..., None])[..., 0]
        k2 = np.linalg.solve(matrix, (f(y + dt * k1) - 2 * k1)[..., None])[..., 0]
        move = dt * (1.5 * k1 + 0.5 * k2)
        # A step on which the orbit turns, at a wall or at its end, is taken again in smaller ones.
        ahead, length = f(y + move), np.linalg.norm(move, axis=-1)
        straight = np.sum(move * ahead, axis=-1) >= 0.7 * length * np.linalg.norm(ahead, axis=-1)
        good = straight & (length < 3 * scale * step)
        inside = (lifted(y + move) @ inverse.T).min(axis=-1) > 0
        on = (inside | ~good) & (scale > 1e-4) & (length > 1e-4 * scale * step)
        y = np.where(good[:, None], y + move, y)
        scale = np.where(good, np.minimum(1.5 * scale, 1.0), scale / 3)
        reached = np.full_like(points[0], np.nan)
        reached[going[on & good]] = y[on & good]
        points.append(reached)
        going, y, scale = going[on], y[on], scale[on]
        if not len(going):
            break
    return np.array(points)


def lifted(y: np.ndarray) -> np.ndarray:
    return np.concatenate([y, np.ones_like(y[..., :1])], axis=-1)


def check_field(model: UFM, norm: float) -> float:
    """The norm as a float, if this model has a direction field there."""
    check_model(model)
    kind = model.loss_kind
    if kind.moves_constant or kind.settles or isinstance(kind, Own):
        raise InputError(
            "Argument `model` must have a built-in loss of margins that never settles, but has loss = "
            f"{model.loss}: others settle, move the constant mode, or have no limit of their field."
        )
    if model.imbalance is not None:
        raise InputError(
            "Argument `model` must have balanced classes: with `imbalance` singular vectors turn, "
            "and the singular values alone have no field."
        )
    check_all_modes(model)
    if len(set(model.decays)) > 1:
        raise InputError(
            f"Argument `model` must have one `weight_decay` for all layers, but has "
            f"{model.decays}: layers would not stay balanced."
        )
    allowed = "a positive number or inf for the limit"
    norm = as_number("norm", norm, allowed)
    if not norm > 0:
        raise InputError(f"Argument `norm` must be {allowed}, but is {shown(norm)}.")
    if norm == math.inf and (model.depth != 2 or model.soft_labels or model.penalized):
        raise InputError(
            "Argument `norm` may be inf only for hard labels, depth 2 and no `weight_decay`: other "
            "models settle, or their field has no limit."
        )
    return norm
