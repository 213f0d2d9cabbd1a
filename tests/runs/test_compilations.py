"""Code is compiled for a structure, never for a number: counted, not timed."""

import dataclasses
import gc
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

import hadaflow as hf
from hadaflow.base.compiling import let_go
from hadaflow.base.programs import LOADED

# --- counting -------------------------------------------------------------------------------------

EVENTS = {
    "/jax/core/compile/backend_compile_duration": "compilations",
    LOADED: "compilations",  # what the cache has need not be compiled, but has to be loaded
    "/jax/core/compile/jaxpr_trace_duration": "traces",
}
counts = {"compilations": 0, "traces": 0}


def _count(event: str, _: float, **__: object) -> None:
    if event in EVENTS:
        counts[EVENTS[event]] += 1


jax.monitoring.register_event_duration_secs_listener(_count)


def spent(function):
    """Compilations and traces that a call takes."""
    before = dict(counts)
    function()
    return {name: counts[name] - before[name] for name in counts}


NOTHING = {"compilations": 0, "traces": 0}


def check_that_only_the_first_compiles(first, *others):
    assert spent(first)["compilations"] > 0, "the counter hears nothing"
    for other in others:
        assert spent(other) == NOTHING


@pytest.fixture(autouse=True)
def _nothing_is_compiled_yet():
    forget()


def forget():
    let_go()
    jax.clear_caches()


# --- solve ----------------------------------------------------------------------------------------

START = [1.0, 0.5, 0.3]
SHORT, LONG = hf.Collapse(1e-2), hf.Collapse(1e-3)


def solved(until=None, start=START, rtol=1e-8, points=None, **options):
    def run():
        found = hf.solve(
            hf.UFM(4, **options), start, until, rtol=rtol, points=points, progress=None
        )
        assert found.status not in ("failed", "interrupted")

    return run


def test_solve_of_hard_labels():
    check_that_only_the_first_compiles(
        solved(LONG), solved(SHORT), solved(LONG, temperature=2.0), solved(LONG, samples=7),
        solved(LONG, [0.2, 0.1, 0.4], 1e-7), solved(LONG, reduction="mean", samples=2),
    )  # fmt: skip


@pytest.mark.parametrize(
    "until", [hf.Time(20.0), hf.Norm(8.0), hf.PathLength(3.0)], ids=lambda target: target.spelled
)
def test_solve_to_another_number(until):
    other = {"time": hf.Time(30.0), "norm": hf.Norm(9.0), "path": hf.PathLength(4.0)}[until.spelled]
    check_that_only_the_first_compiles(
        solved(until), solved(other), solved(other, temperature=0.5, samples=2)
    )


def test_solve_of_soft_labels():
    check_that_only_the_first_compiles(
        solved(label_smoothing=0.1), solved(label_smoothing=0.2),
        solved(label_smoothing=0.2, temperature=3.0, samples=3),
        solved(label_distribution=(0.7, 0.1, 0.15, 0.05)),
    )  # fmt: skip


def test_solve_with_penalties():
    check_that_only_the_first_compiles(
        solved(weight_decay=0.1), solved(weight_decay=0.2), solved(weight_decay=(0.1, 0.3)),
        solved(weight_decay=0.1, temperature=2.0), solved(weight_decay=0.1, samples=4),
    )  # fmt: skip


def test_solve_of_unbalanced_and_deep_models():
    unbalanced = hf.spectrum(START, C=[0.1, 0.2, 0.3]), hf.spectrum(START, C=[0.3, 0.1, -0.2])
    check_that_only_the_first_compiles(
        solved(hf.Time(20.0), unbalanced[0]), solved(hf.Time(30.0), unbalanced[1], temperature=2.0)
    )
    check_that_only_the_first_compiles(
        solved(hf.Time(20.0), depth=3), solved(hf.Time(20.0), [0.2, 0.1, 0.4], depth=3, samples=2)
    )


@pytest.mark.slow
def test_solve_of_two_blocks():
    def blocks(samples, **options):
        model = hf.UFM(4, imbalance=((2, samples), (2, 1)), **options)
        return lambda: hf.solve(model, START, hf.Time(20.0), progress=None)

    check_that_only_the_first_compiles(blocks(5), blocks(3), blocks(2, temperature=2.0))


def test_solve_of_matrices():
    start = hf.gaussian(hf.UFM(4), 0.5, 0), hf.gaussian(hf.UFM(4), 0.4, 1)
    check_that_only_the_first_compiles(
        solved(hf.Time(5.0), start[0]), solved(hf.Time(6.0), start[1], temperature=2.0)
    )
    decay = {"weight_decay": 0.1}, {"weight_decay": (0.2, 0.05)}
    check_that_only_the_first_compiles(
        solved(hf.Time(5.0), start[0], **decay[0]), solved(hf.Time(6.0), start[1], **decay[1])
    )


@pytest.mark.slow
def test_solve_by_dual_steps():
    rng = np.random.default_rng(0)
    starts = np.exp(rng.normal(0, 1, (2, 63)))

    def far(start, until, **options):
        model = hf.UFM(64, **options)
        return lambda: hf.solve(model, start, until, method="dual", rtol=1e-5, progress=None)

    check_that_only_the_first_compiles(
        far(starts[0], hf.Norm(1e5)), far(starts[1], hf.Norm(2e6)),
        far(starts[1], hf.Norm(1e5), temperature=2.0, samples=3),
    )  # fmt: skip


def test_batches():
    starts = np.random.default_rng(0).uniform(0.1, 1, (40, 3))
    check_that_only_the_first_compiles(
        solved(LONG, starts), solved(SHORT, starts + 0.1, temperature=2.0, samples=2)
    )


# --- the other verbs ------------------------------------------------------------------------------


def test_descend():
    full = hf.gaussian(hf.UFM(4), 0.5, 0)

    def descended(start, rate, momentum=0.0, steps=100, **options):
        model = hf.UFM(4, **options)
        return lambda: hf.descend(model, start, steps, rate, momentum=momentum, progress=None)

    check_that_only_the_first_compiles(
        descended(START, 0.1), descended(START, 0.2, temperature=2.0, samples=3, steps=150)
    )
    check_that_only_the_first_compiles(
        descended(START, 0.1, 0.5, weight_decay=0.1), descended(START, 0.2, 0.9, weight_decay=0.3)
    )
    check_that_only_the_first_compiles(descended(full, 0.1), descended(full, 0.3, temperature=2.0))


@pytest.mark.parametrize(
    "name",
    ["adam", "muon", *(pytest.param(n, marks=pytest.mark.slow) for n in ("lion", "shampoo"))],
)
def test_optimizers(name):
    full = hf.gaussian(hf.UFM(4), 0.5, 0)
    make = getattr(hf.optimizers, name)
    other = {"adam": {"b1": 0.8, "eps": 1e-5}, "lion": {"b2": 0.9}, "muon": {"beta": 0.8},
             "shampoo": {"eps": 0.1}}  # fmt: skip

    def trained(start, rate, steps=100, target=1e-12, hyper=None, **options):
        model, optimizer = hf.UFM(4, **options), make(rate, **(hyper or {}))
        until = hf.Collapse(target)
        return lambda: hf.descend(model, start, steps, optimizer, until=until, progress=None)

    for start in (START, full):
        check_that_only_the_first_compiles(
            trained(start, 0.01),
            trained(start, 0.02, 150, 1e-11, other[name] | {"weight_decay": 0.1}, temperature=2.0),
        )
    check_that_only_the_first_compiles(trained(START, [0.01, 0.1]), trained(START, [0.2, 0.1], 150))


@pytest.mark.parametrize("verb", [hf.measure, hf.rate])
@pytest.mark.parametrize("metric", ["kl", "loss", "margin"])
def test_metrics(verb, metric):
    full = hf.gaussian(hf.UFM(4), 0.5, 0)
    for state in (START, full):
        check_that_only_the_first_compiles(
            lambda state=state: verb(metric, hf.UFM(4), state),
            lambda state=state: verb(metric, hf.UFM(4), state),
            lambda state=state: verb(metric, hf.UFM(4, temperature=2.0), state),
        )


def test_metrics_of_another_number_of_states():
    states = np.random.default_rng(0).uniform(0.1, 1, (64, 3))

    def measured(count):
        values = hf.measure("kl", hf.UFM(4), states[:count])
        np.testing.assert_allclose(values, _kl(states[:count]), rtol=1e-12)

    check_that_only_the_first_compiles(
        lambda: measured(64), lambda: measured(50), lambda: measured(63)
    )


def _kl(a):
    """KL(uniform ‖ â), by its definition."""
    p = a / a.sum(axis=-1, keepdims=True)
    return -np.log(p * a.shape[-1]).mean(axis=-1)


def test_a_metric_of_ones_own():
    def largest(a):
        return a.max()

    check_that_only_the_first_compiles(
        lambda: hf.rate(largest, hf.UFM(4), START),
        lambda: hf.rate(largest, hf.UFM(4, temperature=2.0, samples=3), [0.2, 0.1, 0.4]),
    )


def test_plots():
    runs = [hf.solve(hf.UFM(4, temperature=t), START, LONG, progress=None) for t in (1.0, 2.0)]

    def drawn(run):
        return lambda: plt.close(run.plot())

    check_that_only_the_first_compiles(drawn(runs[0]), drawn(runs[0]), drawn(runs[1]))


def test_estimates_and_predictions():
    model, other = hf.UFM(64), hf.UFM(64, temperature=2.0, samples=3)
    start = np.exp(np.random.default_rng(0).normal(0, 1, 63))
    check_that_only_the_first_compiles(
        lambda: hf.estimate(model, start, LONG), lambda: hf.estimate(other, 2 * start, SHORT)
    )
    forget()
    check_that_only_the_first_compiles(
        lambda: hf.predict_collapse(model, start),
        lambda: hf.predict_collapse(other, 2 * start, 1e-4),
    )


# --- memory ---------------------------------------------------------------------------------------


def resident_megabytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_three_hundred_models_that_differ_in_numbers_take_little_memory():
    rng = np.random.default_rng(0)

    def use_one():
        model = hf.UFM(
            4, temperature=rng.uniform(0.5, 2), label_smoothing=rng.uniform(0.01, 0.3),
            samples=int(rng.integers(1, 50)),
        )  # fmt: skip
        run = hf.solve(model, rng.uniform(0.1, 1, 3), hf.Time(rng.uniform(1, 20)), progress=None)
        run.measure("kl")
        hf.rate("loss", model, START)
        hf.descend(model, START, 50, rng.uniform(0.01, 0.1), progress=None)

    for _ in range(20):
        use_one()
    before = resident_megabytes()
    for _ in range(300):
        use_one()
    assert resident_megabytes() - before < 50


# --- structures -----------------------------------------------------------------------------------


def test_kinds_with_the_same_fields_are_different_structures():
    """Else code compiled for one would be run for the other."""
    from hadaflow.model.views.pytrees import Traced, static, traced

    class One(Traced):
        x: float
        kind: str = static()

    class Other(One):
        pass

    assert jax.tree.structure(One(1.0, "a")) != jax.tree.structure(Other(1.0, "a"))
    assert jax.tree.structure(One(1.0, "a")) != jax.tree.structure(One(1.0, "b"))
    assert jax.tree.structure(One(1.0, "a")) == jax.tree.structure(One(2.0, "a"))

    @dataclasses.dataclass(frozen=True)
    class Plain:
        x: float
        numbers = ("x",)

    class Same(Plain):
        pass

    a, b = traced(Plain(1.0)), traced(Same(1.0))
    assert jax.tree.structure(a) != jax.tree.structure(b)
    assert jax.tree.map(lambda x: 2 * x, b) == Same(2.0)
