"""Phase portraits: the field against the flow itself, its limit, what is marked and shaded."""

import math

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.lab.direction_flow import (
    Triangle,
    direction_field,
    find_walls,
    rising_region,
    stationary,
    trace_orbits,
)
from hadaflow.lab.portrait import portrait

MODELS = {
    "K = 4": hf.UFM(classes=4),
    "Z_6": hf.UFM(classes=6),
    "Z_7": hf.UFM(classes=7, samples=3),
    "Z_8": hf.UFM(classes=8, group=(8,)),
    "depth 1": hf.UFM(classes=6, depth=1),
    "depth 3": hf.UFM(classes=4, depth=3),
    "temperature": hf.UFM(classes=6, temperature=2.0),
    "smoothing": hf.UFM(classes=6, label_smoothing=0.1),
    "soft labels": hf.UFM(classes=4, label_distribution=(0.7, 0.15, 0.1, 0.05)),
    "penalty": hf.UFM(classes=4, weight_decay=0.01),
}


def some_shares(model, count=4, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(model.modes), count)


def triangle_of(model, norm, fixed=()):
    free = tuple(i for i in range(model.modes) if i not in dict(fixed))
    return Triangle(model, float(norm), free, tuple(fixed))


# --- the field -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_field_is_the_velocity_of_the_direction(name):
    model, norm = MODELS[name], 3.0
    m = model.basis.multiplicity
    s = some_shares(model)
    moved = m * np.array([model.velocity(a) for a in norm * s / m])
    size = np.abs(moved).sum(axis=-1, keepdims=True)
    expected = (moved - s * moved.sum(axis=-1, keepdims=True)) / size
    assert np.allclose(direction_field(model, s, norm), expected, rtol=1e-10, atol=1e-13)


def test_the_field_agrees_with_dense_matrices():
    """From the definition, by the full real basis: U diag(a) Uᵀ, softmax, and back."""
    model, norm = hf.UFM(classes=7), 4.0
    U, m = model.basis.vectors, model.basis.multiplicity
    for s in some_shares(model, 3):
        a = norm * s / m
        Z = (U * np.concatenate([[0.0], np.repeat(a, m)])) @ U.T * model.classes
        P = np.exp(Z) / np.exp(Z).sum(axis=0)
        g = 1 - np.diag(U.T @ P @ U)[1:].reshape(3, 2).mean(axis=1)
        expected = s * (g / (s @ g) - 1)
        assert np.allclose(direction_field(model, s, norm), expected, rtol=1e-9, atol=1e-12)


def test_the_field_agrees_with_a_solved_run():
    model, norm, h = MODELS["Z_6"], 2.0, 1e-3
    m = model.basis.multiplicity
    s = some_shares(model, 1, seed=3)[0]
    run = hf.solve(model, norm * math.exp(-h) * s / m, until=hf.Norm(norm * math.exp(h)))
    moved = (m * run.a[-1] / (m @ run.a[-1]) - s) / (2 * h)
    start = direction_field(model, s, norm * math.exp(-h))
    assert np.allclose(moved, start, rtol=0.01, atol=2e-3)
    middle = s + h * start
    assert np.allclose(moved, direction_field(model, middle, norm), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["K = 4", "Z_6", "Z_8"])
def test_the_limit_is_the_field_of_a_large_norm(name):
    model = MODELS[name]
    s = some_shares(model, 50)
    x = np.sort(s / model.basis.multiplicity @ model.basis.dense_psi.T, axis=-1)
    s = s[x[:, 1] - x[:, 0] > 1e-3]
    assert len(s) > 20
    limit = direction_field(model, s, math.inf)
    assert np.allclose(direction_field(model, s, 1e5), limit, rtol=0, atol=1e-12)


def test_ties_are_shared_evenly():
    v = direction_field(MODELS["K = 4"], [0.4, 0.4, 0.2], math.inf)
    assert np.allclose(v, [-0.4 / 6, -0.4 / 6, 0.8 / 6])


@pytest.mark.parametrize("norm", [0.1, 5.0, 400.0, math.inf])
@pytest.mark.parametrize("name", ["K = 4", "Z_6", "Z_8"])
def test_collapse_is_stationary_and_corners_and_edges_are_invariant(name, norm):
    model = MODELS[name]
    uniform = model.basis.multiplicity / (model.classes - 1)
    assert np.abs(direction_field(model, uniform, norm)).max() < 1e-13
    assert np.abs(direction_field(model, np.eye(model.modes), norm)).max() < 1e-15
    on_edges = some_shares(model)
    on_edges[:, 1] = 0
    on_edges /= on_edges.sum(axis=-1, keepdims=True)
    v = direction_field(model, on_edges, norm)
    assert np.all(v[:, 1] == 0) and np.abs(v.sum(axis=-1)).max() < 1e-13


# --- what is marked ------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [0.5, 5.0, 1000.0, math.inf])
def test_four_classes_have_one_attractor_three_sources_and_three_saddles(norm):
    points = stationary(triangle_of(MODELS["K = 4"], norm))
    expected = [[1 / 3] * 3, *np.eye(3), *((1 - np.eye(3)) / 2)]
    assert len(points) == 7
    for u, attracts in points:
        assert min(np.abs(u - e).max() for e in expected) < 1e-9
        assert attracts == (u.min() > 0)


@pytest.mark.parametrize(("depth", "ratio"), [(3, 1 / 8), (4, 1 / 4)])
def test_at_larger_depth_low_rank_attracts_beyond_the_known_threshold(depth, ratio):
    points = stationary(triangle_of(hf.UFM(classes=4, depth=depth), 200.0))
    attracting = [u for u, attracts in points if attracts]
    edges = [u for u in attracting if np.isclose(u.max(), 0.5)]
    assert len(edges) == 3 and any(np.allclose(u, 1 / 3) for u in attracting)
    saddles = [np.sort(u) for u, attracts in points if not attracts and u.min() > 0]
    assert len(saddles) == 3
    assert np.allclose([u[0] / u[2] for u in saddles], ratio, rtol=1e-3)


def test_collapse_repels_at_small_norm_and_depth_three():
    model = MODELS["depth 3"]
    for mean, expected in ((0.9 / 3, False), (1.1 / 3, True)):  # unstable below 1 − 2/N = 1/3
        points = stationary(triangle_of(model, 3 * mean))
        (attracts,) = [attracts for u, attracts in points if np.allclose(u, 1 / 3, atol=1e-9)]
        assert attracts == expected


def test_a_slice_marks_only_what_is_stationary_in_all_modes():
    model = MODELS["Z_8"]
    assert stationary(triangle_of(model, 10.0, [(3, 0.01)])) == []
    ((u, attracts),) = stationary(triangle_of(model, 10.0, [(3, 1 / 7)]))
    assert np.allclose(u, 1 / 3) and attracts
    # Three independent modes of eight classes: an invariant triangle, its centre a saddle.
    absent = [(i, 0.0) for i in (2, 4, 5, 6)]
    for norm in (10.0, math.inf):
        points = stationary(triangle_of(hf.UFM(classes=8), norm, absent))
        assert any(np.allclose(u, 1 / 3) for u, _ in points)
        assert not any(attracts for _, attracts in points)


def test_walls_are_where_the_smallest_margins_tie():
    model = MODELS["Z_7"]
    walls = find_walls(triangle_of(model, math.inf))
    assert len(walls) == 3
    for wall in walls:
        middle = wall.mean(axis=0)
        x = np.sort(middle / model.basis.multiplicity @ model.basis.dense_psi.T)
        assert np.isclose(x[0], x[1], atol=1e-12) and wall.min() > -1e-12


def test_orbits_of_four_classes_end_at_collapse():
    centre = np.array([0.5, math.sqrt(3) / 6])
    for norm in (5.0, 500.0):
        orbits = trace_orbits(triangle_of(MODELS["K = 4"], norm))
        assert len(orbits) > 12
        # The one along an edge would need longer than it is drawn; none ends elsewhere.
        assert max(np.linalg.norm(orbit[-1] - centre) for orbit in orbits) < 0.02


# --- where a metric rises ------------------------------------------------------------------------


def test_shaded_is_where_the_rate_is_positive():
    model, norm = MODELS["Z_6"], 3.22
    triangle = triangle_of(model, norm)
    u, rates, rising = rising_region(triangle, "l2")
    m = model.basis.multiplicity
    exact = hf.rate("l2", model, norm * u / m)
    clear = np.abs(exact) > 1e-9 * np.abs(exact).max()
    assert np.array_equal(rising[clear], exact[clear] > 0)
    assert np.array_equal(np.sign(rates[clear]), np.sign(exact[clear]))
    # The certified state (0.01, 1, 1.2) lies in it, on the scale of the lattice.
    state = m * np.array([0.01, 1, 1.2]) / norm
    nearest = np.abs(u - state).max(axis=-1).argmin()
    assert rising[nearest] and not rising[u.min(axis=-1) > 0.1].any()


def test_kl_rises_nowhere_and_neither_does_l2_of_four_classes():
    for norm in (5.0, math.inf):
        assert not rising_region(triangle_of(MODELS["Z_6"], norm), "kl", n=30)[2].any()
        assert not rising_region(triangle_of(MODELS["K = 4"], norm), "l2", n=30)[2].any()


# --- pictures ------------------------------------------------------------------------------------


def legend_of(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_a_picture_is_written_and_says_what_is_in_it(tmp_path):
    figure = portrait(MODELS["K = 4"], norm=5, metric="l2", path=tmp_path / "portrait.png")
    portrait(MODELS["K = 4"], norm=math.inf, path=tmp_path / "portrait.PDF")
    assert (tmp_path / "portrait.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "portrait.PDF").read_bytes().startswith(b"%PDF")
    assert len(list(tmp_path.iterdir())) == 2  # nothing half-written beside them
    assert "l2 rises nowhere on the grid" in legend_of(figure)
    assert [t.get_text() for t in figure.axes[0].texts] == ["mode 1", "mode 2", "mode 3"]
    assert "K = 4" in figure.axes[0].get_title()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Z_6", {"norm": math.inf, "metric": "l2"}),
        ("Z_8", {"fixed": {4: 0.01}, "metric": "l2"}),
        ("depth 3", {"norm": 20}),
        ("depth 1", {"norm": 5}),
        ("soft labels", {"norm": 2, "metric": lambda a: a[0] / a.sum()}),
    ],
)
def test_every_kind_of_model_has_a_picture(name, options):
    figure = portrait(MODELS[name], title="Mine", **options)
    assert figure.axes[0].get_title() == "Mine"
    legend = figure.axes[0].get_legend()
    rises = [] if legend is None else [t for t in legend_of(figure) if t.endswith("rises")]
    assert len(rises) == ("metric" in options)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (MODELS["Z_8"], {}, "`fixed` must leave exactly three of the 4 free modes .* leaves 4"),
        (hf.UFM(classes=5), {}, "exactly three of the 2 free modes"),
        (MODELS["Z_6"], {"fixed": {1: 0.1}}, "leaves 2"),
        (MODELS["Z_8"], {"fixed": {5: 0.1}}, "numbered from 1 to 4"),
        (MODELS["Z_8"], {"fixed": [4]}, "numbered from 1 to 4"),
        (MODELS["Z_8"], {"fixed": {4: -0.1}}, "at least 0 with a sum below 1"),
        (MODELS["Z_8"], {"fixed": {4: 1.0}}, "at least 0 with a sum below 1"),
        (MODELS["Z_8"], {"fixed": {4: math.nan}}, "at least 0 with a sum below 1"),
        (MODELS["Z_6"], {"norm": 0}, "`norm` must be a positive number"),
        (MODELS["Z_6"], {"norm": math.nan}, "`norm` must be a positive number"),
        (MODELS["Z_6"], {"norm": 1e4}, "`norm` must be from 1e-06 to 300 .* or inf"),
        (MODELS["Z_6"], {"norm": "large"}, "`norm` must be a positive number"),
        (MODELS["depth 3"], {"norm": math.inf}, "`norm` may be inf only for hard labels"),
        (MODELS["smoothing"], {"norm": math.inf}, "`norm` may be inf only for hard labels"),
        (MODELS["penalty"], {"norm": math.inf}, "`norm` may be inf only for hard labels"),
        (MODELS["smoothing"], {"norm": 200}, "the field is lost in rounding"),
        (MODELS["Z_6"], {"metric": "speed"}, "Unknown metric 'speed'"),
        (MODELS["Z_6"], {"path": "portrait.txt"}, "must end in one of png"),
        (MODELS["Z_6"], {"path": "/nowhere/portrait.png"}, "the folder does not exist"),
        (
            hf.UFM(classes=4, loss="mse"),
            {},
            "a built-in loss of margins that never settles, but has loss = mse",
        ),
        (hf.UFM(classes=4, imbalance=((2, 3), (2, 1))), {}, "must have balanced classes"),
        (hf.UFM(classes=4, weight_decay=(0.1, 0.2)), {}, "one `weight_decay` for all layers"),
    ],
)
def test_what_has_no_picture_is_refused_in_one_line(model, options, message):
    with pytest.raises(hf.InputError, match=message) as error:
        portrait(model, **options)
    assert "\n" not in str(error.value)


def test_shares_must_be_shares():
    for shares in ([0.5, 0.5], [0.5, 0.6, -0.1], [1.0, 1.0, 1.0], 1.0):
        with pytest.raises(hf.InputError, match="`shares` must have"):
            direction_field(MODELS["K = 4"], shares)
