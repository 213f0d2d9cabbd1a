"""Problems and states as rationals: from a model, and from what a certificate says."""

import itertools
import math
import re
from fractions import Fraction
from typing import Any

import numpy as np

from hadaflow.base.errors import InputError, shown
from hadaflow.lab.exact.ball_flow import Setting
from hadaflow.lab.exact.balls import check_denominators, exact, written
from hadaflow.model.fitting import check_all_modes
from hadaflow.model.losses import parse_loss

Rows = tuple[tuple[Fraction, ...], ...]
LARGEST = 512  # classes; Ψ is dense here
DEEPEST = 100
_LONGEST = 8000  # characters of a number: a fraction of two integers of 4000 digits
_WRITTEN = re.compile(r"-?[0-9]+(\.[0-9]+)?|-?[0-9]+/[1-9][0-9]*")


def setting_of(model: Any) -> Setting:
    """The problem of a `UFM`, its numbers as the decimals they print as."""
    if model.imbalance is not None:
        raise InputError(
            "Certificates need balanced classes: with `imbalance` the right vectors turn."
        )
    if not isinstance(model.loss, str):
        raise InputError(
            f"Certificates need a built-in loss, whose twin over balls there is, but it is {model.loss}."
        )
    check_all_modes(model)

    def decimal(v: float) -> Fraction:
        return Fraction(repr(float(v)))

    labels = model.label_distribution
    if labels is not None:  # normalized by the model: the decimals that were given
        labels = _labels([Fraction(f"{v:.15g}") for v in labels])
    return Setting(
        group=tuple(model.basis.group),
        depth=model.depth,
        samples=model.samples,
        loss=model.loss,
        reduction=model.reduction,
        label_smoothing=decimal(model.label_smoothing),
        label_distribution=labels,
        temperature=decimal(model.temperature),
        weight_decay=tuple(decimal(v) for v in model.decays),
    )


def _labels(given: list[Fraction]) -> tuple[Fraction, ...]:
    """Labels with sum exactly 1: what rounding left over goes to the right class."""
    return (1 - sum(given[1:], Fraction(0)), *given[1:])


def problem_document(setting: Setting) -> dict[str, Any]:
    labels = setting.label_distribution
    return {
        "classes": setting.classes,
        "group": list(setting.group),
        "depth": setting.depth,
        "samples": setting.samples,
        "loss": setting.loss,
        "reduction": setting.reduction,
        "label_smoothing": written(setting.label_smoothing),
        "label_distribution": None if labels is None else [written(q) for q in labels],
        "temperature": written(setting.temperature),
        "weight_decay": [written(v) for v in setting.weight_decay],
    }


def model_document(setting: Setting) -> dict[str, Any]:
    """The options of the `UFM` with this problem, its numbers as floats."""
    labels = setting.label_distribution
    return {
        **problem_document(setting),
        "label_smoothing": float(setting.label_smoothing),
        "label_distribution": None if labels is None else [float(q) for q in labels],
        "temperature": float(setting.temperature),
        "weight_decay": [float(v) for v in setting.weight_decay],
    }


def read_problem(document: Any) -> Setting:
    """A problem as a file states it, every entry checked."""
    keys = {
        "classes", "group", "depth", "samples", "loss", "reduction", "label_smoothing",
        "label_distribution", "temperature", "weight_decay",
    }  # fmt: skip
    if not isinstance(document, dict) or set(document) != keys:
        raise broken("problem", document)
    whole = [
        document["classes"],
        document["depth"],
        document["samples"],
        *entry_list(document, "group"),
    ]
    if not all(type(v) is int and v >= 1 for v in whole):
        raise broken("problem", document)
    group, depth, samples = tuple(document["group"]), document["depth"], document["samples"]
    if document["classes"] > LARGEST:
        raise too_many(document["classes"])
    # No product of numbers without end: a group of at most 512 elements has at most nine factors.
    if not 1 <= len(group) <= 9 or max(group) > LARGEST or samples.bit_length() > 10_000:
        raise broken("problem", document)
    if min(group) < 2 or math.prod(group) != document["classes"] or depth > DEEPEST:
        raise broken("problem", document)
    labels = document["label_distribution"]
    setting = Setting(
        group=group,
        depth=depth,
        samples=samples,
        loss=document["loss"],
        reduction=document["reduction"],
        label_smoothing=written_number(document["label_smoothing"]),
        label_distribution=None
        if labels is None
        else tuple(written_number(v) for v in entry_list(document, "label_distribution")),
        temperature=written_number(document["temperature"]),
        weight_decay=tuple(written_number(v) for v in entry_list(document, "weight_decay")),
    )
    _check_problem(setting, document)
    return setting


def _check_problem(setting: Setting, document: Any) -> None:
    q = setting.label_distribution
    good = (
        _known_loss(setting)
        and setting.reduction in ("sum", "mean")
        and 0 <= setting.label_smoothing < 1
        and setting.temperature > 0
        and len(setting.weight_decay) == setting.depth
        and min(setting.weight_decay) >= 0
        and (q is None or not setting.label_smoothing)
    )
    if good and q is not None:
        check_denominators("label_distribution", q)
        good = len(q) == setting.classes and sum(q) == 1 and min(q) >= 0 and _symmetric(setting, q)
    if not good:
        raise broken("problem", document)


def _known_loss(setting: Setting) -> bool:
    """Is the loss spelled as models spell it, and does it go with the labels and the temperature?"""
    if not isinstance(setting.loss, str):
        return False
    try:
        kind = parse_loss(setting.loss)
    except InputError:
        return False
    known = str(kind) == setting.loss and (kind.takes_temperature or setting.temperature == 1)
    return known and (kind.takes_soft_labels or not setting.soft_labels)


def _symmetric(setting: Setting, q: tuple[Fraction, ...]) -> bool:
    """Is q the same for g and −g?"""
    place = {g: i for i, g in enumerate(itertools.product(*map(range, setting.group)))}
    return all(q[i] == q[place[setting.negative(g)]] for g, i in place.items())


def entry_list(document: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(document.get(name), list):
        raise broken(name, document.get(name))
    return document[name]


def written_number(text: Any) -> Fraction:
    """A number as certificates write them: a decimal without exponent, or a fraction."""
    if not isinstance(text, str) or len(text) > _LONGEST or not _WRITTEN.fullmatch(text):
        raise broken("number", text)
    return exact(text, "certificate")


def broken(name: str, value: Any) -> InputError:
    return InputError(f"The certificate's `{name}` cannot be used: {shown(value)}.")


def too_many(classes: int) -> InputError:
    return InputError(
        f"Certificates go to {LARGEST} classes, but the problem has {shown(classes)}."
    )


def exact_differences(setting: Setting, C: Any, size: int) -> Rows | None:
    """`C` as rows of rationals, one for each layer from the second on; None when all are zero."""
    if C is None:
        return None
    rows = list(C) if isinstance(C, list | tuple | np.ndarray) else [C]
    nested = bool(rows) and isinstance(rows[0], list | tuple | np.ndarray)
    table = [[exact(v, "C") for v in row] for row in (rows if nested else [rows])]
    table = [row * size if len(row) == 1 else row for row in table]
    if len(table) == 1:
        table = table * max(setting.depth - 1, 1)
    if any(len(row) != size for row in table) or len(table) != max(setting.depth - 1, 1):
        raise InputError(
            f"Argument `C` must be one number, {size} of them (one for each mode), or "
            f"{setting.depth - 1} rows of as many, but is {shown(C)}."
        )
    if not any(v for row in table for v in row):
        return None
    if setting.depth == 1:
        raise InputError("Argument `C` must be zero at depth 1: there is only one layer.")
    return tuple(tuple(row) for row in table)
