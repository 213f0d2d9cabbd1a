"""A model in words and as plain data: what differs from the paper's, in the names of its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hadaflow.base.words import counted, group_name

if TYPE_CHECKING:
    from hadaflow.model.ufm import UFM

_SHOWN = 4  # numbers of a label distribution


def document_of(model: UFM) -> dict[str, Any]:
    """All options by name, as JSON can say them."""
    options = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
    options["loss"] = str(model.loss)
    if model.depth == 1:  # there are no features, of which a width could be asked for
        options["width"] = None
    return options


def in_words(model: UFM) -> str:
    """What kind of model it is, then everything that is not a default."""
    blocks, samples = model.samples_in_words, counted(model.samples, "sample")
    start = [
        f"{model.classes} classes " + (f"({blocks} samples)" if blocks else f"× {samples}"),
        f"depth {model.depth}",
        f"{model.loss} ({model.reduction})",
    ]
    return ", ".join(start + _differences(model, ("width", *_RARE)))


def in_short(model: UFM) -> str:
    """K and everything that is not a default, for titles."""
    names = ("samples", "imbalance", "width", "depth", "loss", "reduction", *_RARE)
    return ", ".join([f"K = {model.classes}", *_differences(model, names)])


def _differences(model: UFM, names: Sequence[str]) -> list[str]:
    usual = {f.name: f.default for f in dataclasses.fields(model)}
    usual |= {"width": model.classes, "weight_decay": (0.0,) * model.depth}
    return [_SAID[name](model) for name in names if getattr(model, name) != usual[name]]


def _group(model: UFM) -> str:
    factors: Any = model.group
    if model.imbalance is None:
        return f"group {group_name(factors)}"
    return "groups " + " and ".join("none" if g is None else group_name(g) for g in factors)


def _labels(model: UFM) -> str:
    q: Any = model.label_distribution
    rest = ", …" if len(q) > _SHOWN else ""
    return f"labels ({', '.join(f'{v:.3g}' for v in q[:_SHOWN])}{rest})"


def _decay(model: UFM) -> str:
    first, *others = model.decays
    if all(decay == first for decay in others):
        return f"weight decay {first:g}"
    return f"weight decay ({', '.join(f'{decay:g}' for decay in model.decays)})"


_RARE = ("group", "label_smoothing", "label_distribution", "temperature", "weight_decay")
_SAID: dict[str, Callable[[UFM], str]] = {
    "samples": lambda model: f"n = {model.samples}",
    "imbalance": lambda model: f"n = {model.samples_in_words}",
    "width": lambda model: f"width {model.width}",
    "depth": lambda model: f"depth {model.depth}",
    "loss": lambda model: str(model.loss),
    "reduction": lambda model: f"{model.reduction} over samples",
    "group": _group,
    "label_smoothing": lambda model: f"label smoothing {model.label_smoothing:g}",
    "label_distribution": _labels,
    "temperature": lambda model: f"temperature {model.temperature:g}",
    "weight_decay": _decay,
}
