"""Commands that answer with a few numbers of a model: predict-collapse, fixed-point, stability-limit.

JAX and the rest are imported inside the commands, so that `--help` is instant.
"""

import json
import math
from typing import Annotated, Any

import typer

from hadaflow.cli.answers import say, strict
from hadaflow.cli.arguments import JsonFlag, Units, UnitsOption, with_model


def register_numbers(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("predict-collapse")(with_model(predict_command))
    app.command("fixed-point")(with_model(fixed_point_command))
    app.command("stability-limit")(with_model(stability_command))


def predict_command(
    model: Any,
    start: Annotated[
        str, typer.Option(help="The state to foretell from: singular values, as in solve.")
    ],
    tolerance: Annotated[float, typer.Option(help="Of the direction, at collapse.")] = 1e-3,
    units: UnitsOption = Units.scaled,
    as_json: JsonFlag = False,
) -> None:
    """Foretell where collapse happens, from one state of the orbit (`predict_collapse`)."""
    from hadaflow.flow.foretelling import predict_collapse
    from hadaflow.model.named_starts import parse

    anchor = parse(model, start, units=units.value)
    found = predict_collapse(model, anchor, tolerance)
    _tell(
        as_json, model, {"start": start, "units": units.value, "tolerance": tolerance},
        found._asdict(), f"Foretold in the hard-margin limit: max|(K−1)â − 1| = {tolerance:g} at "
        f"log‖a‖₁ = {found.log_norm:.8g} ({units.value} units), "
        f"log10 log10 t = {found.log10_log10_time:.8g}; the direction is uniform from "
        f"log‖a‖₁ = {found.log_norm_uniform:.8g} on.",
    )  # fmt: skip


def fixed_point_command(
    model: Any, units: UnitsOption = Units.scaled, as_json: JsonFlag = False
) -> None:
    """Where the flow with soft labels or penalties settles, one value per free mode."""
    from hadaflow.model.closed_forms import fixed_point

    a = fixed_point(model, units.value)
    text = ",".join(repr(float(v)) for v in a)
    _tell(as_json, model, {"units": units.value}, {"a": a}, text)


def stability_command(
    model: Any,
    momentum: Annotated[float, typer.Option(help="Heavy-ball momentum.")] = 0.0,
    at: Annotated[
        float | None,
        typer.Option(help="With hard labels: mean singular value (scaled) of a collapsed state."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """The learning rate up to which descent is stable (`stability_limit`)."""
    from hadaflow.descent.stability import stability_limit

    limit = stability_limit(model, momentum, at)
    notes = {} if math.isfinite(limit) else {"learning_rate": "infinite (null): any rate is stable"}
    text = f"stable up to a learning rate of {limit:.8g}" if not notes else "stable at any rate"
    _tell(
        as_json, model, {"momentum": momentum, "at": at},
        {"learning_rate": limit, "notes": notes}, text,
    )  # fmt: skip


def _tell(
    as_json: bool, model: Any, asked: dict[str, Any], found: dict[str, Any], text: str
) -> None:
    document = {"model": model.to_document(), **asked, **found}
    say(json.dumps(strict(document), allow_nan=False) if as_json else text)
