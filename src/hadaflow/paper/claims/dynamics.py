"""Claims about the reduced dynamics: Theorem 2, Section 3.3, the MSE flow, the normalized flow."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.bases import Sylvester
from hadaflow.base.compiling import Compiled
from hadaflow.base.precision import double_precision
from hadaflow.flow.solver import solve
from hadaflow.lab.exact.ball_flow import ExactState, sylvester_psi
from hadaflow.lab.trial_states import exactly, random_states
from hadaflow.model.closed_forms import mse_exact
from hadaflow.model.starts import gaussian, hadamard, lift
from hadaflow.model.states import RAW, spectrum
from hadaflow.model.ufm import MSE, UFM
from hadaflow.paper.claim import CORRECTED, Finding, claim, finding, larger
from hadaflow.paper.claims.structure import (
    block_layout,
    kronecker_layout,
    phi_of,
    right_vectors,
    softmax,
)
from hadaflow.runs.targets import Collapse


def reduced_field(psi: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, Any]:
    """B and D of Eq. (10), textbook form."""
    e = np.exp(-(psi @ a))
    return psi @ e, 1 + e.sum()


def full_psi(K: int) -> np.ndarray:
    """11ᵀ − Φ, K × K, of Eq. (7)."""
    return 1 - phi_of(K)


# --- Theorem 2 -----------------------------------------------------------------------------------


def theorem_rates(
    alpha: np.ndarray, beta: np.ndarray, n: int, psi: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """dα/dt and dβ/dt of Theorem 2, raw units, with Ψ = 11ᵀ − Φ."""
    e = np.exp(-(psi @ (alpha * beta)) / (len(alpha) * np.sqrt(n)))
    force = np.sqrt(n) * (psi @ e) / e.sum()
    return force * beta, force * alpha


def _theorem_error(layout: Callable[..., np.ndarray], psi_of: Callable[[int], np.ndarray]) -> float:
    """Largest relative distance of the matrix gradient flow from Theorem 2's rates."""
    rng = np.random.default_rng(10)
    worst = 0.0
    for K, n, d in ((2, 1, 2), (4, 1, 7), (4, 2, 4), (8, 3, 9), (16, 2, 16)):
        U, V = phi_of(K) / np.sqrt(K), right_vectors(K, n)
        Y = np.kron(np.eye(K), np.ones((1, n)))
        R = np.linalg.qr(rng.standard_normal((d, d)))[0][:, :K]
        for _ in range(40):
            alpha, beta = rng.uniform(0.1, 2, K), rng.uniform(0.1, 2, K)
            W = U @ np.diag(alpha) @ R.T
            H = R @ layout(np.diag(beta), n) @ V.T
            residual = Y - softmax(W @ H)
            flow = residual @ H.T, W.T @ residual
            d_alpha, d_beta = theorem_rates(alpha, beta, n, psi_of(K))
            said = U @ np.diag(d_alpha) @ R.T, R @ layout(np.diag(d_beta), n) @ V.T
            for v, w in zip(flow, said, strict=True):
                worst = larger(worst, float(np.linalg.norm(v - w) / np.linalg.norm(v)))
    return worst


def _trajectory_error() -> float:
    """Largest relative distance of Z between `solve` in both views, K = 4, n = 2, unbalanced."""
    model = UFM(4, samples=2, width=5)
    start = spectrum([0.3, 0.8, 0.1], C=[0.5, -0.2, 0.1], units=RAW)
    times = [0.5, 2.0, 10.0, 100.0]
    full = solve(model, hadamard(model, start, rotation=3), times=times, units=RAW, progress=None)
    reduced = solve(model, start, times=times, progress=None)
    Z = full.parameters.Z
    lifted = np.stack([lift(model, a, units=RAW).Z for a in reduced.a])
    return float(
        max(np.linalg.norm(z - w) / np.linalg.norm(z) for z, w in zip(Z, lifted, strict=True))
    )


@claim(
    "Theorem 2; Eqs. (7), (19)",
    "From W = U D_W Rᵀ, H = R D_H Vᵀ, D_H = diag(β) ⊗ e_1ᵀ, the matrix flow moves only the singular "
    "values: dα/dt = √n b β/D, dβ/dt = √n b α/D.",
    "matrix gradients at 200 random unbalanced starts (K ≤ 16, n ≤ 3, d ≥ K) against the rates; "
    "`solve` in both views at four times",
    CORRECTED,
    correction="For n > 1 the values β_i must stand in columns (i−1)n + 1 of D_H; with the printed "
    "D_H = [diag(β), 0] singular vectors move at once.",
    seconds=2,
)
def reduced_flow(
    psi_of: Callable[[int], np.ndarray] = full_psi,
    layout: Callable[..., np.ndarray] = kronecker_layout,
) -> Finding:
    """Relative errors: rates below 1e-12, trajectories below 1e-7; the printed layout above 0.1."""
    value = {
        "rates": _theorem_error(layout, psi_of),
        "trajectories": _trajectory_error(),
        "printed layout": _theorem_error(block_layout, psi_of),
    }
    right = value["rates"] < 1e-12 and value["trajectories"] < 1e-7
    return finding(value, printed=right and value["printed layout"] < 0.1, corrected=right)


def reduced_energy(K: int, n: int) -> Callable[..., Any]:
    """E(α, β) of Eq. (8)."""
    psi = Sylvester(K).dense_psi

    def energy(alpha: Any, beta: Any) -> Any:
        x = jnp.asarray(psi) @ (alpha * beta) / (K * np.sqrt(n))
        return K * n * jnp.log1p(jnp.sum(jnp.exp(-x)))

    return energy


@claim(
    "Eq. (8)",
    "The reduced flow is gradient flow of E = Kn log(1 + Σ exp(−(Ψa)_i/(K√n))), which is the loss.",
    "reverse-mode gradient of E in (α, β) against Theorem 2's rates, and E against the loss of the "
    "lifted matrices, at 200 random states",
)
def energy_functional(energy_of: Callable[[int, int], Any] = reduced_energy) -> Finding:
    """Largest relative errors below 1e-12."""
    rng = np.random.default_rng(11)
    gradient_error = loss_error = 0.0
    for K, n in ((4, 1), (8, 3)):
        psi, energy = Sylvester(K).dense_psi, energy_of(K, n)
        with double_precision():
            gradients = Compiled(jax.value_and_grad(energy, argnums=(0, 1)), {})
            for _ in range(100):
                alpha, beta = rng.uniform(0.1, 2, (2, K - 1))
                E, (d_alpha, d_beta) = gradients(jnp.asarray(alpha), jnp.asarray(beta))
                b, D = reduced_field(psi, alpha * beta / (K * np.sqrt(n)))
                for got, want in ((d_alpha, b * beta), (d_beta, b * alpha)):
                    want = -np.sqrt(n) * want / D
                    error = np.linalg.norm(got - want) / np.linalg.norm(want)
                    gradient_error = larger(gradient_error, float(error))
                Z = lift(UFM(K, samples=n), alpha * beta, units=RAW).Z
                right = np.kron(np.eye(K), np.ones((1, n)))
                loss = -np.log(np.sum(softmax(Z) * right, axis=0)).sum()
                loss_error = larger(loss_error, float(abs(E / loss - 1)))
    value = {"gradient": gradient_error, "loss": loss_error}
    return finding(value, printed=max(value.values()) < 1e-12)


@claim(
    "Section 3.2, Noether's theorem",
    "α → γα, β → β/γ leaves E as it is, and α_i² − β_i² = C_i is conserved.",
    "E under 100 random γ; α² − β² along the matrix flow (`solve`, full view) from an unbalanced start",
    seconds=1,
)
def conserved_quantities(flow: Callable[..., Any] = solve) -> Finding:
    """E to 1e-13 relatively; C to 1e-7 of its size over t = 0 … 1000, while a grows tenfold."""
    rng = np.random.default_rng(12)
    psi, worst = Sylvester(8).dense_psi, 0.0
    for _ in range(100):
        alpha, beta, gamma = rng.uniform(0.1, 2, (3, 7))
        one, two = (
            np.log1p(np.exp(-(psi @ a) / 8).sum())
            for a in (alpha * beta, (gamma * alpha) * (beta / gamma))
        )
        worst = larger(worst, float(abs(one / two - 1)))
    model = UFM(4)
    C0 = np.array([0.5, -0.3, 0.2])
    start = hadamard(model, spectrum([0.2, 0.4, 0.1], C=C0, units=RAW), rotation=1)
    run = flow(model, start, times=[1.0, 10.0, 1000.0], units=RAW, progress=None)
    U = model.basis.vectors
    alpha2 = np.sum((U.T @ run.parameters.W) ** 2, axis=-1)[:, 1:]
    beta2 = np.sum((run.parameters.H @ U) ** 2, axis=-2)[:, 1:]
    drift = float(np.abs((alpha2 - beta2 - C0) / C0).max())
    growth = float(np.sqrt(alpha2 * beta2)[-1].min() / 0.4)
    value = {"energy": worst, "drift of C": drift, "growth of a": growth}
    return finding(value, printed=worst < 1e-13 and drift < 1e-7 and growth > 10)


@claim(
    "Section 3.2",
    "Small initialization leads to C ≈ 0.",
    "WᵀW − HHᵀ of Gaussian starts of deviation ε = 1e-1 … 1e-4, conserved along the matrix flow, "
    "against ‖Z‖ when the loss has halved",
)
def small_c(scales: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4)) -> Finding:
    """C ∝ ε² (slope within 0.2, as each ε has a draw of its own), conserved to 1e-6, and C/‖Z‖ < 1e-4
    at the smallest scale.

    Conservation is read at the two larger scales: a C of 1e-8 drowns in the rounding of ‖Z‖ ~ 1.
    """
    model = UFM(4)
    sizes, shares, drifts = [], [], []
    for seed, scale in enumerate(scales):
        start = gaussian(model, scale, seed)
        wait = np.log(1 / scale)
        run = solve(model, start, times=[wait, wait + 10], units=RAW, rtol=1e-9, progress=None)
        W, H = run.parameters.W, run.parameters.H
        C = np.swapaxes(W, -1, -2) @ W - H @ np.swapaxes(H, -1, -2)
        sizes.append(np.linalg.norm(C[0]))
        drifts.append(np.linalg.norm(C[-1] - C[0]) / np.linalg.norm(C[0]))
        shares.append(sizes[-1] / np.linalg.norm(run.parameters.Z[-1]))
    slope = float(np.polyfit(np.log(scales), np.log(sizes), 1)[0])
    value = {"order in ε": slope, "drift": float(max(drifts)), "C/‖Z‖": [float(s) for s in shares]}
    good = abs(slope - 2) < 0.2 and max(drifts[:2]) < 1e-6 and shares[-1] < 1e-4
    return finding(value, printed=good)


# --- Section 3.3 ---------------------------------------------------------------------------------


def scaled_energy(K: int) -> Callable[[Any], Any]:
    """E(a) = log(1 + Σ e^{−(Ψa)_j}) of Appendix B.1."""
    psi = Sylvester(K).dense_psi
    return lambda a: jnp.log1p(jnp.sum(jnp.exp(-(jnp.asarray(psi) @ a))))


@claim(
    "Section 3.3; Appendix B.1; Eq. (18)",
    "d log a/dt = −∇E(a), mirror flow of E with the entropy potential Σ a log a.",
    "reverse-mode gradients of E and of the potential against the model's velocity, K = 4 and 16",
    seconds=2,
)
def mirror_flow(energy_of: Callable[[int], Any] = scaled_energy) -> Finding:
    """Largest relative error below 1e-12 at 200 random states."""
    worst = 0.0
    for K in (4, 16):
        states = random_states(K, 100, seed=13)
        with double_precision():
            gradient = Compiled(jax.vmap(jax.grad(energy_of(K))), {})
            potential = jax.grad(lambda a: jnp.sum(a * jnp.log(a)))
            mirror = Compiled(jax.vmap(jax.jacfwd(potential)), {})
            velocity = jnp.asarray(UFM(K).velocity(states))
            moved = jnp.einsum("sij,sj->si", mirror(jnp.asarray(states)), velocity)
            pulled = -gradient(jnp.asarray(states))
        error = np.linalg.norm(moved - pulled, axis=1) / np.linalg.norm(pulled, axis=1)
        worst = larger(worst, float(error.max()))
    return finding({"largest relative error": worst}, printed=worst < 1e-12)


def replicator(a_hat: np.ndarray, b: np.ndarray, D: Any) -> np.ndarray:
    """Eq. (11): â (b − b̄)/D with b̄ = Σ â b."""
    return a_hat * (b - a_hat @ b) / D


@claim(
    "Eq. (11)",
    "dâ_i/dt = â_i (b_i − b̄)/D, b̄ = Σ â_j b_j, replicator dynamics on a simplex of dimension K − 2.",
    "the quotient rule on the model's velocity at 200 random states; rank of random directions",
    CORRECTED,
    correction="The simplex of K − 1 positive numbers with sum one has dimension K − 2, not K − 1. "
    "The equation is right.",
    seconds=1,
)
def replicator_form(form: Callable[..., np.ndarray] = replicator) -> Finding:
    """Relative error below 1e-10 of the largest term; affine rank exactly K − 2."""
    worst, ranks = 0.0, {}
    for K in (4, 16):
        psi = Sylvester(K).dense_psi
        states = random_states(K, 100, seed=14)
        for a, v in zip(states, UFM(K).velocity(states), strict=True):
            b, D = reduced_field(psi, a)
            a_hat = a / a.sum()
            want = (v - a_hat * v.sum()) / a.sum()
            error = np.abs(form(a_hat, b, D) - want).max() / np.abs(v / a.sum()).max()
            worst = larger(worst, float(error))
        directions = states / states.sum(axis=1, keepdims=True)
        ranks[K] = int(np.linalg.matrix_rank(directions - directions.mean(axis=0), tol=1e-8))
    right = worst < 1e-10 and all(rank == K - 2 for K, rank in ranks.items())
    value = {
        "largest relative error": worst,
        "dimension": {f"K = {K}": r for K, r in ranks.items()},
    }
    printed = worst < 1e-10 and all(rank == K - 1 for K, rank in ranks.items())
    return finding(value, printed=printed, corrected=right)


@claim(
    "Section 3.3, positive singular values",
    "Singular values increase, so positive ones stay positive; zero ones stay zero.",
    "proven sign of every b_i at 2000 random states (K = 2 … 16); `solve` to t = 10^1000 from a start "
    "with zeros",
)
def positivity(psi: Any = None) -> Finding:
    """Every b_i positive; every saved a_i at least the one before; zeros exactly zero."""
    negative = 0
    for K in (2, 4, 8, 16):
        for a in exactly(random_states(K, 500, seed=15)):
            matrix = psi(K) if psi else sylvester_psi(K)
            negative += sum(not v > 0 for v in ExactState.at(a, matrix).b)
    run = solve(
        UFM(8),
        [1, 0.5, 0, 0.2, 0, 0.1, 0.3],
        log10_times=np.geomspace(0.1, 1000, 60),
        progress=None,
    )
    falls = int(np.sum(np.diff(run.a, axis=0) < 0))
    zeros = float(run.a[:, [2, 4]].max())
    value = {"b not positive": negative, "falls": falls, "largest of the zero modes": zeros}
    return finding(value, printed=negative == 0 and falls == 0 and zeros == 0.0)


@claim(
    "Section 3.3, normalized singular values",
    "‖a‖₁ diverges; the loss has no finite minimum.",
    "‖a‖₁ at t = 10^1 … 10^10000 from three starts at K = 8, against the asymptote at collapse, "
    "e^{Kμ} = K²μt, the slowest of all directions (its smallest margin is the largest)",
    seconds=4,
)
def norm_diverges(loss: str = "cross_entropy") -> Finding:
    """Rises from decade to decade, and K mean(a)/log(K² mean(a) t) > 0.99 at t = 10^10000."""
    decades, ratios, rising = np.array([1, 10, 100, 1000, 10_000.0]), [], True
    for start in ([1] * 7, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], [1e-3, 1e-3, 1, 1, 1, 1, 1]):
        model = UFM(8, loss=loss)
        start = start if loss == "cross_entropy" else [1.0, *start]
        run = solve(model, start, log10_times=decades, progress=None)
        mu = run.a[1:, -7:].mean(axis=1)
        rising &= bool(np.all(np.diff(mu) > 0.2))
        ratios.append(8 * mu[-1] / (np.log(64 * mu[-1]) + decades[-1] * np.log(10)))
    value = {"Kμ/log(K²μt) at t = 10^10000": [float(r) for r in ratios]}
    return finding(value, printed=rising and min(ratios) > 0.99)


# --- MSE -----------------------------------------------------------------------------------------


def _mse_matrix_flow(model: UFM, a0: list[float], times: np.ndarray) -> np.ndarray:
    """Singular values along the MSE flow of the matrices, on the Hadamard diagonal."""
    start = hadamard(model, spectrum(a0, units=RAW))
    run = solve(model, start, times=times, units=RAW, progress=None)
    U, K, n = model.basis.vectors, model.classes, model.samples
    Z = run.parameters.Z[1:].reshape(len(times), K, K, n).sum(axis=-1) / np.sqrt(n)
    return np.diagonal(U.T @ Z @ U, axis1=1, axis2=2)


@claim(
    "Section 2, Eqs. (4), (5)",
    "With MSE the singular values decouple into sigmoids and converge monotonically to those of Y.",
    "closed form and sigmoid against the matrix flow (`solve`, full view) at K = 4, n = 2; decoupling in "
    "the matrix flow, by moving one start value; its monotone approach to √n",
    seconds=1,
)
def mse_exact_dynamics(form: Callable[..., np.ndarray] = mse_exact) -> Finding:
    """Relative errors below 1e-7, coupling below 1e-7; distance to √n falls at every step, to 1e-4."""
    model = UFM(4, samples=2, loss=MSE)
    a0, times = [0.05, 0.3, 0.01, 2.0], np.linspace(0.2, 6, 30)
    exact = form(model, spectrum(a0, units=RAW), times)
    matrix, moved = (_mse_matrix_flow(model, start, times) for start in (a0, [*a0[:3], 0.7]))
    distance = np.abs(matrix - np.sqrt(2))
    decay = np.exp(-2 * np.sqrt(2) * times[:, None])
    sigmoid = np.sqrt(2) / (1 + (np.sqrt(2) / np.array(a0) - 1) * decay)
    value = {
        "closed form against the matrix flow": float(np.abs(exact / matrix - 1).max()),
        "sigmoid against the matrix flow": float(np.abs(sigmoid / matrix - 1).max()),
        "coupling": float(np.abs(moved[:, :3] / matrix[:, :3] - 1).max()),
        "distance to √n at the end": float(distance[-1].max()),
    }
    monotone = bool(np.all(np.diff(distance, axis=0) < 0))
    errors = list(value.values())[:3]
    return finding(value, printed=max(errors) < 1e-7 and monotone and distance[-1].max() < 1e-4)


@claim(
    "Section 4.3, exponential slow down, last sentence",
    "MSE, whose minimum is finite, does not slow down.",
    "time to collapse within 1e-3 and 1e-6 under both losses from a = (0.02, 0.05, 0.1), K = 4",
    seconds=1,
)
def mse_no_slowdown(slow: str = "cross_entropy") -> Finding:
    """MSE: equal factors cost equal times, log(10³)/2√n within 2 %. CE: the time is squared or worse."""
    start = [0.02, 0.05, 0.1]
    ends = {}
    for loss in (MSE, slow):
        model = UFM(4, loss=loss)
        given = [0.05, *start] if loss == MSE else start
        ends[loss] = [
            solve(model, given, Collapse(tolerance), points=2, progress=None).log10_time[-1]
            for tolerance in (1e-3, 1e-6)
        ]
    extra = 10 ** ends[MSE][1] - 10 ** ends[MSE][0]
    expected = np.log(1e3)  # scaled time: the distance falls like e^{−t}
    value = {
        "MSE, log10 t": [float(t) for t in ends[MSE]],
        "CE, log10 t": [float(t) for t in ends[slow]],
        "MSE, three more digits cost": float(extra / expected),
    }
    good = abs(extra / expected - 1) < 0.02 and ends[slow][1] > 1.8 * ends[slow][0]
    return finding(value, printed=good)
