"""Claims about the Sylvester matrix, the softmax it diagonalizes, and Ψ (Sections 3 and 7.1)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.algebra.bases import Sylvester
from hadaflow.algebra.transforms import sylvester_matrix
from hadaflow.lab.exact.ball_flow import sylvester_psi
from hadaflow.model.starts import lift
from hadaflow.model.ufm import UFM
from hadaflow.paper.claim import CERTIFIED, CORRECTED, Finding, claim, finding, larger

MatrixOf = Callable[[int], np.ndarray]


def phi_of(K: int) -> np.ndarray:
    """The Sylvester–Hadamard matrix over the integers."""
    return sylvester_matrix(K).astype(int)


def psi_of(K: int) -> np.ndarray:
    """Ψ over the integers."""
    return Sylvester(K).dense_psi.astype(int)


def softmax(Z: np.ndarray) -> np.ndarray:
    """Columnwise softmax."""
    e = np.exp(Z - Z.max(axis=0))
    return e / e.sum(axis=0)


def off_diagonal_share(U: np.ndarray, a: np.ndarray) -> float:
    """Share of P(U diag(a) Uᵀ), without its constant part, that is off the diagonal in U."""
    M = U.T @ softmax(U @ np.diag(a) @ U.T) @ U
    rest = M - np.diag(np.diag(M))
    M[0, 0] -= 1
    return float(np.linalg.norm(rest) / max(np.linalg.norm(M), 1e-300))


# --- Theorem 1 -----------------------------------------------------------------------------------


def theorem_nu(phi: np.ndarray, a: np.ndarray) -> np.ndarray:
    """ν of Theorem 1: Φ softmax(Φa/K)."""
    return phi @ softmax(phi @ a / len(a))


def printed_nu(phi: np.ndarray, a: np.ndarray) -> np.ndarray:
    """ν as Eq. (6) prints it: U P(U a), U normalized."""
    U = phi / np.sqrt(len(a))
    return U @ softmax(U @ a)


def corrected_nu(phi: np.ndarray, a: np.ndarray) -> np.ndarray:
    """ν of Eq. (6) with its missing factors: √K U P(U a/√K)."""
    K = len(a)
    U = phi / np.sqrt(K)
    return np.sqrt(K) * U @ softmax(U @ a / np.sqrt(K))


@claim(
    "Theorem 1; Eq. (6)",
    "The softmax of Z = U diag(a) Uᵀ is U diag(ν) Uᵀ with ν = √K U P(U a/√K) = Φ P(Φa/K).",
    "100 random spectra of either sign for each K = 2 … 32 against the softmax of the dense matrix",
    CORRECTED,
    correction="Eq. (6) and the introduction print ν = U P(U a) with normalized U; the factors "
    "√K outside and 1/√K inside are missing. Theorem 1's own ν is right.",
)
def softmax_diagonalization(
    phi_of: MatrixOf = phi_of,
    theorem: Callable[..., np.ndarray] = theorem_nu,
    corrected: Callable[..., np.ndarray] = corrected_nu,
) -> Finding:
    """Largest error of an entry of P: below 1e-13 holds, above 1e-2 fails."""
    rng = np.random.default_rng(1)
    worst = {"theorem": 0.0, "printed": 0.0, "corrected": 0.0}
    for K in (2, 4, 8, 16, 32):
        phi = phi_of(K)
        U = phi / np.sqrt(K)
        for _ in range(100):
            a = rng.standard_normal(K) * 10 ** rng.uniform(-2, 1.5)
            P = softmax(U @ np.diag(a) @ U.T)
            forms = {"theorem": theorem, "printed": printed_nu, "corrected": corrected}
            for name, nu in forms.items():
                error = np.abs(P - U @ np.diag(nu(phi, a)) @ U.T).max()
                worst[name] = larger(worst[name], float(error))
    right = worst["theorem"] < 1e-13 and worst["corrected"] < 1e-13
    return finding(worst, printed=worst["printed"] < 1e-2, corrected=right)


def unnormalized_flow(K: int, a: np.ndarray) -> np.ndarray:
    """The flow a ⊙ (1 − Ũᵀ P(Ũa)) with Ũ the unnormalized Hadamard columns but the first, a scaled."""
    columns = sylvester_matrix(K)[:, 1:]
    return a * (1 - columns.T @ softmax(columns @ a))


@claim(
    "Section 1.2, second display",
    "The flow is da/dt = a ⊙ (1 − Ũᵀ P(Ũ a)), Ũ the Hadamard modes without the constant one.",
    "100 random states at K = 4 and 16 against the model's velocity (Eq. 9)",
    CORRECTED,
    correction="Ũ must be the unnormalized columns and a the scaled singular values; with "
    "normalized columns the flow is another one.",
    seconds=2,
)
def introduction_flow(form: Callable[[int, np.ndarray], np.ndarray] = unnormalized_flow) -> Finding:
    """Largest relative error of a velocity: below 1e-10 holds, above 1e-2 fails."""
    rng = np.random.default_rng(2)
    worst = {"printed": 0.0, "corrected": 0.0}
    for K in (4, 16):
        model, columns = UFM(K), sylvester_matrix(K)[:, 1:] / np.sqrt(K)
        states = rng.uniform(0.01, 1.0, (100, K - 1)) / K
        for a, v in zip(states, model.velocity(states), strict=True):
            printed = a * (1 - columns.T @ softmax(columns @ a))
            for name, w in {"printed": printed, "corrected": form(K, a)}.items():
                error = np.linalg.norm(w - v) / np.linalg.norm(v)
                worst[name] = larger(worst[name], float(error))
    return finding(worst, printed=worst["printed"] < 1e-2, corrected=worst["corrected"] < 1e-10)


@claim(
    "Section 3.1, items 1 and 2; Fact 1; Eq. (14)",
    "φ_i ⊙ φ_j = φ_{i⊕j}; Φ diag(φ_i) = Π_i Φ; a matrix c_{i⊕j} is diagonal in Φ, and its softmax is of "
    "the same form (K = 2 … 64).",
    "exact integer identities for every i and j; each column of the XOR table is a permutation of the "
    "first, so exponentials and their column sums keep the form",
    CERTIFIED,
)
def group_structure(phi_of: MatrixOf = phi_of) -> Finding:
    """Counts violated integer identities: none may be."""
    violations = 0
    rng = np.random.default_rng(3)
    for K in (2, 4, 8, 16, 32, 64):
        phi = phi_of(K)
        index = np.arange(K)
        xor = index[:, None] ^ index[None, :]
        for i in range(K):
            violations += int(np.any(phi[i] * phi != phi[xor[i]]))  # every j at once
            violations += int(np.any(phi * phi[i] != np.eye(K, dtype=int)[xor[i]] @ phi))
            violations += int(np.any(np.sort(xor[i]) != index))
            # The logits themselves: Φ diag(a) Φ has entries c_{i⊕j} for a = e_i, so for every a.
            violations += int(np.any(np.outer(phi[:, i], phi[i]) != phi[i][xor]))
        c = rng.integers(-9, 10, K)
        spectrum = phi @ c[xor] @ phi
        violations += int(np.any(spectrum != np.diag(np.diag(spectrum))))
    return finding({"violated identities": violations}, printed=violations == 0, certified=True)


def random_orthogonal(K: int, rng: np.random.Generator) -> np.ndarray:
    """A random orthogonal basis whose first column is constant, as softmax-diagonality would need."""
    columns = rng.standard_normal((K, K))
    columns[:, 0] = 1.0
    U, R = np.linalg.qr(columns)
    return U * np.sign(np.diag(R))


@claim(
    "Section 3.2",
    "A general orthogonal U does not diagonalize the softmax of U diag(a) Uᵀ.",
    "off-diagonal share of Uᵀ P U for 50 random bases (constant column included) at K = 4, 8, 16",
)
def generic_basis_fails(
    basis: Callable[[int, np.random.Generator], np.ndarray] = random_orthogonal,
) -> Finding:
    """Median share above 1e-3 for every K, against below 1e-12 for the Sylvester basis."""
    rng = np.random.default_rng(4)
    shares, sylvester = {}, 0.0
    for K in (4, 8, 16):
        found = []
        for _ in range(50):
            a = np.append(0.0, rng.uniform(0.0, 8.0, K - 1))
            found.append(off_diagonal_share(basis(K, rng), a))
            sylvester = larger(sylvester, off_diagonal_share(phi_of(K) / np.sqrt(K), a))
        shares[f"K = {K}"] = float(np.median(found))
    value = {"median share": shares, "Sylvester, largest": sylvester}
    return finding(value, printed=min(shares.values()) > 1e-3 and sylvester < 1e-12)


@claim(
    "Section 3.2, after Theorem 2",
    "b_1 = 0, so the trivial mode stays as it is, and it does not act on the other modes.",
    "exact zeros of 11ᵀ − Φ for K = 2 … 64; diagonal of Uᵀ(I − P)U for dense softmaxes with the mode "
    "moved by ±50",
)
def trivial_mode_frozen(phi_of: MatrixOf = phi_of) -> Finding:
    """Zeros exact; forces moved by less than 1e-12, the trivial one below 1e-12, nothing off diagonal."""
    rng = np.random.default_rng(5)
    zeros, own, moved = 0, 0.0, 0.0
    for K in (2, 4, 8, 16, 32, 64):
        phi = phi_of(K)
        full, U = 1 - phi, phi / np.sqrt(K)
        zeros += int(np.any(full[0])) + int(np.any(full[:, 0]))
        for _ in range(20):
            a = rng.uniform(0, 2, K)
            forces = []
            for shift in (-50.0, 0.0, 50.0):
                shifted = a + shift * (np.arange(K) == 0)
                forces.append(U.T @ (np.eye(K) - softmax(U @ np.diag(shifted) @ U.T)) @ U)
            off = max(np.abs(f - np.diag(np.diag(f))).max() for f in forces)
            own = larger(own, max(off, np.abs([f[0, 0] for f in forces]).max()))
            moved = larger(moved, np.abs(np.array(forces) - forces[1]).max())
    value = {"force on the trivial mode": own, "change of the other forces": moved}
    return finding(value, printed=zeros == 0 and own < 1e-12 and moved < 1e-12)


# --- Ψ -------------------------------------------------------------------------------------------


def block_psi(psi: np.ndarray) -> np.ndarray:
    """Ψ of 2K classes from Ψ of K, by the block matrix of the embedding lemma's proof."""
    size = len(psi)
    zero, two = np.zeros((size, 1), int), np.full((size, 1), 2)
    return np.block([[psi, zero, psi], [zero.T, 2, two.T], [psi, two, 2 - psi]])


@claim(
    "Section 3.2; Appendix D.2 (lemma), D.3, D.5",
    "Ψ² = K(I + 11ᵀ), Ψ1 = K1, |Ψ_ij| ≤ 2, ‖ψ_u‖ = √(2K), −Ψ is the Schur complement of Φ, and Ψ "
    "doubles by blocks (K = 2 … 256).",
    "exact integer identities",
    CERTIFIED,
)
def psi_identities(psi_of: MatrixOf = psi_of) -> Finding:
    """Counts violated integer identities: none may be."""
    violated = 0
    for K in (2, 4, 8, 16, 32, 64, 128, 256):
        psi, one = psi_of(K), np.ones(K - 1, int)
        identities = (
            np.array_equal(psi @ psi, K * (np.eye(K - 1, dtype=int) + np.outer(one, one))),
            np.array_equal(psi @ one, K * one),
            np.array_equal(one @ psi, K * one),
            set(np.unique(psi)) <= {0, 2},
            np.array_equal(np.sum(psi**2, axis=0), 2 * K * one),
            np.array_equal(-psi, phi_of(K)[1:, 1:] - np.outer(one, one)),
            K == 256 or np.array_equal(psi_of(2 * K), block_psi(psi)),
            np.array_equal(psi, np.array(sylvester_psi(K))),
        )
        violated += sum(not i for i in identities)
    return finding({"violated identities": violated}, printed=violated == 0, certified=True)


@claim(
    "Section 4.3, role of non-uniform stable points",
    "Each singular mode enlarges exactly K/2 of the margins (Ψa)_i (K = 2 … 256).",
    "count of non-zero entries in every column of Ψ",
    CERTIFIED,
)
def half_the_margins(psi_of: MatrixOf = psi_of) -> Finding:
    """Exact count: every column K/2."""
    wrong = sum(
        int(np.any(np.sum(psi_of(K) > 0, axis=0) != K // 2)) for K in (2**m for m in range(1, 9))
    )
    return finding({"K with another count": wrong}, printed=wrong == 0, certified=True)


_PRINTED_TRIPLES = {
    1: ("246", "347", "257", "356"),
    2: ("145", "347", "167", "356"),
    3: ("246", "145", "257", "167"),
    4: ("123", "257", "167", "356"),
    5: ("246", "347", "123", "167"),
    6: ("145", "347", "123", "257"),
    7: ("246", "145", "123", "356"),
}


@claim(
    "Appendix B.3 (log-ratio), the seven b_i",
    "At K = 8, e^{2‖a‖₁}-scaled b_i = 2 Σ e^{2(a_p+a_q+a_r)} over four triples; the seven triples "
    "have the four listed properties.",
    "exact exponents of Ψ_ij exp(([2·11ᵀ − Ψ]a)_j) against the printed triples",
    CORRECTED,
    correction="Every printed b_i lacks a factor of 2 (Ψ_ij is 0 or 2); the triples and the four "
    "properties are right.",
)
def fano_triples(
    psi_of: MatrixOf = psi_of, triples: dict[int, tuple[str, ...]] | None = None
) -> Finding:
    """All counts exact."""
    psi = psi_of(8)
    triples = triples or _PRINTED_TRIPLES
    exponents = 2 - psi  # row j: the exponent's coefficients of a
    name = lambda row: "".join(str(i + 1) for i in np.flatnonzero(row))  # noqa: E731
    of = {i + 1: {name(exponents[j]) for j in np.flatnonzero(psi[i])} for i in range(7)}
    everything = set().union(*of.values())
    pairs = [{i, j} for i in range(1, 8) for j in range(1, i)]
    points = {t: {int(c) for c in t} for t in everything}
    properties = (
        len(everything) == 7 and all(len(p) == 3 for p in points.values()),
        all(i not in points[t] for i, terms in of.items() for t in terms),
        all(sum(p <= points[t] for t in everything) == 1 for p in pairs),
        all(
            of[i] & of[j] == {t for t in everything if not {i, j} & points[t]}
            and len(of[i] & of[j]) == 2
            for i, j in map(sorted, pairs)
        ),
    )
    same = {i: of[i] == set(triples[i]) for i in of}
    coefficients = {int(psi[i, j]) for i in range(7) for j in np.flatnonzero(psi[i])}
    corrected = all(properties) and all(same.values()) and coefficients == {2}
    value = {
        "triples": len(everything),
        "b_i with the printed triples": sum(same.values()),
        "properties that hold": sum(properties),
        "coefficient": sorted(coefficients),
    }
    return finding(value, printed=corrected and coefficients == {1}, corrected=corrected)


# --- shapes for n > 1 ----------------------------------------------------------------------------


def kronecker_layout(diagonal: np.ndarray, n: int) -> np.ndarray:
    """D ⊗ e_1ᵀ: entry i in column (i−1)n + 1."""
    return np.kron(diagonal, np.eye(1, n))


def block_layout(diagonal: np.ndarray, n: int) -> np.ndarray:
    """[D, 0]: entry i in column i."""
    K = len(diagonal)
    return np.hstack([diagonal, np.zeros((K, K * (n - 1)))])


def right_vectors(K: int, n: int) -> np.ndarray:
    """V = U ⊗ Q with Q a right singular matrix of 1_nᵀ."""
    Q, R = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))
    return np.kron(sylvester_matrix(K) / np.sqrt(K), Q * np.sign(R[0, 0]))


@claim(
    "Appendix D.1",
    "Y = √n U (I ⊗ e_1ᵀ) Vᵀ with V = U ⊗ Q.",
    "the label matrix against both layouts for K = 2, 4, 8 and n = 1, 2, 3",
    CORRECTED,
    correction="For n > 1, [D, 0] is not D ⊗ e_1ᵀ: the non-zero entries of D_H, D_Z, D_Y and D_P "
    "belong in columns (i−1)n + 1, not in the first K.",
)
def kronecker_form(corrected: Callable[..., Any] = kronecker_layout) -> Finding:
    """Largest entry of the error: below 1e-14 holds, above 0.1 fails."""
    worst = {"printed": 0.0, "corrected": 0.0}
    for K in (2, 4, 8):
        for n in (1, 2, 3):
            Y = np.kron(np.eye(K), np.ones((1, n)))
            U, V = sylvester_matrix(K) / np.sqrt(K), right_vectors(K, n)
            for name, layout in (("printed", block_layout), ("corrected", corrected)):
                error = np.abs(Y - np.sqrt(n) * U @ layout(np.eye(K), n) @ V.T).max()
                worst[name] = larger(worst[name], float(error))
    return finding(worst, printed=worst["printed"] < 0.1, corrected=worst["corrected"] < 1e-14)


@claim(
    "Section 4.1",
    "Equal singular values a_i are neural collapse: WWᵀ ∝ S and H̄ᵀH̄ ∝ S, NC1 included.",
    "lifted states at K = 2 … 16, n = 1, 3, compared with S",
    correction="Printed HᵀH ∝ S holds for n = 1; for n > 1 it is HᵀH ∝ S ⊗ 11ᵀ, and the class means "
    "give H̄ᵀH̄ ∝ S.",
)
def collapse_geometry(spectrum: Callable[[int], np.ndarray] | None = None) -> Finding:
    """Distances from S, and of HᵀH from S ⊗ 11ᵀ, below 1e-13."""
    spectrum = spectrum or (lambda K: np.full(K - 1, 1.7))
    worst = 0.0
    for K in (2, 4, 8, 16):
        S = np.eye(K) - 1 / K
        for n in (1, 3):
            state = lift(UFM(K, samples=n), spectrum(K))
            means = state.H.reshape(-1, K, n).mean(axis=2)
            spread = np.abs(state.H.reshape(-1, K, n) - means[:, :, None]).max()
            block = np.kron(S, np.ones((n, n))) / (n * (K - 1))
            gram = state.H.T @ state.H
            worst = larger(worst, np.linalg.norm(gram / np.trace(gram) - block))
            for G in (state.W @ state.W.T, means.T @ means):
                worst = larger(worst, float(np.linalg.norm(G / np.trace(G) - S / (K - 1))))
            worst = larger(worst, float(spread))
    return finding({"largest distance": worst}, printed=worst < 1e-13)
