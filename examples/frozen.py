"""Why hadaflow exists: the textbook flow freezes, and every SciPy method reports success.

The reduced flow is da/dt = a ⊙ (1 − ν), where ν comes from a softmax. Once the right class has
probability 1 − 1e-17, ν rounds to 1, the velocity to 0, and nothing moves any more, however long
the time asked for. The solver cannot know; it returns "success" in the wrong place.
"""

import warnings

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import hadamard

import hadaflow as hf

K, END = 8, 1e100
METHODS = ("RK45", "RK23", "DOP853", "Radau", "BDF", "LSODA")
START = np.random.default_rng(0).uniform(0.5, 1.5, K - 1)  # a mild start


def textbook(t: float, a: np.ndarray) -> np.ndarray:
    """A ⊙ (1 − ν) with ν from the softmax of the first row of logits, as one writes it down."""
    Phi = hadamard(K)
    logits = Phi[:, 1:] @ a
    p = np.exp(logits - logits.max())
    nu = Phi[1:] @ (p / p.sum())
    return a * (1 - nu)


def deviation(a: np.ndarray) -> float:
    """Max |(K−1)â − 1|: 0 at neural collapse."""
    return float(np.max(np.abs(a / a.mean() - 1)))


def main() -> list[tuple[str, str, float, float]]:
    """One row per method: name, what it reports, log norm, distance from collapse."""
    rows = []
    for method in METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            end = solve_ivp(textbook, (0, END), START, method=method, rtol=1e-8, atol=1e-10)
        a = end.y[:, -1]
        rows.append((method, "success" if end.success else "failed", np.log(a.sum()), deviation(a)))
    run = hf.solve(hf.UFM(classes=K), START, hf.Time(END))
    rows.append(("hadaflow", run.status, run.log_norm[-1], deviation(run.a[-1])))
    print(f"K = {K}, mild random start, t = {END:g}")
    print(f"{'method':<10}{'reports':<10}{'log‖a‖₁':>10}{'max|(K−1)â − 1|':>18}")
    for name, report, log_norm, distance in rows:
        print(f"{name:<10}{report:<10}{log_norm:>10.4f}{distance:>18.2e}")
    return rows


if __name__ == "__main__":
    main()
