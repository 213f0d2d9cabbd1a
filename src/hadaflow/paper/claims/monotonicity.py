"""Claims that a distance to collapse always falls, or does not (Sections 4.2–4.4, Appendix B.3)."""

from collections.abc import Callable, Sequence
from typing import Any

import flint
import jax
import jax.numpy as jnp
import numpy as np
from flint import arb

from hadaflow.flow.solver import solve
from hadaflow.lab.certify import metric_rate
from hadaflow.lab.exact.ball_flow import ExactState, Matrix, sylvester_psi
from hadaflow.lab.exact.balls import ball, enclose, exact
from hadaflow.lab.trial_states import proven_signs, pushed_states, random_states
from hadaflow.metrics import distances
from hadaflow.model.starts import hadamard, project
from hadaflow.model.states import RAW, spectrum
from hadaflow.model.ufm import UFM
from hadaflow.paper.claim import CERTIFIED, Finding, claim, finding, larger
from hadaflow.paper.claims.structure import block_psi
from hadaflow.runs.targets import Collapse

PsiOf = Callable[[int], Matrix]


# --- a metric that never rises -------------------------------------------------------------------


def relative_rate(metric: Callable[[Any], Any], K: int, depth: int) -> Callable[[Any], Any]:
    """(dm/ds)/m with s = log‖a‖₁: what an optimizer can push up without running to small numbers."""
    model = UFM(K, depth=depth)

    def objective(a: Any) -> Any:
        direction, _ = model.drive(a)
        velocity = model.mobility(a) * direction
        value, change = jax.jvp(metric, (a,), (velocity,))
        return change / (value * jnp.sum(velocity) / jnp.sum(a))

    return objective


def ratio_drive(K: int) -> Callable[[Any], Any]:
    """(b_i − b_j)/(b_i + b_j) of the largest and the smallest entry: the sign of the log-ratio's rate."""
    model = UFM(K)

    def objective(a: Any) -> Any:
        b, _ = model.drive(a)
        top, bottom = b[jnp.argmax(a)], b[jnp.argmin(a)]
        return (top - bottom) / (top + bottom)

    return objective


def never_rises(
    metric: str,
    classes: Sequence[int],
    psi_of: PsiOf,
    *,
    depth: int = 2,
    count: int = 1000,
    pushes: int = 40,
) -> dict[str, Any]:
    """Proven signs of dm/dt at `count` random and `pushes` optimizer-driven states for each K."""
    tried = rises = undecided = 0
    for K in classes:
        states = random_states(K, count, seed=30 + K)
        objective = (
            ratio_drive(K)
            if metric == "log_ratio"
            else relative_rate(getattr(distances, metric), K, depth)
        )
        if pushes:
            starts = random_states(K, pushes, seed=60 + K, low=-1, high=1.2)
            pushed = pushed_states(objective, starts)
            states = np.concatenate([states, pushed[np.ptp(pushed, axis=1) > 0]])
        psi = psi_of(K)
        signs = proven_signs(
            lambda a, psi=psi: metric_rate(metric, a, psi, depth, relative=0.5), states
        )
        tried += len(signs)
        rises += int(np.sum(signs > 0))
        undecided += int(np.sum(signs == 0))
    return {"states": tried, "proven to rise": rises, "undecided": undecided}


def _falls(found: dict[str, Any]) -> bool:
    return found["proven to rise"] == 0 and found["undecided"] == 0


# --- Theorem 3 -----------------------------------------------------------------------------------


def kl_per_log_norm(psi: Matrix, state: Sequence[Any]) -> Any:
    """dKL/d log‖a‖₁ = 1 − (K/(K−1))/⟨x̂⟩, ⟨x̂⟩ the e^{−x}-weighted mean of the margins of â."""
    flow = ExactState.at([exact(v) for v in state], psi)
    K = len(flow.a) + 1
    weighted = sum((x * e for x, e in zip(flow.x, flow.e, strict=True)), arb(0))
    mean = weighted / sum(flow.e, arb(0)) / sum(flow.a, arb(0))
    return 1 - arb(K) / (K - 1) / mean


def _lyapunov_along_norm(psi_of: PsiOf) -> tuple[list[str], list[float], float]:
    """The rate of KL in t and in log‖a‖₁ along the ray of (1, 2, 3), at norms 1 … 10^5; and the largest
    rate in log‖a‖₁ over random directions with max|(K−1)â − 1| ≥ 0.5 at the same norms.
    """
    norms = [exact(10**k) for k in range(6)]
    ray = [[norm * k / 6 for k in (1, 2, 3)] for norm in norms]
    in_time = [str(metric_rate("kl", state, psi_of(4))) for state in ray]
    in_norm = [enclose(lambda s=s: kl_per_log_norm(psi_of(4), s)).value for s in ray]
    largest = -np.inf
    for K in (4, 8, 16):
        directions = random_states(K, 200, seed=70, low=0, high=0)
        away = np.abs((K - 1) * directions / directions.sum(axis=1, keepdims=True) - 1).max(axis=1)
        for direction in directions[away >= 0.5][:40]:
            shape = [exact(v) for v in direction]
            for norm in norms:
                state = [norm * v / sum(shape) for v in shape]
                rate = enclose(lambda s=state, K=K: kl_per_log_norm(psi_of(K), s), 1e-6)
                largest = max(largest, float(rate.ball.upper()))
    return in_time, in_norm, largest


@claim(
    "Theorem 3; Section 7.2",
    "D_KL(uniform ‖ â) decreases strictly along the flow and â → uniform.",
    "proven signs at over 4000 random and optimizer-driven states (K = 4 … 32); the rate per log‖a‖₁ at "
    "‖a‖₁ = 1 … 10^5 in 120 directions away from collapse (K = 4, 8, 16); runs to collapse within 1e-6",
    correction="The proof ends early: dD_KL/dt → 0 also as ‖a‖ → ∞, so a negative rate alone does "
    "not give the limit. It follows from dD_KL/d log‖a‖₁ = 1 − (K/(K−1))/⟨x̂⟩, which stays away "
    "from 0 off collapse for ‖a‖₁ ≥ ‖a(0)‖₁, while log‖a‖₁ → ∞.",
    seconds=6,
)
def kl_lyapunov(psi_of: PsiOf = sylvester_psi) -> Finding:
    """No proven rise, none undecided; rate per log norm below −1e-3 in every direction with
    max|(K−1)â − 1| ≥ 0.5 and norm ≥ 1; all runs collapse.
    """
    found = never_rises("kl", (4, 8, 16, 32), psi_of)
    in_time, in_norm, largest = _lyapunov_along_norm(psi_of)
    ends = []
    for seed in range(3):
        start = np.random.default_rng(seed).uniform(0.05, 1, 7)
        run = solve(UFM(8), start, Collapse(1e-6), points=2, progress=None)
        ends.append(run.measure("kl")[-1])
    value = {
        **found,
        "dKL/dlog‖a‖₁ on the ray (1,2,3), ‖a‖₁ = 1 … 10^5": in_norm,
        "largest dKL/dlog‖a‖₁ away from collapse": largest,
        "KL at collapse": float(max(ends)),
    }
    good = _falls(found) and max(*in_norm, largest) < -1e-3 and max(ends) < 1e-12
    enclosure = {"dKL/dt on the ray, ‖a‖₁ = 1 … 10^5": in_time}
    return finding(value, printed=good, enclosure=enclosure)


# --- M at K = 2 and 4, and logit optimization ----------------------------------------------------


@claim(
    "Theorem 4, first part; Appendix D.2",
    "For K = 2 and 4, M decreases monotonically to 0.",
    "K = 2: M is 0. K = 4: proven signs at over 3000 random and optimizer-driven states",
    seconds=9,
)
def l2_monotone_k2_k4(psi_of: PsiOf = sylvester_psi, classes: int = 4) -> Finding:
    """No proven rise, none undecided; M of one mode exactly 0."""
    found = never_rises("l2", (classes,), psi_of, count=3300, pushes=100)
    alone = float(distances.l2(np.array([0.37])))
    return finding({**found, "M at K = 2": alone}, printed=_falls(found) and alone == 0.0)


@claim(
    "Theorem 6; Appendix D.4; Eq. (13)",
    "Optimizing Z directly, da/dt = b/D in scaled units and M decreases monotonically.",
    "matrix flow of Z against the reduced one at K = 4, n = 2; proven signs at over 3000 random and "
    "optimizer-driven states (K = 4, 8, 16)",
    correction="In the proof x = (Ta) must read x = Ψa.",
    seconds=7,
)
def logit_optimization(
    psi_of: PsiOf = sylvester_psi, depth: int = 1, reduced_flow: Callable[..., Any] = solve
) -> Finding:
    """Relative difference below 1e-7; no proven rise, none undecided."""
    found = never_rises("l2", (4, 8, 16), psi_of, depth=depth)
    model, times = UFM(4, samples=2, depth=1), [1.0, 10.0, 100.0]
    start = spectrum([0.3, 0.8, 0.1], units=RAW)
    full = solve(model, hadamard(model, start), times=times, units=RAW, progress=None)
    reduced = reduced_flow(model, start, times=times, progress=None)
    difference = float(np.abs(project(model, full.parameters).a / reduced.a - 1).max())
    good = _falls(found) and difference < 1e-7
    return finding({**found, "matrix against reduced": difference}, printed=good)


@claim(
    "Appendix B.3, proposition",
    "For K ≤ 8, max log a − min log a decreases monotonically.",
    "proven signs at over 4000 random and optimizer-driven states (K = 4, 8), the right derivative "
    "where entries tie",
    seconds=6,
)
def log_ratio_monotone_k8(
    psi_of: PsiOf = sylvester_psi, classes: Sequence[int] = (4, 8)
) -> Finding:
    """No proven rise, none undecided."""
    found = never_rises("log_ratio", classes, psi_of, count=2000, pushes=60)
    return finding(found, printed=_falls(found))


# --- counterexamples -----------------------------------------------------------------------------

V_STAR = ("1", "1", "1", "1.25", "0.01", "0.01", "0.01")
W_STAR = ("1", "1", "1", "1.25", "0.0001", "0.0001", "0.0001")
SIXTEEN = "5.01 0.99 2 5 1 5 1 2 1 5 3 5 1 5 1".split()


def agrees(value: float, printed: float, half_unit: float) -> bool:
    """Is the value what the paper prints, to its last digit?"""
    return abs(value - printed) <= half_unit


def _certified_at(metric: str, starts: dict[str, Sequence[str]]) -> dict[str, Any]:
    return {name: metric_rate(metric, a) for name, a in starts.items()}


def _embedded(a: Sequence[str], filler: str, classes: Sequence[int]) -> dict[str, Sequence[str]]:
    return {f"K = {K}": [*a, *[filler] * (K - 1 - len(a))] for K in classes}


@claim(
    "Theorem 4, second part; Appendix D.2",
    "There are starts from which M rises, at K = 8 with dM/dt ≈ 7.3e-4, and at K = 16, 32, 64; the "
    "embedding lemma carries them to every K ≥ 8.",
    "ball arithmetic at the printed vector, and at it with 1e-6 in every further mode",
    CERTIFIED,
    paper_value=7.3e-4,
    correction="In the proof b̄ = Σ v̂_j b_j with normalized v̂, not Σ v_j b_j, which would make the "
    "rate negative.",
)
def l2_counterexample(start: Sequence[str] = V_STAR) -> Finding:
    """Every enclosure positive; the first within half a unit of the paper's last digit."""
    found = _certified_at("l2", {"K = 8": start, **_embedded(start, "0.000001", (16, 32, 64))})

    def with_printed_mean() -> Any:
        flow = ExactState.at([exact(v) for v in start])
        mean = sum((a * b for a, b in zip(flow.a, flow.b, strict=True)), arb(0))
        norm = sum(flow.a, arb(0))
        terms = ((a / norm) ** 2 * (b - mean) for a, b in zip(flow.a, flow.b, strict=True))
        return sum(terms, arb(0)) / flow.D

    value = {name: e.value for name, e in found.items()}
    value["with b̄ as printed"] = enclose(with_printed_mean).value
    good = all(e.sign > 0 for e in found.values()) and agrees(value["K = 8"], 7.3e-4, 0.5e-5)
    return finding(
        value, printed=good, certified=True, enclosure={k: str(e) for k, e in found.items()}
    )


@claim(
    "Appendix B.3",
    "At K = 8 the reverse KL divergence rises at a = (1, 1, 1, 1.25, 1e-4, 1e-4, 1e-4), rate ≈ 0.0037.",
    "ball arithmetic at the printed vector",
    CERTIFIED,
    paper_value=0.0037,
)
def reverse_kl_counterexample(start: Sequence[str] = W_STAR) -> Finding:
    """Positive, within half a unit of the paper's last digit."""
    rate = metric_rate("reverse_kl", start)
    good = rate.sign > 0 and agrees(rate.value, 0.0037, 0.5e-4)
    return finding(rate.value, printed=good, certified=True, enclosure=str(rate))


@claim(
    "Appendix B.3",
    "The Frobenius distance rises at the same vector, Σ a_i a_j b_j (a_j − a_i) ≈ 0.088, and so at "
    "K = 16, 32, 64; the embedding lemma carries it to every K ≥ 8.",
    "ball arithmetic at the printed vector, and at it with 1e-6 in every further mode",
    CERTIFIED,
    paper_value=0.088,
    correction="‖Z‖_F in the displayed derivative is √Σa_j², not √Σa_j; the sign is not affected.",
)
def frobenius_counterexample(start: Sequence[str] = W_STAR) -> Finding:
    """The sum and every rate positive; the sum within half a unit of the paper's last digit."""

    def bracket() -> Any:
        flow = ExactState.at([exact(v) for v in start])
        pairs = [(a, v, b) for a in flow.a for v, b in zip(flow.a, flow.b, strict=True)]
        return sum((a * v * b * (v - a) for a, v, b in pairs), arb(0))

    total = enclose(bracket)
    found = _certified_at(
        "frobenius", {"K = 8": start, **_embedded(start, "0.000001", (16, 32, 64))}
    )
    good = all(e.sign > 0 for e in (total, *found.values())) and agrees(total.value, 0.088, 0.5e-3)
    enclosures = {"sum": str(total)} | {f"rate, {k}": str(e) for k, e in found.items()}
    value = {"sum": total.value} | {f"rate, {k}": e.value for k, e in found.items()}
    return finding(value, printed=good, certified=True, enclosure=enclosures)


@claim(
    "Appendix B.3",
    "The log-ratio can rise, at the printed K = 16 vector at a rate of ≈ 1.8e-13, and at K = 32, 64.",
    "ball arithmetic at the printed vector, and at it with v = 1, 3, 5 in every further mode",
    CERTIFIED,
    paper_value=1.8e-13,
    correction="The paper shows K = 16 only. Zeros in the further modes would change the minimum; one "
    "constant v in [0.99, 5.01] there multiplies b_1 − b_2 by (K/16)e^{−(K−16)v} and so keeps the sign, "
    "for every K = 2^m ≥ 16.",
)
def log_ratio_counterexample_k16(start: Sequence[str] = SIXTEEN) -> Finding:
    """Every enclosure positive; the first within half a unit of the paper's last digit.

    b_1 − b_2 multiplied by exactly (K/16)e^{−(K−16)v}: within 1e-12, for v = 1, 3, 5.
    """
    found = _certified_at("log_ratio", {"K = 16": start, **_embedded(start, "1", (32, 64))})
    value = {name: e.value for name, e in found.items()}
    off, positive = 0.0, True
    for filler in ("1", "3", "5"):
        for name, a in _embedded(start, filler, (32, 64)).items():
            rate, K = metric_rate("log_ratio", a), len(a) + 1
            with flint.ctx.workprec(256):  # b_1 and b_2 share their first 13 digits
                small, large = (
                    ExactState.at([exact(v) for v in state]).b[:2] for state in (start, a)
                )
                factor = arb(K) / 16 * (-(K - 16) * ball(exact(filler))).exp()
                ratio = (large[0] - large[1]) / (small[0] - small[1]) / factor
                off = larger(off, abs(ratio - 1).upper())
            positive &= rate.sign > 0
            value[f"{name}, v = {filler}"] = rate.value
    value["error of the factor"] = off
    good = all(e.sign > 0 for e in found.values()) and positive and off < 1e-12
    return finding(
        value,
        printed=good and agrees(found["K = 16"].value, 1.8e-13, 0.5e-14),
        certified=True,
        enclosure={name: str(e) for name, e in found.items()},
    )


def sylvester_array(K: int) -> np.ndarray:
    """Ψ as an integer array."""
    return np.array(sylvester_psi(K))


@claim(
    "Appendix D.2, lemma",
    "b of (a, 0) in dimension 2K is 2b of a in its first K − 1 entries, and b̄ doubles (K = 2 … 64).",
    "integer identities Ψ'(a, 0) = (Ψa, 0, Ψa) and (Ψ' top rows) = (Ψ, 0, Ψ), and ball arithmetic at "
    "30 random vectors",
    CERTIFIED,
    correction="b̄ is a number, not an element of R^{K−1}.",
)
def embedding_lemma(
    psi_of: Callable[[int], np.ndarray] = sylvester_array, factor: int = 2
) -> Finding:
    """Integer identities exact; every enclosure of b'/b − 2 contains 0, with bounds below 1e-12."""
    violated, worst = 0, 0.0
    for K in (2, 4, 8, 16, 32, 64):
        small, large = psi_of(K), psi_of(2 * K)
        top = np.hstack([small, np.zeros((K - 1, 1), int), small])
        violated += int(not np.array_equal(large[: K - 1], top))
        violated += int(not np.array_equal(large, block_psi(small)))
    for a in random_states(8, 30, seed=33, low=-1, high=0.7):
        state = [exact(v) for v in a]
        one = ExactState.at(state, psi_of(8).tolist())
        two = ExactState.at([*state, *[exact(0)] * 8], psi_of(16).tolist())
        for v, w in zip(one.b, two.b, strict=False):
            ratio = w / v - factor
            violated += int(not ratio.contains(0))
            worst = larger(worst, float(abs(ratio).upper()))
    value = {"violated": violated, "largest |b'/b − 2|": worst}
    return finding(value, printed=violated == 0 and worst < 1e-12, certified=True)
