"""One program: found in the cache by its source, or by what it is lowered to, or compiled and kept."""

import dataclasses
import functools
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
    """What a program is made from: a function and the arguments of one call.

    The program takes the leaves of those arguments that are no structure, which spares JAX from taking
    them apart once more at every call.
    """

    function: Callable[..., Any]
    options: dict[str, Any]
    structure: dict[int, Any]  # arguments by their places
    donated: tuple[int, ...]  # places of those whose memory may be used for the result
    leaves: list[Any]  # of the others
    tree: Any

    def key(self) -> str | None:
        how = self.options, self.structure, self.donated
        return key_of_source(self.function, self.leaves, self.tree, how)

    def key_of(self, lowered: Any) -> str | None:
        return key_of_lowered(lowered, self.options)

    def arguments(self, leaves: Any) -> list[Any]:
        """All arguments of the function, in their order."""
        rest = iter(self.tree.unflatten(leaves))
        count = len(self.structure) + len(self.tree.children())
        return [self.structure[i] if i in self.structure else next(rest) for i in range(count)]

    def lowered(self, whole: bool = False) -> Any:
        """As XLA gets it; `whole` with the leaves that are not used, which are left out otherwise."""

        def program(*leaves: Any) -> Any:
            return self.function(*self.arguments(leaves))

        program.__name__ = getattr(self.function, "__name__", program.__name__)
        jitted = jax.jit(program, donate_argnums=self._donated_leaves(), keep_unused=whole)
        return jitted.lower(*self.leaves)

    def _donated_leaves(self) -> list[int]:
        parts = self.arguments(range(len(self.leaves)))
        return [leaf for i in self.donated for leaf in jax.tree.leaves(parts[i])]

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
    """What runs the recipe's function on the leaves of such arguments."""
    cache = _cache_for(recipe)
    if cache is None:
        with compiling():
            return recipe.compiled(recipe.lowered())
    key = _if_possible(recipe.key)
    found = None if key is None else _loaded(cache, key, recipe)
    return _lowered_first(recipe, cache, key) if found is None else found


def is_known(recipe: Recipe) -> bool:
    """Is it in the cache, as far as can be said without tracing?"""
    cache = _cache_for(recipe)
    key = None if cache is None else _if_possible(recipe.key)
    return cache is not None and key is not None and cache.has(key)


def _lowered_first(recipe: Recipe, cache: Cache, key: str | None) -> Any:
    """The same after tracing, which tells what to look for where the source does not."""
    with compiling():
        # With all leaves, where they are to tell: programs of the same code may take others of them.
        lowered = recipe.lowered(whole=key is None)
        called, result = _called(lowered), None
        if key is not None and called - {_LAPACK}:
            lowered, key = recipe.lowered(whole=True), None
        if key is None:
            key, result = _if_possible(lambda: recipe.key_of(lowered)), lowered.out_tree
            found = None if key is None else _loaded(cache, key, recipe, result)
            if found is not None:
                return found
        found = recipe.compiled(lowered)
        if key is not None:
            _keep(cache, key, found, called, told=result is not None)
        return found


def _called(lowered: Any) -> set[str]:
    """Libraries that the code calls, which must be set up before it runs: lowering does that."""
    names = re.findall(r"custom_call @\"?(\w+)|call_target_name = \"(\w+)", lowered.as_text())
    words = {name for pair in names for name in pair if name}
    return {_LAPACK if name.startswith("lapack_") else name for name in words}


@functools.cache
def _set_up_lapack() -> None:
    """As JAX does it: by lowering something that calls it."""
    jax.jit(jax.numpy.linalg.cholesky).lower(np.eye(1))


def _cache_for(recipe: Recipe) -> Cache | None:
    """The cache, for what runs where programs are loaded to: on the first device, a processor.

    Loading what was compiled for a graphics card has not been tried.
    """
    cache = used_cache()
    if cache is None or setting("default_device") is not None or jax.default_backend() != "cpu":
        return None
    # What JAX's own cache has loaded cannot be taken out of the process whole.
    if setting("compilation_cache_dir"):
        return None
    placed = any(getattr(x, "committed", False) for x in recipe.leaves)
    return None if placed else cache


def setting(name: str) -> Any:
    """A setting of JAX, as it is here and now."""
    return getattr(jax.config, f"jax_{name}")


def _if_possible(key: Callable[[], str | None]) -> str | None:
    """A key, or None where this version of JAX does not tell what belongs to it: nothing is kept then."""
    try:
        return key()
    except Exception:
        return None


def _loaded(cache: Cache, key: str, recipe: Recipe, result: Any = None) -> Any:
    """The program under this key. The structure of its `result` is with it, unless it is told."""
    content = cache.get(key)
    if content is None:
        return None
    began = time.perf_counter()
    try:
        from jax.experimental import serialize_executable

        code, kept, called = pickle.loads(zlib.decompress(content))
        if _LAPACK in called:
            _set_up_lapack()
        arguments = jax.tree.structure((tuple(recipe.leaves), {}))
        devices = jax.local_devices()[:1]
        found = serialize_executable.deserialize_and_load(
            code, arguments, kept if result is None else result, devices[0].client, devices
        )
    except Exception:  # made by something else than the key says
        cache.drop(key)
        return None
    jax.monitoring.record_event_duration_secs(LOADED, time.perf_counter() - began)
    return found


def _keep(cache: Cache, key: str, found: Any, called: set[str], told: bool) -> None:
    try:
        from jax.experimental import serialize_executable

        code, _, result = serialize_executable.serialize(found)
        kept = pickle.dumps((code, None if told else result, called))
    except Exception:  # some programs cannot be taken out of their process
        return
    cache.put(key, zlib.compress(kept, _QUICKLY))
