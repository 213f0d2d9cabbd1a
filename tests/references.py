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


def factor_flow(factors, n, times, **options):
    """All factors of the gradient flow at `times`, raw time; `options` as in `factor_field`."""
    return integrate_factors(factor_field(len(factors[0]), n, **options), factors, times)


def integrate_factors(velocity, factors, times, rtol=1e-12):
    """Matrices that move by `velocity(matrices)`, at `times`, by DOP853."""
    shapes = [f.shape for f in factors]
    sizes = np.cumsum([f.size for f in factors])[:-1]

    def unpack(y):
        return [p.reshape(s) for p, s in zip(np.split(y, sizes), shapes, strict=True)]

    def field(t, y):
        return np.concatenate([v.ravel() for v in velocity(unpack(y))])

    y0 = np.concatenate([f.ravel() for f in factors])
    solution = scipy.integrate.solve_ivp(
        field, (0, times[-1]), y0, "DOP853", t_eval=times, rtol=rtol, atol=1e-14
    )
    assert solution.success
    return [unpack(y) for y in solution.y.T]


def factor_field(
    K, n, *, loss="cross_entropy", labels=None, temperature=1.0, decays=None, divisor=1
):
    """Velocity of any number of factors, samples of each class `n`.

    Loss over `divisor`, plus λ_l/2 ‖W_l‖² for each factor.
    """
    classes = np.repeat(np.arange(K), n)
    Y = np.zeros((K, len(classes)))
    Y[classes, np.arange(len(classes))] = 1

    def residual(Z):
        if loss == "mse":
            return Y - Z
        if labels is None:
            return softmax_residual(Z / temperature, classes) / temperature
        return (labels - scipy.special.softmax(Z / temperature, axis=0)) / temperature

    def velocity(parts):
        R = residual(functools.reduce(np.matmul, parts)) / divisor
        moved = []
        for k, part in enumerate(parts):
            before = functools.reduce(np.matmul, parts[:k], np.eye(K))
            after = functools.reduce(np.matmul, parts[k + 1 :], np.eye(part.shape[1]))
            decay = 0.0 if decays is None else decays[k]
            moved.append(before.T @ R @ after.T - decay * part)
        return moved

    return velocity


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
    """`collapse_on_characters` for Sylvester's basis, whose Ψ is dense here."""
    return collapse_on_characters(dense_psi(len(a0) + 1), np.ones(len(a0)), a0, tolerance, rtol)


def group_psi(group, modes):
    """1 − Re χ(g) for all g ≠ 0 (rows) and the characters with the numbers `modes` (columns)."""
    elements = np.indices(group).reshape(len(group), -1)
    phases = (elements / np.array(group)[:, None]).T @ elements[:, modes]
    return 1 - np.cos(2 * np.pi * phases[1:])


def log_layer_flow(
    group,
    modes,
    multiplicity,
    layers,
    times,
    *,
    n=1,
    q=None,
    temperature=1.0,
    decays=None,
    divisor=1,
):
    """Raw singular values of all layers (layers first) at `times`, their logarithms integrated.

    The reduced flow with dense characters: a mode that dies keeps its digits, which matrices do not
    have. `modes` are the numbers of the characters, `q` the label distribution of class 0.
    """
    K, depth = int(np.prod(group)), len(layers)
    wrong = group_psi(group, modes)  # 1 − Re χ(g), g ≠ 0
    decays = np.zeros(depth) if decays is None else np.array(decays)
    missing = 0.0 if q is None else np.array(q)[1:] @ wrong

    def field(t, y):
        logs = y.reshape(depth, -1)
        a = np.exp(logs.sum(axis=0))
        margins = wrong @ (multiplicity * a) / (K * np.sqrt(n) * temperature)
        e = np.exp(-margins)
        force = (e @ wrong / (1 + e.sum()) - missing) / (temperature * divisor)
        return (np.sqrt(n) * force * a * np.exp(-2 * logs) - decays[:, None]).ravel()

    solution = scipy.integrate.solve_ivp(
        field,
        (0, times[-1]),
        np.log(layers).ravel(),
        "DOP853",
        t_eval=times,
        rtol=1e-13,
        atol=1e-13,
    )
    assert solution.success
    return np.exp(solution.y.T.reshape(len(times), depth, -1))


def collapse_on_characters(psi, multiplicity, a0, tolerance, rtol=1e-12):
    """log‖a‖₁ and log10 t where max|(K−1)â − 1| = tolerance, integrating in s = log‖a‖₁.

    d log a/ds = b/b̄; the clock is carried as w = t e^{−M}. The end is stepped to, not interpolated.
    """
    count = multiplicity.sum()

    def parts(z):
        a = np.exp(z - z.max())
        scale = np.exp(z.max())
        x = psi @ (multiplicity * a)
        e = np.exp(-(x - x.min()) * scale)
        M = x.min() * scale - np.log(e.sum())
        return multiplicity * a, psi.T @ (e / e.sum()), M, scale

    def field(s, y):
        a, force, M, scale = parts(y[:-1])
        mean = a @ force / a.sum()
        rate = force / mean
        M_rate = force @ (a * scale * rate)
        return np.append(rate, (1 + np.exp(-M)) / mean - y[-1] * M_rate)

    def event(s, y):
        a = np.exp(y[:-1] - y[:-1].max())
        return np.log(np.abs(count * a / (multiplicity @ a) - 1).max() / tolerance)

    def march(end, **options):
        return scipy.integrate.solve_ivp(
            field, (s0, end), np.append(np.log(a0), 0.0), "DOP853", rtol=rtol, atol=rtol, **options
        )

    event.terminal = True
    s0 = np.log(multiplicity @ a0)
    solution = march(s0 + 60, events=event)
    assert solution.status == 1
    s, slope = solution.t_events[0][0], np.inf
    for _ in range(2):  # Newton, on what steps to s find there
        y = march(s).y[:, -1]
        ahead = 1e-4 * (s - s0)
        while not np.isfinite(slope):  # nearer, where all is uniform to the last digit already
            with np.errstate(divide="ignore"):
                slope = (event(s, march(s + ahead).y[:, -1]) - event(s, y)) / ahead
            ahead /= 4
        move = -event(s, y) / slope
        s, y = s + move, y + move * field(s, y)
    return s, (np.log(y[-1]) + parts(y[:-1])[2]) / np.log(10)
