"""Label smoothing, soft labels and temperature: reduced against the matrices, fixed points, laws."""

import json
import math
import sys

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings, strategies as st

import hadaflow as hf
from hadaflow.cli import commands as cli
from references import matrix_flow

HIERARCHY = (0.7, 0.15, 0.05, 0.05, 0.0125, 0.0125, 0.0125, 0.0125)


def symmetric_labels(model, rng):
    """Random positive labels, the same for g and −g."""
    size = model.basis.modes + 1
    number = getattr(model.basis, "_classes_of_elements", (np.arange(size), None))[0]
    q = rng.uniform(0.2, 1, size)[number]
    q[0] += 1
    return q / q.sum()


def label_matrix(q, group, n):
    """Y_{g,h} = q_{g−h}, written out."""
    orders = np.array(group)
    elements = np.array(np.unravel_index(np.arange(math.prod(group)), group)).T
    index = {tuple(g): i for i, g in enumerate(elements)}
    Y = [[q[index[tuple((g - h) % orders)]] for h in elements] for g in elements]
    return np.repeat(np.array(Y), n, axis=1)


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(
    st.sampled_from([(2, 2), (2, 2, 2), (3,), (5,), (6,), (2, 4), (10,)]),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
    st.sampled_from(["hard", "smooth", "soft"]),
    st.sampled_from([1.0, 0.5, 3.0]),
    st.booleans(),
    st.integers(0, 2**20),
)
def test_lift_then_flow_is_flow_then_lift(group, n, depth, kind, temperature, balanced, seed):
    rng = np.random.default_rng(seed)
    plain = hf.UFM(math.prod(group), group=group, samples=n, depth=depth)
    q = symmetric_labels(plain, rng)
    options = {"hard": {}, "smooth": {"label_smoothing": 0.2}, "soft": {"label_distribution": q}}[
        kind
    ]
    model = hf.UFM(plain.classes, group=group, samples=n, depth=depth, temperature=temperature,
                   **options)  # fmt: skip
    C = 0.0 if balanced or depth == 1 else rng.uniform(-1, 1, model.modes)
    start = hf.spectrum(rng.uniform(0.3, 1.5, model.modes), C=C)
    times = [0.3, 2.0]
    labels = None
    if kind != "hard":
        smooth = 0.2 / model.classes + 0.8 * (np.arange(model.classes) == 0)
        labels = label_matrix(q if kind == "soft" else smooth, group, n)
        np.testing.assert_allclose(model.labels, labels, atol=1e-15)
    reduced = hf.solve(
        model, start, times=times, units="raw", rtol=1e-10, method="tsit5", progress=None
    )
    factors = hf.hadamard(model, start, units="raw").factors
    want = matrix_flow(factors, model.classes, n, times, labels=labels, temperature=temperature)
    if np.all(reduced.a > 0):
        for row, Z in zip(reduced.a[1:], want, strict=True):
            got = hf.lift(model, row, units="raw").Z
            assert np.linalg.norm(got - Z) <= 1e-8 * np.linalg.norm(Z)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_full_view_and_metrics_agree_with_the_reduced_one(temperature):
    model = hf.UFM(8, label_distribution=HIERARCHY, temperature=temperature, samples=2)
    a = np.linspace(0.1, 0.7, 7)
    state = hf.lift(model, a)
    for name in ("energy", "log_energy", "loss", "kl", "margin"):
        got, want = (float(hf.measure(name, model, s)) for s in (a, state))
        assert got == pytest.approx(want, rel=1e-12)
    Z, Y = state.Z / temperature, label_matrix(HIERARCHY, (2, 2, 2), 2)
    loss = -np.sum(Y * scipy.special.log_softmax(Z, axis=0))
    assert float(hf.measure("loss", model, a)) == pytest.approx(loss, rel=1e-12)
    gradient = hf.UFM.gradient(model, state)
    residual = (scipy.special.softmax(Z, axis=0) - Y) / temperature
    np.testing.assert_allclose(gradient.W, residual @ state.H.T, atol=1e-13)
    full = hf.solve(model, state, times=[1.0, 5.0], progress=None)
    reduced = hf.solve(model, a, times=[1.0, 5.0], progress=None)
    np.testing.assert_allclose(hf.project(model, full.parameters).a, reduced.a, rtol=1e-6)


def test_fixed_point_is_where_the_softmax_is_the_label():
    for model in (
        hf.UFM(8, label_distribution=HIERARCHY, temperature=1.5, samples=3),
        hf.UFM(6, group=(6,), label_distribution=(0.6, 0.1, 0.05, 0.1, 0.05, 0.1)),
        hf.UFM(16, label_smoothing=0.1),
    ):
        a = hf.fixed_point(model)
        U = model.basis.vectors
        raw = hf.fixed_point(model, units="raw") / math.sqrt(model.samples)
        Z = U @ np.diag([0.0, *model.basis.expand(raw)]) @ U.T
        P = scipy.special.softmax(Z / model.temperature, axis=0)
        np.testing.assert_allclose(P[:, 0], model.label_probabilities, atol=1e-13)
        assert np.abs(model.velocity(np.abs(a))).max() < 1e-13 or np.any(a < 0)


def test_smoothing_settles_where_the_formula_says():
    """a* = log(1 + K(1−s)/s), raw, n = 1."""
    model = hf.UFM(8, label_smoothing=0.1)
    np.testing.assert_allclose(
        hf.fixed_point(model, "raw"), math.log(1 + 8 * 0.9 / 0.1), rtol=1e-12
    )
    start = np.linspace(0.01, 0.1, 7)
    run = hf.solve(model, start, points=2, progress=None)
    assert run.status == "steady"
    np.testing.assert_allclose(run.a[-1], hf.fixed_point(model), rtol=1e-6)
    collapsed = hf.solve(model, start, hf.Collapse(1e-6), points=2, progress=None)
    assert collapsed.status == "collapsed"


def test_a_hierarchy_is_learned_coarse_to_fine():
    """Fixed point 9.283, 3.738, 1.540 and half-times 6.51, 6.95, 8.75 from 1e-4, raw."""
    assert hf.hierarchical_labels((0.7, 0.15, 0.1, 0.05), (2, 2, 2)) == pytest.approx(HIERARCHY)
    model = hf.UFM(8, label_distribution=HIERARCHY)
    goal = hf.fixed_point(model, "raw")
    coarse, middle, fine = 3, 1, 0  # modes 4, 2 and 1
    assert goal[[coarse, middle, fine]] == pytest.approx([9.283, 3.738, 1.540], abs=1e-3)
    times = np.linspace(0.05, 20, 400)
    run = hf.solve(model, np.full(7, 1e-4), times=times, units="raw", progress=None)
    halves = [np.interp(goal[i] / 2, run.a[1:, i], times) for i in (coarse, middle, fine)]
    assert halves == pytest.approx([6.51, 6.95, 8.75], abs=0.01)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from([(2, 2, 2), (5,), (2, 4)]))
def test_the_divergence_from_the_fixed_point_only_falls(seed, group):
    rng = np.random.default_rng(seed)
    plain = hf.UFM(math.prod(group), group=group)
    model = hf.UFM(plain.classes, group=group, label_distribution=symmetric_labels(plain, rng))
    a = rng.uniform(0.01, 2, model.modes)
    if np.all(hf.fixed_point(model) > 0):
        assert float(hf.rate("label_divergence", model, a)) <= 1e-12
        at_rest = float(hf.measure("label_divergence", model, hf.fixed_point(model)))
        assert abs(at_rest) < 1e-12


def test_temperature_with_hard_labels_is_a_change_of_units():
    """At temperature τ the flow of a/τ is that at 1, slowed by τ."""
    warm, plain = hf.UFM(8, temperature=2.0), hf.UFM(8)
    a = np.linspace(0.1, 0.7, 7)
    got = hf.solve(warm, 2 * a, log10_times=[3.0, 50.0], progress=None)
    want = hf.solve(plain, a, log10_times=np.array([3.0, 50.0]) - math.log10(2), progress=None)
    np.testing.assert_allclose(got.log_a, want.log_a + math.log(2), rtol=1e-7)


def test_descent_follows_its_reduced_map():
    model = hf.UFM(8, label_distribution=HIERARCHY, temperature=1.5, samples=2)
    start = hf.spectrum(np.linspace(0.1, 0.7, 7))
    reduced = hf.descend(model, start, 60, 0.2, units="raw", progress=None)
    full = hf.descend(
        model, hf.hadamard(model, start, units="raw"), 60, 0.2, units="raw", progress=None
    )
    np.testing.assert_allclose(hf.project(model, full.parameters).a, reduced.a, rtol=1e-11)


def test_labels_that_hold_the_flow_elsewhere_never_collapse():
    model = hf.UFM(8, label_distribution=HIERARCHY)
    run = hf.solve(model, np.full(7, 0.1), hf.Collapse(1e-3), points=2, progress=None)
    assert run.status == "never-collapses" and "0.405" in run.message


@pytest.mark.slow
def test_a_run_with_labels_is_saved(tmp_path):
    model = hf.UFM(8, label_distribution=HIERARCHY, temperature=1.5)
    run = hf.solve(model, np.full(7, 0.1), progress=None)
    run.save(tmp_path / "run.nc")
    assert hf.load(tmp_path / "run.nc").model == model


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"label_smoothing": 1.0}, "`label_smoothing` must be from 0 to below 1, but is 1.0"),
        ({"label_smoothing": -0.1}, "`label_smoothing` must be from 0 to below 1"),
        ({"label_smoothing": "much"}, "`label_smoothing` must be a number, but is 'much'"),
        ({"label_smoothing": math.nan}, "`label_smoothing` must be from 0 to below 1"),
        ({"temperature": 0.0}, "`temperature` must be a positive number, but is 0.0"),
        ({"temperature": math.inf}, "`temperature` must be a positive number"),
        ({"label_distribution": (1.0,)}, "`label_distribution` must have `classes` = 4 entries"),
        ({"label_distribution": (0.5, 0.5, 0.5, 0.5)}, "must have sum 1, but has sum 2"),
        ({"label_distribution": (1.5, -0.5, 0, 0)}, "must be a list of probabilities"),
        ({"label_distribution": "abcd"}, "`label_distribution` must hold numbers"),
        ({"label_distribution": (0.7, 0.1, 0.1, 0.1), "label_smoothing": 0.1}, "but not both"),
        (
            {"label_distribution": (0.7, 0.1, 0.1, 0.1), "loss": "mse"},
            "Soft labels need loss = cross_entropy, brier or one_vs_rest, but it is mse",
        ),
        ({"temperature": 2.0, "loss": "mse"}, "that of a softmax, which loss = mse has not"),
        ({"group": (4,), "label_distribution": (0.6, 0.3, 0.05, 0.05)}, "the same for g and −g"),
    ],
)
def test_bad_labels_get_one_clear_line(arguments, told):
    with pytest.raises(hf.InputError) as error:
        hf.UFM(4, **arguments)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_metric_of_soft_labels_is_listed_for_them_alone():
    assert "label_divergence" not in hf.metric_names("reduced")
    assert "label_divergence" not in hf.metric_names("reduced", hf.UFM(4))
    assert "label_divergence" in hf.metric_names("reduced", hf.UFM(4, label_smoothing=0.1))


def test_what_needs_soft_labels_says_so():
    hard = hf.UFM(4)
    for call in (
        lambda: hf.fixed_point(hard),
        lambda: hf.measure("label_divergence", hard, [1.0, 1.0, 1.0]),
        lambda: hf.fixed_point(hf.UFM(4, label_distribution=(0.5, 0.5, 0, 0))),
        lambda: hf.linearized(hf.UFM(4, label_smoothing=0.1), [0.1] * 3, [1.0]),
        lambda: hf.hierarchical_labels((0.5, 0.5), (2, 2)),
    ):
        with pytest.raises(hf.InputError, match="must have"):
            call()


@pytest.mark.slow
def test_from_the_command_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "q.txt").write_text(" ".join(map(str, HIERARCHY)))
    for arguments, status in (
        (["--classes", "8", "--start", "uniform:0.1:0.2:1", "--labels", tmp_path / "q.txt"], "steady"),
        (["--classes", "10", "--group", "10", "--start", "uniform:0.1:0.2:1", "--temperature", "2"],
         "collapsed"),
        (["--classes", "8", "--group", "2x4", "--start", ".1,.2,.3,.4,.5", "--label-smoothing", ".1"],
         "steady"),
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["hadaflow", "solve", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        document = json.loads(capsys.readouterr().out)
        assert end.value.code == 0 and document["status"] == status
        weights = np.array(document["multiplicity"])
        assert np.array(document["a_hat"][-1]) @ weights == pytest.approx(1)
    for bad in (["--group", "2y4"], ["--group", "3x3"], ["--labels", tmp_path / "none"]):
        command = [
            "hadaflow",
            "solve",
            "--classes",
            "8",
            "--start",
            "1,1,1,1,1,1,1",
            *map(str, bad),
        ]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert end.value.code == 2 and out == "" and err.count("\n") == 1


# --- how large a step may be ---------------------------------------------------------------------


@pytest.mark.slow
def test_stability_limit_of_smoothing_is_the_formula():
    """η < K/(a* s (1 + (K−1)(1−s))), a* raw, n = 1; 2.554 at K = 8, s = 0.1."""
    for K, s in ((8, 0.1), (4, 0.3), (16, 0.05)):
        model = hf.UFM(K, label_smoothing=s)
        a = math.log(1 + K * (1 - s) / s)
        formula = K / (a * s * (1 + (K - 1) * (1 - s)))
        assert hf.stability_limit(model) == pytest.approx(formula, rel=1e-10)
    assert hf.stability_limit(hf.UFM(8, label_smoothing=0.1)) == pytest.approx(2.554, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "momentum"),
    [
        ({"label_smoothing": 0.1}, 0.0),
        ({"label_smoothing": 0.1}, 0.5),
        ({"label_smoothing": 0.2, "samples": 3, "reduction": "mean"}, 0.0),
        ({"label_smoothing": 0.2, "depth": 1}, 0.0),
        ({"label_distribution": HIERARCHY, "temperature": 1.5}, 0.0),
        ({"label_smoothing": 0.2, "group": (2, 4)}, 0.0),
    ],
)
def test_descent_settles_below_the_limit_and_not_above(options, momentum):
    model = hf.UFM(8, **options)
    limit, goal = hf.stability_limit(model, momentum), hf.fixed_point(model)
    rng = np.random.default_rng(0)
    start = hf.spectrum(goal * (1 + 1e-4 * rng.standard_normal(model.modes)))
    ends = []
    for share in (0.97, 1.03):
        run = hf.descend(model, start, 2000, share * limit, momentum=momentum, progress=None)
        ends.append(np.abs(run.a[-1] / goal - 1).max())
    assert ends[0] < 1e-7 < 1e-3 < ends[1]


# --- labels that pull the other way, and times after the flow has settled ------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "C"), [({"depth": 1}, 0.0), ({}, 0.5), ({"depth": 3}, [[0.5], [0.2]])]
)
def test_modes_of_negative_fixed_points_pass_through_zero(options, C):
    """Balanced modes die at zero; at depth 1, or unbalanced, they go on, with phase π."""
    model = hf.UFM(4, label_distribution=(0.1, 0.3, 0.3, 0.3), **options)
    goal = hf.fixed_point(model)
    assert np.all(goal < 0)
    run = hf.solve(model, hf.spectrum([0.1, 0.2, 0.3], C=C), progress=None)
    assert run.status == "steady"
    np.testing.assert_allclose(run.a[-1] * np.cos(run.angles[-1]), goal, rtol=1e-5)
    if options == {"depth": 1}:
        balanced = hf.solve(hf.UFM(4, label_distribution=(0.1, 0.3, 0.3, 0.3)), [0.1, 0.2, 0.3])
        assert balanced.status == "steady" and balanced.a[-1].max() < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"weight_decay": 0.1}])
def test_times_after_the_flow_has_settled_see_the_settled_state(options):
    model = hf.UFM(4, **options)
    run = hf.solve(model, [0.1, 0.2, 0.3], hf.Time(log10=1000), progress=None)
    assert run.status == "reached" and "at rest since" in run.message and len(run) == 200
    np.testing.assert_allclose(run.a[-1], hf.fixed_point(model), rtol=1e-8)
    assert np.isfinite(run.log_a).all() and run.log10_time[-1] == 1000
    norm = hf.solve(model, [0.1, 0.2, 0.3], hf.Norm(100), progress=None)
    assert norm.status == "failed" and "settles at a finite point" in norm.message
    assert np.isfinite(norm.log_a).all()


def test_penalties_beside_smoothing_leave_the_modes_real():
    """Nothing pulls them through zero, so all metrics of real modes are there."""
    model = hf.UFM(4, label_smoothing=0.1, weight_decay=0.1)
    run = hf.solve(model, hf.spectrum([0.1, 0.2, 0.3], C=0.5), hf.Time(3), progress=None)
    assert "angles" not in run.arrays and np.isfinite(run.measure("l2")).all()


def test_labels_with_zeros_grow_for_ever_or_come_to_rest():
    model = hf.UFM(4, label_distribution=(0.8, 0.2, 0, 0))
    assert not model.settles
    run = hf.solve(model, [0.1, 0.2, 0.3], hf.Collapse(1e-3), points=2, progress=None)
    assert run.status == "failed" and "rounding" in run.message
    with pytest.raises(hf.InputError, match="Steady for labels that are zero for some class"):
        hf.solve(model, [0.1, 0.2, 0.3], "steady")
    # The logit of class 3 is not pulled down by a dead mode 2: the others trade off, and rest.
    model = hf.UFM(6, label_distribution=(0.6, 0.1, 0.1, 0, 0.1, 0.1))
    start = [0.3, 0.45, 0.6]
    early, late = (hf.solve(model, start, hf.Time(t), points=2, progress=None) for t in (1e3, 1e20))
    assert late.status == "reached" and "at rest since" in late.message
    np.testing.assert_allclose(late.a[-1, [0, 2]], early.a[-1, [0, 2]], rtol=1e-8)
    run = hf.solve(model, start, points=2, progress=None)
    assert run.status == "never-collapses" and "come to rest" in run.message


def test_modes_that_die_are_named():
    model = hf.UFM(6, label_distribution=(0.599, 0.1, 0.1, 0.001, 0.1, 0.1))
    assert hf.fixed_point(model)[1] < 0
    run = hf.solve(model, [0.3, 0.45, 0.6], points=2, progress=None)
    assert run.status == "steady" and run.message.endswith("; mode 2 dies out.")
    assert "of singular values above 1e-12 of the largest" in run.message
    alive = hf.solve(hf.UFM(6, label_smoothing=0.1), [0.3, 0.45, 0.6], points=2, progress=None)
    assert alive.message.startswith("All relative speeds are below 1e-08 at")
