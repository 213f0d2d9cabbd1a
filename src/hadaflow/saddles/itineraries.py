r"""The saddles a run lingers near: directions compared with the limits on nested supports.

A run near a saddle has its large modes there, so the supports to look at are those of its k largest
modes, k = 1, 2, …. The distance is total variation, $\frac12\sum m|\hat a - \hat d|$ with the
multiplicities $m$, from the nearest limit $\hat d$ on the support.
"""

import dataclasses
from fractions import Fraction

import numpy as np

from hadaflow.algebra.bases import Basis
from hadaflow.base.checks import as_number
from hadaflow.base.errors import InputError, shown
from hadaflow.model.ufm import UFM
from hadaflow.saddles.supports import Face, Number, face_on, limit_on, pairing, value_on

LARGEST = 64  # free modes; every support costs a few linear programmes
_EQUAL = 1e-9
# Another saddle has to be so much nearer to take over: modes that grow together tie for a place in the
# support, and rounding would decide anew at every point.
_TAKES_OVER = 0.5
_SHOWN = 8
# Points that are put between saved ones: one for each so large part of the direction that turns.
_TURN, _MOST_BETWEEN = 0.01, 60
_LAST_LOG_NORM = 690.0


@dataclasses.dataclass(frozen=True)
class Visit:
    """A stay near the limits on one support; modes are numbered from 1.

    `support` has the modes that are positive in the limit, `direction` that limit over all free modes
    (where there are several, the one nearest at the closest point), `closest` its smallest distance. A
    run that begins there has arrived at −∞; one that ends there has not departed.
    """

    support: tuple[int, ...]
    direction: tuple[Number, ...]
    log10_arrival: float
    log10_departure: float | None
    closest: float

    def __str__(self) -> str:
        values = [self.direction[i - 1] for i in self.support]
        shown = [str(x) if isinstance(x, Fraction) else f"{x:.4g}" for x in values]
        shares = f"({', '.join(shown[:_SHOWN])}{', …' * (len(shown) > _SHOWN)})"
        if len(set(shown)) == 1:
            shares = shown[0] if len(shown) == 1 else f"{shown[0]} each"
        arrival = "the start" if self.log10_arrival == -np.inf else f"{self.log10_arrival:.4g}"
        departure = "the end" if self.log10_departure is None else f"{self.log10_departure:.4g}"
        modes = f"mode{'s' * (len(shown) > 1)} {in_runs(self.support)}"
        return (
            f"{modes} at {shares}: log10 t from {arrival} to {departure}, within {self.closest:.2g}"
        )


def in_runs(modes: tuple[int, ...]) -> str:
    """Modes in order, three or more in a row as first–last."""
    parts, rest = [], list(modes)
    while rest:
        n = 1
        while n < len(rest) and rest[n] == rest[0] + n:
            n += 1
        n = n if n > 2 else 1
        parts.append(str(rest[0]) if n == 1 else f"{rest[0]}–{rest[n - 1]}")
        rest = rest[n:]
    return ",".join(parts) or "–"


def check_scope(model: UFM) -> None:
    """Refuse models whose low-rank directions are not saddles of this kind."""
    reasons = {
        f"loss = {model.loss} has another orbit": not model.loss_kind.of_probability,
        "classes with different samples have no one basis": model.imbalance is not None,
        "at depth 1 modes do not stay zero": model.depth == 1,
        "from depth 3 on low-rank directions attract": model.depth > 2,
        "with soft labels the flow settles at a finite point": model.soft_labels,
        "with penalties the flow settles at a finite point": model.penalized,
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(
                "Saddles on supports need the orbit of cross-entropy at `depth` = 2 with hard labels, "
                f"balanced classes and no `weight_decay`: {reason}."
            )


def itinerary(
    basis: Basis, a_hat: np.ndarray, log10_time: np.ndarray, tolerance: float
) -> list[Visit]:
    """Visits of a run with directions `a_hat` (times × modes, Σ multiplicity · â = 1), in order."""
    tolerance = as_number("tolerance", tolerance)
    if not 0 < tolerance < 1:
        raise InputError(
            f"Argument `tolerance` must be between 0 and 1, but is {shown(tolerance)}."
        )
    if basis.modes > LARGEST:
        raise InputError(
            f"Itineraries are for at most {LARGEST} free modes, but this run has {basis.modes}."
        )
    weights = a_hat * basis.multiplicity
    nearest: list[Face | None] = []
    for w in weights:
        nearest.append(_nearest(basis, w, float(tolerance), nearest[-1] if nearest else None))
    visits, index = [], 0
    while index < len(nearest):
        face, last = nearest[index], index
        while last + 1 < len(nearest) and _same(face, nearest[last + 1]):
            last += 1
        if face is not None:
            visits.append(_visit(basis, face, weights, log10_time, index, last, tolerance))
        index = last + 1
    return visits


def between_points(
    model: UFM, log_a: np.ndarray, log10_time: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""Log a and log10 time of a run (scaled units), with more points where the direction turns fast.

    Between two saved points cubic Hermite interpolation in $s = \log\|a\|_1$, with the exact slopes of
    the orbit, $d\log a_i/ds = b_i/\bar b$, and of the clock $\log(1 + t)$.
    """
    from scipy.interpolate import CubicHermiteSpline  # heavy import, used here alone

    m = model.basis.multiplicity
    a = np.exp(np.minimum(log_a, 700.0))
    s = np.log(a @ m)
    u = np.logaddexp(0.0, log10_time * np.log(10.0))
    direction, slowness = model.drive(a)
    mean = np.sum(m * a * direction, axis=-1) / np.exp(s)
    with np.errstate(over="ignore", invalid="ignore"):
        slopes, clock = direction / mean[:, None], np.exp(slowness - np.log(mean) - u)
    shares = m * a / np.exp(s)[:, None]
    turned = 0.5 * np.abs(np.diff(shares, axis=0)).sum(axis=1)
    good = np.isfinite(slopes).all(axis=1) & np.isfinite(clock) & (s < _LAST_LOG_NORM)
    logs, times = [log_a[:1]], [log10_time[:1]]
    for i in np.arange(len(s) - 1):
        count = int(np.clip(turned[i] / _TURN, 0, _MOST_BETWEEN))
        if count and good[i] and good[i + 1] and s[i + 1] > s[i]:
            ends = [i, i + 1]
            fine = np.linspace(s[i], s[i + 1], count + 2)[1:-1]
            path = np.full((count, len(m)), -np.inf)  # modes that are zero stay zero
            there = np.isfinite(log_a[i])
            orbit = CubicHermiteSpline(s[ends], log_a[ends][:, there], slopes[ends][:, there])
            path[:, there] = orbit(fine)
            logs.append(path)
            between = CubicHermiteSpline(s[ends], u[ends], clock[ends])(fine)
            between = np.clip(np.maximum.accumulate(between), u[i], u[i + 1])
            with np.errstate(divide="ignore"):
                times.append((between + np.log(-np.expm1(-between))) / np.log(10.0))
        logs.append(log_a[i + 1 : i + 2])
        times.append(log10_time[i + 1 : i + 2])
    return np.concatenate(logs), np.concatenate(times)


def _same(face: Face | None, other: Face | None) -> bool:
    if face is None or other is None:
        return face is other
    return np.array_equal(face.support, other.support)


def _nearest(basis: Basis, w: np.ndarray, tolerance: float, before: Face | None) -> Face | None:
    """The nearest limits within the tolerance; of equally near ones those on the smallest support.

    Those of the point before are kept while they are near and no others are much nearer.
    """
    best, chosen = tolerance + _EQUAL, None
    kept = np.inf if before is None else before.nearest(w)[0]
    if kept <= tolerance:
        best, chosen = _TAKES_OVER * kept, before
    order, C = np.argsort(-w, kind="stable"), pairing(basis)
    order, x = order[w[order] > 0], C @ w
    for size in range(1, len(order) + 1):
        support = order[:size].tolist()
        # Mass outside a support is distance; and within a distance d margins differ by at most 2d.
        if w[order[size:]].sum() > best:
            continue
        smallest = x[np.any(C[:, support] > 0, axis=1)].min()
        if smallest < value_on(basis, support) - 2 * best - _EQUAL:
            continue
        # The limits are those on the active modes alone: one saddle, whatever else is dying.
        face = face_on(basis, face_on(basis, support).active.tolist())
        if face.bound(x) < best and 1 - w[face.active].sum() < best:
            distance = face.nearest(w)[0]
            if distance < best - _EQUAL:
                best, chosen = distance, face
    return chosen


def _visit(
    basis: Basis, face: Face, weights: np.ndarray, log10_time: np.ndarray, first: int, last: int,
    tolerance: float,
) -> Visit:  # fmt: skip
    found = [face.nearest(w) for w in weights[first : last + 1]]
    closest, w = min(found, key=lambda pair: pair[0])
    direction: tuple[Number, ...] = tuple((w / basis.multiplicity).tolist())
    if not face.dimension:
        direction = limit_on(basis, face.support.tolist()).vertices[0]
    arrival, departure = -np.inf, None
    if first > 0:
        before = face.nearest(weights[first - 1])[0]
        share = _crossing(found[0][0], before, tolerance)
        arrival = _between(log10_time[first], log10_time[first - 1], share)
    if last + 1 < len(weights):
        after = face.nearest(weights[last + 1])[0]
        share = _crossing(found[-1][0], after, tolerance)
        departure = _between(log10_time[last], log10_time[last + 1], share)
    support = tuple((face.support + 1).tolist())
    return Visit(support, direction, arrival, departure, closest)


def _crossing(near: float, far: float, tolerance: float) -> float:
    """Where between two saved points the distance is the tolerance; halfway if it never is."""
    return (tolerance - near) / (far - near) if far > tolerance else 0.5


def _between(here: float, there: float, share: float) -> float:
    """log10 time at a share of the way; from time 0 on in log10(1 + t)."""
    if np.isfinite(here) and np.isfinite(there):
        return float(here + share * (there - here))
    late = max(here, there)
    if late == np.inf or late == -np.inf:
        return late
    part = (1 - share if there < here else share) * np.logaddexp(0.0, late * np.log(10.0))
    return float((part + np.log(-np.expm1(-part))) / np.log(10.0)) if part > 0 else -np.inf
