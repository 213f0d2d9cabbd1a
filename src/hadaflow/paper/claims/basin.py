"""Claims about the basin in which M falls (Theorem 7, Appendix D.5)."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb
from scipy.optimize import minimize

from hadaflow.algebra.bases import Sylvester
from hadaflow.base.compiling import Compiled
from hadaflow.base.precision import double_precision
from hadaflow.lab.certify import metric_rate
from hadaflow.lab.exact.ball_flow import sylvester_psi
from hadaflow.lab.exact.balls import ball, enclose, exact
from hadaflow.lab.trial_states import random_states
from hadaflow.metrics import distances
from hadaflow.paper.claim import CERTIFIED, Finding, claim, finding
from hadaflow.paper.claims.monotonicity import PsiOf, agrees, relative_rate


def basin_bound(K: int, norm: Any) -> Any:
    """Theorem 7: min(1/(8K²), 1/(18K³‖a‖₁²)), exactly."""
    return min(exact(1) / (8 * K**2), exact(1) / (18 * K**3 * norm**2))


def state_at(direction: np.ndarray, K: int, norm: Any, M: Any) -> list[Any]:
    """The rational state μ(1 + ε), ε along `direction`, with M just below the one asked for."""
    eps = [exact(v) for v in direction]
    mean = sum(eps) / len(eps)
    eps = [e - mean for e in eps]
    square = sum(e * e for e in eps)
    scale = exact(float(np.sqrt(float(2 * (K - 1) ** 2 * M / square)))) * exact("0.999999999999")
    return [norm / (K - 1) * (1 + scale * e) for e in eps]


def distance_squared(state: list[Any]) -> Any:
    """M, exactly."""
    norm = sum(state)
    return sum((v / norm - exact(1) / len(state)) ** 2 for v in state) / 2


NORMS = ("0.001", "0.1", "1", "10", "1000", "1000000")


@functools.cache
def _basin_ascent(K: int) -> Callable[..., Any]:
    """Value and slope of (dM/dt)/M at states μ(1 + ε) of a given M, ε along z; a batch of z at once."""
    psi = jnp.asarray(Sylvester(K).dense_psi)

    def objective(z: Any, mu: Any, M: Any) -> Any:
        u = z - jnp.mean(z)
        eps = u / jnp.linalg.norm(u) * (K - 1) * jnp.sqrt(2 * M)
        a, w = 1 + eps, jax.nn.softmax(-mu * (psi @ eps))
        # Ψ1 is uniform, so w may be measured from 1/(K−1); what would cancel never appears.
        b = psi @ (w - 1 / (K - 1))
        rate = jnp.sum(a**2 * b) * jnp.sum(a) - jnp.sum(a**2) * jnp.sum(a * b)
        return rate / (jnp.sum(eps**2) * mu * K)

    return Compiled(jax.vmap(jax.value_and_grad(objective), in_axes=(0, None, None)), {})


def worst_direction(K: int, norm: float, M: float) -> np.ndarray:
    """The direction ε that makes (dM/dt)/M largest at this M: 100 gradient ascents side by side."""
    ascent = _basin_ascent(K)
    z = np.random.default_rng(K).standard_normal((100, K - 1))
    z[:20] = np.sign(z[:20]) + 0.01 * z[:20]
    best, where = -np.inf, z[0]
    for step in np.geomspace(0.5, 0.02, 40):
        values, slopes = (np.asarray(v) for v in ascent(z, norm / (K - 1), M))
        if values.max() > best:
            best, where = float(values.max()), z[values.argmax()].copy()
        size = np.linalg.norm(slopes, axis=1, keepdims=True) + 1e-30
        z = z / np.linalg.norm(z, axis=1, keepdims=True) + step * slopes / size
    return where


def smallest_rising(K: int, norm: float) -> float | None:
    """The smallest M found at which M rises, at this norm: constrained minimization from rising states.

    None where no rising state was found.
    """
    rate = relative_rate(distances.l2, K, 2)
    of = lambda z: norm * jax.nn.softmax(z)  # noqa: E731
    size = Compiled(jax.value_and_grad(lambda z: jnp.log(distances.l2(of(z)))), {})
    push = Compiled(jax.value_and_grad(lambda z: rate(of(z))), {})
    one = lambda f, z: tuple(np.asarray(v, dtype=float) for v in f(jnp.asarray(z)))  # noqa: E731
    best = None
    for start in np.log(random_states(K, 40, seed=50, low=0, high=0.1)):
        start = np.clip(start, -12, 0)
        up = minimize(lambda z: tuple(-v for v in one(push, z)), start, jac=True, method="L-BFGS-B",
                      bounds=[(-15, 1)] * (K - 1), options={"maxiter": 60})  # fmt: skip
        if up.fun >= 0:
            continue
        rising = {"type": "ineq", "fun": lambda z: one(push, z)[0] - 1e-9,
                  "jac": lambda z: one(push, z)[1]}  # fmt: skip
        down = minimize(lambda z: one(size, z), up.x, jac=True, method="SLSQP",
                        constraints=rising, options={"maxiter": 200})  # fmt: skip
        M = float(np.exp(down.fun))
        state = np.asarray(of(jnp.asarray(down.x)))
        if metric_rate("l2", state, relative=0.5).sign > 0:
            best = M if best is None else min(best, M)
    return best


@claim(
    "Theorem 7; Appendix D.5",
    "M ≤ min(1/(8K²), 1/(18K³‖a‖₁²)) implies dM/dt ≤ 0.",
    "proven signs at over 4000 rational states inside and on the boundary, ‖a‖₁ = 1e-3 … 1e6 (both "
    "branches), K = 4 … 32, worst directions by gradient ascent; slack: how far M may exceed the bound",
    seconds=29,
)
def collapse_basin(
    bound: Callable[[int, Any], Any] = basin_bound, psi_of: PsiOf = sylvester_psi
) -> Finding:
    """No proven rise, none undecided, at M from 1e-6 to 1 times the bound; the smallest M at which an
    optimizer could make M rise (K = 8 and 16, norms 1, 10, 100) lies outside.
    """
    tried = rises = undecided = 0
    branches = {"1/(8K²)": 0, "1/(18K³‖a‖²)": 0}
    with double_precision():
        for K, count in ((4, 240), (8, 240), (16, 160), (32, 80)):
            rng = np.random.default_rng(40 + K)
            for norm_text in NORMS:
                norm = exact(norm_text)
                limit = bound(K, norm)
                branches["1/(8K²)" if limit * 8 * K**2 >= 1 else "1/(18K³‖a‖²)"] += count
                directions = [worst_direction(K, float(norm), float(limit))]
                directions += [rng.standard_normal(K - 1) ** 3 for _ in range(count - 1)]
                for i, direction in enumerate(directions):
                    inside = limit if i % 2 == 0 else limit * exact(10 ** rng.uniform(-6, 0))
                    state = state_at(direction, K, norm, inside)
                    if min(state) <= 0:
                        continue
                    if distance_squared(state) > limit:
                        raise ArithmeticError("a state that was to lie inside lies outside")
                    sign = metric_rate("l2", state, psi_of(K), relative=0.5).sign
                    tried, rises, undecided = tried + 1, rises + (sign > 0), undecided + (sign == 0)
        slack, breached = {}, 0
        for K, norm in ((8, 1.0), (8, 10.0), (8, 100.0), (16, 1.0), (16, 10.0)):
            least = smallest_rising(K, norm)
            slack[f"K = {K}, ‖a‖₁ = {norm:g}"] = least and least / float(
                basin_bound(K, exact(norm))
            )
            breached += int(least is not None and least <= bound(K, exact(norm)))
    value = {
        "states": tried,
        "proven to rise": rises,
        "undecided": undecided,
        "states by branch": branches,
        "rising states inside": breached,
        "slack (null: no rising state found)": slack,
    }
    good = rises == 0 and undecided == 0 and breached == 0 and min(branches.values()) > 0
    return finding(value, printed=good)


@claim(
    "Appendix D.5, last estimate",
    "1/2 + 1/8 + (1/2 + 1/(2√2)) e^{1/6}/3 ≈ 0.961 < 1.",
    "ball arithmetic, for the display and for its left side at every K = 2^m up to 2^20",
    CERTIFIED,
    paper_value=0.961,
)
def basin_constant(first_term: str = "1/2") -> Finding:
    """Below 1, within half a unit of the printed last digit, and largest at K = 2."""

    def total(K: int) -> Any:
        k = arb(K)
        tail = (ball(exact("1/2")) + 1 / (2 * k.sqrt())) / 3 * (1 / (3 * k)).exp()
        return ball(exact(first_term)) + 1 / (4 * k) + tail

    values = [enclose(lambda K=K: total(K)) for K in 2 ** np.arange(1, 21).astype(object)]
    good = all(v.ball < 1 for v in values) and all(values[0].ball > v.ball for v in values[1:])
    printed = good and agrees(values[0].value, 0.961, 0.5e-3)
    return finding(values[0].value, printed=printed, certified=True, enclosure=str(values[0]))


def pythagoras(K: int, psi: np.ndarray) -> np.ndarray:
    """ΨᵀΨ on vectors of sum zero, as Ψ² − K·11ᵀ: what (Ψε)·(Ψε) = K ε·ε asserts, times K."""
    return psi @ psi - K * np.ones_like(psi)


@claim(
    "Appendix D.5, Eq. (21)",
    "|(Ψε)_u| ≤ √(2K)(K−1)√M for every ε with sum 0 (K = 4 … 64).",
    "integer identity Ψ² − K·11ᵀ = K·I, so (Ψε)·(Ψε) = K ε·ε = 2K(K−1)²M exactly; the bound that column "
    "norms alone give, for comparison",
    CERTIFIED,
    correction="The text derives it from ‖ψ_u‖ = √(2K), which gives only 2√K(K−1)√M; it needs Ψ² = "
    "K(I + 11ᵀ) and Σε = 0.",
)
def margin_bound(form: Callable[[int, np.ndarray], np.ndarray] = pythagoras) -> Finding:
    """The identity exact for every K; column norms give a bound larger by √2 exactly."""
    violated = 0
    for K in (4, 8, 16, 32, 64):
        psi = np.array(sylvester_psi(K))
        violated += int(np.any(form(K, psi) != K * np.eye(K - 1, dtype=int)))
        # ‖ψ_u‖² = 2K against K: the squares of the two bounds, over ε·ε.
        violated += int(np.any(np.sum(psi**2, axis=0) != 2 * K))
    value = {"violated identities": violated, "column-norm bound over the bound": float(np.sqrt(2))}
    return finding(value, printed=violated == 0, certified=True)
