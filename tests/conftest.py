import signal
from pathlib import Path

import hypothesis
import jax
import pytest

import hadaflow as hf
from hadaflow.base import compiling
from hadaflow.base.cache import use_cache, used_cache

_MOST_MAPS = 30_000

# Most of the time goes into compiling, much of it the same code in several modules and in commands that
# run as processes of their own: they share what is compiled, in the user's folder, and so does the next
# run of the tests.
hf.enable_cache()

hypothesis.settings.register_profile(
    "hadaflow", deadline=None, derandomize=True, max_examples=20, print_blob=True
)
hypothesis.settings.load_profile("hadaflow")


@pytest.fixture(autouse=True, scope="session")
def _strict_jax():
    """Silent broadcasting and mixed precision are errors; float64 must come from the library."""
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    assert not jax.config.jax_enable_x64  # pyright: ignore


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """Undo what a shell asks its children in the background to ignore, for the commands under test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _cache_of_all_tests():
    """Whatever cache a test chooses, the next one has that of all."""
    before = used_cache()
    yield
    use_cache(before)


def _memory_maps() -> int:
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else _MOST_MAPS + 1


@pytest.fixture(autouse=True, scope="module")
def _compiled_code_let_go():
    """Compiled functions hold memory maps, of which a process may have some 65000."""
    yield
    if _memory_maps() > _MOST_MAPS:
        _let_go()


@pytest.fixture(autouse=True)
def _compiled_code_of_one_slow_test(request):
    """One of them alone may compile for hundreds of models."""
    yield
    if request.node.get_closest_marker("slow"):
        _let_go()


def _let_go():
    compiling.let_go()
    jax.clear_caches()
