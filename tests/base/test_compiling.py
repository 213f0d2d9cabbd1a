"""Options of XLA are taken where it knows them, and left out where it does not."""

import jax
import jax.numpy as jnp
import pytest

from hadaflow.base import compiling
from hadaflow.base.compiling import SMALL, SOON, Compiled, compiled


@pytest.mark.parametrize("options", [SMALL, SOON, {"xla_of_another_version": False}])
def test_whatever_the_options_the_numbers_are_the_same(options):
    program = Compiled(lambda x: jnp.exp(x) + 1, options)
    for x in (0.0, 1.0):
        assert float(program(jnp.asarray(x))) == pytest.approx(float(jnp.exp(x)) + 1, rel=1e-6)


def test_errors_of_the_function_are_its_own():
    @compiled(SOON)
    def refuses(x):
        raise ValueError("no such state")

    for _ in range(2):
        with pytest.raises(ValueError, match="no such state"):
            refuses(jnp.ones(3))


def test_it_is_compiled_once():
    traces = []

    @compiled(SOON, static_argnames=("power",))
    def powered(x, power):
        traces.append(power)
        return x**power

    for x in (1.0, 2.0, 3.0):
        powered(jnp.asarray(x), 2)
    assert traces == [2]
    assert isinstance(powered(jnp.asarray(2.0), 3), jax.Array) and traces == [2, 3]


@pytest.mark.parametrize("counted", [True, False])
def test_what_was_compiled_is_let_go_when_it_is_too_much(monkeypatch, counted):
    """By memory maps, or where they cannot be counted, by programs."""
    store = compiling._Store()
    monkeypatch.setattr(compiling, "_store", store)
    monkeypatch.setattr(compiling, "_COUNTED_EVERY", 2)
    monkeypatch.setattr(compiling, "_MOST_MAPS" if counted else "_MOST_PROGRAMS", 0)
    if not counted:
        monkeypatch.setattr(compiling, "Path", _NotThere)
    traces = []

    @compiled(static_argnames=("power",))
    def powered(x, power):
        traces.append(power)
        return x**power

    for power in (2, 3, 2, 3):
        assert float(powered(jnp.asarray(2.0), power)) == 2.0**power
    assert traces == [2, 3, 2, 3]  # the first two had gone
    monkeypatch.setattr(compiling, "_COUNTED_EVERY", 1000)
    for power in (2, 3, 2, 3):
        powered(jnp.asarray(2.0), power)
    assert traces == [2, 3, 2, 3, 2, 3]


class _NotThere:
    def __init__(self, path):
        pass

    def read_bytes(self):
        raise FileNotFoundError
