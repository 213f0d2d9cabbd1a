"""Independent references in NumPy, SciPy and mpmath. Nothing here imports hadaflow."""

import functools

import mpmath as mp
import numpy as np
import scipy.integrate
import scipy.linalg
import scipy.special


def dense_psi(K):
    return 1.0 - scipy.linalg.hadamard(K)[1:, 1:]


def textbook_velocity(a, K):
    """A ⊙ (1 − ν) by dense matrices: right while 1 − ν is far above rounding."""
    e = np.exp(-dense_psi(K) @ a)
    return a * (dense_psi(K) @ e) / (1 + e.sum())


def stable_velocity(a, K, C=0.0, depth=2):
    """w(a) b/D in scaled units, dense."""
    x = dense_psi(K) @ a
    e = np.exp(-(x - x.min()))
    g = dense_psi(K) @ e / (np.exp(min(x.min(), 700.0)) + e.sum())
    return (np.sqrt(a**2 + np.asarray(C) ** 2 / 4) if depth == 2 else 1.0) * g


def radau(a0, times, rtol=1e-12):
    """Reduced flow in t with SciPy's Radau on log a."""
    K = len(a0) + 1

    def field(t, z):
        a = np.exp(z)
        return stable_velocity(a, K) / a

    solution = scipy.integrate.solve_ivp(
        field, (0, times[-1]), np.log(a0), "Radau", t_eval=times, rtol=rtol, atol=rtol
    )
    assert solution.success
    return np.exp(solution.y.T)


def softmax_residual(Z, labels):
    """Y − P with the right class as the sum of the wrong ones."""
    shifted = np.exp(Z - Z.max(axis=0))
    P = shifted / shifted.sum(axis=0)
    R = -P
    for column, c in enumerate(labels):
        R[c, column] = np.delete(P[:, column], c).sum()
    return R


def matrix_flow(factors, K, n, times, loss="cross_entropy", labels=None, temperature=1.0):
    """The full gradient flow (Eq. 2) of the summed loss by DOP853, raw time; logits at `times`.

    `labels` is a K × Kn matrix of soft labels.
    """
    options = {"loss": loss, "labels": labels, "temperature": temperature}
    return [
        functools.reduce(np.matmul, parts) for parts in factor_flow(factors, n, times, **options)
    ]


def factor_flow(
    factors, n, times, *, loss="cross_entropy", labels=None, temperature=1.0, decays=None, divisor=1
):
    """All factors at `times`, for any number of them, samples of each class `n`, penalties.

    Loss over `divisor`, plus λ_l/2 ‖W_l‖² for each factor.
    """
    K = len(factors[0])
    shapes = [f.shape for f in factors]
    sizes = np.cumsum([f.size for f in factors])[:-1]
    classes = np.repeat(np.arange(K), n)
    Y = np.zeros((K, len(classes)))
    Y[classes, np.arange(len(classes))] = 1
    decays = decays or (0.0,) * len(factors)

    def unpack(y):
        return [p.reshape(s) for p, s in zip(np.split(y, sizes), shapes, strict=True)]

    def residual(Z):
        if loss == "mse":
            return Y - Z
        if labels is None:
            return softmax_residual(Z / temperature, classes) / temperature
        return (labels - scipy.special.softmax(Z / temperature, axis=0)) / temperature

    def field(t, y):
        parts = unpack(y)
        R = residual(functools.reduce(np.matmul, parts)) / divisor
        moved = []
        for k, part in enumerate(parts):
            before = functools.reduce(np.matmul, parts[:k], np.eye(K))
            after = functools.reduce(np.matmul, parts[k + 1 :], np.eye(part.shape[1]))
            moved.append((before.T @ R @ after.T - decays[k] * part).ravel())
        return np.concatenate(moved)

    y0 = np.concatenate([f.ravel() for f in factors])
    solution = scipy.integrate.solve_ivp(
        field, (0, times[-1]), y0, "DOP853", t_eval=times, rtol=1e-12, atol=1e-14
    )
    assert solution.success
    return [unpack(y) for y in solution.y.T]


def two_class_clock(a):
    """K = 2 by hand, raw units, n = 1: log a + Ei(a) grows at rate 4."""
    return np.log(a) + scipy.special.expi(a)


def uniform_log10_time(mu, mu0, K):
    """log10 of scaled time from equal singular values mu0 to mu: Ei(Kμ) + (K−1) log μ = K t + c."""
    with mp.workdps(60):
        clock = lambda m: mp.ei(K * mp.mpf(m)) + (K - 1) * mp.log(mp.mpf(m))  # noqa: E731
        return float(mp.log10((clock(mu) - clock(mu0)) / K))


def taylor_flow(a0, times, digits=40, order=40):
    """Reduced flow in t by Taylor series in `digits`-digit arithmetic; rows as floats at `times`."""
    K = len(a0) + 1
    psi = dense_psi(K).astype(int).tolist()
    modes = range(K - 1)
    rows = []
    with mp.workdps(digits):
        a, t = [mp.mpf(v) for v in a0], mp.mpf(0)
        for goal in times:
            goal = mp.mpf(float(goal))
            while t < goal:
                series = _taylor_series(a, psi, modes, order)
                # Step by the last two coefficients, so that the tail is below working precision.
                size = max(
                    (abs(s[k]) / abs(s[0])) ** (mp.mpf(1) / k)
                    for s in series
                    for k in (order - 1, order)
                )
                h = min(goal - t, mp.mpf(10) ** (-mp.mpf(digits - 6) / order) / size)
                a = [mp.fsum(c * h**k for k, c in enumerate(s)) for s in series]
                t = goal if h == goal - t else t + h
            rows.append([float(v) for v in a])
    return np.array(rows)


def _taylor_series(a0, psi, modes, order):
    a = [[v] for v in a0]
    x = [[mp.fsum(2 * a[i][0] for i in modes if psi[j][i])] for j in modes]
    e = [[mp.exp(-x[j][0])] for j in modes]
    q = [[] for _ in modes]
    for k in range(order):
        b = [mp.fsum(2 * e[j][k] for j in modes if psi[i][j]) for i in modes]
        total = [mp.fsum(e[j][m] for j in modes) + (1 if m == 0 else 0) for m in range(k + 1)]
        for i in modes:
            tail = mp.fsum(q[i][m] * total[k - m] for m in range(k))
            q[i].append((b[i] - tail) / total[0])
        for i in modes:
            a[i].append(mp.fsum(a[i][m] * q[i][k - m] for m in range(k + 1)) / (k + 1))
        for j in modes:
            x[j].append(mp.fsum(2 * a[i][k + 1] for i in modes if psi[j][i]))
            e[j].append(
                -mp.fsum((m + 1) * x[j][m + 1] * e[j][k - m] for m in range(k + 1)) / (k + 1)
            )
    return a


def collapse_by_norm(a0, tolerance, rtol=1e-12):
    """log‖a‖₁ and log10 t where max|(K−1)â − 1| = tolerance, integrating in s = log‖a‖₁ (dense).

    d log a/ds = b/b̄; the clock is carried as w = t e^{−M}.
    """
    K = len(a0) + 1
    psi = dense_psi(K)

    def parts(z):
        a = np.exp(z - z.max())
        scale = np.exp(z.max())
        x = psi @ a
        e = np.exp(-(x - x.min()) * scale)
        M = x.min() * scale - np.log(e.sum())
        return a, psi @ (e / e.sum()), M, scale

    def field(s, y):
        a, force, M, scale = parts(y[:-1])
        mean = a @ force / a.sum()
        rate = force / mean
        M_rate = force @ (a * scale * rate)
        return np.append(rate, (1 + np.exp(-M)) / mean - y[-1] * M_rate)

    def event(s, y):
        r = np.exp(y[:-1] - scipy.special.logsumexp(y[:-1])) * (K - 1) - 1
        return np.log(np.abs(r).max() / tolerance)

    event.terminal = True
    s0 = np.log(np.sum(a0))
    solution = scipy.integrate.solve_ivp(
        field, (s0, s0 + 60), np.append(np.log(a0), 0.0), "DOP853",
        events=event, rtol=rtol, atol=rtol,
    )  # fmt: skip
    assert solution.status == 1
    y = solution.y_events[0][0]
    M = parts(y[:-1])[2]
    return solution.t_events[0][0], (np.log(y[-1]) + M) / np.log(10)
