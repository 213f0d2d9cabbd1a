r"""Where the flow goes when only some modes are there: the limiting direction on one support.

With the weights $w_i = m_i\hat a_i$ ($m$ the multiplicities, $\sum w = 1$) the margins are $x = Cw$,
$C_{gi} = 1 - \mathrm{Re}\,\chi_i(g)$, and with the share $y_g \propto m_g e^{-x_g}$ of each margin the
force is $b = Cy$. The limit on a support $S$ is the matrix game

$$\gamma = \max_w \min_g\,(Cw)_g = \min_y \max_{i\in S}\,(Cy)_i$$

over margins that do not vanish on all of $S$: $w$ is the direction, $y$ decides who else may grow.
"""

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np

from hadaflow.algebra.bases import Basis
from hadaflow.base.checks import check_whole_number
from hadaflow.base.errors import InputError, shown
from hadaflow.saddles.games import (
    RELAXED,
    ZERO,
    interior,
    largest_entropy,
    lowest,
    null_space,
    polished,
    with_lowest_forces,
)

Number = Fraction | float
_LARGEST_DENOMINATOR = 20_000
_LISTED_DIMENSION = 7  # corners of larger faces are too many to list
_EXACT_ENTRIES = 20_000_000
_LARGEST_POWER = 2000


@dataclasses.dataclass(frozen=True)
class Limit:
    """The limiting direction on a support, or all of them; modes and margins are numbered from 0.

    `vertices` are directions over all free modes with Σ multiplicity · â = 1: the one limit, or the
    corners of the polytope of limits (some of them if not `all_vertices`). `exact` says that each was
    proven to solve its equations in rational numbers; `margin` is a fraction where it is rational.
    `active` modes can be positive in the limit, `dying` ones are in the support but never are. `ties`
    are the margins smallest in every limit. `exits` has b_k/b̄ of every mode outside the support: it
    leaves zero if that exceeds 1.
    """

    support: tuple[int, ...]
    margin: Number | None
    vertices: tuple[tuple[Number, ...], ...]
    unique: bool
    exact: bool
    active: tuple[int, ...]
    dying: tuple[int, ...]
    ties: tuple[int, ...]
    exits: dict[int, Number]
    all_vertices: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Face:
    """The limits on a support as a polytope: w = `inside` + `along` z, non-negative, `loose` ≥ 0.

    `inside` lies in its relative interior; `loose` @ w − `margin` are margins that may become smallest.
    """

    support: np.ndarray
    margin: float
    inside: np.ndarray
    active: np.ndarray
    ties: np.ndarray
    along: np.ndarray
    loose: np.ndarray

    @property
    def dimension(self) -> int:
        """Dimension of the polytope, 0 for a point."""
        return self.along.shape[1]

    def bound(self, x: np.ndarray) -> float:
        """The distance of a direction with margins x is at least this, as entries of C are in [0, 2]."""
        return 0.5 * float(np.max(np.abs(x[self.ties] - self.margin)))

    def nearest(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        """Total variation distance ½ Σ|w − v| from the nearest limit v, and v itself."""
        if not self.dimension:
            return 0.5 * float(np.abs(w - self.inside).sum()), self.inside
        A, N, d = self.active, self.along, self.dimension
        identity = np.eye(len(A))
        rows = np.block([[N, -identity], [-N, -identity]])
        gap = w[A] - self.inside[A]
        walls, room = self.walls
        rows = np.vstack([rows, np.hstack([walls, np.zeros((len(walls), len(A)))])])
        cost = np.concatenate([np.zeros(d), np.full(len(A), 0.5)])
        free = [(None, None)] * d + [(0, None)] * len(A)
        z = lowest(cost, rows, np.concatenate([gap, -gap, room]), bounds=free)[:d]
        v = self.inside.copy()
        v[A] += N @ z
        return 0.5 * float(np.abs(w - v).sum()), v

    @functools.cached_property
    def walls(self) -> tuple[np.ndarray, np.ndarray]:
        """The polytope as walls @ z ≤ room."""
        rows = np.vstack([np.eye(len(self.active)), self.loose[:, self.active]])
        room = rows @ self.inside[self.active]
        room[len(self.active) :] -= self.margin
        return -rows @ self.along, np.maximum(room, 0.0)


def limit_on(basis: Basis, support: Any) -> Limit:
    r"""The limit of the flow that starts with the modes of `support` (from 0) and no others.

    The tight margins carry the weights $y$ with $(Cy)_i = \gamma$ on active modes. Where that leaves a
    choice, the flow makes it: dying modes still grow, which lowers the largest of their forces, then
    the next; and among the rest $y$ has the largest entropy relative to the multiplicities, because
    $y_g \propto m_g e^{-(C\delta)_g}$ with finite offsets $\delta$ of the modes.

    Examples:
        >>> from hadaflow.algebra.bases import Sylvester
        >>> limit = limit_on(Sylvester(8), (0, 1, 2, 3))
        >>> [str(v) for v in limit.vertices[0]], limit.margin, limit.exits[4]
        (['1/5', '1/5', '1/5', '2/5', '0', '0', '0'], Fraction(4, 5), Fraction(2, 1))
    """
    return _limit_on(basis, check_support(basis, support))


def value_on(basis: Basis, support: Any) -> float:
    """The largest smallest margin γ on a support that is not empty."""
    return _value_on(basis, check_support(basis, support, least=1))


def face_on(basis: Basis, support: Any) -> Face:
    """All limits on a support that is not empty, as a polytope."""
    return _face_on(basis, check_support(basis, support, least=1))


def check_support(basis: Basis, support: Any, least: int = 0) -> tuple[int, ...]:
    """Different free modes, numbered from 0, in order."""
    try:
        modes = [check_whole_number("support", i, 0, basis.modes - 1) for i in support]
        if len(set(modes)) < len(modes) or len(modes) < least:
            raise InputError
    except (TypeError, InputError):
        raise InputError(
            f"Argument `support` must be different modes from 0 to {basis.modes - 1}"
            f"{', at least one' * (least > 0)}, but is {shown(support)}."
        ) from None
    return tuple(sorted(modes))


@functools.lru_cache(maxsize=16)
def turns(basis: Basis) -> tuple[np.ndarray, int]:
    """The pairing of free modes and margins: angles in turns are k/n, 0 ≤ k ≤ n/2; (k, n)."""
    n = math.lcm(*basis.group)
    elements = np.array(np.unravel_index(basis.representatives[1:], basis.group))
    scales = n // np.array(basis.group)
    k = (elements.T * scales) @ elements % n
    return np.minimum(k, n - k), n


@functools.lru_cache(maxsize=16)
def pairing(basis: Basis) -> np.ndarray:
    """The symmetric matrix C: 1 − cos of the angle between mode and margin; Ψ is C · multiplicity."""
    k, n = turns(basis)
    return np.where(4 * k == n, 1.0, 1 - np.cos(2 * np.pi / n * k))


# --- the limits as a polytope ------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _value_on(basis: Basis, support: tuple[int, ...]) -> float:
    rows = pairing(basis)[_margins_on(basis, support)[0]][:, support]
    count, size = rows.shape
    above = np.hstack([-rows, np.ones((count, 1))])
    one, cost = np.append(np.ones(size), 0.0)[None], -1.0 * (np.arange(size + 1) == size)
    free = [(0, None)] * size + [(None, None)]
    return float(lowest(cost, above, np.zeros(count), one, np.ones(1), free)[-1])


@functools.lru_cache(maxsize=4096)
def _face_on(basis: Basis, support: tuple[int, ...]) -> Face:
    S = np.array(support)
    first, number, _ = _margins_on(basis, support)
    rows = pairing(basis)[first][:, S]
    size, count, value = len(S), len(rows), _value_on(basis, support)
    limit = np.full(count, RELAXED * max(1.0, value) - value)
    point, positive, slack = interior(-rows, limit, np.ones((1, size)), np.ones(1))
    inside, loose = np.zeros(basis.modes), np.zeros((int(slack.sum()), basis.modes))
    inside[S], loose[:, S] = point, rows[slack]
    active, ties = S[positive], np.flatnonzero(np.isin(number, np.flatnonzero(~slack)))
    inside[active], margin = _equalized(basis, ties, active, inside[active], value)
    inside[S[~positive]] = 0.0
    along = null_space(np.vstack([rows[~slack][:, positive], np.ones(len(active))]))
    return Face(S, margin, inside, active, ties, along, loose)


def _equalized(
    basis: Basis, margins: np.ndarray, modes: np.ndarray, weights: np.ndarray, value: float
) -> tuple[np.ndarray, float]:
    """Weights of `modes` that make the `margins` equal, near those given, and that value."""
    system = _bordered(basis, margins, modes)
    guess = np.append(weights, value)
    wanted = np.append(np.zeros(len(margins)), 1.0)
    guess = guess + np.linalg.lstsq(system, wanted - system @ guess, rcond=None)[0]
    return guess[:-1], float(guess[-1])


def _bordered(basis: Basis, margins: np.ndarray, modes: np.ndarray) -> np.ndarray:
    """The equations (Cw)_g = γ, Σ w = 1 of w and γ."""
    C = pairing(basis)[np.ix_(margins, modes)]
    return np.block([[C, -np.ones((len(C), 1))], [np.ones((1, len(modes))), np.zeros((1, 1))]])


@functools.lru_cache(maxsize=64)
def _margins_on(
    basis: Basis, support: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Margins that agree on the support count once: one of each kind, and the kind of every margin.

    Margins that vanish on the support are of kind −1. The third is how often each kind occurs.
    """
    k, _ = turns(basis)
    _, first, number = np.unique(k[:, support], axis=0, return_index=True, return_inverse=True)
    number = number.ravel()
    if not k[first[0], list(support)].any():  # rows are sorted, so zeros come first
        first, number = first[1:], number - 1
    weight = np.bincount(number[number >= 0], basis.multiplicity[number >= 0], len(first))
    return first, number, weight


# --- corners, and rational numbers -------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _limit_on(basis: Basis, support: tuple[int, ...]) -> Limit:
    if not support:
        everything: dict[int, Number] = dict.fromkeys(range(basis.modes), math.inf)
        return Limit((), None, (), True, True, (), (), (), everything)
    face = _face_on(basis, support)
    corners, complete = _corners(face)
    vertices, margins, exact = [], [], True
    for corner in corners:
        vertex, margin, proven = _recognized(basis, face, corner)
        vertices.append(tuple(x / int(m) for x, m in zip(vertex, basis.multiplicity, strict=True)))
        margins.append(margin)
        exact = exact and proven
    exits, dual_margin = _exits(basis, face)
    margins.append(dual_margin)
    return Limit(
        support=support,
        margin=next((x for x in margins if isinstance(x, Fraction)), margins[-1]),
        vertices=tuple(sorted(vertices, reverse=True)),
        unique=face.dimension == 0,
        exact=exact,
        active=tuple(map(int, face.active)),
        dying=tuple(sorted(set(support) - set(map(int, face.active)))),
        ties=tuple(map(int, face.ties)),
        exits=exits,
        all_vertices=complete,
    )


def _corners(face: Face) -> tuple[np.ndarray, bool]:
    """Corners of the polytope as weights w, and whether these are all."""
    d = face.dimension
    if d == 0:
        return face.inside[None], True
    walls, room = face.walls
    if d == 1:
        slope = walls[:, 0]
        with np.errstate(divide="ignore"):
            reach = room / slope
        z = np.array([[reach[slope < -1e-9].max()], [reach[slope > 1e-9].min()]])
    elif d <= _LISTED_DIMENSION:
        from scipy.spatial import HalfspaceIntersection  # heavy import, used here alone

        z = HalfspaceIntersection(np.hstack([walls, -room[:, None]]), np.zeros(d)).intersections
    else:
        rng, free = np.random.default_rng(0), [(None, None)] * d
        z = np.array([lowest(c, walls, room, bounds=free) for c in rng.standard_normal((2 * d, d))])
    w = np.repeat(face.inside[None], len(z), axis=0)
    w[:, face.active] += z @ face.along.T
    _, first = np.unique(np.round(w, 7) + 0.0, axis=0, return_index=True)
    return w[first], d <= _LISTED_DIMENSION


def _recognized(basis: Basis, face: Face, corner: np.ndarray) -> tuple[list[Number], Number, bool]:
    """A corner and its margin from the equations it solves, as fractions if those hold exactly."""
    where = face.active[corner[face.active] > ZERO]
    seen = _margins_on(basis, tuple(face.support.tolist()))[1] >= 0
    tight = np.flatnonzero(seen & (np.abs(pairing(basis) @ corner - face.margin) < ZERO))
    values, margin = _equalized(basis, tight, where, corner[where], face.margin)
    determined = not null_space(_bordered(basis, tight, where)).size
    weights: list[Number] = [Fraction(0)] * basis.modes
    numerators, denominator = _common_fraction(values)
    exact = _exact_sums(basis, tight, where, numerators) if denominator and determined else None
    proven = exact is not None and bool(np.all(exact == exact[0]))
    for i, value, n in zip(where, values.tolist(), numerators.tolist(), strict=True):
        weights[i] = Fraction(n, denominator) if proven else value
    if exact is not None and proven and not np.any(exact[0, 1:]):
        return weights, Fraction(int(exact[0, 0]), 2 * denominator), True
    return weights, margin, proven


def _common_fraction(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Numerators and their common denominator, which is 0 if the values are not such fractions."""
    fractions = [Fraction(v).limit_denominator(_LARGEST_DENOMINATOR) for v in values.tolist()]
    q = math.lcm(*(f.denominator for f in fractions))
    if q > 10**9 or any(
        abs(f - v) > 1e-11 for f, v in zip(fractions, values.tolist(), strict=True)
    ):
        return np.zeros(len(values), dtype=int), 0
    return np.array([int(f * q) for f in fractions]), q


@functools.lru_cache(maxsize=16)
def _twice_cosines(n: int) -> np.ndarray:
    r"""$2\cos(2\pi k/n) = \zeta^k + \zeta^{-k}$ as integers modulo the cyclotomic polynomial."""
    from flint import fmpz_poly  # heavy import, used here alone

    phi = fmpz_poly.cyclotomic(n)
    table = np.zeros((n // 2 + 1, phi.degree()), dtype=np.int64)
    for k in range(len(table)):
        power = [0] * (n + 1)
        power[k] += 1
        power[n - k] += 1
        rest = fmpz_poly(power) % phi
        table[k, : rest.degree() + 1] = [int(c) for c in rest.coeffs()]
    return table


def _exact_sums(
    basis: Basis, rows: np.ndarray, columns: np.ndarray, weights: np.ndarray
) -> np.ndarray | None:
    """2 Σ C w over `columns` for integer w, exactly: one row of integers for each of `rows`."""
    k, n = turns(basis)
    cosines = _twice_cosines(n)
    if len(rows) * len(columns) * cosines.shape[1] > _EXACT_ENTRIES:
        return None
    sums = -np.einsum("rcp,c->rp", cosines[k[np.ix_(rows, columns)]], weights)
    sums[:, 0] += 2 * weights.sum()
    return sums


# --- who may grow next -------------------------------------------------------------------------------


def _exits(basis: Basis, face: Face) -> tuple[dict[int, Number], Number]:
    """b_k/b̄ of every mode outside the support: fractions where proven, infinite outside the span.

    And the margin once more, as the force on active modes.
    """
    first, number, weight = _margins_on(basis, tuple(face.support.tolist()))
    C, seen, margin = pairing(basis), number >= 0, face.margin
    outside = np.setdiff1d(np.arange(basis.modes), face.support)
    exits: dict[int, Number] = dict.fromkeys(outside.tolist(), math.inf)
    spanned = outside[~np.any(C[np.ix_(outside, ~seen)] > 0, axis=1)]
    if not len(spanned):
        return exits, margin
    # Margins that agree on the support have equal weights: a mean over each kind.
    kinds = np.zeros((len(first), basis.modes))
    np.add.at(kinds, number[seen], (C * basis.multiplicity)[:, seen].T)
    tight = np.unique(number[face.ties])
    kinds = (kinds[tight] / weight[tight, None]).T
    y, corner, rows = _selected_shares(kinds, face, weight[tight])
    place = np.searchsorted(tight, number[face.ties])
    proven: dict[int, Fraction] = {}
    for shares in (corner, y):
        ratios, level = _proven_ratios(basis, face, (shares / weight[tight])[place], spanned)
        proven, margin = proven | ratios, margin if level is None else level
    selected = _has_largest_entropy(basis, face, (y / weight[tight])[place])
    fixed = null_space(rows[:, y > 0])
    for k in spanned.tolist():
        same = selected or np.max(np.abs(kinds[k, y > 0] @ fixed), initial=0.0) < 1e-9
        exits[k] = proven[k] if same and k in proven else float(kinds[k] @ y / face.margin)
    return exits, margin


def _proven_ratios(
    basis: Basis, face: Face, weights: np.ndarray, modes: np.ndarray
) -> tuple[dict[int, Fraction], Fraction | None]:
    """b_k/b̄ of `modes` for these weights of the tight margins, and b̄ itself, where rational."""
    numerators, denominator = _common_fraction(weights)
    m = basis.multiplicity[face.ties]
    if not denominator or int(numerators @ m) != denominator:
        return {}, None
    sums = _exact_sums(basis, np.append(face.active, modes), face.ties, numerators * m)
    if sums is None or np.any(sums[: len(face.active)] != sums[0]):
        return {}, None
    proven, level = {}, sums[0]
    for k, vector in zip(modes.tolist(), sums[len(face.active) :], strict=True):
        ratio = Fraction(float(pairing(basis)[k, face.ties] @ (weights * m)) / face.margin)
        ratio = ratio.limit_denominator(_LARGEST_DENOMINATOR)
        if np.all(ratio.denominator * vector == ratio.numerator * level):
            proven[k] = ratio
    return proven, None if np.any(level[1:]) else Fraction(int(level[0]), 2 * denominator)


def _has_largest_entropy(basis: Basis, face: Face, weights: np.ndarray) -> bool:
    r"""Are these rational weights $p = e^{-C\delta}$? Then $\prod p^v = 1$ for all $v$ with $Cv = 0$."""
    from flint import fmpz_mat  # heavy import, used here alone

    numerators, denominator = _common_fraction(weights)
    there = np.flatnonzero(numerators)
    if not denominator:
        return False
    if np.all(numerators[there] == numerators[there[0]]):
        return True
    k, n = turns(basis)
    entries = _twice_cosines(n)[k[np.ix_(face.support, face.ties[there])]]
    if np.any(entries[..., 1:]):
        return False  # irrational equations have other null vectors than rational ones
    rows = np.vstack([entries[..., 0], np.ones(len(there), dtype=int)])
    null, rank = fmpz_mat(rows.tolist()).nullspace()
    for column in range(rank):
        powers = [int(null[row, column]) for row in range(len(there))]
        shared = math.gcd(*powers)
        sides = [1, 1]
        if sum(map(abs, powers)) > _LARGEST_POWER * shared:
            return False  # not worth the digits
        for p, v in zip(numerators[there].tolist(), powers, strict=True):
            sides[v > 0] *= p ** abs(v // shared)
        if sides[0] != sides[1]:
            return False
    return True


def _selected_shares(
    kinds: np.ndarray, face: Face, reference: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares y of the kinds of tight margins that the flow selects; a corner of the set it selects
    from; and the rows that are constant on that set.
    """
    dying = np.setdiff1d(face.support, face.active)
    rows = np.vstack([kinds[face.active], np.ones(kinds.shape[1])])
    wanted = np.append(np.full(len(face.active), face.margin), 1.0)
    even = reference / reference.sum()
    if not len(dying) and np.max(np.abs(rows @ even - wanted)) < 1e-9:
        return even, even, rows
    rows, wanted = with_lowest_forces(kinds[dying], rows, wanted)
    y, present, _ = interior(np.zeros((0, len(even))), np.zeros(0), rows, wanted)
    corner = lowest(np.sqrt(np.arange(1.0, len(y) + 1)), None, None, rows, wanted)
    y = polished(np.where(present, y, 0.0), rows, wanted)
    y[present] = largest_entropy(rows[:, present], y[present], even[present])
    return y, polished(corner, rows, wanted), rows
