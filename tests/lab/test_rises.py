"""Every built-in loss in the laboratory, and the page's table of what rises for which."""

import math
import runpy
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import hadaflow as hf
from hadaflow.lab.direction_flow import direction_field
from hadaflow.lab.quarry import Quarry

TABLE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "hooks" / "rises.py"))
KNOWN = TABLE["cells"]()
RISING = [key for key, cell in KNOWN.items() if cell["a"]]


def some(keys, count=4):
    """A few of them in every run, the rest in `slow`."""
    chosen = keys[:: max(len(keys) // count, 1)][:count]
    return [k if k in chosen else pytest.param(k, marks=pytest.mark.slow) for k in keys]


# --- the table -----------------------------------------------------------------------------------


def test_the_table_is_complete_and_that_of_the_page():
    assert set(KNOWN) == set(TABLE["wanted"]())
    for (_, metric, _), cell in KNOWN.items():
        assert cell["a"] or cell["starts"] == TABLE["starts_of"](metric)
    assert TABLE["table"](KNOWN) in TABLE["PAGE"].read_text()


@pytest.mark.parametrize("key", some(RISING), ids=str)
def test_what_the_table_says_rises_is_proven_again(key):
    loss, metric, group = key
    proof = hf.certify(metric, KNOWN[key]["a"], TABLE["model_of"](loss, group))
    told = float(KNOWN[key]["enclosure"].strip("[]").split()[0])
    assert proof.sign == 1 and proof.rate == pytest.approx(told, rel=1e-12)


def test_nothing_rises_that_provably_falls():
    for _, metric, group in RISING:
        assert metric != TABLE["PROVEN_METRIC"] and group != TABLE["PROVEN_GROUP"]


def proven_sign(metric, loss, group, seed):
    """The exact sign of a rate at a state some of whose margins are below one, some above."""
    model = TABLE["model_of"](loss, group)
    a = np.random.default_rng(seed).lognormal(0, 1, model.modes)
    a /= (model.basis.dense_psi @ a[-model.basis.modes :]).mean()
    return hf.certify(metric, [f"{v:.3g}" for v in a], model, most_bits=256).sign


@pytest.mark.parametrize("loss", [*TABLE["LOSSES"], "focal:2", "mse"])
def test_exactly_what_the_page_proves(loss):
    """KL falls on every group; all distances where each margin misses one mode; no margin shrinks."""
    for seed in range(4):
        for group in ((6,), (2, 4), (2, 2, 2)):
            assert proven_sign("kl", loss, group, seed) == -1
            if not hf.UFM(8, loss=loss).has_constant_mode:
                assert proven_sign("margin", loss, group, seed) == 1
        for group in ((2, 2), (3, 3)):
            for metric in TABLE["METRICS"]:
                assert proven_sign(metric, loss, group, seed) <= 0
    assert loss != "mse" or proven_sign("l2", loss, (2, 2, 2), 0) == -1


@pytest.mark.slow
@pytest.mark.parametrize("loss", TABLE["LOSSES"])
@pytest.mark.parametrize("metric", ["kl", "log_ratio"])
@pytest.mark.parametrize("group", [(6,), (2, 2, 2), (9,)])
def test_another_seed_finds_what_the_table_says(loss, metric, group):
    found = hf.hunt(metric, TABLE["model_of"](loss, group), starts=512, seed=1, progress=None)
    assert found.found <= ((loss, metric, group) in RISING)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [*TABLE["LOSSES"], "mse"])
@pytest.mark.parametrize("group", [(2, 2), (3, 3)])
@pytest.mark.parametrize("metric", ["reverse_kl", "collapse_deviation", "log_ratio"])
def test_every_distance_falls_where_each_margin_misses_one_mode(loss, metric, group):
    found = hf.hunt(metric, TABLE["model_of"](loss, group), starts=256, progress=None)
    assert not found.found


# --- every loss in the laboratory ----------------------------------------------------------------


@pytest.mark.parametrize("loss", ["hinge", pytest.param("squared_hinge", marks=pytest.mark.slow)])
def test_a_loss_that_settles_is_hunted_where_it_still_moves(loss):
    found = hf.hunt("l2", hf.UFM(6, loss=loss), starts=256, progress=None)
    assert found.certified and found.a is not None and max(map(float, found.a)) < 1


@pytest.mark.parametrize(("loss", "at"), [("hinge", 1.0), ("squared_hinge", 1.0), ("mse", 0.25)])
def test_at_rest_nothing_has_a_rate(loss, at):
    model = hf.UFM(4, loss=loss)
    for metric in ("energy", "loss", "log_energy", "kl", "margin"):
        assert hf.rate(metric, model, [at] * model.modes) == 0


def test_symmetry_leaves_the_constant_mode_in_front():
    quarry = Quarry.make("l2", hf.UFM(8, loss="one_vs_rest"), None, None)
    a = np.array([0.5, 1, 2, 3, 4, 5, 6, 7])
    assert a[quarry.order(a)].tolist()[:3] == [0.5, 7, 6]


@pytest.mark.parametrize("loss", ["pairwise_logistic", "brier"])
def test_a_face_is_seen_from_far_out(loss):
    """Margins without any of the modes that are there pull hard, on none of them."""
    model, s = hf.UFM(8, loss=loss), [0.5, 0.3, 0.2, 0, 0, 0, 0]
    limit = direction_field(model, s, math.inf)
    for norm in (200.0, 1000.0, 1e4):
        np.testing.assert_allclose(direction_field(model, s, norm), limit, atol=1e-9)


def test_brier_keeps_its_digits_beside_margins_of_zero():
    """The sum of p_y − p_j over nearly tied classes is as small as what it is added to."""
    x = np.array([1e-12, 1e-12, 30.0, 31.0])
    direction, slowness = hf.losses.Brier().push(jnp.asarray(x))
    told = np.asarray(direction * np.exp(-slowness))
    e = np.exp(-x)
    D = 1 + e.sum()
    mean = (e * np.expm1(-x)).sum() / D**2  # Σ p² − p_y(1 − p_y)
    np.testing.assert_allclose(told, 2 * e / D * (e / D - mean), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["pairwise_logistic", "brier"])
def test_portraits_of_slices_far_out(loss):
    fixed = {4: 0, 5: 0, 6: 0, 7: 0}
    picture = hf.portrait(hf.UFM(8, loss=loss), fixed=fixed, norm=200.0, metric="l2")
    assert picture.axes


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", ["pairwise_logistic", "brier", "hinge", "squared_hinge", "one_vs_rest"]
)
def test_the_worst_rise_of_every_loss(loss):
    """M rises by some hundredths on Z_6 whatever the loss, and KL by nothing."""
    model = hf.UFM(6, loss=loss)
    assert 0.003 < hf.worst_rise("l2", model, starts=128, progress=None).rise < 0.05
    assert hf.worst_rise("kl", model, starts=128, progress=None).rise == 0
