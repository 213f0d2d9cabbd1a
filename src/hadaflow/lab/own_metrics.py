"""Metrics of one's own: named, told apart by their code, evaluated exactly."""

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, failures_told, printable, shown
from hadaflow.lab.exact.ball_flow import ExactState
from hadaflow.lab.exact.balls import Rated
from hadaflow.lab.own_modules import Source, find_source


def load_metric(name: str) -> Callable[..., Any]:
    """The function that `module:function` names, for which the module is run.

    Modules of the working folder are found too. Only functions that the module itself defines count.
    """
    source, function = find_metric(name)
    return source.load(function)


def find_metric(name: str) -> tuple[Source, str]:
    """The files that define `module:function`, and the function's name; nothing is run."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise InputError(
            f"Argument `metric` must be a metric's name or module:function, but is {shown(name)}."
        )
    if module == "__main__" or not all(part.isidentifier() for part in function.split(".")):
        raise InputError(
            f"Cannot load the metric {shown(name)}: it has no place of its own in a module; move it to "
            "one, or give the function itself to `recheck` as `metric`."
        )
    source = find_source(module)
    if source is None:
        raise InputError(
            f"Cannot load the metric {shown(name)}: there is no Python file of a module "
            f"{shown(module)} in the working folder or on Python's path."
        )
    return source, function


def metric_name(metric: Any) -> str:
    """A metric by its name, a function as module:function."""
    if isinstance(metric, str):
        return metric
    name = getattr(metric, "__qualname__", type(metric).__name__)
    return printable(f"{getattr(metric, '__module__', '?')}:{name}", 200)


def source_digest(function: Callable[..., Any]) -> str:
    """What tells one function from another: the digest of its module's file.

    Of a function that no module's file defines, typed at a prompt, in a notebook or in the script that
    runs, it is the digest of its instructions.
    """
    plain = inspect.unwrap(function)
    if not inspect.isfunction(plain):
        raise InputError(
            "A certificate needs a metric that is a function, whose code can be told from others, but "
            f"is given a {type(function).__name__}."
        )
    source = None if plain.__module__ in (None, "__main__") else find_source(plain.__module__)
    if source is not None and source.defines(plain):
        return source.digest
    return hashlib.sha256(_code_text(plain.__code__).encode()).hexdigest()


def _code_text(value: Any) -> str:
    """Instructions, names and constants of a function, without where they stood."""
    if isinstance(value, frozenset):  # in an order of its own in every process
        return f"frozenset({sorted(map(_code_text, value))})"
    if not inspect.iscode(value):
        return repr(value)
    return repr((value.co_code, value.co_names, [_code_text(v) for v in value.co_consts]))


def exact_metric(function: Callable[..., Any]) -> Callable[[ExactState], Rated]:
    def evaluate(flow: ExactState) -> Rated:
        array = np.empty(len(flow.state), dtype=object)
        array[:] = flow.all_values
        with failures_told(_inexact(function)):
            value = function(array)
        if isinstance(value, np.ndarray) and value.shape == ():
            value = value.item()
        if not isinstance(value, Rated):
            raise InputError(
                f"Metric `{metric_name(function)}` must return one number made from `a`, but "
                f"returns {type(value).__name__}."
            )
        return value

    return evaluate


def _inexact(function: Callable[..., Any]) -> Callable[[str], str]:
    return lambda reason: (
        f"Metric `{metric_name(function)}` cannot be evaluated exactly ({reason}): write it with "
        "`hadaflow.expressions`, or give an arb function as `balls`."
    )
