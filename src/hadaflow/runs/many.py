"""One verb for many models."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from hadaflow.base.errors import InputError, shown


def for_each_model(verb: Callable[..., Any]) -> Callable[..., Any]:
    """`verb` that takes a list of models, or names with models, too: a list, or names, of results.

    Models that differ in numbers alone run the same compiled code. After an interruption the results of
    the models before it, and of the one it came in, are there.
    """

    @functools.wraps(verb)
    def each(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(model, list | tuple | Mapping):
            return verb(model, *args, **kwargs)
        if not len(model):
            raise InputError(f"Argument `model` must be at least one model, but is {shown(model)}.")
        named = model if isinstance(model, Mapping) else dict(enumerate(model))
        found = {}
        for name, one in named.items():
            found[name] = verb(one, *args, **kwargs)
            if "interrupted" in (found[name].status, *found[name].diagnostics.get("statuses", ())):
                break
        return found if isinstance(model, Mapping) else list(found.values())

    return each
