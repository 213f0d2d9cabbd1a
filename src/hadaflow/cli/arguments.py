"""Options of the command line, and how their text is read.

JAX and the rest are imported inside the functions, so that `--help` is instant.
"""

import inspect
import math
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hadaflow.base.errors import InputError, shown
from hadaflow.base.files import read_text_file
from hadaflow.model.losses import LOSSES, CrossEntropy, spelling

_NO_RUNS = (".png", ".pdf", ".svg", ".jpg", ".txt", ".csv", ".json", ".html", ".npy", ".npz")
_DIGITS, _EXACT_DIGITS = 128, 4096  # bytes that one number of a file may take


class Units(StrEnum):
    scaled = "scaled"
    raw = "raw"


class Reduction(StrEnum):
    sum = "sum"
    mean = "mean"


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
SummaryFlag = Annotated[
    bool,
    typer.Option("--summary", help="With --json: ends and statistics instead of arrays."),
]
UnitsOption = Annotated[Units, typer.Option(help="Units of everything given and printed.")]
Classes = Annotated[int, typer.Option(help="Number of classes K.")]
Samples = Annotated[int, typer.Option(help="Samples per class n.")]
Smoothing = Annotated[float, typer.Option(help="Share of a label spread over all classes.")]
Temperature = Annotated[float, typer.Option(help="Logits are divided by it before the softmax.")]
Labels = Annotated[
    Path | None,
    typer.Option(help="File of soft labels: the probability of each class for class 1, K numbers."),
]
Decay = Annotated[
    str | None,
    typer.Option(help="L2 penalty: one number, or one for each layer (W,H) separated by commas."),
]
Group = Annotated[
    str | None,
    typer.Option(
        help="Abelian group on the classes, such as 10 or 2x4; with --imbalance one for each block, "
        "such as 4,2x2 [default: 2x2x… for a power of two, else cyclic]."
    ),
]
Depth = Annotated[int, typer.Option(help="Factors of the logits: 2 is Z = WH, 1 is Z itself.")]
Imbalance = Annotated[
    str | None,
    typer.Option(
        help="Blocks of classes x samples instead of --samples, such as 4x5,4x1: four classes of "
        "five samples, four of one."
    ),
]
Unbalanced = Annotated[
    str | None,
    typer.Option(
        help="Differences C of the squared layer singular values: one number, or one for each value "
        "of the start; beyond depth 2 one row for all layers, or rows for the layers 2, 3, … separated "
        "by semicolons."
    ),
]
LossOption = Annotated[
    str,
    typer.Option(
        help=f"Loss: {', '.join(spelling(kind) for kind in LOSSES.values())}.",
        autocompletion=lambda incomplete: [name for name in LOSSES if name.startswith(incomplete)],
    ),
]
Width = Annotated[int | None, typer.Option(help="Feature dimension [default: classes].")]
ReductionOption = Annotated[Reduction, typer.Option(help="Loss over samples: sum or mean.")]
Optimizer = Annotated[
    str | None,
    typer.Option(
        help="sgd, momentum, nesterov, normalized, sign, lion, rmsprop, adagrad, adam, adamw, nadam, "
        "amsgrad, adan, novograd, muon, spectral or shampoo, with hyperparameters as in adam:b1=0.8 "
        "[default: gradient descent]."
    ),
]
Metrics = Annotated[
    list[str] | None, typer.Option("--metric", help="A metric to report; may be repeated.")
]


def _model_options(
    classes: Classes,
    samples: Samples = 1,
    group: Group = None,
    depth: Depth = 2,
    loss: LossOption = CrossEntropy.name,
    label_smoothing: Smoothing = 0.0,
    labels: Labels = None,
    temperature: Temperature = 1.0,
    weight_decay: Decay = None,
    imbalance: Imbalance = None,
    width: Width = None,
    reduction: ReductionOption = Reduction.sum,
) -> Any:
    """The model that the options of a command describe, the textual ones read."""
    from hadaflow.model.ufm import UFM

    blocks: Any = parse_imbalance(imbalance)
    return UFM(
        classes=classes, samples=samples, width=width, depth=depth, loss=loss,
        reduction=reduction.value, group=parse_group(group, blocks is not None),
        label_smoothing=label_smoothing, label_distribution=parse_labels(labels, classes),
        temperature=temperature, weight_decay=parse_decay(weight_decay), imbalance=blocks,
    )  # fmt: skip


def with_model(command: Callable[..., None], optional: bool = False) -> Callable[..., None]:
    """`command` with the model's options in place of its argument `model`.

    Optional: without --classes the model is None, and no other of its options may be given.
    """
    shared = list(inspect.signature(_model_options).parameters.values())
    if optional:
        shared[0] = shared[0].replace(default=None, annotation=_or_none(shared[0].annotation))

    def make(**options: Any) -> Any:
        if options["classes"] is not None:
            return _model_options(**options)
        changed = [p.name for p in shared[1:] if options[p.name] != p.default]
        if changed:
            raise InputError(
                f"Argument `{changed[0]}` describes a model and needs `classes` given, too."
            )
        return None

    return with_options(command, "model", shared, make)


def with_options(
    command: Callable[..., None], name: str, options: list[inspect.Parameter],
    make: Callable[..., Any],
) -> Callable[..., None]:  # fmt: skip
    """`command` with `options` in place of its argument `name`, which `make` makes of them."""
    shared = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in options]
    own = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in inspect.signature(command).parameters.values()
        if p.name != name
    ]

    def wrapper(**given: Any) -> None:
        made = make(**{p.name: given.pop(p.name) for p in shared})
        command(**{name: made}, **given)

    # Those without a default first, as a signature must have them.
    merged = sorted([*shared, *own], key=lambda p: p.default is not inspect.Parameter.empty)
    wrapper.__signature__ = inspect.Signature(merged)  # pyright: ignore[reportFunctionMemberAccess]
    wrapper.__annotations__ = {p.name: p.annotation for p in merged}
    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
    return wrapper


def _or_none(annotation: Any) -> Any:
    """`Classes` that may be left out."""
    return Annotated[int | None, *annotation.__metadata__]


def parse_group(text: str | None, blocks: bool = False) -> Any:
    if text is None:
        return None
    try:
        groups = [tuple(int(n) for n in part.split("x")) for part in _blocks_of(text)]
    except ValueError:
        raise InputError(
            f"Argument `group` must be orders of cyclic groups such as 10 or 2x4, but is {shown(text)}."
        ) from None
    if blocks:
        return tuple(groups)
    if len(groups) > 1:
        raise InputError(
            "Argument `group` must be one group, such as 2x4, unless --imbalance is given, "
            f"but is {shown(text)}."
        )
    return groups[0]


def parse_imbalance(text: str | None) -> tuple[tuple[int, ...], ...] | None:
    if text is None:
        return None
    try:
        return tuple(tuple(int(n) for n in part.split("x")) for part in _blocks_of(text))
    except ValueError:
        raise InputError(
            "Argument `imbalance` must be blocks of classes x samples such as 4x5,4x1, "
            f"but is {shown(text)}."
        ) from None


def _blocks_of(text: str) -> list[str]:
    return text.replace("×", "x").split(",")


def parse_unbalanced(text: str | None) -> Any:
    """Differences C: one number, one for each mode, or rows of them for deeper models."""
    if text is None:
        return None
    rows = [parse_numbers("unbalanced", row) for row in text.split(";")]
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        raise InputError(
            "Argument `unbalanced` must have rows of one length, one number or more, but is "
            f"{shown(text)}."
        )
    if len(rows) > 1:
        return rows
    return rows[0][0] if len(rows[0]) == 1 else rows[0]


def parse_labels(path: Path | None, classes: int) -> tuple[float, ...] | None:
    if path is None:
        return None
    return tuple(parse_numbers("labels", _read("labels", path, classes)))


def parse_decay(text: str | None) -> float | tuple[float, ...]:
    values = [0.0] if text is None else parse_numbers("weight_decay", text)
    return values[0] if len(values) == 1 else tuple(values)


def _read(name: str, path: Path, count: int, digits: int = _DIGITS) -> str:
    """A file of so many numbers, or about as many."""
    return read_text_file(f"the {name}", path, digits * (max(0, min(count, 2**24)) + 64))


def parse_numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise InputError(
            f"Argument `{name}` must be numbers separated by commas, but is {shown(text)}."
        ) from None


def exact_numbers(name: str, text: str) -> list[str]:
    """Decimals or fractions as written, for what is to be exact."""
    from fractions import Fraction

    parts = text.replace(",", " ").split()
    for part in parts:
        try:
            # The exponent is looked at first: 1e-999999999 is a long way to a fraction.
            _, _, exponent = part[:4001].lower().partition("e")
            if len(part) > 4000 or abs(int(exponent or 0)) > 4000:
                raise ValueError
            number = float(part) if exponent else Fraction(part)
            if not abs(number) < math.inf:
                raise ValueError
        except (ValueError, ZeroDivisionError, OverflowError):
            raise InputError(
                f"Argument `{name}` must be decimals or fractions separated by commas, of ordinary size "
                f"and at most 4000 characters each, but has {shown(part)}."
            ) from None
    return parts


def exact_start(text: str, model: Any) -> list[str]:
    """Singular values as written; those of a named start, as their floats print."""
    from hadaflow.model.named_starts import is_named, parse

    if is_named(text):
        return [repr(float(v)) for v in parse(model, text).a]
    if text.startswith("@"):
        text = _read("start", Path(text[1:]), model.modes, _EXACT_DIGITS)
    return exact_numbers("start", text)


def exact_unbalanced(text: str | None) -> Any:
    """`parse_unbalanced`, the numbers as written."""
    if text is None:
        return None
    parse_unbalanced(text)  # refuses what is no number, and rows of different length
    rows = [exact_numbers("unbalanced", row) for row in text.split(";")]
    if len(rows) > 1:
        return rows
    return rows[0][0] if len(rows[0]) == 1 else rows[0]


def check_summary(summary: bool, as_json: bool) -> None:
    """Refuse --summary where arrays are not printed anyway."""
    if summary and not as_json:
        raise InputError("Argument `summary` goes with --json alone: text has no arrays.")


def check_output(out: Path | None, run: bool = False) -> None:
    """Refuse before the work what would fail after it, and for a `run` names of other kinds of files."""
    from hadaflow.base.files import check_writable

    if out is not None:
        if run and out.suffix.lower() in _NO_RUNS:
            raise InputError(
                f"Argument `out` must be the name of a NetCDF file, such as {out.stem[:40]}.nc, but is "
                f"{shown(str(out))}."
            )
        check_writable(out)
