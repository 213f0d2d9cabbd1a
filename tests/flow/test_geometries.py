"""Steepest descent in other geometries: closed forms against small steps, and what a run says."""

import functools
import itertools
import json
import sys

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

import hadaflow as hf
from dense_training import characters, factors_of, rotation, sylvester
from hadaflow.cli import commands as cli

FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


def solve(*args, **options):
    return hf.solve(*args, progress=None, **options)


# --- against matrices -----------------------------------------------------------------------------


def polar(G):
    U, s, Vt = np.linalg.svd(G, full_matrices=False)
    return U[:, s > 1e-9 * s[0]] @ Vt[s > 1e-9 * s[0]]


def push(factors, Y, loss):
    """Minus the gradient with respect to every factor."""
    Z = functools.reduce(np.matmul, factors)
    right = (Z * Y).sum(axis=0)
    if loss == "pairwise_logistic":
        pull = (1 - Y) / (1 + np.exp(right - Z))
        R = Y * pull.sum(axis=0) - pull
    else:  # a function of the probability, whose forces have the same signs and singular vectors
        P = np.exp(Z - Z.max(axis=0))
        R = Y - P / P.sum(axis=0)
    before = itertools.accumulate(factors[:-1], np.matmul, initial=np.eye(len(Z)))
    behind = itertools.accumulate(factors[:0:-1], lambda B, A: A @ B, initial=np.eye(Z.shape[1]))
    return [A.T @ R @ B.T for A, B in zip(before, [*behind][::-1], strict=True)]


def small_steps(factors, Y, step, decay, T, count, loss):
    """Euler's method; the error of its result is a series in the size of the step."""
    moved, eta = [f.copy() for f in factors], T / count
    for _ in range(count):
        pushed = push(moved, Y, loss)
        moved = [f + eta * (step(g) - decay * f) for f, g in zip(moved, pushed, strict=True)]
    return moved


def limit(*args, T, loss, levels=4, count=64):
    """The limit of small steps, by Richardson's extrapolation."""
    found = [small_steps(*args, T, count * 2**k, loss) for k in range(levels)]
    for order in range(1, levels):
        weight = 2.0**order
        found = [
            [(weight * b - a) / (weight - 1) for a, b in zip(one, other, strict=True)]
            for one, other in itertools.pairwise(found)
        ]
    return found[0]


CASES = [
    # geometry, group, samples, depth, decay, loss, random rotations
    ("sign", (2, 2), 1, 2, 0.0, "cross_entropy", False),
    ("sign", (2, 2, 2), 2, 2, 0.3, "focal:2", False),
    ("sign", (6,), 2, 1, 0.2, "cross_entropy", False),
    ("sign", (5,), 1, 1, 0.0, "pairwise_logistic", False),
    ("spectral", (5,), 2, 2, 0.3, "cross_entropy", True),
    ("spectral", (2, 4), 1, 3, 0.0, "pairwise_logistic", True),
    ("spectral", (3,), 3, 1, 0.5, "cross_entropy", False),
]


@pytest.mark.parametrize(("geometry", "group", "n", "depth", "decay", "loss", "rotated"), CASES)
def test_the_closed_form_is_the_limit_of_small_steps(
    geometry, group, n, depth, decay, loss, rotated
):
    K, rng = int(np.prod(group)), np.random.default_rng(3)
    model = hf.UFM(K, group=group, samples=n, depth=depth, loss=loss)
    given = [rng.uniform(0.2, 1.5, model.modes) for _ in range(depth)]
    layers = [np.append(0.0, np.repeat(s, model.basis.multiplicity)) for s in given]
    rotations = [rotation(K - 1, k) if rotated else np.eye(K - 1) for k in range(depth - 1)]
    U = sylvester(K) if set(group) == {2} else characters(group)
    Y = np.repeat(np.eye(K), n, axis=1)
    step = np.sign if geometry == "sign" else polar
    factors = factors_of(U, layers, n, rotations)
    reference = limit(factors, Y, step, decay, T=2.0, loss=loss)
    squares = np.stack(given) ** 2
    C = None if depth == 1 else squares[0] - squares[1:]
    start = hf.spectrum(np.prod(given, axis=0), C[0] if depth == 2 else C, "raw")
    run = solve(model, start, times=[0.5, 2.0], geometry=geometry, decay=decay)
    Z = functools.reduce(np.matmul, reference)
    V = np.repeat(U, n, axis=0) / np.sqrt(n)
    a = np.diag(U.T @ Z @ V)[1:]
    np.testing.assert_allclose(np.repeat(run.a[-1], model.basis.multiplicity), a, rtol=1e-7)
    gaps = [np.diag(U.T @ reference[0] @ reference[0].T @ U)[1:]]
    gaps.append(np.diag(V.T @ reference[-1].T @ reference[-1] @ V)[1:])
    if depth > 1:
        last = run.C[-1] if depth == 2 else run.C[-1][-1]
        np.testing.assert_allclose(
            np.repeat(last, model.basis.multiplicity), gaps[0] - gaps[1], rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize(("name", "decay"), [("sign", 0.0), ("spectral", 0.0), ("sign", 0.1)])
def test_descent_with_small_steps_follows_it(name, decay):
    """The same optimizer of the reduced view, whose steps are halved: its error is, too."""
    model = hf.UFM(8, samples=2)
    start = hf.spectrum([0.5, 0.3, 1.0, 0.2, 0.1, 0.4, 0.7], units="raw")
    run = solve(model, start, times=[3.0], geometry=name, decay=decay)
    errors = []
    for steps in (3000, 6000):
        rule = getattr(hf.optimizers, name)(3.0 / steps, weight_decay=decay)
        small = hf.descend(model, start, steps, rule, points=2, progress=None)
        errors.append(np.abs(small.a[-1] / run.a[-1] - 1).max())
    assert errors[1] < (0.51 * errors[0] if decay else 1e-9)


# --- ends and readings ----------------------------------------------------------------------------


def test_events_are_met_where_they_happen():
    model = hf.UFM(8)
    found = {g: solve(model, FIGURE_1, "collapse:1e-3", geometry=g) for g in ("sign", "spectral")}
    for run in found.values():
        assert run.status == "collapsed"
        deviation = np.abs(7 * run.a_hat[-1] - 1).max()
        assert 1e-3 * (1 - 1e-9) < deviation <= 1e-3
        # One orbit: both move W and H alike where n = 1, one √8 times as fast.
        np.testing.assert_allclose(run.a[-1], found["sign"].a[-1], rtol=1e-10)
    gap = found["spectral"].log10_time[-1] - found["sign"].log10_time[-1]
    assert gap == pytest.approx(np.log10(np.sqrt(8)), abs=1e-9)
    norm = solve(model, FIGURE_1, "norm:1e6", geometry="sign")
    assert norm.a[-1].sum() == pytest.approx(1e6, rel=1e-9)
    small = solve(model, [1e-9] * 7, "norm:1e-8", geometry="spectral")
    assert small.a[-1].sum() == pytest.approx(1e-8, rel=1e-9)
    path = solve(model, FIGURE_1, "path:50", geometry="spectral")
    assert path.path_length[-1] == pytest.approx(50, rel=1e-9)
    rest = solve(model, FIGURE_1, "steady", geometry="sign", decay=0.1)
    assert rest.status == "steady"
    np.testing.assert_allclose(rest.a[-1], 8 / 0.01 / 8, rtol=1e-6)  # √K√K/λ², K in scaled units
    short = solve(model, FIGURE_1, "norm:1e9", geometry="sign", decay=0.1)
    assert short.status == "failed" and "settles at a finite point" in short.message


def test_path_length_is_the_integral_of_the_speed():
    model = hf.UFM(5, samples=2)  # pairs of characters count twice
    run = solve(model, [0.3, 1.0], times=[0.1, 4.0], geometry="spectral", decay=0.05)
    v = 1 / (model.singular_value_scale**0.5 * model.time_scale)
    decay = 0.05 / model.time_scale

    def layer(start, t):
        return np.sqrt(start) * np.exp(-decay * t) + v * (1 - np.exp(-decay * t)) / decay

    def speed(t):
        x = np.array([layer(0.3, t), layer(1.0, t)])
        return np.sqrt(2 * np.sum((2 * x * (v - decay * x)) ** 2))

    for t, length in zip(run.time[1:], run.path_length[1:], strict=True):
        assert length == pytest.approx(quad(speed, 0, t, epsabs=0, epsrel=1e-12)[0], rel=1e-10)


def test_kl_falls_with_one_ratio_of_the_layers_and_may_rise_without():
    """The example of unequal ratios: α = (10, ½, ½), β = (0.1, ½, ½)."""
    model = hf.UFM(4)
    alpha, beta = np.array([10, 0.5, 0.5]), np.array([0.1, 0.5, 0.5])
    start = hf.spectrum(alpha * beta, alpha**2 - beta**2, "raw")
    run = solve(model, start, "time:100", geometry="sign", points=100)

    def kl(t):
        a = (alpha + 2 * t) * (beta + 2 * t)
        return -np.mean(np.log(3 * a / a.sum()))

    highest = minimize_scalar(lambda t: -kl(t), bounds=(0, 10), method="bounded")
    (top,) = run.extremes("kl")
    assert run.measure("kl")[0] == pytest.approx(kl(0.0), rel=1e-12)
    assert kl(0.0) == pytest.approx(0.231, abs=1e-3) and top.value > 0.4
    assert top.kind == "maximum" and top.value == pytest.approx(-highest.fun, rel=1e-9)
    rates = hf.rate("kl", model, run.state(0), geometry="sign")
    ahead = solve(model, start, times=[1e-6], geometry="sign").measure("kl")
    assert rates == pytest.approx((ahead[1] - ahead[0]) / 1e-6, rel=1e-4)
    rng = np.random.default_rng(0)
    for geometry in ("sign", "spectral"):
        for ratio in (0.2, 1.0, 5.0):
            alpha = rng.lognormal(size=(20, 3))
            starts = hf.spectrum(ratio * alpha**2, alpha**2 * (1 - ratio**2), "raw")
            falls = hf.rate("kl", model, starts, geometry=geometry)
            assert falls.max() <= 1e-12


def test_decays_of_any_size():
    """A tiny one bounds nothing that a double holds, a huge one has ended the flow at once."""
    model = hf.UFM(8)
    for decay in (1e-100, 1e-90):
        near = solve(model, FIGURE_1, "time:100", geometry="sign", decay=decay)
        free = solve(model, FIGURE_1, "time:100", geometry="sign")
        np.testing.assert_allclose(near.a[-1], free.a[-1], rtol=1e-12)
    gone = solve(model, FIGURE_1, "log10time:1000", geometry="sign", decay=1e6)
    assert np.isfinite(gone.path_length).all()
    np.testing.assert_allclose(gone.a[-1], 1e-12, rtol=1e-9)  # √K√K/λ², over K
    deep = hf.UFM(6, depth=4)
    with pytest.raises(hf.InputError, match="at most log10 t ="):
        solve(deep, [0.1, 0.2, 0.3], "log10time:300", geometry="spectral", decay=1e-90)
    with pytest.raises(hf.InputError, match="zero or a number from 1e-100 to 1e"):
        solve(model, FIGURE_1, geometry="sign", decay=1e-300)


def test_batches_zeros_and_files(tmp_path):
    model = hf.UFM(8)
    runs = solve(
        model, np.array([FIGURE_1, [1.0] * 6 + [0.0], [2.0] * 7]), "collapse:1e-3", geometry="sign"
    )
    assert runs.statuses == ["collapsed", "never-collapses", "collapsed"]
    one = solve(model, FIGURE_1, "collapse:1e-3", geometry="sign", decay=0.01, points=9)
    one.save(tmp_path / "one.nc")
    again = hf.load(tmp_path / "one.nc")
    np.testing.assert_array_equal(again.a, one.a)
    assert "sign geometry with decay 0.01" in str(again) and again.rate("kl").max() <= 0
    np.testing.assert_array_equal(again.rate("l2"), one.rate("l2"))
    with pytest.raises(hf.InputError, match="An itinerary is one of gradient flow"):
        again.itinerary()
    assert hf.estimate(model, FIGURE_1, geometry="sign").method == "closed form"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("decay", [1e-100, 1e-20, 1e9, 1e100])
def test_any_decay_settles_at_its_place(decay):
    for until in (hf.Time(1e300), hf.Time(log10=1000)):
        run = solve(hf.UFM(8), FIGURE_1, until, geometry="sign", decay=decay, units="raw")
        np.testing.assert_allclose(run.log_a[-1], np.log(8) - 2 * np.log(decay), rtol=1e-14)
    assert np.isfinite(run.path_length).all()


def test_a_decay_that_lets_layers_grow_too_large_has_a_last_time():
    with pytest.raises(hf.InputError, match="at most log10 t = "):
        solve(hf.UFM(4, depth=5), [1, 2, 3], hf.Time(1e300), geometry="spectral", decay=1e-100)


def test_from_the_command_line(monkeypatch, capsys):
    line = "solve --classes 8 --start 1,1,1,1,.001,.001,.001 --json --until collapse:1e-3"
    monkeypatch.setattr(sys, "argv", ["hadaflow", *line.split(), "--geometry", "sign"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == 0 and err == ""
    document = json.loads(out)
    assert document["settings"]["geometry"] == "sign" and document["status"] == "collapsed"
    expected = solve(hf.UFM(8), FIGURE_1, "collapse:1e-3", geometry="sign")
    assert document["log10_time"][-1] == expected.log10_time[-1]


@pytest.mark.parametrize(
    ("model", "start", "options", "message"),
    [
        ({}, FIGURE_1, {"geometry": "signs"}, "euclidean, sign, spectral, but is 'signs'"),
        ({}, FIGURE_1, {"geometry": 3}, "`geometry` must be one of"),
        ({}, FIGURE_1, {"decay": 0.1}, "the model's `weight_decay`"),
        ({}, FIGURE_1, {"geometry": "sign", "decay": -1}, "`decay` must be zero or a number from"),
        ({}, FIGURE_1, {"geometry": "sign", "method": "tsit5"}, '`method` must be "auto"'),
        ({}, FIGURE_1, {"geometry": "sign", "until": "steady"}, "cannot be Steady"),
        ({}, FIGURE_1, {"geometry": "sign", "until": "predicted-collapse"}, "PredictedCollapse"),
        ({}, FIGURE_1, {"geometry": "sign", "until": "log10time:400"}, "at most log10 t = 150"),
        ({"label_smoothing": 0.1}, FIGURE_1, {"geometry": "sign"}, "forces that are positive"),
        ({"weight_decay": 0.1}, FIGURE_1, {"geometry": "spectral"}, "forces that are positive"),
        ({"loss": "mse"}, [1.0, *FIGURE_1], {"geometry": "spectral"}, "forces that are positive"),
        ({"loss": "hinge"}, FIGURE_1, {"geometry": "spectral"}, "forces that are positive"),
        ({"depth": 3}, FIGURE_1, {"geometry": "sign"}, "needs depth 1, or depth 2"),
        ({"group": (8,)}, [1.0] * 4, {"geometry": "sign"}, "the group Z_8"),
    ],
)
def test_what_has_no_closed_form_is_refused(model, start, options, message):
    with pytest.raises(hf.InputError) as told:
        solve(hf.UFM(8, **model), start, **options)
    assert message in str(told.value) and "\n" not in str(told.value)


def test_matrices_and_phases_are_refused():
    model = hf.UFM(4)
    with pytest.raises(hf.InputError, match="one of the reduced view"):
        solve(model, hf.gaussian(model, 0.1, 0), geometry="sign")
    turned = hf.Spectrum(np.ones(2), np.zeros(2), "scaled", np.array([0.0, 1.0]))
    with pytest.raises(hf.InputError, match="no phases"):
        solve(hf.UFM(5), turned, geometry="spectral")
