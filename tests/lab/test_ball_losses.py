"""Losses over balls against those of the model, and what is certified about them."""

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.lab.exact.ball_losses import TWINS
from hadaflow.model.losses import LOSSES, parse_loss

NAMES = [
    "focal:1.5", "focal:0", "exponential", "generalized_cross_entropy:0.7", "poly:2", "infonce", "brier",
    "pairwise_logistic", "hinge", "squared_hinge", "one_vs_rest", "siglip:2:-1", "mse", "cross_entropy",
]  # fmt: skip


def test_every_built_in_loss_has_a_twin():
    assert set(TWINS) == set(LOSSES)
    for name, twin in TWINS.items():
        assert twin.moves_constant == parse_loss(name).moves_constant


MODELS = [{"classes": 6, "samples": 2}, {"classes": 8, "depth": 3}, {"classes": 5, "depth": 1}]
FEW = [("focal:1.5", 0), ("brier", 1), ("pairwise_logistic", 2), ("siglip:2:-1", 0)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, i, marks=[] if (name, i) in FEW else pytest.mark.slow)
        for name in NAMES
        for i in range(len(MODELS))
    ],
)
def test_rates_are_those_of_the_model(name, options):
    model = hf.UFM(loss=name, **MODELS[options])
    a = np.round(np.random.default_rng(2).uniform(0.02, 0.14, model.modes), 4)
    for metric in ("kl", "l2", "energy", "log_loss", "margin"):
        told = hf.certify(metric, [f"{v:.4f}" for v in a], model)
        ours = float(hf.rate(metric, model, a))
        assert told.rate == pytest.approx(ours, rel=1e-9, abs=1e-12), metric


@pytest.mark.parametrize("name", ["brier", "one_vs_rest"])
def test_soft_labels(name):
    model = hf.UFM(6, loss=name, label_smoothing=0.1, samples=2)
    a = np.round(np.random.default_rng(2).uniform(0.02, 0.4, model.modes), 4)
    for metric in ("kl", "energy"):
        told = hf.certify(metric, [f"{v:.4f}" for v in a], model)
        assert told.rate == pytest.approx(float(hf.rate(metric, model, a)), rel=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "pairwise_logistic",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("one_vs_rest", "brier")),
    ],
)
def test_m_rises_for_other_losses_and_the_file_is_checked_again(name):
    found = hf.hunt("l2", hf.UFM(8, loss=name), starts=512, seconds=20, seed=0, progress=None)
    assert found.certificate is not None and found.certificate.rate > 0
    document = found.certificate.to_document()
    assert document["problem"]["loss"] == name and hf.recheck(document).holds


@pytest.mark.slow
def test_kl_is_not_found_to_rise_where_it_provably_falls():
    for name in ("pairwise_logistic", "exponential", "squared_hinge"):
        found = hf.hunt("kl", hf.UFM(4, loss=name), starts=256, seconds=10, seed=0, progress=None)
        assert found.certificate is None


def test_a_loss_of_ones_own_has_no_certificate():
    with pytest.raises(hf.InputError, match="built-in loss"):
        hf.certify("kl", ["1", "1", "2"], hf.UFM(4, loss=lambda z, y: z.max() - z[y]))


def test_portraits_of_other_losses():
    from hadaflow.lab.direction_flow import direction_field

    for name in ("pairwise_logistic", "brier", "focal:2"):
        model = hf.UFM(4, loss=name)
        s = np.array([0.5, 0.3, 0.2])
        ours = direction_field(model, s, 3.0)
        velocity = np.asarray(model.velocity(3.0 * s))
        moved = velocity / velocity.sum() - s
        np.testing.assert_allclose(ours, moved, rtol=1e-9)
    with pytest.raises(hf.InputError, match="never settles"):
        direction_field(hf.UFM(4, loss="hinge"), s, 3.0)
