"""L2 penalties: reduced against the matrices, fixed points, the threshold, descent, errors."""

import json
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hadaflow as hf
from hadaflow.cli import commands as cli
from references import factor_flow


def penalized_flow(W, H, n, decays, times, divisor=1.0):
    """Gradient flow of loss/divisor + λ_W/2 ‖W‖² + λ_H/2 ‖H‖² by DOP853, raw time; W and H at `times`."""
    return factor_flow((W, H), n, times, decays=decays, divisor=divisor)


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(
    st.sampled_from([(2, 2), (2, 2, 2), (3,), (6,), (2, 4)]),
    st.integers(1, 3),
    st.tuples(st.floats(0.01, 1.5), st.floats(0.01, 1.5)),
    st.sampled_from(["sum", "mean"]),
    st.booleans(),
    st.integers(0, 2**20),
)
def test_lift_then_flow_is_flow_then_lift(group, n, decays, reduction, balanced, seed):
    rng = np.random.default_rng(seed)
    model = hf.UFM(
        math.prod(group), group=group, samples=n, reduction=reduction, weight_decay=decays
    )
    C = 0.0 if balanced else rng.uniform(-1, 1, model.modes)
    start = hf.spectrum(rng.uniform(0.1, 1.5, model.modes), C=C, units="raw")
    times = [0.3, 2.0]
    run = hf.solve(model, start, times=times, rtol=1e-10, method="tsit5", progress=None)
    state = hf.hadamard(model, start, rotation=seed % 100)
    for k, (W, H) in enumerate(
        penalized_flow(*state.factors, n, decays, times, model.loss_divisor), 1
    ):
        lifted = hf.hadamard(model, run.state(k), rotation=seed % 100)
        assert np.linalg.norm(lifted.W - W) <= 1e-8 * np.linalg.norm(W)
        assert np.linalg.norm(lifted.H - H) <= 1e-8 * np.linalg.norm(H)


@pytest.mark.slow
def test_full_view_follows_the_reduced_one():
    model = hf.UFM(4, samples=2, width=6, weight_decay=(0.2, 0.05))
    start = hf.spectrum([0.3, 0.8, 0.1], C=[0.5, -0.2, 0.1], units="raw")
    reduced = hf.solve(model, start, times=[1.0, 20.0], progress=None)
    full = hf.solve(model, hf.hadamard(model, start), times=[1.0, 20.0], units="raw", progress=None)
    back = hf.project(model, full.parameters)
    np.testing.assert_allclose(back.a, reduced.a, rtol=1e-6)
    np.testing.assert_allclose(back.C, reduced.C, rtol=1e-5, atol=1e-8)
    settled = hf.solve(model, hf.hadamard(model, start), hf.Steady(1e-7), progress=None)
    assert settled.status == "steady"
    np.testing.assert_allclose(
        hf.project(model, settled.state(-1)).a, hf.fixed_point(model, "raw"), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("n", "decays", "reduction"),
    [(1, (0.1, 0.1), "sum"), (3, (0.5, 0.1), "sum"), (2, (0.01, 0.02), "mean")],
)
def test_the_flow_settles_where_the_formula_says(n, decays, reduction):
    """a* = √n log(K/λ̄ − K + 1), α/β = √(λ_H/λ_W), ‖W‖² = (K−1) a* √(λ_H/λ_W)."""
    model = hf.UFM(8, samples=n, weight_decay=decays, reduction=reduction)
    strength = math.sqrt(decays[0] * decays[1] / n) * (8 * n if reduction == "mean" else 1)
    a = math.sqrt(n) * math.log(8 / strength - 8 + 1)
    np.testing.assert_allclose(hf.fixed_point(model, "raw"), a, rtol=1e-12)
    start = hf.spectrum(np.linspace(0.1, 1, 7), C=0.3, units="raw")
    run = hf.solve(model, start, points=2, progress=None)
    assert run.status == "steady"
    np.testing.assert_allclose(run.a[-1], a, rtol=1e-5)
    W = hf.hadamard(model, run.state(-1)).W
    assert np.sum(W**2) == pytest.approx(7 * a * math.sqrt(decays[1] / decays[0]), rel=1e-5)


def test_above_the_threshold_everything_dies():
    model = hf.UFM(4, samples=2, weight_decay=(2.0, 1.1))
    assert np.all(hf.fixed_point(model) == 0)
    run = hf.solve(model, [0.3, 0.2, 0.1], points=2, progress=None)
    assert run.status == "steady" and run.a[-1].max() < 1e-10
    told = hf.solve(model, [0.3, 0.2, 0.1], hf.Collapse(1e-3), points=2, progress=None)
    assert told.status == "never-collapses" and "dies" in told.message
    assert hf.fixed_point(hf.UFM(4, samples=2, weight_decay=(2.0, 0.9))).min() > 0


def test_at_one_sample_the_penalty_acts_like_smoothing():
    """N = 1: the fixed point is that of label smoothing s = λ̄."""
    penalty = hf.fixed_point(hf.UFM(8, weight_decay=0.1))
    np.testing.assert_allclose(penalty, hf.fixed_point(hf.UFM(8, label_smoothing=0.1)), rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from([0.01, 0.3, 0.9, 1.5]))
def test_kl_is_a_lyapunov_function_for_equal_penalties(seed, decay):
    a = np.random.default_rng(seed).uniform(0.01, 2, 7)
    with_penalty = float(hf.rate("kl", hf.UFM(8, weight_decay=decay), a))
    assert with_penalty == pytest.approx(float(hf.rate("kl", hf.UFM(8), a)), rel=1e-9, abs=1e-15)
    assert with_penalty <= 0


def test_rates_are_derivatives_along_the_flow():
    model = hf.UFM(4, weight_decay=(0.3, 0.1))
    start = hf.spectrum([0.3, 0.2, 0.1], C=[0.2, -0.1, 0.3])
    run = hf.solve(
        model, start, times=[0.999, 1.0, 1.001], rtol=1e-12, method="tsit5", progress=None
    )
    for name in ("kl", "energy", "alignment_w", "alignment_h"):
        values, rates = run.measure(name), run.rate(name)
        assert rates[2] == pytest.approx((values[3] - values[1]) / 0.002, rel=1e-5)
        assert run.rate(name, flow="normalized")[2] * rates[2] > 0


def test_descent_follows_its_reduced_map():
    model = hf.UFM(8, samples=2, weight_decay=(0.1, 0.3))
    start = hf.spectrum(np.linspace(0.5, 2, 7), C=0.4, units="raw")
    reduced = hf.descend(model, start, 80, 0.1, momentum=0.3, units="raw", progress=None)
    full = hf.descend(
        model, hf.hadamard(model, start), 80, 0.1, momentum=0.3, units="raw", progress=None
    )
    back = hf.project(model, full.parameters)
    np.testing.assert_allclose(back.a, reduced.a, rtol=1e-11)
    gradient = model.gradient(full.state(3))
    step = full.state(3).W - full.state(2).W
    assert np.all(np.isfinite(gradient.W)) and np.linalg.norm(step) > 0


def test_mse_with_a_penalty_settles_too():
    """Active modes: √n − a = λ̄ √n, raw."""
    model = hf.UFM(4, loss="mse", weight_decay=0.2)
    start = hf.spectrum([0.3, 0.2, 0.4, 0.1], units="raw")
    run = hf.solve(model, start, points=2, progress=None)
    assert run.status == "steady"
    np.testing.assert_allclose(run.a[-1], 0.8, rtol=1e-6)


def test_a_run_is_saved_with_its_penalties(tmp_path):
    model = hf.UFM(4, weight_decay=(0.3, 0.1))
    run = hf.solve(model, hf.spectrum([0.3, 0.2, 0.1], C=0.2), hf.Time(10), progress=None)
    run.save(tmp_path / "run.nc")
    again = hf.load(tmp_path / "run.nc")
    assert again.model == model
    np.testing.assert_array_equal(again.C, run.C)
    assert np.ptp(run.C[:, 0]) > 0.01  # no longer conserved


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"weight_decay": -0.1}, "`weight_decay` must be a number that is not negative"),
        ({"weight_decay": math.nan}, "`weight_decay` must be a number that is not negative"),
        ({"weight_decay": "strong"}, "but is 'strong'"),
        ({"weight_decay": (0.1, 0.2, 0.3)}, "or 2 of them, one for each layer"),
        ({"weight_decay": (0.1, 0.2), "depth": 1}, "must be a number that is not negative, but is"),
        ({"weight_decay": (0.1, 0.2), "depth": 3}, "or 3 of them, one for each layer"),
    ],
)
def test_bad_penalties_get_one_clear_line(arguments, told):
    with pytest.raises(hf.InputError) as error:
        hf.UFM(4, **arguments)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_what_has_no_closed_form_says_so():
    for call in (
        lambda: hf.fixed_point(hf.UFM(4, weight_decay=0.1, label_smoothing=0.1)),
        lambda: hf.mse_exact(hf.UFM(4, loss="mse", weight_decay=0.1), [0.1] * 4, [1.0]),
        lambda: hf.linearized(hf.UFM(4, weight_decay=0.1), [0.1] * 3, [1.0]),
        lambda: hf.solve(hf.UFM(4, weight_decay=0.1), hf.spectrum([0.0, 1, 1], C=1.0), hf.Time(1)),
        lambda: hf.stability_limit(hf.UFM(4, weight_decay=(0.1, 0.0))),
        lambda: hf.fixed_point(hf.UFM(4, weight_decay=(0.1, 0.0))),
    ):
        with pytest.raises(hf.InputError, match="must have"):
            call()


@pytest.mark.slow
def test_from_the_command_line(monkeypatch, capsys):
    for decay, code in (("0.1", 0), ("0.1,0.3", 0), ("0.1,x", 2), ("1,2,3", 2), ("-1", 2)):
        command = [
            "solve",
            "--classes",
            "4",
            "--start",
            "1,2,3",
            f"--weight-decay={decay}",
            "--json",
        ]
        monkeypatch.setattr(sys, "argv", ["hadaflow", *command])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert end.value.code == code, err
        assert json.loads(out)["status"] == "steady" if code == 0 else err.count("\n") == 1
