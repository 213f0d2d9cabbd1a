"""What optimizers do from Hadamard starts: to the step, where it is known, and what is refused."""

import json
import subprocess
import sys

import numpy as np
import optax
import pytest

import hadaflow as hf
from dense_training import factors_of, labels, rotation, sylvester, trained
from hadaflow.cli import commands as cli
from hadaflow.descent import coordinates
from hadaflow.descent.systems import spectral_descent
from hadaflow.flow.places import Place

opt = hf.optimizers
EIGHT = hf.UFM(8)


def train(model=EIGHT, start="figure1", steps=100, optimizer=0.01, **how):
    return hf.descend(model, start, steps, optimizer, progress=None, **how)


# --- mutants: what the reduction needs -----------------------------------------------------------


def off(optimizer, reference, *, factors, model=None, steps=500, **how):
    """How far the reduced logits are from those of matrices."""
    model = hf.UFM(4) if model is None else model
    layers = np.array([[0.0, 1.0, 0.6, 0.8], [0.0, 0.5, 0.9, 0.7], [0.0, 0.7, 0.8, 1.1]])
    layers = layers[: model.depth]
    start = hf.spectrum(
        np.prod(layers[:, 1:], axis=0), (layers[0] ** 2 - layers[1:] ** 2)[:, 1:].squeeze(), "raw"
    )
    found = trained(factors(layers), labels(4, 1), reference, steps, "hard")
    Z = np.linalg.multi_dot(found)
    Z = Z - Z.mean(axis=0)
    run = train(model, start, steps, optimizer, units="raw", points=1, **how)
    U = sylvester(4)
    return np.abs((U[:, 1:] * run.a[-1]) @ U[:, 1:].T - Z).max() / np.abs(Z).max()


def plain(layers, R=None):
    depth = len(layers)
    return factors_of(sylvester(4), layers, 1, [np.eye(4) if R is None else R] * (depth - 1))


ADAM = opt.adam(0.01), optax.adam(0.01)


def test_nothing_is_off_where_nothing_is_changed():
    assert off(*ADAM, factors=plain) < 1e-13
    assert off(opt.muon(1e-3), optax.contrib.muon(1e-3), factors=plain) < 1e-13


def test_a_random_rotation_is_no_hadamard_matrix():
    assert off(*ADAM, factors=lambda x: plain(x, rotation(4, 0))) > 0.02


def test_another_epsilon_is_another_optimizer():
    assert off(opt.adam(0.01), optax.adam(0.01, eps=1e-3), factors=plain) > 1e-4


def test_a_trivial_mode_is_rounding_that_grows():
    def with_trivial(layers):
        return plain(layers + np.array([1.0, 0, 0, 0]))

    assert off(*ADAM, factors=with_trivial) > 1e-3
    assert off(opt.sgd(0.05), optax.sgd(0.05), factors=with_trivial) < 1e-13


def test_zeros_of_inner_matrices_are_rounding_that_grows():
    deep = hf.UFM(4, depth=3)
    assert off(*ADAM, factors=plain, model=deep, steps=500, rotation="circulant") > 1e-6
    circulant = lambda x: plain(x, sylvester(4))  # noqa: E731
    assert off(*ADAM, factors=circulant, model=deep, steps=300) < 1e-12


def test_rows_of_another_scale_are_other_rows(monkeypatch):
    monkeypatch.setattr(
        "hadaflow.descent.lifts.hadamard_rows",
        lambda model: coordinates.HadamardRows((np.float64(1.0), np.float64(1.0))),
    )
    assert off(*ADAM, factors=plain) > 0.01


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "firsts", "steps"),
    [
        (opt.adam(1e-3), [15_310, None, None], 20_000),
        (opt.adam(1e-2), [8270, None, None], 200_000),
        (opt.adamw(1e-2, weight_decay=1e-2), [1993, 55_635, 59_440], 200_000),
        (opt.lion(1e-3, weight_decay=0), [10_392, 110_016, 1_106_063], 1_200_000),
    ],
    ids=str,
)
def test_the_race_from_figure_1(optimizer, firsts, steps):
    found = hf.race(EIGHT, "figure1", {"it": optimizer}, steps=steps, progress=None)["it"]
    assert list(found.first.values()) == firsts
    assert found.run.reached_iteration == firsts[-1]
    assert found.run.status == ("reached" if firsts[-1] is None else "collapsed")


@pytest.mark.parametrize(
    ("model", "optimizer", "firsts"),
    [
        (hf.UFM(8, weight_decay=1e-3), opt.adam(1e-2), [1696, 2528, 3104]),
        (hf.UFM(8, weight_decay=1e-2), 0.01, [42_721, 56_546, 70_342]),
    ],
)
def test_coupled_decay_from_figure_1(model, optimizer, firsts):
    runs = hf.race(model, "figure1", {"it": optimizer}, steps=80_000, progress=None)
    assert list(runs["it"].first.values()) == firsts


def test_adam_turns_back():
    run = train(steps=200_000, optimizer=opt.adam(1e-2), points=400)
    away = run.measure("collapse_deviation")
    assert away.min() < 0.1 and away[-1] == pytest.approx(0.164, abs=1e-3)
    slow = train(steps=200_000, optimizer=opt.adam(1e-3), points=400)
    assert slow.measure("collapse_deviation")[-1] == pytest.approx(0.134, abs=1e-3)
    assert run.measure("kl")[-1] == pytest.approx(2.5e-3, abs=1e-4)
    half = train(steps=30_000, optimizer=opt.adam(1e-2), points=2)
    assert half.measure("kl")[-1] == pytest.approx(4.6e-3, abs=1e-4)


def test_without_epsilon_margins_of_adam_grow_by_its_memory():
    for b2, steps in ((0.999, 200_000), (0.99, 50_000)):
        run = train(steps=steps, optimizer=opt.adam(1e-3, b2=b2, eps=0.0), points=200)
        late = run.iterations > steps / 2
        margin = run.measure("margin")[late]
        rate = np.polyfit(run.iterations[late], margin, 1)[0]
        assert rate == pytest.approx(-np.log(b2) / 2, rel=0.05)


def test_sign_and_spectral_descent_in_closed_form():
    """Every force is positive, so that singular values grow evenly, far beyond where forces underflow."""
    for n in (1, 3):
        model = hf.UFM(8, samples=n)
        start = hf.starts.figure1(model)
        begun = np.sqrt(start.a)
        steps, eta = 100_000, 0.01
        alpha = begun + np.sqrt(8) * eta * steps
        beta = begun + np.sqrt(8 * n) * eta * steps
        run = train(model, start, steps, opt.sign(eta), units="raw", points=2)
        np.testing.assert_allclose(run.a[-1], alpha * beta, rtol=1e-10)
        assert run.measure("log_loss")[-1] < -1e5
        run = train(model, start, steps, opt.spectral(eta), units="raw", points=2)
        np.testing.assert_allclose(run.a[-1], (begun + eta * steps) ** 2, rtol=1e-10)


def test_rules_without_a_scale_go_on_where_gradients_underflow():
    """From margins of 2000, where e^-2000 is no double, as from those of 20."""
    far = np.full(7, 300.0)
    far[:3] = 250.0
    model = hf.UFM(8)
    for optimizer in (
        opt.lion(1e-3, weight_decay=0), opt.sign(1e-3), opt.spectral(1e-3), opt.muon(1e-3, eps=0),
        opt.normalized(1e-3, eps=0),
    ):  # fmt: skip
        run = train(model, far, 300, optimizer, units="raw", points=3)
        assert np.all(run.a[-1] > far) or optimizer.kind.name in ("muon", "normalized")
        assert run.a[-1].sum() > far.sum() + 1e-2, str(optimizer)
    stuck = train(model, far * 8, 300, opt.normalized(1e-3), units="raw", points=3)
    np.testing.assert_array_equal(stuck.a[-1], stuck.a[0])


def test_memory_in_units_of_its_own_is_the_memory():
    """Where nothing underflows the logarithms change nothing: against forces that are formed."""
    for ours, plainly in [
        (opt.muon(0.01, eps=0, beta=0.9), opt.muon(0.01, eps=1e-300, beta=0.9)),
        (opt.normalized(0.1, eps=0), opt.normalized(0.1, eps=1e-300)),
    ]:
        runs = [train(steps=200, optimizer=o, points=5) for o in (ours, plainly)]
        np.testing.assert_allclose(runs[0].a, runs[1].a, rtol=1e-9)


def test_lion_against_its_formula_at_large_steps():
    """Forces fall faster than memory fades: what is remembered decides."""
    x = np.full(7, 2.0), np.full(7, 2.0)
    x[0][:2], x[1][:2] = 1.0, 3.0
    start = hf.spectrum(x[0] * x[1], x[0] ** 2 - x[1] ** 2, "raw")
    b1, b2, eta, steps = 0.9, 0.99, 0.5, 300
    run = train(start=start, steps=steps, optimizer=opt.lion(eta, b1, b2, weight_decay=0), points=1)
    alpha = x[0] + np.sqrt(8) * eta * steps
    beta = x[1] + np.sqrt(8) * eta * steps
    np.testing.assert_allclose(run.a[-1], alpha * beta, rtol=1e-10)


# --- targets -------------------------------------------------------------------------------------


def test_the_first_iteration_that_meets_a_target():
    for optimizer, full in [(0.05, False), (opt.adam(0.01), False), (opt.sgd(0.05, 0.9), True)]:
        model = hf.UFM(4)
        start = hf.spectrum([0.7, 0.8, 0.9])
        begin = hf.hadamard(model, start, rotation=0) if full else start
        for target, metric in [
            (hf.Collapse(0.1), lambda r: r.measure("collapse_deviation") < 0.1),
            ("norm:2.6", lambda r: r.a.sum(axis=-1) >= 2.6),
        ]:
            run = train(model, begin, 5000, optimizer, until=target)
            k = run.reached_iteration
            assert 1 < k < 5000 and run.iterations[-1] == k
            assert run.status == ("reached" if target == "norm:2.6" else "collapsed")
            assert f"iteration {k}" in run.message
            every = train(model, begin, k, optimizer, points=10 * k)
            np.testing.assert_array_equal(every.iterations, np.arange(k + 1))
            assert np.flatnonzero(metric(every))[0] == k
            np.testing.assert_array_equal(every.a[-1], run.a[-1])


def test_a_target_that_is_met_at_the_start_or_never():
    run = train(start=np.ones(7), until="collapse:0.1", optimizer=opt.adam(0.01))
    assert (run.reached_iteration, run.status, len(run)) == (0, "collapsed", 1)
    run = train(until="collapse:0.1", optimizer=opt.adam(0.01))
    assert (
        run.reached_iteration is None and run.status == "reached" and "not reached" in run.message
    )
    assert run.iterations[-1] == 100


def test_matrices_with_equal_singular_values_need_not_have_collapsed():
    model, rng = hf.UFM(4), np.random.default_rng(0)
    W, H = (np.linalg.qr(rng.standard_normal((4, 4)))[0] for _ in range(2))
    run = train(model, hf.parameters(W, H), 20, 0.1, until="collapse:0.1")
    assert run.measure("collapse_deviation")[0] > 1 and run.reached_iteration is None
    found = hf.race(model, hf.parameters(W, H), {"descent": 0.1}, steps=20)
    assert set(found["descent"].first.values()) == {None}


def test_the_constant_mode_does_not_keep_matrices_from_collapse():
    model, a = hf.UFM(6, depth=1), [0.1, 0.2, 0.4]
    reduced, full = (
        train(model, start, 500, "sign:0.05", until="collapse:0.05")
        for start in (hf.spectrum(a), hf.hadamard(model, a))
    )
    assert full.reached_iteration == reduced.reached_iteration == 229
    apart = full.state(-1).Z - hf.lift(model, reduced.state(-1)).Z
    assert np.abs(apart).max() > 1
    np.testing.assert_allclose(apart, apart[:1] * np.ones((6, 1)), atol=1e-10)


def test_a_run_says_which_matrices_it_is_about():
    for model, optimizer, meant in [
        (hf.UFM(6), "adam:0.1", "circulant"),
        (hf.UFM(4), "adam:0.1", "identity"),
        (hf.UFM(6, depth=1), "adam:0.1", None),
        (hf.UFM(6), "muon:0.1", None),
    ]:
        run = train(model, [0.1, 0.2, 0.4], 3, optimizer)
        assert run.settings["rotation"] == meant
        assert ("on circulant matrices" in str(run)) is (meant == "circulant")


@pytest.mark.parametrize("full", [False, True])
def test_runs_of_a_batch_stop_each_for_itself(full):
    model = hf.UFM(4)
    starts = np.array([[0.5, 0.8, 0.9], [1.0, 1.0, 1.0], [0.2, 0.9, 0.9], [0.1, 1.0, 2.0]])
    begin = hf.hadamard(model, starts) if full else starts
    batch = train(model, begin, 3000, opt.adam(0.01), until="collapse:0.05", points=20)
    assert batch.statuses[1] == "collapsed" and batch.reached_iteration[1] == 0
    for i, run in enumerate(batch):
        one = hf.hadamard(model, starts[i]) if full else starts[i]
        alone = train(model, one, 3000, opt.adam(0.01), until="collapse:0.05", points=20)
        assert run.reached_iteration == alone.reached_iteration
        assert (run.status, run.message) == (alone.status, alone.message)
        np.testing.assert_allclose(run.a[-1], alone.a[-1], rtol=1e-9)
        assert run.iterations[-1] == alone.iterations[-1]


# --- learning rates ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["sgd", "adam", *(pytest.param(n, marks=pytest.mark.slow) for n in ("muon", "lion"))]
)
@pytest.mark.parametrize("full", [False, True])
def test_a_list_of_learning_rates_is_a_batch(name, full):
    model, rates = hf.UFM(4, width=5), [0.002, 0.01, 0.03]
    begin = hf.hadamard(model, [0.2, 0.4, 0.7], rotation=0) if full else [0.2, 0.4, 0.7]
    make = getattr(opt, name)
    batch = train(model, begin, 200, make(rates), points=5)
    assert isinstance(batch, hf.Batch) and len(batch) == 3
    assert batch.settings["learning_rate"] == rates
    for i, rate in enumerate(rates):
        alone = train(model, begin, 200, make(rate), points=5)
        np.testing.assert_allclose(batch[i].a, alone.a, rtol=1e-11)
        assert batch[i].settings["learning_rate"] == rate
        if name == "sgd":
            np.testing.assert_allclose(batch[i].log10_time, alone.log10_time)
        else:
            assert batch.log10_time is None and alone.log10_time is None


@pytest.mark.parametrize("full", [False, True])
def test_runs_of_a_batch_do_not_see_each_other(full):
    """LAMB divides by norms of layers, which are those of each run."""
    model = hf.UFM(5)
    starts = np.array([[0.2, 0.7], [0.5, 0.1], [1.0, 2.0]])
    begin = hf.hadamard(model, starts, rotation="circulant") if full else starts
    lamb = opt.elementwise(optax.lamb(0.01))
    batch = train(model, begin, 100, lamb, points=3)
    for i, start in enumerate(starts):
        alone = train(model, start, 100, lamb, points=3)
        np.testing.assert_allclose(
            np.sort(batch[i].a), np.sort(alone_values(alone, full)), rtol=1e-11
        )


def alone_values(run, full):
    """As a full view has them: every one as often as its multiplicity."""
    return run.model.nontrivial(run.a) if full else run.a


def test_one_rate_for_each_start_and_one_that_overshoots():
    starts = np.array([[0.2, 0.2, 0.4, 0.7], [0.2, 0.5, 0.5, 0.6]])
    batch = train(hf.UFM(4, loss="mse"), starts, 50, [0.01, 10.0], points=6)
    assert batch.statuses == ["reached", "failed"]
    assert batch[0].iterations[-1] == 50 and batch[1].iterations[-1] < 50


def test_schedules():
    halved = optax.exponential_decay(0.05, 100, 0.5)
    with_numbers = train(steps=300, optimizer=opt.sgd(lambda step: 0.05 * 0.5 ** (step / 100)))
    run = train(steps=300, optimizer=opt.sgd(halved))
    np.testing.assert_allclose(run.a, with_numbers.a, rtol=1e-7)
    assert run.log10_time is None and run.settings["optimizer"] == "sgd:schedule"
    assert not np.allclose(run.a[-1], train(steps=300, optimizer=0.05).a[-1], rtol=1e-3)


def test_descent_in_all_its_spellings():
    runs = [
        train(optimizer=0.01), train(optimizer="sgd:0.01"), train(optimizer=opt.sgd(0.01)),
        hf.descend(EIGHT, "figure1", 100, learning_rate=0.01, progress=None),
    ]  # fmt: skip
    for run in runs[1:]:
        np.testing.assert_array_equal(run.a, runs[0].a)
        np.testing.assert_array_equal(run.log10_time, runs[0].log10_time)
    heavy = [
        train(momentum=0.9),
        train(optimizer=opt.momentum(0.01)),
        train(optimizer=opt.sgd(0.01, 0.9)),
    ]
    for run in heavy[1:]:
        np.testing.assert_array_equal(run.a, heavy[0].a)
        assert run.settings["momentum"] == 0.9 and run.log10_time is not None


def test_any_transformation_of_optax_in_the_full_view():
    model = hf.UFM(4)
    start = hf.gaussian(model, 0.5, [0, 1])
    run = train(model, start, 50, optax.lamb(0.01), points=2)
    for i in range(2):
        factors = tuple(f[i] for f in start.factors)
        W, H = trained(factors, labels(4, 1), optax.lamb(0.01), 50)
        np.testing.assert_allclose(run.arrays["W"][i, -1], W, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(run.arrays["H"][i, -1], H, rtol=1e-10, atol=1e-12)


def test_wide_features_are_not_rotated_for_elementwise_rules():
    model = hf.UFM(3, width=30)
    start = hf.gaussian(model, 0.5, 0)
    run = train(model, start, 50, opt.adam(0.01), points=2)
    W, _ = trained(start.factors, labels(3, 1), optax.adam(0.01), 50)
    np.testing.assert_allclose(run.arrays["W"][-1], W, rtol=1e-9, atol=1e-12)


def test_circulant_starts():
    model = hf.UFM(6, samples=2, depth=3, width=8)
    start = hf.hadamard(model, [0.5, 0.8, 1.1], rotation="circulant")
    for factor in start.factors[:-1]:
        rows = factor[:6, :6]
        shifted = np.roll(rows, (1, 1), (0, 1))
        np.testing.assert_allclose(shifted, rows, atol=1e-14)
    np.testing.assert_array_equal(start.W, hf.lift(model, [0.5, 0.8, 1.1], rotation="circulant").W)
    np.testing.assert_allclose(hf.project(model, start).a, [0.5, 0.8, 1.1], rtol=1e-12)


def test_modes_that_change_their_sign():
    """Labels pull the modes of an unbalanced start through zero: they go on with phase π."""
    model = hf.UFM(7, depth=1, label_smoothing=0.9)
    start = [3.0, 0.2, 1e-3]
    for optimizer in (opt.adam(0.3), opt.muon(0.3)):
        run = train(model, start, 60, optimizer, points=20)
        assert run.status == "reached" and np.any(np.cos(run.angles) < 0)
        full = train(model, hf.hadamard(model, start), 60, optimizer, points=20)
        for k in (5, -1):
            Z = full.state(k).Z
            Z = Z - Z.mean(axis=0)
            np.testing.assert_allclose(
                hf.lift(model, run.state(k)).Z, Z, atol=1e-11 * np.abs(Z).max()
            )


# --- results without a time ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def timeless():
    return train(optimizer=opt.adam(0.01), steps=2000, points=30)


def test_what_a_run_without_a_time_says(timeless, tmp_path):
    assert timeless.log10_time is None and timeless.time is None
    assert timeless.log10_log10_time is None
    assert "adam:0.01" in str(timeless) and "log10 t" not in str(timeless)
    assert "adam" in timeless._repr_html_()
    assert len(timeless) == timeless.points == len(timeless.iterations)
    data = timeless.to_xarray()
    assert "log10_time" not in data.coords and data["iteration"].values[-1] == 2000
    assert list(timeless.to_dataframe().columns[:2]) == ["iteration", "log_norm"]
    timeless.save(tmp_path / "run.nc")
    again = hf.load(tmp_path / "run.nc")
    assert again.log10_time is None and again.settings == timeless.settings
    np.testing.assert_array_equal(again.iterations, timeless.iterations)
    timeless.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").exists()
    with pytest.raises(hf.InputError, match="must be one of auto, log_norm, log10_iteration"):
        timeless.plot(x="log10_time")
    with pytest.raises(hf.InputError, match="iterations alone"):
        timeless.itinerary()
    with pytest.raises(hf.InputError, match=r"by adam:0\.01 cannot be resumed"):
        hf.resume(cut())


def cut():
    """A run that was stopped on its way."""
    heard = []

    def stop(text, fraction=None):
        heard.append(text)
        if len(heard) == 3:
            raise KeyboardInterrupt

    return hf.descend(EIGHT, "figure1", 500_000, opt.adam(0.01), progress=stop)


def test_places_of_a_run_without_a_time():
    assert str(Place("maximum", 0.5, None, 1.0, 7)).startswith("maximum 0.5 at iteration 7")
    run = train(optimizer=opt.adam(0.01), steps=20_000, points=200)
    turn = run.extremes("kl")[0]
    assert turn.log10_time is None and turn.iteration in run.iterations
    assert run.crossings("kl", 1.0)[0].kind == "falls"


def test_with_and_without_a_time_in_one_picture(timeless, tmp_path):
    flow = hf.solve(EIGHT, "figure1", hf.Norm(10.0), progress=None)
    hf.compare({"adam": timeless, "descent": train(steps=500)}, path=tmp_path / "two.png")
    hf.compare({"adam": timeless, "flow": flow}, path=tmp_path / "other.png")
    assert (tmp_path / "two.png").exists() and (tmp_path / "other.png").exists()


def test_batches_without_a_time(tmp_path):
    batch = train(start=np.random.default_rng(0).uniform(0.5, 1, (4, 7)), optimizer=opt.sign(0.01),
                  steps=3000, until="collapse:0.1", points=20)  # fmt: skip
    assert batch.iterations.shape == (4, batch.points)
    table = batch.to_dataframe()
    assert "log10_time" not in table and list(table["iteration"]) == list(batch.iterations[:, -1])
    batch.save(tmp_path / "batch.nc")
    again = hf.load(tmp_path / "batch.nc")
    np.testing.assert_array_equal(again.iterations, batch.iterations)
    assert again.reached_iteration == batch.reached_iteration
    batch.plot(tmp_path / "batch.png")
    assert (tmp_path / "batch.png").exists() and batch[1:3].statuses == batch.statuses[1:3]
    for k, message, status in zip(
        batch.reached_iteration, batch.messages, batch.statuses, strict=True
    ):
        assert status == ("reached" if k is None else "collapsed")
        assert k is None or f"iteration {k}" in message
    assert any(k is not None for k in batch.reached_iteration)


# --- races ---------------------------------------------------------------------------------------


def test_a_race(tmp_path):
    runners = {
        "descent": 0.05,
        "heavy": opt.momentum(0.05),
        "adam": "adam:0.01",
        "spectral": opt.spectral(0.01),
    }
    found = hf.race(hf.UFM(4), [0.2, 0.5, 0.9], runners, "collapse:0.05", 4000, progress=None)
    assert list(found) == list(runners) and len(found) == 4
    for name, optimizer in runners.items():
        run = train(hf.UFM(4), [0.2, 0.5, 0.9], 4000, optimizer, until="collapse:0.05", points=200)
        assert found[name].run.reached_iteration == run.reached_iteration
        assert found[name].first[0.1] is None or found[name].first[0.1] < 4000
        np.testing.assert_array_equal(found[name].run.a, run.a)
        kl = run.measure("kl")
        assert found[name].kl == kl[-1]
        rise = max(0.0, max(kl[j] - kl[i] for i in range(len(kl)) for j in range(i, len(kl))))
        assert found[name].kl_rise == pytest.approx(rise, abs=1e-15)
        assert found[name].kl_rises == (rise > 1e-12)
    table = found.to_dataframe()
    assert table.loc["spectral", "reached"] == found["spectral"].run.reached_iteration
    assert "collapse:0.05" in str(found) and "spectral" in repr(found)
    assert "<img" in found._repr_html_()
    found.plot(tmp_path / "race.png")
    assert (tmp_path / "race.png").exists()


def test_a_race_that_is_interrupted():
    heard = []

    def stop(text, fraction=None):
        heard.append(text)
        raise KeyboardInterrupt

    runners = {"short": "sign:0.01", "long": "adam:1e-9"}
    found = hf.race(hf.UFM(4), [0.2, 0.5, 0.9], runners, "collapse:0.2", 10**9, progress=stop)
    assert found["short"].run.status == "collapsed" and found["long"].run.status == "interrupted"
    assert heard == ["short"]


def test_what_a_race_refuses():
    with pytest.raises(hf.InputError, match="`optimizers` must be names with optimizers"):
        hf.race(EIGHT, "figure1", {})
    with pytest.raises(hf.InputError, match="has several runs"):
        hf.race(EIGHT, "figure1", {"a": opt.adam([0.1, 0.2])}, steps=5, progress=None)
    with pytest.raises(hf.InputError, match="A race has adam, but is asked for 'x'"):
        hf.race(EIGHT, "figure1", {"adam": "adam:0.1"}, steps=5, progress=None)["x"]


# --- what is refused -----------------------------------------------------------------------------

GROUPED = hf.UFM(6)
REFUSED = [
    (lambda: train(optimizer="adm:0.1"), r"`optimizer` must be one of .*did you mean adam"),
    (lambda: train(optimizer="adam"), "must have a learning rate"),
    (lambda: train(optimizer="adam:0.1:b4=1"), "with names among b1, b2"),
    (lambda: train(optimizer="adam:x=1,2"), "with names among"),
    (lambda: train(optimizer="adam:0.1:b1=0,5"), "is none"),
    (lambda: train(optimizer=object()), "must be a learning rate, one of"),
    (lambda: hf.descend(EIGHT, "figure1", 5), "Give one of `optimizer` and `learning_rate`"),
    (lambda: train(optimizer=opt.adam(0.1), learning_rate=0.1), "`learning_rate` goes with"),
    (lambda: train(optimizer=opt.adam(0.1), momentum=0.1), "`momentum` goes with"),
    (lambda: train(optimizer="adam:0.1", momentum=0.1), "`momentum` goes with"),
    (lambda: opt.adam(-0.1), "`learning_rate` must be a positive number"),
    (lambda: opt.adam([]), "`learning_rate` must be a positive number"),
    (lambda: opt.adam([0.1, "x"]), "`learning_rate` must be a positive number"),
    (lambda: opt.adam(0.1, b1=1.0), "`b1` must be a number from 0 to below 1"),
    (lambda: opt.adam(0.1, eps=-1.0), "`eps` must be a number that is not negative"),
    (lambda: opt.muon(0.1, preconditioning="aol"), "`preconditioning` must be one of frobenius"),
    (lambda: opt.muon(0.1, ns_coeffs=(1, 2)), "`ns_coeffs` must be three numbers"),
    (lambda: opt.muon(0.1, ns_steps=0), "`ns_steps` must be a whole number"),
    (lambda: train(optimizer=opt.adam(lambda t: np.ones(2))), "answers with one number"),
    (lambda: train(optimizer=opt.adam(lambda t: "fast")), "answers with one number"),
    (lambda: train(optimizer=opt.adam(lambda t: 1.0 / 0)), "answers with one number .*ZeroDivision"),
    (lambda: train(optimizer=opt.adam(lambda t: 0.1 - t)), "not negative, but is -98.9 at step 99"),
    (
        lambda: train(hf.UFM(8, weight_decay=0.1), optimizer=opt.adamw(0.1)),
        "`weight_decay` is given twice, 0.1 by the model .* 0.0001 by the optimizer",
    ),
    (lambda: train(optimizer=optax.adam(0.1)), "must say how it reduces"),
    (lambda: opt.elementwise(3), "must be an optax transformation"),
    (lambda: opt.elementwise(optax.yogi(0.1)), "cannot be taken as elementwise"),
    (
        lambda: opt.elementwise(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))),
        "cannot be taken as elementwise",
    ),
    (lambda: opt.elementwise(optax.contrib.muon(0.1)), "cannot be taken as elementwise|cannot be used"),
    (lambda: opt.spectral(optax.adam(0.1)), "cannot be taken as spectral"),
    (lambda: opt.spectral(optax.contrib.muon(0.1, preconditioning="aol")), "cannot be taken as spectral"),
    (lambda: train(until="time:5"), "`until` must be Collapse or Norm"),
    (lambda: train(until=hf.PathLength(3.0)), "`until` must be Collapse or Norm"),
    (lambda: train(until="colapse"), r"collapse\[:NUMBER\], norm:NUMBER, .*did you mean collapse"),
    (lambda: train(optimizer=opt.adam), r"such as adam\(0.01\), but is the function adam"),
    (lambda: train(optimizer="adam:0.1", learning_rate=0.2), "`learning_rate` is given twice, 0.2 and"),
    (lambda: hf.race(EIGHT, [1] * 7, ["adam:0.1", "adam:0.1"]), "has 'adam:0.1' twice"),
    (
        lambda: train(hf.UFM(4, imbalance=((2, 2), (2, 1))), [1, 1, 1], until="collapse"),
        "cannot be Collapse with `imbalance`",
    ),
    (
        lambda: train(hf.UFM(4, imbalance=((2, 2), (2, 1))), [1, 1, 1], optimizer=opt.adam(0.1)),
        "must be gradient descent, with or without momentum, for two blocks",
    ),
    (
        lambda: train(hf.UFM(5), hf.circulant([1 + 1j, 0.5]), optimizer=opt.muon(0.1)),
        "must be gradient descent, with or without momentum, for modes with phases",
    ),
    (
        lambda: train(GROUPED, [1, 1, 1], optimizer=opt.adam(0.1), rotation="identity"),
        'cannot be "identity" for adam:0.1 and the group Z_6',
    ),
    (
        lambda: train(hf.UFM(4, depth=3), [1, 1, 1], optimizer=opt.adam(0.1), rotation="identity"),
        'cannot be "identity" for adam:0.1 at depth 3',
    ),
    (
        lambda: train(hf.UFM(6, width=5), [1, 1, 1], optimizer=opt.adam(0.1)),
        "`width` must be at least 6 for adam:0.1 on circulant matrices",
    ),
    (
        lambda: train(hf.UFM(4), hf.gaussian(hf.UFM(4)), rotation="identity"),
        "`rotation` says which matrices singular values stand for",
    ),
    (lambda: train(rotation="random"), '`rotation` must be "identity" or "circulant"'),
    (
        lambda: hf.hadamard(hf.UFM(6, width=5), [1, 1, 1], rotation="circulant"),
        "`width` must be at least 6 for circulant matrices",
    ),
    (lambda: train(start=np.ones((3, 7)), optimizer=[0.1, 0.2]), "as many as there are starts \\(3\\)"),
    (
        lambda: train(hf.UFM(4), hf.gaussian(hf.UFM(4)), optimizer=optax.GradientTransformation(
            lambda p: (), lambda g, s, p=None: (g[0], s))),
        "`optimizer` fails at these matrices",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refusals_are_one_sentence(call, message):
    with pytest.raises(hf.InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_text_and_back():
    for name in sorted(set(opt.__all__) - {"elementwise", "parse"}):
        assert str(opt.parse(f"{name}:0.01")) == f"{name}:0.01"
        assert str(opt.parse(name, 0.5)) == f"{name}:0.5"
    for text in (
        "adam:0.1,0.2", "muon:0.1:ns_steps=3:nesterov=false:preconditioning=spectral",
        "sgd:0.1:momentum=0.5", "rmsprop:0.1:decay=0.5:centered=true",
    ):  # fmt: skip
        assert str(opt.parse(text)) == text


def test_importing_and_describing_loads_no_jax():
    code = (
        "import sys, hadaflow as hf; print(hf.optimizers.adam(0.1)); "
        "print(sorted({'jax', 'optax'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["adam:0.1", "[]"]


def test_the_system_of_descent_is_pushed_by_the_gradient():
    """The forces that all rules share are minus the gradient of the loss of matrices."""
    model = hf.UFM(4)
    a = np.array([0.5, 0.8, 0.9])
    state = hf.hadamard(model, hf.spectrum(a, units="raw"))
    gradient = model.gradient(state)
    from hadaflow.base.precision import float64

    layers = np.sqrt(a)
    push = float64(lambda x, y: spectral_descent(model).push((x, y)))(layers, layers)
    U = model.basis.vectors
    np.testing.assert_allclose(push[0], -np.diag(U.T @ gradient.W)[1:], rtol=1e-12)


# --- the command line ----------------------------------------------------------------------------


def command(*arguments):
    found = subprocess.run(
        [sys.executable, "-m", "hadaflow", *map(str, arguments)], capture_output=True, text=True
    )
    return found.returncode, found.stdout, found.stderr


def test_train_by_an_optimizer():
    code, out, err = command(
        "train", "--classes", 8, "--optimizer", "adamw", "--lr", 0.01, "--decay", 0.01, "--view",
        "reduced", "--start", "figure1", "--until", "collapse:1e-3", "--steps", 200_000, "--metric",
        "collapse_deviation", "--json",
    )  # fmt: skip
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["reached_iteration"] == 59_440 and document["status"] == "collapsed"
    assert document["view"] == "reduced" and document["log10_time"] is None
    assert document["optimizer"] == "adamw:0.01:weight_decay=0.01"
    assert document["metrics"]["collapse_deviation"]["mean"][-1] < 1e-3


def test_train_at_several_rates_and_in_the_full_view(tmp_path):
    code, out, _ = command(
        "train", "--classes", 4, "--optimizer", "lion", "--lr", "1e-3,1e-2", "--view", "full",
        "--start", "0.5,1,0.7", "--rotation", "circulant", "--steps", 50, "--metric", "kl", "--json",
    )  # fmt: skip
    document = json.loads(out)
    assert code == 0 and document["view"] == "full" and len(document["runs"]) == 2
    assert [run["learning_rate"] for run in document["runs"]] == [1e-3, 1e-2]
    run = train(hf.UFM(4), hf.spectrum([0.5, 1, 0.7]), 50, opt.lion(1e-2), rotation="circulant")
    assert document["runs"][1]["kl"][-1] == pytest.approx(run.measure("kl")[-1], rel=1e-9)


def test_race_on_the_command_line(tmp_path):
    code, out, _ = command(
        "race", "--classes", 4, "--start", "0.2,0.5,0.9", "--optimizer", "adam:0.01", "--optimizer",
        "spectral", "--steps", 2000, "--plot", tmp_path / "race.png", "--json",
    )  # fmt: skip
    document = json.loads(out)
    assert code == 0 and (tmp_path / "race.png").exists()
    found = hf.race(hf.UFM(4), [0.2, 0.5, 0.9], ["adam:0.01", "spectral:0.01"], steps=2000)
    for told, runner in zip(document["optimizers"], found.runners.values(), strict=True):
        assert told["steps_to"] == {f"{level:g}": at for level, at in runner.first.items()}
        assert told["kl"] == runner.kl and told["kl_rises"] == runner.kl_rises


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --classes 4 --start 1,1,2 --steps 5 --optimizer adm", "did you mean adam"),
        ("train --classes 4 --start 1,1,2 --steps 5 --lr -1", "`learning_rate` must be"),
        ("train --classes 4 --start 1,1,2 --steps 5 --lr x", "`lr` must be numbers"),
        ("train --classes 4 --start 1,1,2 --steps 5 --weight-decay 0.1 --decay 0.1", "given twice"),
        (
            "train --classes 4 --start 1,1,2 --steps 5 --optimizer adam:1 --lr 2",
            "2.0 and in 'adam:1'",
        ),
        ("race --classes 4 --start 1,1,2 --optimizer sign --optimizer sign", "has 'sign' twice"),
        ("train --classes 4 --steps 5 --view reduced", "`view` can be reduced"),
        ("train --classes 4 --start 1,1,2 --steps 5 --until time:3", "`until` must be Collapse"),
        ("train --classes 6 --start 1,1,2 --steps 5 --optimizer adam --rotation identity", "Z_6"),
        ("race --classes 4 --optimizer adam", "`start` must be given"),
        ("race --classes 4 --start 1,1,2 --optimizer adam --plot x.gif", "must end in one of png"),
    ],
)
def test_errors_of_the_command_line(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hadaflow", *arguments.split()])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == "" and message in err and err.count("\n") == 1
