"""Metrics of one's own: found by name, told apart by their text, evaluated exactly."""

import contextlib
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.errors import InputError
from hadaflow.theory.ball_flow import Flow
from hadaflow.theory.balls import Dual


def load_metric(name: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules of the working folder are found too."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise InputError(
            f"Argument `metric` must be a metric's name or module:function, but is {name!r}."
        )
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a module of one's own may raise
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"Cannot load the metric {name!r}: {reason}.") from None
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(os.getcwd())
    if not callable(found):
        raise InputError(f"Cannot load the metric {name!r}: it is not a function.")
    return found


def metric_name(metric: Any) -> str:
    """A metric by its name, a function as module:function."""
    if isinstance(metric, str):
        return metric
    name = getattr(metric, "__qualname__", type(metric).__name__)
    return f"{getattr(metric, '__module__', '?')}:{name}"


def source_digest(function: Callable[..., Any]) -> str:
    """What tells one text of a function from another."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # typed at a prompt
        text = _code_text(getattr(function, "__code__", function))
    return hashlib.sha256(text.encode()).hexdigest()


def _code_text(code: Any) -> str:
    """Instructions, names and constants of a function, without where they stood."""
    if not inspect.iscode(code):
        return repr(code)
    constants = [_code_text(value) for value in code.co_consts]
    return repr((code.co_code, code.co_names, constants))


def exact_metric(function: Callable[..., Any]) -> Callable[[Flow], Dual]:
    def evaluate(flow: Flow) -> Dual:
        array = np.empty(len(flow.state), dtype=object)
        array[:] = flow.all_values
        try:
            value = function(array)
        except Exception as error:
            reason = " ".join(str(error).split())[:120]
            raise InputError(
                f"Metric `{metric_name(function)}` cannot be evaluated exactly "
                f"({type(error).__name__}: {reason}): write it with `hadaflow.expressions`, or give "
                "an arb function as `balls`."
            ) from None
        if isinstance(value, np.ndarray) and value.shape == ():
            value = value.item()
        if not isinstance(value, Dual):
            raise InputError(
                f"Metric `{metric_name(function)}` must return one number made from `a`, but "
                f"returns {type(value).__name__}."
            )
        return value

    return evaluate
