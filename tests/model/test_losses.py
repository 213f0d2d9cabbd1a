"""Losses against their definitions: energies, slopes, flows of matrices, clocks, refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.interpolate
import scipy.linalg

import hadaflow as hf
from hadaflow.base.precision import double_precision
from hadaflow.flow.following import reduced_flow
from hadaflow.model.fitting import fitted
from hadaflow.model.losses import LOSSES, parse_loss

# --- the definitions, as a textbook has them: of the logits of one sample and its class ---------------


def p_of(z):
    return jax.nn.softmax(z)


def wrong_gaps(z, y):
    return jnp.where(jnp.arange(len(z)) == y, -jnp.inf, z - z[y])


def signs(z, y):
    return jnp.where(jnp.arange(len(z)) == y, 1.0, -1.0)


DEFINITIONS = {
    "cross_entropy": lambda z, y: -jax.nn.log_softmax(z)[y],
    "mse": lambda z, y: jnp.sum((jax.nn.one_hot(y, len(z)) - z) ** 2) / 2,
    "brier": lambda z, y: jnp.sum((p_of(z) - jax.nn.one_hot(y, len(z))) ** 2),
    "focal:1.5": lambda z, y: -((1 - p_of(z)[y]) ** 1.5) * jax.nn.log_softmax(z)[y],
    "exponential": lambda z, y: 1 / p_of(z)[y] - 1,
    "generalized_cross_entropy:0.7": lambda z, y: (1 - p_of(z)[y] ** 0.7) / 0.7,
    "poly:2": lambda z, y: -jax.nn.log_softmax(z)[y] + 2 * (1 - p_of(z)[y]),
    "poly:-0.9": lambda z, y: -jax.nn.log_softmax(z)[y] - 0.9 * (1 - p_of(z)[y]),
    "pairwise_logistic": lambda z, y: jnp.sum(jnp.log1p(jnp.exp(wrong_gaps(z, y)))),
    "hinge": lambda z, y: jnp.sum(jnp.maximum(0, 1 + wrong_gaps(z, y))),
    "squared_hinge": lambda z, y: jnp.sum(jnp.maximum(0, 1 + wrong_gaps(z, y)) ** 2),
    "one_vs_rest": lambda z, y: jnp.sum(jnp.log1p(jnp.exp(-signs(z, y) * z))),
    "siglip:2:-1": lambda z, y: jnp.sum(jnp.log1p(jnp.exp(-signs(z, y) * (2 * z - 1)))),
}
MARGIN = [name for name in DEFINITIONS if name not in ("mse", "one_vs_rest", "siglip:2:-1")]
PROBABILITY = (
    "focal:1.5", "exponential", "generalized_cross_entropy:0.7", "poly:2", "poly:-0.9", "infonce",
)  # fmt: skip


def some_fast(names, fast):
    """The others are tried by `make slow`."""
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


def infonce(Z, classes):
    """Both ways, of columns whose classes are these."""
    own = jnp.asarray(classes)[None] == jnp.arange(len(Z))[:, None]
    by_column = -jnp.sum(jnp.where(own, jax.nn.log_softmax(Z, axis=0), 0.0))
    count = jnp.sum(own, axis=1, keepdims=True)
    return by_column - jnp.sum(jnp.where(own, jax.nn.log_softmax(Z, axis=1) + jnp.log(count), 0.0))


def total(model, Z):
    """The loss of a logit matrix by its definition, summed over the samples."""
    classes = np.repeat(np.arange(model.classes), model.samples_by_class)
    Z = Z / model.temperature
    if model.loss == "infonce":
        return infonce(Z, classes)
    return jnp.sum(jax.vmap(DEFINITIONS[model.loss])(Z.T, classes))


def penalties(model, factors):
    return sum(d / 2 * jnp.sum(f**2) for d, f in zip(model.decays, factors, strict=True))


def dense_flow(model, factors, times):
    """Matrices at raw times by another solver and automatic differentiation."""
    shapes = [f.shape for f in factors]
    ends = np.cumsum([f.size for f in factors])

    def split(y):
        return [y[e - np.prod(s) : e].reshape(s) for e, s in zip(ends, shapes, strict=True)]

    @jax.jit
    def slope(y):
        def value(y):
            parts = split(y)
            return total(model, functools.reduce(jnp.matmul, parts)) + penalties(model, parts)

        return -jax.grad(value)(y)

    with double_precision():
        y0 = np.concatenate([f.ravel() for f in factors])
        run = scipy.integrate.solve_ivp(
            lambda t, y: np.asarray(slope(y)), (0, times[-1]), y0, "DOP853", times, rtol=1e-10,
            atol=1e-12,
        )  # fmt: skip
    return [[np.asarray(p) for p in split(y)] for y in run.y.T]


def start_of(model, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 0.6, model.modes)


def model_of(name, classes=6, **options):
    return hf.UFM(classes, loss=name, **options)


# --- values and slopes --------------------------------------------------------------------------------


FAST = ("focal:1.5", "brier", "siglip:2:-1", "infonce")


@pytest.mark.parametrize("samples", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", some_fast([*DEFINITIONS, "infonce"], FAST))
def test_values_and_slopes_are_those_of_the_definition(name, samples):
    rng = np.random.default_rng(1)
    model = model_of(name, 5, samples=samples)
    Z = rng.normal(size=(5, 5 * samples))
    with double_precision():
        value, slope = jax.value_and_grad(functools.partial(total, model))(jnp.asarray(Z))
    state = hf.parameters(np.eye(5), Z)
    assert float(hf.measure("loss", model, state)) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(model.residual(Z), -slope, rtol=1e-11, atol=1e-14)
    step = hf.descend(model, state, 1, 1e-3, progress=None).state(-1)
    np.testing.assert_allclose((step.H - Z) / 1e-3, -slope, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", some_fast([*DEFINITIONS, "infonce"], FAST))
@pytest.mark.parametrize(
    "group", [(6,), *(pytest.param(g, marks=pytest.mark.slow) for g in ((2, 2, 2), (2, 4), (5,)))]
)
def test_the_reduced_view_tells_the_same_of_a_state(name, group):
    model = model_of(name, int(np.prod(group)), group=group, samples=2)
    a = start_of(model, 2) / 4  # no margin is beyond one
    state = hf.lift(model, a)
    for metric in ("loss", "log_energy", "margin"):
        ours = float(hf.measure(metric, model, a))
        assert ours == pytest.approx(float(hf.measure(metric, model, state)), rel=1e-11, abs=1e-12)
    assert float(hf.measure("energy", model, a)) * model.total_samples == pytest.approx(
        float(total(model, state.Z)), rel=1e-5
    )
    moved = hf.rate("loss", model, a)
    assert float(moved) == pytest.approx(float(hf.rate("loss", model, state)), rel=1e-10)
    assert moved < 0


@pytest.mark.parametrize(
    "name",
    some_fast(
        [n for n in [*DEFINITIONS, "infonce"] if parse_loss(n).takes_temperature], ("brier",)
    ),
)
def test_temperature_divides_the_logits(name):
    model = model_of(name, 6, temperature=2.5, samples=2)
    a = start_of(model)
    state = hf.lift(model, a)
    with double_precision():
        value, slope = jax.value_and_grad(functools.partial(total, model))(jnp.asarray(state.Z))
    assert float(hf.measure("loss", model, a)) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(model.residual(state.Z), -slope, rtol=1e-10, atol=1e-13)
    assert float(hf.rate("loss", model, a)) == pytest.approx(
        float(hf.rate("loss", model, state)), rel=1e-10
    )


# --- flows ---------------------------------------------------------------------------------------------

CASES = [
    {"samples": 2},
    {"group": (2, 2, 2), "depth": 1},
    {"group": (2, 4), "depth": 3, "samples": 2},
    {"weight_decay": 0.05},
    {"C": 0.4},
]
FEW = [("pairwise_logistic", 2), ("one_vs_rest", 4), ("siglip:2:-1", 1)]
EVERY = [
    pytest.param(name, i, marks=[] if (name, i) in FEW else pytest.mark.slow)
    for name in [*DEFINITIONS, "infonce"]
    for i in range(len(CASES))
    if not (name == "hinge" and "weight_decay" in CASES[i])
]


@pytest.mark.parametrize(("name", "case"), EVERY)
def test_the_reduced_flow_is_that_of_the_matrices(name, case):
    options = dict(CASES[case])
    C = options.pop("C", 0.0)
    group = options.get("group", (6,))
    model = model_of(name, int(np.prod(group)), **options)
    start = hf.spectrum(start_of(model, 3), C)
    times = np.array([0.3, 1.5])
    run = hf.solve(model, start, times=times, progress=None, rtol=1e-9)
    matrices = hf.hadamard(model, start, rotation="identity" if model.depth == 1 else 5)
    dense = dense_flow(model, matrices.factors, times / model.time_scale)
    full = hf.solve(model, matrices, times=times, progress=None, rtol=1e-9)
    for k, factors in enumerate(dense, start=1):
        Z = functools.reduce(np.matmul, factors)
        reduced = hf.lift(model, run.state(k)).Z
        if not model.has_constant_mode:  # which the loss does not see
            Z, reduced = Z - Z.mean(axis=0), reduced - reduced.mean(axis=0)
        atol = (1e-5 if "hinge" in name else 2e-8) * np.abs(Z).max()
        np.testing.assert_allclose(reduced, Z, atol=atol)
        theirs = full.state(k).Z
        theirs = theirs if model.has_constant_mode else theirs - theirs.mean(axis=0)
        np.testing.assert_allclose(theirs, Z, atol=atol)


@pytest.mark.parametrize(
    "name",
    [
        "one_vs_rest",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("focal:1.5", "pairwise_logistic", "mse")
        ),
    ],
)
def test_modes_with_phases(name):
    model = model_of(name)
    front = [0.4] * model.has_constant_mode
    start = hf.circulant([*front, 0.3 + 0.2j, 0.5 - 0.1j, 0.2])
    times = np.array([0.3, 1.5])
    run = hf.solve(model, start, times=times, progress=None, rtol=1e-9)
    dense = dense_flow(model, hf.hadamard(model, start).factors, times / model.time_scale)
    for k, factors in enumerate(dense, start=1):
        np.testing.assert_allclose(
            hf.lift(model, run.state(k)).Z, functools.reduce(np.matmul, factors), atol=3e-8
        )


@pytest.mark.parametrize(
    "name",
    [
        "brier",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("pairwise_logistic", "focal:1.5")),
        pytest.param("squared_hinge", marks=pytest.mark.slow),
    ],
)
def test_two_blocks_of_classes(name):
    model = hf.UFM(5, loss=name, imbalance=((3, 2), (2, 1)))
    start = hf.spectrum(np.linspace(0.2, 0.6, model.modes), angle=0.6)
    times = np.array([0.3, 1.5])
    run = hf.solve(model, start, times=times, progress=None, rtol=1e-9)
    dense = dense_flow(model, hf.hadamard(model, start).factors, times / model.time_scale)
    for k, factors in enumerate(dense, start=1):
        np.testing.assert_allclose(
            hf.lift(model, run.state(k)).Z, functools.reduce(np.matmul, factors), atol=1e-7
        )


@pytest.mark.parametrize("name", some_fast(["brier", "one_vs_rest"], ("brier",)))
def test_soft_labels(name):
    model = model_of(name, samples=2, label_smoothing=0.2)
    q = model.labels

    def loss(Z):
        if name == "brier":
            return jnp.sum((jax.nn.softmax(Z, axis=0) - q) ** 2)
        return jnp.sum(jnp.log1p(jnp.exp(Z)) - q * Z)

    a = start_of(model)
    state = hf.lift(model, a)
    with double_precision():
        value, slope = jax.value_and_grad(loss)(jnp.asarray(state.Z))
    assert float(hf.measure("loss", model, a)) == pytest.approx(float(value), rel=1e-12)
    assert float(hf.measure("loss", model, state)) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(model.residual(state.Z), -slope, rtol=1e-10, atol=1e-13)
    run = hf.solve(model, a, points=2, progress=None)
    settled = hf.lift(model, run.state(-1)).Z
    assert run.status == "steady"
    if name == "brier":  # a proper score: it is least where the probabilities are the labels
        np.testing.assert_allclose(jax.nn.softmax(settled, axis=0), q, atol=1e-6)


# --- far out -------------------------------------------------------------------------------------------


def exactly(name, x):
    """Log energy and the pulls away from the wrong classes, from the definition at 3000 digits."""
    mp = mpmath.mp
    with mp.workdps(3000):
        x = [mp.mpf(float(v)) for v in x]
        total = 1 + sum(mp.exp(-v) for v in x)
        p = [mp.exp(-v) / total for v in x]
        right = 1 / total
        kind, *numbers = name.split(":")
        number = mp.mpf(numbers[0]) if numbers else None
        if kind == "brier":
            mean = right * (right - 1) + sum(v * v for v in p)
            pulls = [2 * v * (v - mean) for v in p]
            value = (1 - right) ** 2 + sum(v * v for v in p)
        elif kind == "pairwise_logistic":
            pulls = [1 / (1 + mp.exp(v)) for v in x]
            value = sum(mp.log(1 + mp.exp(-v)) for v in x)
        else:
            F = {
                "cross_entropy": lambda q: -mp.log(q),
                "focal": lambda q: -((1 - q) ** number) * mp.log(q),
                "exponential": lambda q: 1 / q - 1,
                "generalized_cross_entropy": lambda q: (1 - q**number) / number,
                "poly": lambda q: -mp.log(q) + number * (1 - q),
                "infonce": lambda q: -2 * mp.log(q),
            }[kind]
            slope = -mp.diff(F, right, h=(1 - right) / mp.mpf(10) ** 200)
            pulls, value = [slope * right * v for v in p], F(right)
        log_pulls = [float(mp.log(v)) for v in pulls]
        return float(mp.log(value)), np.array(log_pulls)


@pytest.mark.parametrize("name", [n for n in MARGIN if "hinge" not in n] + ["infonce"])
@pytest.mark.parametrize("size", [1e-3, 3.0, 60.0, 2000.0])
def test_nothing_freezes_or_overflows(name, size):
    x = size * np.array([1.0, 1.3, 2.0])
    log_energy, log_pulls = exactly(name, x)
    loss = parse_loss(name).of(1.0, None)
    with double_precision():
        direction, slowness = loss.push(jnp.asarray(x))
        with np.errstate(divide="ignore"):
            ours = np.log(np.asarray(direction)) - float(slowness[0])
        told = float(loss.log_energy(jnp.asarray(x)))
    assert told == pytest.approx(log_energy, rel=1e-12, abs=1e-12)
    far = log_pulls > log_pulls.max() - 700  # what lies below underflows beside the largest
    np.testing.assert_allclose(ours[far], log_pulls[far], rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("name", ["one_vs_rest", "siglip:2:-1"])
@pytest.mark.parametrize("size", [1e-3, 60.0, 2000.0])
def test_sigmoids_do_not_freeze(name, size):
    c = size * np.array([1.0, -1.3, -2.0, -1.0])
    scale, bias = (2, -1) if ":" in name else (1, 0)
    with mpmath.workdps(3000):
        y = [scale * mpmath.mpf(float(v)) + bias for v in c]
        pulls = [1 / (1 + mpmath.exp(y[0])), *(1 / (1 + mpmath.exp(-v)) for v in y[1:])]
        logs = np.array([float(mpmath.log(scale * v)) for v in pulls])
        terms = [mpmath.log(1 + mpmath.exp(-y[0])), *(mpmath.log(1 + mpmath.exp(v)) for v in y[1:])]
        value = float(mpmath.log(sum(terms)))
    loss = parse_loss(name).of(1.0, None)
    with double_precision():
        direction, slowness = loss.pull(jnp.asarray(c))
        assert float(loss.log_energy_of_logits(jnp.asarray(c))) == pytest.approx(value, rel=1e-12)
        direction, slowness = np.asarray(direction), float(slowness[0])
    with np.errstate(divide="ignore"):
        ours = np.log(np.abs(direction)) - slowness
    far = logs > logs.max() - 700
    np.testing.assert_allclose(ours[far], logs[far], rtol=1e-12, atol=1e-11)
    assert direction[0] > 0 and np.all(direction[1:] <= 0)


@pytest.mark.parametrize(
    "name",
    some_fast(
        ["focal:2", "one_vs_rest", "brier", "pairwise_logistic", "exponential", "siglip:2:-1"],
        ("focal:2", "one_vs_rest"),
    ),
)
def test_times_of_ten_to_the_thousand(name):
    model = model_of(name, 4)
    run = hf.solve(model, start_of(model), hf.Time(log10=1000), points=2, progress=None)
    assert run.status == "reached" and np.all(np.isfinite(run.log_a))
    # The log of the loss falls as minus the log of the time, up to the log of that.
    told = float(hf.measure("log_energy", model, run.state(-1))) / (-1000 * np.log(10))
    assert told == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(
    "name",
    some_fast(
        ["pairwise_logistic", "brier", "squared_hinge", "hinge", "focal:2", "exponential", "poly:2",
         "generalized_cross_entropy:0.7", "infonce", "one_vs_rest", "siglip:2:-1"],
        ("brier",),
    ),
)  # fmt: skip
@pytest.mark.parametrize("group", [(2, 2, 2), pytest.param((6,), marks=pytest.mark.slow)])
def test_kl_falls_where_it_is_proven_to(name, group):
    model = model_of(name, int(np.prod(group)), group=group)
    states = np.random.default_rng(0).lognormal(-2, 1, (500, model.modes))
    assert np.max(hf.rate("kl", model, states)) < 1e-12


# --- one orbit, many losses ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", some_fast(PROBABILITY, ("focal:1.5",)))
@pytest.mark.parametrize(
    "options",
    [
        {},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                {"group": (2, 4), "C": 0.7},
                {"group": (8,), "depth": 1},
                {"depth": 3, "C": 0.5},
            )
        ),
    ],
)
def test_functions_of_the_probability_share_the_orbit_of_cross_entropy(name, options):
    """At the same norm the state is the same; the clocks are dt_F = dt/(−F′(p)p)."""
    options = dict(options)
    C = options.pop("C", 0.0)
    ours, plain = model_of(name, 8, **options), hf.UFM(8, **options)
    start = hf.spectrum(start_of(plain, 4), C)
    for norm in (5.0, 12.0):
        a = hf.solve(ours, start, hf.Norm(norm), points=2, progress=None, rtol=1e-10)
        b = hf.solve(plain, start, hf.Norm(norm), points=2, progress=None, rtol=1e-10)
        np.testing.assert_allclose(a.a[-1], b.a[-1], rtol=3e-9)
        times = np.append(np.geomspace(1e-3, b.time[-1], 500)[:-1], b.time[-1])
        way = hf.solve(plain, start, times=times, progress=None, rtol=1e-9)
        slowed = 1 / pace(name, np.exp(-np.asarray(way.measure("energy"))))
        clock = scipy.interpolate.CubicSpline(way.time, slowed).integrate(0, b.time[-1])
        assert float(clock) == pytest.approx(10 ** a.log10_time[-1], rel=1e-4)


def pace(name, p):
    """−F′(p)p by hand."""
    kind, *numbers = name.split(":")
    number = float(numbers[0]) if numbers else 0.0
    return {
        "focal": (1 - p) ** number - number * p * (1 - p) ** (number - 1) * np.log(p),
        "exponential": 1 / p,
        "generalized_cross_entropy": p**number,
        "poly": 1 + number * p,
        "infonce": 2.0 + 0 * p,
    }[kind]


@pytest.mark.slow
def test_a_penalty_breaks_it():
    start = start_of(hf.UFM(8), 4)
    off = []
    for decay in (0.0, 0.02):
        runs = [
            hf.solve(
                hf.UFM(8, loss=n, weight_decay=decay), start, hf.Norm(3.0), points=2, progress=None
            )
            for n in ("focal:1.5", "cross_entropy")
        ]
        assert [run.status for run in runs] == ["reached"] * 2
        off.append(np.abs(runs[0].a_hat[-1] / runs[1].a_hat[-1] - 1).max())
    assert off[0] < 1e-8 and off[1] > 5e-3


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if "focal" in n else pytest.mark.slow) for n in PROBABILITY]
)
def test_clocks_of_dual_steps_are_those_of_explicit_ones(name):
    model = hf.UFM(8, loss=name, temperature=1.5)
    start, how = start_of(model), {"points": 2, "progress": None, "rtol": 1e-8}
    for log10 in (-3.0, 0.5, 30.0):
        runs = [
            hf.solve(model, start, hf.Time(log10=log10), method=m, **how) for m in ("dual", "tsit5")
        ]
        np.testing.assert_allclose(runs[0].log_a[-1], runs[1].log_a[-1], rtol=3e-8, atol=3e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBABILITY)
def test_dual_steps_skip_the_beginning_of_tiny_starts_as_explicit_ones_go_it(name):
    model = hf.UFM(8, loss=name, temperature=1.5)
    start = 1e-20 * start_of(model)
    tiny, same = (
        hf.solve(model, start, hf.Norm(1.0), method=m, points=2, progress=None, rtol=1e-8)
        for m in ("dual", "tsit5")
    )
    assert tiny.log10_time[-1] == pytest.approx(same.log10_time[-1], abs=1e-7)


@pytest.mark.slow
def test_collapse_comes_at_the_same_norm_at_another_time():
    plain, focal = hf.UFM(256), hf.UFM(256, loss="focal:2")
    start = hf.starts.uniform(plain, 0.5, 1.5, 0)
    runs = [hf.solve(m, start, hf.Collapse(1e-3), progress=None) for m in (plain, focal)]
    assert runs[0].diagnostics["method"] == "dual" == runs[1].diagnostics["method"]
    assert runs[1].log_norm[-1] == pytest.approx(runs[0].log_norm[-1], abs=1e-6)
    apart = runs[1].log10_log10_time[-1] - runs[0].log10_log10_time[-1]
    assert apart == pytest.approx(np.log10(3.0), abs=1e-3)
    told = [hf.predict_collapse(m, r.state(40)) for m, r in zip((plain, focal), runs, strict=True)]
    assert told[0].log_norm == pytest.approx(told[1].log_norm, abs=1e-5)
    assert told[1].log10_log10_time - told[0].log10_log10_time == pytest.approx(
        np.log10(3), abs=1e-5
    )


@pytest.mark.slow
def test_a_million_classes_with_another_clock():
    """The orbit is that of cross-entropy, and so are the norm and the state of collapse."""
    plain, other = hf.UFM(2**20), hf.UFM(2**20, loss="exponential")
    start = 1e-3 * np.random.default_rng(0).uniform(0.5, 1.5, 2**20 - 1)
    runs = [
        hf.solve(m, start, hf.PredictedCollapse(1e-3), rtol=1e-4, points=4, progress=None)
        for m in (plain, other)
    ]
    assert [run.status for run in runs] == ["predicted"] * 2
    np.testing.assert_allclose(runs[1].log_norm[-1], runs[0].log_norm[-1], rtol=1e-6)
    np.testing.assert_allclose(runs[1].log_a[-1], runs[0].log_a[-1], atol=1e-6)
    # Late, where p = 1, the clocks go alike, too.
    assert runs[1].log10_log10_time[-1] == pytest.approx(runs[0].log10_log10_time[-1], abs=1e-6)


def test_a_mode_that_dies_keeps_its_digits():
    """The constant mode of one-vs-rest falls by decades while the layers are balanced."""
    a = np.array([0.0362, 5.65, 5.26e-4, 5.54, 3.62e-3, 0.0131, 1.38, 0.0111])
    signs = scipy.linalg.hadamard(8)

    def velocity(u, log_a):
        z = signs @ np.exp(log_a)  # logits of one sample, its own class first
        residual = -1 / (1 + np.exp(-z))
        residual[0] += 1
        return np.exp(u) * (signs @ residual)

    found = scipy.integrate.solve_ivp(
        velocity, (0, np.log1p(1e7)), np.log(a), "DOP853", rtol=1e-11, atol=1e-11
    )
    run = hf.solve(hf.UFM(8, loss="one_vs_rest"), a, hf.Time(1e7), rtol=1e-9, progress=None)
    assert run.status == "reached" and run.a[-1, 0] < 1e-15
    np.testing.assert_allclose(run.log_a[-1], found.y[:, -1], atol=1e-6)


# --- hinges, and what has no log form -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hinge", pytest.param("squared_hinge", marks=pytest.mark.slow)])
def test_hinges_stop_where_all_margins_are_one(name):
    model = model_of(name)
    run = hf.solve(model, [0.1, 0.2, 0.3], progress=None)
    margins = np.asarray(hf.margins(model, run.a[-1]))
    assert run.status == "steady" and margins.min() > 1 - 1e-6
    never = hf.solve(model, [0.1, 0.2, 0.3], "collapse:1e-3", progress=None)
    assert never.status == "never-collapses"
    assert name != "hinge" or never.log10_time[-1] < 20
    np.testing.assert_allclose(never.a[-1], run.a[-1], rtol=1e-5)


def own(z, y):
    return jax.nn.logsumexp(z) - z[y]


def log_own(z, y):
    L = jax.nn.logsumexp(wrong_gaps(z, y))
    return jnp.where(L < -40, L, jnp.log(jax.nn.softplus(jnp.where(L < -40, 0.0, L))))


def own_sigmoids(z, y):
    return jnp.sum(jax.nn.softplus(-signs(z, y) * z))


def unfair(z, y):
    return own(z, y) * (1.0 + jnp.asarray(y, float))


def one_sided(z, y):
    weights = jnp.arange(len(z)) / 10
    return jax.nn.softplus(jnp.sum(jnp.roll(weights, y) * (z - z[y])))


@pytest.mark.parametrize(
    ("loss", "same"),
    [
        (own, "cross_entropy"),
        pytest.param(hf.losses.Own(own, log_own), "cross_entropy", marks=pytest.mark.slow),
        pytest.param(own_sigmoids, "one_vs_rest", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("group", [(6,), pytest.param((2, 2, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize("full", [False, True])
def test_a_loss_of_ones_own_is_the_one_it_writes_down(loss, same, group, full):
    options = {"classes": int(np.prod(group)), "group": group, "samples": 2}
    ours, theirs = hf.UFM(loss=loss, **options), hf.UFM(loss=same, **options)
    given = hf.hadamard(theirs, start_of(theirs)) if full else start_of(theirs)
    runs = [hf.solve(m, given, times=[0.5, 20.0], progress=None) for m in (ours, theirs)]
    Z = [
        r.state(-1).Z if full else hf.lift(m, r.state(-1)).Z
        for m, r in zip((ours, theirs), runs, strict=True)
    ]
    np.testing.assert_allclose(Z[0], Z[1], rtol=1e-8, atol=1e-9)
    descents = [hf.descend(m, given, 50, 0.1, progress=None) for m in (ours, theirs)]
    for name in descents[0].arrays:
        np.testing.assert_allclose(descents[0].arrays[name], descents[1].arrays[name], atol=1e-12)


def test_where_rounding_stops_a_loss_it_is_said():
    model = hf.UFM(6, loss=own)
    run = hf.solve(model, [0.3, 0.5, 0.2], hf.Time(log10=1000), progress=None)
    assert run.status == "failed" and "smallest margin of 6" in run.message
    assert 280 < run.log10_time[-1] < 330
    on = hf.UFM(6, loss=hf.losses.Own(own, log_own))
    far, plain = (
        hf.solve(m, [0.3, 0.5, 0.2], hf.Time(log10=1000), points=2, progress=None)
        for m in (on, hf.UFM(6))
    )
    np.testing.assert_allclose(far.log_a[-1], plain.log_a[-1], rtol=1e-9)


# --- what is refused, and what is said ----------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: hf.UFM(6, loss="focl"), "did you mean focal"),
        (lambda: hf.UFM(6, loss="focal:x"), r"spelled focal\[:GAMMA\]"),
        (lambda: hf.UFM(6, loss="focal:-1"), "`gamma` of the focal loss must be from 0"),
        (lambda: hf.UFM(6, loss="focal:nan"), "`gamma`"),
        (lambda: hf.UFM(6, loss="siglip:1:2:3"), r"spelled siglip\[:SCALE\]\[:BIAS\]"),
        (lambda: hf.UFM(6, loss="siglip:-1"), "`scale` must be"),
        (lambda: hf.UFM(6, loss="poly:-1"), "`epsilon` of the poly loss must be above -1"),
        (lambda: hf.losses.GeneralizedCrossEntropy(0), "above 0 and at most 1"),
        (lambda: hf.UFM(6, loss=3), "must be a name, a loss or a function"),
        (lambda: hf.UFM(6, loss=hf.losses.Focal), r"such as Focal\(\), but is the class"),
        (lambda: hf.UFM(6, loss=lambda z, y: z), "must return one real number"),
        (lambda: hf.UFM(6, loss=lambda z, y: jnp.nan * z[0]), "must be a finite number"),
        (lambda: hf.UFM(6, loss=lambda z, y: 1 / 0), "cannot be traced"),
        (lambda: hf.UFM(6, loss=hf.losses.Own(own, own)), "`log_loss` must be the log"),
        (lambda: hf.losses.Own(own, 3), "`log_loss` must be a function"),
        (lambda: hf.UFM(6, loss="hinge", temperature=2), "`temperature` is that of a softmax"),
        (lambda: hf.UFM(6, loss="focal", label_smoothing=0.1), "Soft labels need"),
        (lambda: hf.solve(hf.UFM(6, loss=unfair), [1, 1, 1]), "classes are not treated alike"),
        (lambda: hf.solve(hf.UFM(6, loss=one_sided), [1, 1, 1]), "g and −g are not treated alike"),
        (
            lambda: hf.solve(hf.UFM(6, loss="hinge", weight_decay=0.1), [1, 1, 1]),
            "slides along its kink",
        ),
        (lambda: hf.solve(hf.UFM(6, loss="one_vs_rest"), [1, 1, 1]), "4"),
        (
            lambda: hf.solve(hf.UFM(4, loss="brier"), [1, 1, 1], "steady"),
            "cannot be Steady for brier",
        ),
        (
            lambda: hf.solve(
                hf.UFM(4, loss="infonce", imbalance=((2, 1), (2, 2))), [1, 1, 1], "time:1"
            ),
            "does not see every sample by itself",
        ),
    ],
)
def test_what_is_refused(call, told):
    with pytest.raises(hf.InputError, match=told) as error:
        call()
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.slow
def test_a_hinge_slides_along_its_kink_off_the_hadamard_states(monkeypatch):
    monkeypatch.setattr("hadaflow.flow.methods.runge_kutta._STEPS_AT_KINKS", 500)
    model, rng = hf.UFM(3, loss="hinge"), np.random.default_rng(1)
    start = hf.parameters(*(rng.normal(size=(3, 3)) * 0.4 for _ in range(2)))
    run = hf.solve(model, start, hf.Time(10.0), units="raw")
    assert run.status == "failed" and "slides along the kink of loss = hinge" in run.message


def test_a_slope_that_is_no_number_is_told():
    def narrow(logits, label):
        return jnp.sqrt(jax.nn.logsumexp(logits) - logits[label] - 1.0)

    run = hf.solve(hf.UFM(6, loss=narrow), [0.3, 0.5, 0.2], hf.Time(1.0))
    assert run.status == "failed" and "narrow has no finite slope" in run.message


def test_the_full_view_has_losses_without_symmetry():
    model = hf.UFM(6, loss=unfair)
    start = hf.gaussian(model, 0.5)
    run = hf.solve(model, start, times=[1.0], units="raw", progress=None)

    def value(Z):
        return jnp.sum(jax.vmap(own)(Z.T, jnp.arange(6)) * (1.0 + jnp.arange(6.0)))

    def velocity(t, y):
        W, H = y[:36].reshape(6, 6), y[36:].reshape(6, 6)
        with double_precision():
            slope = np.asarray(jax.grad(value)(jnp.asarray(W @ H)))
        return -np.concatenate([(slope @ H.T).ravel(), (W.T @ slope).ravel()])

    y0 = np.concatenate([f.ravel() for f in start.factors])
    other = scipy.integrate.solve_ivp(velocity, (0, 1), y0, "DOP853", rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(run.state(-1).W.ravel(), other.y[:36, -1], atol=1e-6)


def test_spellings():
    for name, kind in LOSSES.items():
        loss = kind()
        assert parse_loss(str(loss)) == loss and str(loss).split(":")[0] == name
        model = hf.UFM(4, loss=loss)
        assert model.loss == str(loss) and hf.UFM(**model.to_document()) == model
        assert (name in model.describe()) and hash(model) == hash(hf.UFM(4, loss=str(loss)))
    assert hf.UFM(4, loss=hf.losses.Focal(2)).loss == "focal:2" == hf.UFM(4, loss="focal:2.0").loss
    assert hf.UFM(4, loss="siglip:10:-10") == hf.UFM(4, loss="siglip")
    assert str(parse_loss("focal:0.1")) == "focal:0.1"
    assert dataclasses.asdict(parse_loss("poly:0.5"))["epsilon"] == 0.5


def test_runs_are_saved_and_read(tmp_path):
    path = tmp_path / "run.nc"
    sigmoids = hf.UFM(6, loss="siglip:2:-1", depth=1)
    run = hf.solve(sigmoids, hf.spectrum([0.4, 0.3, 0.5, 0.2]), times=[1.0, 3.0], progress=None)
    assert np.cos(run.arrays["angles"][-1, 0]) < 0  # the constant mode has passed through zero
    run.save(path)
    again = hf.load(path)
    assert again.model == sigmoids and "siglip:2:-1" in str(again)
    np.testing.assert_array_equal(again.arrays["angles"], run.arrays["angles"])
    model = hf.UFM(6, loss=own)
    hf.solve(model, [0.3, 0.5, 0.2], times=[1.0], progress=None).save(path)
    assert hf.load(path, loss=own).model == model
    with pytest.raises(hf.InputError, match="a function, but the one given is focal:2"):
        hf.load(path, loss="focal:2")
    with pytest.raises(hf.InputError, match="give it as `loss`"):
        hf.load(path)


def test_another_number_compiles_nothing():
    """The structures of flows are equal: see tests/runs/test_compilations.py for what follows."""

    def structure(loss, **options):
        model = hf.UFM(6, loss=loss, **options)
        return jax.tree.structure(reduced_flow(model, fitted(model, [0.3, 0.5, 0.2])))

    assert structure("focal:2") == structure("focal:1.25", temperature=2.0)
    assert structure("focal:2") != structure("poly:2")
    assert structure("brier") != structure("pairwise_logistic")
