"""Programs from the cache: the same code, found by all that decides it and by nothing less."""

import dataclasses
import enum
import functools
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hadaflow as hf
from hadaflow.base import cache as caches, compiling, keys, programs, sources
from hadaflow.base.cache import Cache
from hadaflow.base.compiling import SMALL, SOON, Compiled
from hadaflow.base.keys import Untold, told_of
from hadaflow.base.precision import double_precision
from hadaflow.metrics.measures import _every
from hadaflow.model.views.reduced import SymmetricView

COMPILED = "/jax/core/compile/backend_compile_duration"
TRACED = "/jax/core/compile/jaxpr_trace_duration"
heard = {COMPILED: 0, TRACED: 0, programs.LOADED: 0}


def _hear(event, _, **__):
    if event in heard:
        heard[event] += 1


jax.monitoring.register_event_duration_secs_listener(_hear)


def forget():
    compiling.let_go()
    jax.clear_caches()


@pytest.fixture
def cache(tmp_path):
    """A cache of the test's own, and nothing that is compiled yet."""
    own = Cache(tmp_path / "programs")
    caches.use_cache(own)
    forget()
    yield own
    forget()


def spent(function):
    """What a call takes of each, after all has been let go as in a new process; and what it returns."""
    forget()
    before = dict(heard)
    found = function()
    return {event: heard[event] - before[event] for event in heard}, found


def rate():
    return hf.rate("l2", hf.UFM(8), [1, 1, 1, 1.25, 0.1, 0.1, 0.1])


def own_rate(power=2):
    return hf.rate(lambda a: jnp.sum(a**power), hf.UFM(4), [1.0, 0.5, 0.3])


# --- found again -----------------------------------------------------------------------------------


def test_what_is_told_by_its_source_is_neither_traced_nor_compiled_again(cache):
    first, value = spent(rate)
    assert first[COMPILED] > 0 and first[programs.LOADED] == 0 and len(cache.entries()) == 1
    again, same = spent(rate)
    assert again == {COMPILED: 0, TRACED: 0, programs.LOADED: 1} and same == value
    hf.disable_cache()
    without, plain = spent(rate)
    assert without[COMPILED] > 0 and plain == value


def test_what_is_not_is_found_by_what_it_is_lowered_to(cache):
    first, value = spent(own_rate)
    assert first[COMPILED] > 0 and len(cache.entries()) == 1
    again, same = spent(own_rate)
    assert again[programs.LOADED] == 1 and again[TRACED] > 0 and same == value
    other, cubic = spent(lambda: own_rate(3))  # the same names, another number within
    assert other[programs.LOADED] == 0 and len(cache.entries()) == 2
    np.testing.assert_allclose(value, 2 * np.sum([1.0, 0.5, 0.3] * velocity()), rtol=1e-12)
    np.testing.assert_allclose(cubic, 3 * np.sum(np.square([1, 0.5, 0.3]) * velocity()), rtol=1e-12)


def velocity():
    return hf.UFM(4).velocity([1.0, 0.5, 0.3])


def test_numbers_find_the_same_program_and_structures_another_one(cache):
    spent(rate)
    for number in (
        lambda: hf.rate("l2", hf.UFM(8, temperature=2.0, samples=3), np.arange(1.0, 8.0)),
        lambda: hf.rate("l2", hf.UFM(8, reduction="mean"), np.full(7, 0.1)),
    ):
        assert spent(number)[0][programs.LOADED] == 1
    known = len(cache.entries())
    for structure in (
        lambda: hf.rate("kl", hf.UFM(8), np.arange(1.0, 8.0)),
        lambda: hf.rate("l2", hf.UFM(8, depth=3), np.arange(1.0, 8.0)),
        lambda: hf.rate("l2", hf.UFM(8, group=(2, 4)), np.arange(1.0, 6.0)),
        lambda: hf.rate("l2", hf.UFM(8, label_smoothing=0.1), np.arange(1.0, 8.0)),
        lambda: hf.rate("l2", hf.UFM(8), np.ones((3, 7))),
        lambda: hf.rate("l2", hf.UFM(8), np.arange(1.0, 8.0), flow="normalized"),
        lambda: hf.measure("l2", hf.UFM(8), np.arange(1.0, 8.0)),
        lambda: hf.rate("l2", hf.UFM(4), np.arange(1.0, 4.0)),
    ):
        known += 1
        assert spent(structure)[0][programs.LOADED] == 0 and len(cache.entries()) == known


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30))]
)
def test_random_runs_are_the_same_to_the_last_bit(cache, seed):
    """Compiled without a cache, compiled for it, and loaded from it."""
    draw = np.random.default_rng(seed)
    K, depth = int(draw.choice([3, 4, 6])), int(draw.integers(1, 4))
    options = [{}, {"label_smoothing": 0.1}, {"weight_decay": 0.05}][seed % 3]
    model = hf.UFM(K, depth=depth, temperature=float(draw.uniform(0.5, 2)), **options)
    start, end = draw.uniform(0.2, 1.0, model.modes), hf.Time(float(draw.uniform(1, 20)))

    def values():
        run = hf.solve(model, start, end, points=12, progress=None)
        return run.a.tobytes() + run.measure("loss").tobytes()

    caches.use_cache(None)
    plain = spent(values)[1]
    caches.use_cache(cache)
    first, kept = spent(values)
    again, loaded = spent(values)
    assert plain == kept == loaded
    assert first[programs.LOADED] == 0 and again[COMPILED] == 0 < again[programs.LOADED]


# --- programs that are nearly the same -------------------------------------------------------------


def test_the_same_code_with_other_results_arguments_or_types(cache):
    x, y = jnp.asarray(1.0), jnp.asarray(2.0)

    def named(name):
        return lambda x: {name: x + 1}

    for function, found in (
        (named("a"), {"a": 2.0}), (named("b"), {"b": 2.0}), (lambda x: [x + 1], [2.0]),
        (lambda x: x + 1, 2.0),
    ):  # fmt: skip
        assert Compiled(function, {})(x) == found
    first, second = Compiled(lambda x, y: x + 1, {}), Compiled(lambda x, y: y + 1, {})
    assert (first(x, y), second(x, y)) == (2.0, 3.0)
    for given in (1.0, np.float32(1.0), np.float64(1.0), 1, True, np.ones(2), np.ones((2, 1))):
        with double_precision():
            plain, found = jax.jit(lambda x: (x,))(given)[0], Compiled(lambda x: (x,), {})(given)[0]
        assert (found.dtype, found.weak_type) == (plain.dtype, plain.weak_type)
        np.testing.assert_array_equal(found, plain)


def test_functions_of_one_name_with_other_numbers_within(cache):
    def times(factor):
        large = np.full(5000, factor)
        return Compiled(lambda x: jnp.sum(x * large), {})

    for factor in (1.0, 2.0, 3.0):
        forget()
        assert times(factor)(np.ones(5000)) == 5000 * factor


def test_donated_arguments_are_those_of_their_places():
    add = Compiled(lambda x, y, s: (x[0] + s, y), {}, donate_argnames=("y",))
    x, y = (jnp.ones(3),), jnp.zeros(3)
    found, passed = add(x, y, 1.0)
    np.testing.assert_array_equal(found, 2 * np.ones(3))
    np.testing.assert_array_equal(passed, np.zeros(3))
    assert y.is_deleted() and not x[0].is_deleted()


def test_what_calls_back_to_python_is_not_kept(cache):
    said = []

    def told(a):
        jax.debug.callback(said.append, jnp.sum(a))
        return jnp.sum(a)

    for _ in range(2):
        forget()
        assert hf.measure(told, hf.UFM(4), [1.0, 2.0, 3.0]) == 6.0
        jax.effects_barrier()
    assert len(said) == 2 and cache.entries() == []


def test_options_and_settings_belong_to_the_key(cache):
    recipe = functools.partial(programs.Recipe, rate_of_sum, structure={}, donated=())
    leaves = {"leaves": [np.ones(3)], "tree": jax.tree.structure((0,))}
    plain = recipe(options=SMALL, **leaves).key()
    assert plain == recipe(options=dict(SMALL), **leaves).key() is not None
    found = {plain, recipe(options=SOON, **leaves).key(), recipe(options={}, **leaves).key()}
    with jax.default_matmul_precision("float32"):
        found.add(recipe(options=SMALL, **leaves).key())
    with double_precision():
        found.add(recipe(options=SMALL, **leaves).key())
    found.add(recipe(options=SMALL, leaves=[np.ones(4)], tree=leaves["tree"]).key())
    found.add(recipe(options=SMALL, leaves=[1.0], tree=leaves["tree"]).key())
    found.add(recipe(options=SMALL, leaves=leaves["leaves"], tree=jax.tree.structure([0])).key())
    assert len(found) == 8 and None not in found


rate_of_sum = functools.partial(_every, "energy", None)


def test_the_machine_belongs_to_the_key(cache, monkeypatch):
    recipe = programs.Recipe(rate_of_sum, {}, {}, (), [np.ones(3)], jax.tree.structure((0,)))
    found = {recipe.key()}
    for module, name, value in (
        (os, "sched_getaffinity", lambda _: set(range(99))), (keys.jax, "__version__", "99.0"),
    ):  # fmt: skip
        keys._machine.cache_clear()
        monkeypatch.setattr(module, name, value, raising=False)
        found.add(recipe.key())
        monkeypatch.undo()
    keys._machine.cache_clear()
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " ")
    found.add(recipe.key())
    monkeypatch.undo()
    keys._machine.cache_clear()
    assert len(found) == 4


FINGERPRINT = """
from hadaflow.base.keys import _machine
import jax
print(_machine()[1])
"""


def test_processors_that_can_do_more_are_told_apart():
    """By what XLA is allowed to use of this one, which it reports as it reports the processor."""
    found = set()
    for most in ("SSE4_2", "AVX", "AVX2"):
        flags = os.environ | {"XLA_FLAGS": f"--xla_cpu_max_isa={most}"}
        done = subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env=flags,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    listed = all("+sse4.2" in each for each in found)  # as JAX 0.8 does, with no look at the flags
    assert len(found) == 3 or listed or platform.machine() not in ("x86_64", "AMD64")


# --- what values are told by -----------------------------------------------------------------------


class Kind(enum.Enum):
    one = 1


def test_values_that_differ_are_told_apart():
    tree = jax.tree.structure
    values = [
        None, True, False, 0, 1, 1.0, 0.0, -0.0, math.nan, math.inf, 1j, "1", b"1", "", (), [], {},
        (1,), [1], (1, (2,)), ((1,), 2), (1, 2), {"a": 1}, {"a": 2}, {"b": 1}, {1: "a"}, {"1": "a"},
        frozenset(), frozenset({1}), frozenset({1, 2}), np.ones(2), np.ones(2, np.float32), np.ones(3),
        np.zeros(2), np.ones((2, 1)), np.ones((1, 2)), np.float64(1), np.float32(1), np.int64(1),
        np.dtype("f4"), np.dtype("f8"), hf.UFM, hf.Time, hf.Time(1.0), hf.Time(2.0), hf.Norm(1.0),
        hf.cyclic(5), hf.cyclic(6), hf.AbelianGroup((2, 3)), hf.Sylvester(4), hf.UFM(4),
        hf.UFM(4, depth=3),
        hf.solve, hf.measure, functools.partial(hf.solve, 1), functools.partial(hf.solve, x=1),
        tree(0), tree((0,)), tree([0]), tree((0, 0)), tree({"a": 0}), tree({"b": 0}), tree(None),
        tree(hf.UFM(4).view), tree(hf.UFM(4, depth=3).view), tree(hf.UFM(4, label_smoothing=0.1).view),
    ]  # fmt: skip
    told = [repr(told_of(value)) for value in values]
    assert len(set(told)) == len(values)
    assert told == [repr(told_of(value)) for value in values]


def test_what_is_not_ours_is_not_told():
    class Local(hf.Time):
        pass

    class View(SymmetricView):
        pass

    class Named:
        __module__, __qualname__ = "hadaflow.model.ufm", "UFM"

    class Forged:
        __module__, __qualname__ = "hadaflow.model.ufm", "Nobody"

    view = View(*(getattr(hf.UFM(4).view, f.name) for f in dataclasses.fields(SymmetricView)))
    for value in (
        Local, Local(1.0), lambda x: x, Kind.one, Named, Named(), Forged, math.sin, np.sin, len, object(),
        jax.tree.structure(view), functools.partial(lambda x: x), OrderedDict(a=1), {1, 2},
        np.array([None]), hf.Time(1.0).left.__get__(1), jnp.sin, jax.jit(hf.solve), int, iter(()),
        jax.tree.structure(OrderedDict(a=1)), (1, [Kind.one]), {"a": {"b": len}}, sys, Path("x"),
    ):  # fmt: skip
        with pytest.raises(Untold):
            told_of(value)


def test_tables_of_metrics_cannot_be_changed():
    """What is compiled for a metric is known by its name."""
    from hadaflow.metrics.matrix_metrics import FULL
    from hadaflow.metrics.measures import REDUCED

    for table in (FULL, REDUCED):
        with pytest.raises(TypeError):
            table["kl"] = table["l2"]


# --- the source ------------------------------------------------------------------------------------

COPIED = """
import sys
sys.path.insert(0, sys.argv[1])
import hadaflow
assert hadaflow.__file__.startswith(sys.argv[1])
from hadaflow.base.sources import sources
print(sources())
if len(sys.argv) > 2:
    from pathlib import Path
    changed = Path(hadaflow.__file__).parent / "algebra" / "padding.py"
    changed.write_text(changed.read_text())
    print(sources())
"""


def test_every_change_of_the_source_is_noticed(tmp_path):
    package = tmp_path / "hadaflow"
    shutil.copytree(Path(hf.__file__).parent, package)
    padding = package / "algebra" / "padding.py"

    def digests(*more):
        time.sleep(0.1)  # files that were written just before are not trusted
        call = [sys.executable, "-c", COPIED, str(tmp_path), *more]
        return subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()

    first = digests()
    text = padding.read_text()
    padding.write_text(text.replace("zeros_like", "ones_like", 1))
    changed = digests()
    padding.write_text(text)
    assert first == digests() != changed and len(first[0]) == 128
    (package / "algebra" / "new.py").write_text("")
    assert digests() != first
    (package / "algebra" / "new.py").unlink()
    # Whoever changes a file while the process runs may run what it was before.
    assert digests("change") == [first[0], "None"]


def test_no_source_is_told_where_it_may_be_another(monkeypatch):
    assert sources.sources() is not None
    with monkeypatch.context() as patch:
        patch.setattr(hf, "_began", 0.0)
        assert sources.sources() is None
    with monkeypatch.context() as patch:
        patch.setattr(sources, "LIBRARIES", ("jax", "no_such_library"))
        assert sources.sources() is None
    with monkeypatch.context() as patch:  # found where no installer has put it
        patch.setattr(sources, "LIBRARIES", ("references",))
        assert sources.sources() is None
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        assert sources.sources() is None


def test_without_a_source_programs_are_found_by_what_they_are_lowered_to(cache, monkeypatch):
    monkeypatch.setattr(hf, "_began", 0.0)
    first, value = spent(rate)
    again, same = spent(rate)
    assert first[COMPILED] > 0 and again[programs.LOADED] == 1 and again[TRACED] > 0
    assert value == same


# --- what is damaged, or not as expected -----------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"no program", "half", "other"])
def test_what_cannot_be_loaded_is_compiled_and_kept_anew(cache, content, capfd):
    value = spent(rate)[1]
    spent(own_rate)
    (first, found), (other, _) = sorted(cache.entries(), key=lambda e: e[0].stat().st_mtime_ns)
    if content == "half":
        first.write_bytes(first.read_bytes()[: found.st_size // 2])
    elif content == "other":  # whole, but another program
        first.write_bytes(other.read_bytes())
    else:  # whole, but none at all
        cache.put(first.stem, content)
    took, same = spent(rate)
    assert took[COMPILED] > 0 and same == value and len(cache.entries()) == 2
    again, same = spent(rate)
    assert again[programs.LOADED] == 1 and same == value
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "place",
    ["jax._src.lib.xla_client", "jax.experimental.serialize_executable.serialize", "jax.config"],
)
def test_where_jax_is_not_as_expected_nothing_is_kept(cache, monkeypatch, place, capfd):
    keys._machine.cache_clear()
    if place == "jax.config":  # of which JAX itself needs the rest
        monkeypatch.setattr(keys, "jax", SimpleNamespace(**vars(jax) | {"config": object()}))
    else:
        monkeypatch.delattr(place)
    for _ in range(2):
        took, value = spent(rate)
        assert took[COMPILED] > 0 and took[programs.LOADED] == 0 and cache.entries() == []
    monkeypatch.undo()
    keys._machine.cache_clear()
    assert spent(rate)[1] == value and len(cache.entries()) == 1
    assert capfd.readouterr().err == ""


def test_where_programs_cannot_be_loaded_they_are_compiled(cache, monkeypatch):
    value = spent(rate)[1]
    monkeypatch.delattr("jax.experimental.serialize_executable.deserialize_and_load")
    for _ in range(2):
        took, same = spent(rate)
        assert took[COMPILED] > 0 and same == value


def test_nothing_is_loaded_to_another_device_than_the_first(cache):
    with jax.default_device(jax.devices()[0]):
        rate()
    assert cache.entries() == []
    placed = jax.device_put(np.ones(4), jax.devices()[0])
    Compiled(lambda x: x + 1, {})(placed)
    assert cache.entries() == []


def test_nothing_is_kept_of_what_is_compiled_for_a_graphics_card(cache, monkeypatch):
    monkeypatch.setattr(programs.jax, "default_backend", lambda: "gpu")
    took, value = spent(rate)
    assert took[COMPILED] > 0 and cache.entries() == []
    monkeypatch.undo()
    assert spent(rate)[1] == pytest.approx(value, rel=1e-12) and len(cache.entries()) == 1


def test_who_looks_for_an_error_compiles_nothing(cache):
    add = Compiled(lambda n, x: x + n, {}, static_argnames=("n",))
    with jax.disable_jit():
        assert add(1, np.ones(2)).tolist() == [2.0, 2.0]
    assert cache.entries() == []


def test_where_jax_keeps_programs_itself_none_are_kept_beside_it(tmp_path):
    """What JAX has loaded is stored without its kernels: the third of these processes failed once."""
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(theirs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    code = (
        "import hadaflow as hf, sys; sys.argv[1] == 'off' or hf.enable_cache(sys.argv[1]);"
        "print(hf.rate('l2', hf.UFM(4), [1.0, 0.5, 0.3]))"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", code, str(folder)], env=environment, capture_output=True, text=True,
            timeout=120, check=True,
        ).stdout
        for folder in ("off", own, own)
    ]  # fmt: skip
    assert len(set(answers)) == 1 and any(theirs.iterdir())
    assert not Cache(own).entries()
