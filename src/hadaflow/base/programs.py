"""One program: found in the cache by its source, or by what it is lowered to, or compiled and kept."""

import dataclasses
import pickle
import re
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.base.cache import Cache, used_cache
from hadaflow.base.keys import key_of_lowered, key_of_source
from hadaflow.base.lazy import jax
from hadaflow.base.progress import compiling

_QUICKLY = 1  # takes a hundredth of the time of the compilation, and a fifth of the room is left
_LAPACK = "LAPACK"
LOADED = "/hadaflow/program_loaded"  # what JAX's monitoring hears in place of a compilation


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A function with the arguments of one call, and how it is compiled."""

    function: Callable[..., Any]
    jitted: Any  # the function, as JAX traces it
    options: dict[str, Any]
    static: tuple[int, ...]  # places of the arguments that are structure
    donated: tuple[int, ...]
    args: tuple[Any, ...]

    @property
    def traced(self) -> tuple[Any, ...]:
        return tuple(x for i, x in enumerate(self.args) if i not in self.static)

    def key(self) -> str | None:
        structure = tuple(self.args[i] for i in self.static)
        return key_of_source(self.function, structure, self.traced, self._more)

    def key_of(self, lowered: Any) -> str | None:
        return key_of_lowered(lowered, self._more)

    @property
    def _more(self) -> Any:
        return self.options, self.static, self.donated

    def lowered(self) -> Any:
        return self.jitted.lower(*self.args)

    def compiled(self, lowered: Any) -> Any:
        """With the options, as far as this version of XLA knows them."""
        if self.options and jax.default_backend() == "cpu":
            try:
                return lowered.compile(compiler_options=self.options)
            except Exception as error:
                if "compile option" not in str(error).lower():
                    raise
        return lowered.compile()


def program(recipe: Recipe) -> Any:
    """What runs the recipe's function on such arguments."""
    cache = _cache_for(recipe)
    if cache is None:
        with compiling():
            return recipe.compiled(recipe.lowered())
    key = _if_possible(recipe.key)
    found = None if key is None else _loaded(cache, key, recipe)
    return _lowered_first(recipe, cache, key) if found is None else found


def _lowered_first(recipe: Recipe, cache: Cache, key: str | None) -> Any:
    """The same after tracing, which tells what to look for where the source does not."""
    with compiling():
        lowered = recipe.lowered()
        if key is None or _called(lowered) - {_LAPACK}:
            key, found = _if_possible(lambda: recipe.key_of(lowered)), None
            found = None if key is None else _loaded(cache, key, recipe)
            if found is not None:
                return found
        found = recipe.compiled(lowered)
        if key is not None:
            _keep(cache, key, found, _called(lowered))
        return found


def _called(lowered: Any) -> set[str]:
    """Libraries that the code calls, which must be set up before it runs: lowering does that."""
    names = re.findall(r"custom_call @\"?(\w+)|call_target_name = \"(\w+)", lowered.as_text())
    return {
        _LAPACK if name.startswith("lapack_") else name for pair in names for name in pair if name
    }


def _set_up(called: set[str]) -> None:
    """As JAX sets up LAPACK: by lowering something that calls it."""
    if _LAPACK in called:
        jax.jit(jax.numpy.linalg.cholesky).lower(np.eye(1))


def is_known(recipe: Recipe) -> bool:
    """Is it in the cache, as far as can be said without tracing?"""
    cache = _cache_for(recipe)
    key = None if cache is None else _if_possible(recipe.key)
    return cache is not None and key is not None and cache.has(key)


def _cache_for(recipe: Recipe) -> Cache | None:
    """The cache, for what runs where programs are loaded to: on the first device."""
    cache = used_cache()
    if cache is None or jax.config.jax_default_device is not None:
        return None
    placed = any(getattr(x, "committed", False) for x in jax.tree.leaves(recipe.traced))
    return None if placed else cache


def _if_possible(key: Callable[[], str | None]) -> str | None:
    """A key, or None where this version of JAX does not tell what belongs to it: nothing is kept then."""
    try:
        return key()
    except Exception:
        return None


def _loaded(cache: Cache, key: str, recipe: Recipe) -> Any:
    content = cache.get(key)
    if content is None:
        return None
    began = time.perf_counter()
    try:
        from jax.experimental import serialize_executable

        code, result, called = pickle.loads(zlib.decompress(content))
        _set_up(called)
        arguments = jax.tree.structure((recipe.traced, {}))
        devices = jax.devices()[:1]
        found = serialize_executable.deserialize_and_load(
            code, arguments, result, devices[0].client, devices
        )
    except Exception:  # made by something else than the key says
        cache.drop(key)
        return None
    jax.monitoring.record_event_duration_secs(LOADED, time.perf_counter() - began)
    return found


def _keep(cache: Cache, key: str, found: Any, called: set[str]) -> None:
    try:
        from jax.experimental import serialize_executable

        code, _, result = serialize_executable.serialize(found)
        content = zlib.compress(pickle.dumps((code, result, called)), _QUICKLY)
    except Exception:  # some programs cannot be taken out of their process
        return
    cache.put(key, content)
