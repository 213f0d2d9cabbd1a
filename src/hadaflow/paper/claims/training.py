"""Claims beyond the paper: other losses, other geometries, optimizers."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from hadaflow.algebra.bases import Sylvester
from hadaflow.base.compiling import Compiled
from hadaflow.base.lazy import optax
from hadaflow.base.precision import double_precision
from hadaflow.descent.descend import descend
from hadaflow.descent.optimizers import named
from hadaflow.descent.race import race
from hadaflow.flow.solver import solve
from hadaflow.lab.certify import certify
from hadaflow.lab.trial_states import exactly
from hadaflow.metrics.measures import rate
from hadaflow.model.states import spectrum
from hadaflow.model.ufm import UFM
from hadaflow.paper.claim import Finding, claim, finding, larger
from hadaflow.runs.targets import Collapse, Norm, deviation

_LOSSES, _GEOMETRIES, _OPTIMIZERS = (
    f"Beyond the paper: {subject}" for subject in ("losses", "steepest descent", "optimizers")
)
_FIGURE_1 = (1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3)

# --- losses ----------------------------------------------------------------------------------------

Sample = Callable[[Any, Any], Any]  # the loss of one sample from its logits and its class


def _log_right(z: Any, y: Any) -> Any:
    return jax.nn.log_softmax(z)[y]


FUNCTIONS: Mapping[str, Sample] = {
    "focal:2": lambda z, y: -((1 - jnp.exp(_log_right(z, y))) ** 2) * _log_right(z, y),
    "exponential": lambda z, y: jnp.sum(jnp.exp(z - z[y])) - 1,
    "generalized_cross_entropy:0.7": lambda z, y: (1 - jnp.exp(0.7 * _log_right(z, y))) / 0.7,
    "poly:1": lambda z, y: 1 - _log_right(z, y) - jnp.exp(_log_right(z, y)),
}
CONVEX = ("cross_entropy", "exponential", "pairwise_logistic", "hinge", "squared_hinge")
ALSO_FALLING = ("brier", "one_vs_rest", "siglip:10:-10", *FUNCTIONS)


def _slopes_of(loss: Sample) -> Callable[[Any], Any]:
    """Minus the gradient of the loss of square logits, one sample for each class, by autodiff."""

    def whole(Z):
        return -jnp.sum(jax.vmap(loss, in_axes=(1, 0))(Z, jnp.arange(len(Z))))

    return Compiled(jax.grad(whole), {})


@claim(
    _LOSSES,
    "An increasing function of the loss of one sample has its orbit, with another clock: focal, "
    "exponential, generalized cross-entropy and Poly-1 that of cross-entropy; a penalty breaks it.",
    "slopes by autodiff of the written-down losses at 40 Hadamard states (K = 8) against those of "
    "cross-entropy; orbits of focal loss at equal norms: unequal layers, depth 3 on Z_6, with a penalty",
    seconds=9,
)
def one_orbit_many_losses(functions: Mapping[str, Sample] = FUNCTIONS) -> Finding:
    """Slopes parallel to 1e-11; states at equal norm to 1e-6; with a penalty more than 1e-5 apart."""
    rng, parallel = np.random.default_rng(0), 0.0
    plain = _slopes_of(lambda z, y: -_log_right(z, y))
    slopes = [_slopes_of(loss) for loss in functions.values()]
    U = Sylvester(8).vectors
    for a in rng.lognormal(-1, 1, (40, 7)):
        with double_precision():
            Z = jnp.asarray(8 * (U[:, 1:] * a) @ U[:, 1:].T)
            want, *found = (np.asarray(of(Z)) for of in (plain, *slopes))
        for G in found:
            share = np.vdot(G, want) / np.vdot(want, want)
            parallel = larger(parallel, np.abs(G - share * want).max() / np.abs(G).max())
    settings: Any = (
        ({"classes": 8}, rng.uniform(-0.3, 0.3, 7), 12.0),
        ({"classes": 6, "depth": 3}, None, 12.0),
        ({"classes": 8, "weight_decay": 0.005}, None, 2.5),
    )
    apart = []
    for options, C, norm in settings:
        models = [UFM(**options, loss=loss) for loss in ("cross_entropy", "focal:2")]
        start = spectrum(rng.uniform(0.05, 0.3, models[0].modes), C)
        one, other = (solve(m, start, Norm(norm), points=2, progress=None) for m in models)
        ended = one.status == other.status == "reached"
        apart.append(float(np.abs(one.a[-1] / other.a[-1] - 1).max()) if ended else np.nan)
    value = {
        "slopes that are not parallel": parallel,
        "distance of orbits, depth 2 and 3": apart[:2], "with a penalty of 0.005": apart[2],
    }  # fmt: skip
    return finding(value, printed=parallel < 1e-11 and max(apart[:2]) < 1e-6 and apart[2] > 1e-5)


@claim(
    _LOSSES,
    "At depth 2 with balanced layers KL falls for every loss that is convex and symmetric in the margins "
    "of the wrong classes, and for Brier, one-vs-rest and functions of the probability, on every group.",
    "rates at 400 random states for each of 12 losses on Z_2³ and Z_6; proven signs over balls at 10 of "
    "each",
    seconds=12,
)
def kl_falls_for_convex_losses(losses: tuple[Any, ...] = (*CONVEX, *ALSO_FALLING)) -> Finding:
    """No rate above 1e-12; no state at which balls prove a rise."""
    rng, largest, proven, rises = np.random.default_rng(1), -np.inf, 0, 0
    for group in ((2, 2, 2), (6,)):
        for loss in losses:
            model = UFM(int(np.prod(group)), group=group, loss=loss)
            states = rng.lognormal(-3, 1.5, (400, model.modes))
            largest = larger(largest, rate("kl", model, states).max())
            if not isinstance(loss, str):
                continue
            for state in exactly(states[:10]):
                sign = certify("kl", state, model).sign
                proven, rises = proven + (sign < 0), rises + (sign > 0)
    value = {"largest rate": largest, "proven to fall": proven, "to rise": rises}
    return finding(value, printed=largest < 1e-12 and rises == 0)


# --- other geometries -------------------------------------------------------------------------------


def _signs(G: np.ndarray) -> np.ndarray:
    return np.sign(G)


def _polar(G: np.ndarray) -> np.ndarray:
    U, s, Vt = np.linalg.svd(G, full_matrices=False)
    return (U * (s > 1e-9 * s[0])) @ Vt


def _factors(layers: Any, n: int) -> list[np.ndarray]:
    """W and H of depth 2 with R = I, width K − 1."""
    alpha, beta = layers
    U = scipy.linalg.hadamard(len(alpha) + 1)[:, 1:] / np.sqrt(len(alpha) + 1)
    return [U * alpha, (beta[:, None] * np.repeat(U, n, axis=0).T) / np.sqrt(n)]


def closed_layers(
    alpha: Any, beta: Any, n: int, t: float, speeds: tuple[float, float], decay: float
):
    """Layers after a time, each at its own speed and with decay."""
    left, gained = np.exp(-decay * t), (t if decay == 0 else -np.expm1(-decay * t) / decay)
    return [s * left + v * gained for s, v in zip((alpha, beta), speeds, strict=True)]


@claim(
    _GEOMETRIES,
    "Sign and spectral flow in closed form: α_j grows by √K t and β_j by √(Kn) t, or both by t, whatever "
    "the loss; with decoupled decay λ they settle at these speeds over λ. Every positive start "
    "collapses, the deviation like 1/t.",
    "Euler steps of matrices (K = 8, n = 3), extrapolated to size zero; `solve` and `descend` beside "
    "them; the deviation at t = 10^3 … 10^6",
    seconds=4,
)
def steepest_closed_forms(
    speeds: Callable[[str, int, int], tuple[float, float]] = lambda name, K, n: (
        (np.sqrt(K), np.sqrt(K * n)) if name == "sign" else (1.0, 1.0)
    ),
) -> Finding:
    """Layers, `solve` and `descend` to 1e-7; slope of log deviation against log t within 1 % of −1."""
    K, n, T = 8, 3, 1.5
    rng, model, worst, orders = np.random.default_rng(2), UFM(K, samples=n), 0.0, []
    Y = np.repeat(np.eye(K), n, axis=1)
    for name, step in (("sign", _signs), ("spectral", _polar)):
        for decay in (0.0, 0.4):
            alpha, beta = rng.uniform(0.3, 1.5, (2, K - 1))
            want = closed_layers(alpha, beta, n, T, speeds(name, K, n), decay)

            def moved(steps: int, step=step, decay=decay, begun=(alpha, beta)) -> np.ndarray:
                W, H = _factors(begun, n)
                for _ in range(steps):
                    P = np.exp(W @ H)
                    R = Y - P / P.sum(axis=0)
                    V, G = step(R @ H.T), step(W.T @ R)
                    W, H = W + T / steps * (V - decay * W), H + T / steps * (G - decay * H)
                return W @ H

            Z = _extrapolated([moved(40 * 2**k) for k in range(4)])
            W, H = _factors(want, n)
            worst = larger(worst, np.abs(W @ H / Z - 1).max())
            start = spectrum(alpha * beta, alpha**2 - beta**2, "raw")
            run = solve(model, start, times=[T], geometry=name, decay=decay, progress=None)
            worst = larger(worst, np.abs(run.a[-1] / (want[0] * want[1]) - 1).max())
        start = spectrum(rng.uniform(0.1, 3, K - 1), rng.uniform(-1, 1, K - 1), "raw")
        far = solve(model, start, times=10.0 ** np.arange(3, 7), geometry=name, progress=None)
        away = deviation(far.a[1:])
        orders.append(float(np.polyfit(np.log(far.time[1:]), np.log(away), 1)[0]))
    value = {"largest error": worst, "order of the deviation in t": orders}
    return finding(value, printed=worst < 1e-7 and max(abs(v + 1) for v in orders) < 0.01)


def _extrapolated(found: list[np.ndarray]) -> np.ndarray:
    """The limit of steps that are halved each time."""
    for order in range(1, len(found)):
        weight = 2.0**order
        found = [(weight * b - a) / (weight - 1) for a, b in itertools.pairwise(found)]
    return found[0]


@claim(
    _GEOMETRIES,
    "In the sign flow KL falls if β_j = κα_j with one κ; else it may rise: α = (10, ½, ½), "
    "β = (0.1, ½, ½).",
    "rates at 300 states of K = 4, 8 with κ from 1/5 to 5; the closed form of the example",
    seconds=3,
)
def sign_flow_kl(
    ratios: Callable[[Any, int], Any] = lambda rng, modes: rng.uniform(0.2, 5),
) -> Finding:
    """No rate above rounding with one ratio; from 0.231 to above 0.4 in the example."""
    rng, largest = np.random.default_rng(3), -np.inf
    for K in (4, 8):
        for _ in range(150):
            alpha = rng.lognormal(0, 1.5, K - 1)
            beta = alpha * ratios(rng, K - 1)
            start = spectrum(alpha * beta, alpha**2 - beta**2, "raw")
            found = rate("kl", UFM(K), start, flow="normalized", geometry="sign")
            largest = larger(largest, float(found))
    alpha, beta = np.array([10, 0.5, 0.5]), np.array([0.1, 0.5, 0.5])
    start = spectrum(alpha * beta, alpha**2 - beta**2, "raw")
    times = np.linspace(0, 2, 201)
    kl = solve(UFM(4), start, times=times, geometry="sign", progress=None).measure("kl")
    value = {
        "largest rate with one κ": largest,
        "KL of the example": [float(kl[0]), float(kl.max())],
    }
    rises = abs(kl[0] - 0.231) < 1e-3 and kl.max() > 0.4
    return finding(value, printed=largest < 1e-12 and bool(rises))


# --- optimizers ---------------------------------------------------------------------------------------


def _written_down(steps: int, rule: Any, alpha: Any, beta: Any, n: int) -> np.ndarray:
    """Logits after so many steps of optax on W and H, by autodiff."""
    Y = np.repeat(np.eye(len(alpha) + 1), n, axis=1)

    def loss(factors):
        Z = factors[0] @ factors[1]
        wrong = jax.nn.logsumexp(jnp.where(Y > 0, -jnp.inf, Z), axis=0)
        return jnp.sum(jax.nn.softplus(wrong - jnp.sum(Y * Z, axis=0)))

    def run(factors):
        def one(_, carry):
            factors, state = carry
            moved, state = rule.update(jax.grad(loss)(factors), state, factors)
            return optax.apply_updates(factors, moved), state

        return jax.lax.fori_loop(0, steps, one, (factors, rule.init(factors)))[0]

    with double_precision(), jax.numpy_dtype_promotion("standard"):
        W, H = Compiled(run, {})(tuple(map(jnp.asarray, _factors((alpha, beta), n))))
        return np.asarray(W @ H)


@claim(
    _OPTIMIZERS,
    "From W = U D_W, H = D_H Vᵀ with U a Hadamard matrix, Adam, AdamW and Lion on the matrices are the "
    "same optimizer run on one row; Muon acts on singular values.",
    "optax on matrices with autodiff against `descend` in the reduced view, K = 8, n = 3, 300 steps",
    seconds=9,
)
def training_on_one_row(rate_off: float = 1.0) -> Finding:
    """Logits to 1e-12 of the largest one."""
    rng, n, errors = np.random.default_rng(4), 3, {}
    U = scipy.linalg.hadamard(8)[:, 1:] / np.sqrt(8)
    with double_precision():
        rules = {
            "adam": (named.adam(0.01 * rate_off), optax.adam(0.01)),
            "adamw": (
                named.adamw(0.01 * rate_off, weight_decay=0.1),
                optax.adamw(0.01, weight_decay=0.1),
            ),
            "lion": (named.lion(1e-3 * rate_off, weight_decay=0), optax.lion(1e-3, weight_decay=0)),
            "muon": (named.muon(2e-3 * rate_off), optax.contrib.muon(2e-3)),
        }
    for name, (ours, plain) in rules.items():
        alpha, beta = rng.uniform(0.4, 1.2, (2, 7))
        Z = _written_down(300, plain, alpha, beta, n)
        start = spectrum(alpha * beta, alpha**2 - beta**2, "raw")
        run = descend(UFM(8, samples=n, width=7), start, 300, ours, points=2, progress=None)
        found = (U * run.a[-1]) @ np.repeat(U, n, axis=0).T / np.sqrt(n)
        errors[name] = float(np.abs(found - Z).max() / np.abs(Z).max())
    return finding(errors, printed=max(errors.values()) < 1e-12)


@claim(
    _OPTIMIZERS,
    "From the start of Figure 1 (K = 8) steps until max|(K−1)â − 1| is below 0.1, 0.01, 0.001: Adam 1e-3 "
    "15 310, –, –; Adam 1e-2 8270, –, –; AdamW (1e-2, decay 1e-2) 1993, 55 635, 59 440; Lion 1e-3 "
    "10 392, 110 016, 1 106 063. Gradient flow needs t = 10^3588.",
    "the race, to the step, and `solve` to collapse",
    seconds=8,
)
def optimizer_race(start: tuple[float, ...] = _FIGURE_1) -> Finding:
    """Every count exact; log10 of the time within 1."""
    runners = {
        "Adam 1e-3": (named.adam(1e-3), [15_310, None, None]),
        "Adam 1e-2": (named.adam(1e-2), [8270, None, None]),
        "AdamW": (named.adamw(1e-2, weight_decay=1e-2), [1993, 55_635, 59_440]),
        "Lion": (named.lion(1e-3, weight_decay=0), [10_392, 110_016, 1_106_063]),
    }
    found = race(
        UFM(8), list(start), {name: rule for name, (rule, _) in runners.items()},
        Collapse(1e-3), 1_200_000, progress=None,
    )  # fmt: skip
    steps = {name: list(found[name].first.values()) for name in runners}
    time = float(solve(UFM(8), list(start), Collapse(1e-3), progress=None).log10_time[-1])
    right = all(steps[name] == want for name, (_, want) in runners.items())
    return finding({**steps, "log10 t": time}, printed=right and abs(time - 3588) < 1)


def adam_on_a_row(
    steps: int, rate: float, beta2: float = 0.999, every: int = 100
) -> dict[str, np.ndarray]:
    """Adam without ε from the start of Figure 1, run on one row; in plain NumPy.

    Steps, singular values (scaled), √v of the first layer and the smallest margin.
    """
    K, psi = 8, Sylvester(8).dense_psi
    x = np.tile(np.sqrt(K * np.array(_FIGURE_1)), (2, 1)) / np.sqrt(K)
    m, v, kept = np.zeros_like(x), np.zeros_like(x), []
    for k in range(1, steps + 1):
        e = np.exp(-(psi @ (x[0] * x[1])))
        force = psi @ e / (1 + e.sum())
        gradient = -force * x[::-1]
        m, v = 0.9 * m + 0.1 * gradient, beta2 * v + (1 - beta2) * gradient**2
        x = x - rate * m / (1 - 0.9**k) / np.sqrt(v / (1 - beta2**k))
        if k % every == 0:
            a = x[0] * x[1]
            kept.append((k, a, np.sqrt(v[0]), (psi @ a).min()))
    k, a, root, margin = map(np.array, zip(*kept, strict=True))
    return {"step": k, "a": a, "root": root, "margin": margin}


def flow_with_rates(a: np.ndarray, w: np.ndarray, margins: np.ndarray) -> np.ndarray:
    """Directions of da_i/dt = a_i b_i/w_i at these smallest margins, on a clock that never slows down."""
    from scipy.integrate import solve_ivp

    psi = Sylvester(len(a) + 1).dense_psi

    def velocity(_: float, log_a: np.ndarray) -> np.ndarray:
        x = psi @ np.exp(log_a)
        return psi @ np.exp(x.min() - x) / w

    def reach(level: float) -> Callable[..., float]:
        def left(_: float, log_a: np.ndarray) -> float:
            return float((psi @ np.exp(log_a)).min() - level)

        return left

    found, state = [], np.log(a)
    for level in margins:
        event = reach(level)
        event.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
        run = solve_ivp(velocity, (0, 1e3), state, "DOP853", events=event, rtol=1e-9, atol=1e-12)
        state = run.y[:, -1]
        found.append(np.exp(state) / np.exp(state).sum())
    return np.array(found)


@claim(
    _OPTIMIZERS,
    "Adam turns back: gradients fall faster than √v forgets, so √v_j keeps its early ratios w, and Adam "
    "becomes the flow da_j/dt ∝ a_j b_j/w_j. From Figure 1 w ≈ (1, 1, 1, 4.4, w₅, w₅, w₅) with w₅ = 0.87 "
    "for η = 1e-3 and 0.68 for 1e-2, for which the uniform direction repels.",
    "Adam without ε in NumPy, and by `descend`; SciPy on the flow with the measured rates, from step "
    "2500, at equal smallest margins; the sign of Ψ⁻¹w",
    seconds=4,
)
def adam_turns_back(beta2: float = 0.999) -> Finding:
    """Nearest to collapse at steps 19 638 and 13 083, farther by half at 40 000; ratios within 2 % from
    step 2500 on; 7â within 0.01 of that flow, of the one with equal rates off by more than 0.2; Ψ⁻¹w
    has a negative entry.
    """
    values, told = {}, True
    for rate_, turn in ((1e-3, 19_638), (1e-2, 13_083)):
        run = adam_on_a_row(40_000, rate_, beta2, every=1)
        shares = 7 * run["a"] / run["a"].sum(axis=1, keepdims=True)
        away = np.abs(shares - 1).max(axis=1)
        ours = descend(UFM(8), list(_FIGURE_1), 20_000, named.adam(rate_, eps=0.0), progress=None)
        error = float(np.abs(ours.a[-1] / run["a"][19_999] - 1).max())
        ratios = run["root"] / run["root"][:, :1]
        w, drift = ratios[2499], float(np.abs(ratios[2499:] / ratios[2499] - 1).max())
        chosen = np.arange(1, 5) * 10_000 - 1
        apart = [
            float(
                np.abs(
                    7 * flow_with_rates(run["a"][2499], r, run["margin"][chosen]) - shares[chosen]
                ).max()
            )
            for r in (w, np.ones(7))
        ]
        dual = np.linalg.solve(Sylvester(8).dense_psi, w)
        values[f"η = {rate_:g}"] = {
            "w": w.tolist(), "nearest at step": int(np.argmin(away)) + 1, "drift of w": drift,
            "Ψ⁻¹w": dual.tolist(), "off the flow with w": apart[0], "off that with equal rates": apart[1],
            "NumPy against `descend`": error,
        }  # fmt: skip
        told &= int(np.argmin(away)) + 1 == turn and away[-1] > 1.5 * away.min() and drift < 0.02
        told &= apart[0] < 0.01 and apart[1] > 0.2 and dual.min() < 0 and error < 1e-9
    return finding(values, printed=bool(told))


@claim(
    _OPTIMIZERS,
    "Late, without ε, Adam's smallest margin grows by −½ log β₂ a step, whatever the learning rate.",
    "slopes over the second half of 200 000 steps (β₂ = 0.999, two rates) and 50 000 (β₂ = 0.99)",
    seconds=4,
)
def adam_late_speed(
    predicted: Callable[[float], float] = lambda beta2: -np.log(beta2) / 2,
) -> Finding:
    """Within 5 %."""
    found, worst = {}, 0.0
    for rate_, beta2, steps in (
        (1e-3, 0.999, 200_000),
        (1e-2, 0.999, 200_000),
        (1e-3, 0.99, 50_000),
    ):
        rule = named.adam(rate_, b2=beta2, eps=0.0)
        run = descend(UFM(8), list(_FIGURE_1), steps, rule, points=200, progress=None)
        assert run.iterations is not None
        late = run.iterations > steps / 2
        slope = float(np.polyfit(run.iterations[late], run.measure("margin")[late], 1)[0])
        found[f"η = {rate_:g}, β₂ = {beta2:g}"] = [slope, float(predicted(beta2))]
        worst = larger(worst, abs(slope / predicted(beta2) - 1))
    return finding({"slope and prediction": found, "largest error": worst}, printed=worst < 0.05)
