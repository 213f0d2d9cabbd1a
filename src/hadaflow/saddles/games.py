"""Linear programmes and convex problems of the matrix games in `supports`, to the last digits."""

from typing import Any

import numpy as np

# Linear programmes are accurate to 1e-10, and what they leave of a zero is that times a condition number;
# true entries can be lifted to `_SMALL_SHARE`.
ZERO = 1e-5
RELAXED = 1e-12
_SMALL_SHARE = 1e-3


class IllConditioned(RuntimeError):
    """A support whose programmes cannot be told apart from rounding."""


def lowest(
    cost: np.ndarray,
    A_ub: np.ndarray | None = None,
    b_ub: np.ndarray | None = None,
    A_eq: np.ndarray | None = None,
    b_eq: np.ndarray | None = None,
    bounds: Any = (0, None),
) -> np.ndarray:
    """The point of lowest cost, by HiGHS at its tightest tolerances."""
    from scipy.optimize import linprog  # heavy import, used here alone

    options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    for presolve in (True, False):  # equations that hold up to rounding can fail in presolve
        found = linprog(
            cost, A_ub, b_ub, A_eq, b_eq, bounds, "highs", options={**options, "presolve": presolve}
        )
        if found.status == 0:
            return found.x
    raise IllConditioned(f"A linear programme of a support failed: {found.message}")


def interior(
    A_ub: np.ndarray, b_ub: np.ndarray, A_eq: np.ndarray, b_eq: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A relative-interior point of {x ≥ 0, A_ub x ≤ b_ub, A_eq x = b_eq}; which x and slacks are > 0.

    Each programme lifts as many of the entries still at zero as it can; the mean of all is inside.
    """
    size, count = A_eq.shape[1], len(b_ub)
    positive, points = np.zeros(size + count, dtype=bool), []
    while not np.all(positive):
        zeros = np.flatnonzero(~positive)
        lift = np.eye(size + count)[:, zeros]  # u ≤ x and u ≤ slack where these are still zero
        rows = np.hstack([np.vstack([-np.eye(size), A_ub]), lift])
        bounds = [(0, None)] * size + [(0, _SMALL_SHARE)] * len(zeros)
        cost, room = (
            np.append(np.zeros(size), -np.ones(len(zeros))),
            np.append(np.zeros(size), b_ub),
        )
        equations = np.hstack([A_eq, np.zeros((len(A_eq), len(zeros)))])
        point = lowest(cost, rows, room, equations, b_eq, bounds)[:size]
        points.append(point)
        fresh = ~positive & (np.append(point, b_ub - A_ub @ point) > ZERO)
        if not np.any(fresh):
            break
        positive |= fresh
    return np.mean(points, axis=0), positive[:size], positive[size:]


def null_space(matrix: np.ndarray) -> np.ndarray:
    _, s, vh = np.linalg.svd(matrix)
    return vh[int(np.sum(s > 1e-9 * s[0])) :].T


def polished(y: np.ndarray, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The same zeros, the equations to the last digit."""
    present = y > ZERO
    z = np.where(present, y, 0.0)
    z[present] += np.linalg.lstsq(rows[:, present], wanted - rows @ z, rcond=None)[0]
    return z


def with_lowest_forces(
    forces: np.ndarray, rows: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The equations of y together with those that make the forces lowest, the largest of them first."""
    size, left = rows.shape[1], np.arange(len(forces))
    while len(left):
        below = np.hstack([forces[left], -np.ones((len(left), 1))])
        bordered = np.hstack([rows, np.zeros((len(rows), 1))])
        cost = np.append(np.zeros(size), 1.0)
        least = lowest(cost, below, np.zeros(len(left)), bordered, wanted)[-1]
        limit = np.full(len(left), least + RELAXED)
        slack = interior(forces[left], limit, rows, wanted)[2]
        rows = np.vstack([rows, forces[left[~slack]]])
        wanted = np.append(wanted, np.full(int(np.sum(~slack)), least))
        if np.all(slack):
            raise IllConditioned("The largest force on dying modes was not found.")
        left = left[slack]
    return rows, wanted


def largest_entropy(rows: np.ndarray, start: np.ndarray, reference: np.ndarray) -> np.ndarray:
    r"""The y of largest entropy relative to `reference` with the same `rows` @ y as `start`.

    Newton's method on the dual: $y = r\,e^{-Q^\top\theta}$, $Q$ an orthonormal basis of the rows.
    """
    _, s, vh = np.linalg.svd(rows, full_matrices=False)
    Q = vh[s > 1e-9 * s[0]]
    wanted, theta, y = Q @ start, np.zeros(len(Q)), reference

    def at(theta: np.ndarray) -> tuple[float, np.ndarray]:
        y = reference * np.exp(np.minimum(-Q.T @ theta, 500.0))
        return float(y.sum() + theta @ wanted), y

    for _ in range(100):
        slope = wanted - Q @ y
        step = -np.linalg.solve((Q * y) @ Q.T, slope)
        decrease = -float(slope @ step)
        # Near the minimum the value is all rounding, and full steps are right.
        while decrease > 1e-8 and at(theta + step)[0] > at(theta)[0] + 1e-4 * float(slope @ step):
            step = step / 2
        theta = theta + step
        y = at(theta)[1]
        if decrease < 1e-28:
            break
    return y
