"""The commands of the theory lab: hunt, certify, rise, atlas, portrait.

JAX and the rest are imported inside the commands, so that `--help` is instant, and so that checking a
certificate needs neither.
"""

import json
import math
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from hadaflow.base.errors import InputError, printable, shown
from hadaflow.base.interruption import asked, exit_code
from hadaflow.cli.answers import complain, say, strict, try_to
from hadaflow.cli.arguments import (
    JsonFlag,
    Unbalanced,
    check_output,
    exact_numbers,
    exact_start,
    exact_unbalanced,
    with_model,
)


class Seek(StrEnum):
    rise = "rise"
    fall = "fall"


MetricArgument = Annotated[
    str, typer.Argument(help="A metric's name, or module:function, a function of a.")
]
Starts = Annotated[int, typer.Option(help="How many to try at most.")]
Seconds = Annotated[
    float, typer.Option(help="How long to search at most; what is found is finished.")
]
Seed = Annotated[int, typer.Option(help="Seed of the search.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("hunt")(with_model(hunt_command))
    app.command("certify")(with_model(certify_command, optional=True))
    app.command("rise")(with_model(rise_command))
    app.command("atlas")(with_model(atlas_command))
    app.command("portrait")(with_model(portrait_command))


def hunt_command(
    metric: MetricArgument,
    model: Any,
    unbalanced: Unbalanced = None,
    seek: Annotated[
        Seek | None,
        typer.Option(help="What refutes the metric [default: rise, but fall for the margin]."),
    ] = None,
    starts: Starts = 2048,
    seconds: Seconds = 60.0,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Write the certificate to this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Search for a state where a metric moves the wrong way along the flow, and certify it."""
    from hadaflow.lab.hunt import hunt

    check_output(out)
    found = hunt(
        metric, model, C=exact_unbalanced(unbalanced), seek=None if seek is None else seek.value,
        starts=starts, seconds=seconds, seed=seed, progress=None if as_json else "auto",
    )  # fmt: skip
    trouble = None if found.certificate is None else try_to(found.certificate.save, out)
    _tell(found, as_json, out if found.certified and trouble is None else None)
    if trouble is not None:
        raise trouble
    if found.interrupted or asked():
        raise typer.Exit(exit_code())


def _tell(result: Any, as_json: bool, *written: Path | None) -> None:
    if as_json:
        say(json.dumps(strict(result.to_document()), allow_nan=False))
        return
    say(str(result))
    for path in written:
        if path is not None:
            say(f"wrote {printable(str(path))}")


def certify_command(
    target: Annotated[
        list[str],
        typer.Argument(help="Certificates to check from scratch; with --classes one metric."),
    ],
    model: Any,
    start: Annotated[
        str | None,
        typer.Option(
            help="The state to certify the metric at: decimals or fractions separated by commas, "
            "taken as written, @FILE, or a named start as in solve [default: one that a hunt finds]."
        ),
    ] = None,
    unbalanced: Unbalanced = None,
    starts: Starts = 2048,
    seconds: Seconds = 60.0,
    seed: Seed = 0,
    most_bits: Annotated[
        int | None, typer.Option(help="Bits of a proof with --start at most [default: 16384].")
    ] = None,
    allow_import: Annotated[
        bool,
        typer.Option(
            "--allow-import",
            help="Run the modules that certificates of metrics of one's own name, if their files are "
            "those that the certificates were made for.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the certificate to this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check certificates from scratch, or with --classes and --start prove the sign of a rate."""
    if model is None:
        given = {"start": start, "unbalanced": unbalanced, "most_bits": most_bits, "out": out}
        for name, value in given.items():
            if value is not None:
                raise InputError(
                    f"Argument `{name}` goes with a metric and --classes, not with files to check."
                )
        _check_files(target, allow_import, seconds, as_json)
        return
    if len(target) != 1:
        raise InputError(f"Give one metric with --classes, but not {len(target)}: {shown(target)}.")
    check_output(out)
    if start is None:
        if most_bits is not None:
            raise InputError("Argument `most_bits` goes with --start.")
        hunt_command(
            target[0], model, unbalanced, None, starts, seconds, seed, out=out, as_json=as_json
        )
        return
    from hadaflow.lab.certify import certify
    from hadaflow.lab.exact.balls import LAST_BITS

    proof = certify(
        target[0], exact_start(start, model), model, C=exact_unbalanced(unbalanced),
        most_bits=LAST_BITS if most_bits is None else most_bits, seconds=seconds,
    )  # fmt: skip
    if out is not None:
        proof.save(out)
    _tell(proof, as_json, out)
    if not proof.sign:
        complain(f"undecided with {proof.bits} bits")
        raise typer.Exit(1)


def _check_files(files: list[str], allow_import: bool, seconds: float, as_json: bool) -> None:
    from hadaflow.lab.certify import recheck
    from hadaflow.lab.exact.exact_problems import model_document

    verdicts = {file: recheck(file, allow_import=allow_import, seconds=seconds) for file in files}
    records = [
        {
            "file": file,
            "holds": verdict.holds,
            "reason": verdict.reason,
            "model": model_document(verdict.certificate.setting),
            "enclosure": verdict.certificate.enclosure,
            "bits": verdict.certificate.bits,
        }
        for file, verdict in verdicts.items()
    ]
    if as_json:
        say(json.dumps(strict(records[0] if len(records) == 1 else records)))
    for record in records:
        if not as_json:
            say(f"{'holds' if record['holds'] else 'FAILS'}  {printable(record['file'])}")
            say(f"  {printable(record['reason'])}")
            say(f"  recomputed: {record['enclosure']} ({record['bits']} bits)")
    failed = [record["file"] for record in records if not record["holds"]]
    if failed:
        complain(f"does not hold: {', '.join(failed)}")
        raise typer.Exit(1)


def rise_command(
    metric: MetricArgument,
    model: Any,
    unbalanced: Unbalanced = None,
    low: Annotated[float, typer.Option(help="Smallest singular value of a start.")] = 1e-4,
    high: Annotated[float, typer.Option(help="Largest singular value of a start.")] = 10.0,
    starts: Starts = 8192,
    seconds: Seconds = 60.0,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Write the trajectory to this NetCDF file.")] = (
        None
    ),
    picture: Annotated[Path | None, typer.Option(help="Draw the trajectory to this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the start with the largest rise of a metric along its trajectory."""
    from hadaflow.lab.rise import worst_rise
    from hadaflow.results.plotting import check_picture

    check_output(out)
    if picture is not None:
        check_picture(picture, "picture")
        check_output(picture)
    found = worst_rise(
        metric, model, C=exact_unbalanced(unbalanced), low=low, high=high, starts=starts,
        seconds=seconds, seed=seed, progress=None if as_json else "auto",
    )  # fmt: skip
    unsaved, undrawn = try_to(found.save, out), try_to(found.plot, picture)
    _tell(found, as_json, None if unsaved else out, None if undrawn else picture)
    if trouble := unsaved or undrawn:
        raise trouble
    if found.interrupted or asked():
        raise typer.Exit(exit_code())


def atlas_command(
    model: Any,
    unbalanced: Unbalanced = None,
    starts: Annotated[
        int, typer.Option(help="Random supports to look at, where there are too many for all.")
    ] = 200,
    seconds: Seconds = 60.0,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Picture of the graph [default: atlas-CLASSES.png; none with --json]."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Supports up to symmetry, their limiting directions, margins and exits, and what leads where."""
    from hadaflow.lab.atlas import atlas
    from hadaflow.results.plotting import check_picture

    if unbalanced is not None and any(Fraction(v) for row in _rows(unbalanced) for v in row):
        raise InputError(
            "Argument `unbalanced` must be zero for an atlas: with differences C a singular value "
            "of zero does not stay zero, so that there are no saddles of low rank."
        )
    if out is None and not as_json:
        out = Path(f"atlas-{_label(model)}.png")
    if out is not None:
        check_picture(out, "out")
        check_output(out)
    found = atlas(
        model, starts=starts, seconds=seconds, seed=seed, progress=None if as_json else "auto"
    )
    trouble = try_to(found.plot, out)
    if as_json:
        say(json.dumps(strict(found.to_document()), allow_nan=False))
    else:
        say(found.table())
    if trouble is not None:
        raise trouble
    if not as_json:
        say(f"wrote {out}")
    if found.interrupted or asked():
        raise typer.Exit(exit_code())


def _label(model: Any) -> str:
    """The group for a file's name, or the number of classes."""
    return "x".join(map(str, model.basis.group)) if model.group else str(model.classes)


def _rows(text: str) -> list[list[str]]:
    return [exact_numbers("unbalanced", row) for row in text.split(";")]


def portrait_command(
    model: Any,
    norm: Annotated[
        str, typer.Option(help="‖a‖₁ in scaled units, or inf for the large-norm limit.")
    ] = "10",
    metric: Annotated[
        str | None, typer.Option(help="Shade where this metric rises; a name or module:function.")
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(help="MODE:SHARE, a mode's fixed share of the norm; all but three modes."),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Title of the picture [default: the model in words].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Picture to write [default: portrait-CLASSES.png].")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw the phase portrait of the direction on the triangle of three modes."""
    from hadaflow.lab.own_metrics import load_metric
    from hadaflow.lab.portrait import portrait

    try:
        size = math.inf if norm.strip() in ("inf", "∞") else float(norm)
        pairs = [(int(mode), float(share)) for mode, share in (v.split(":") for v in fix or [])]
        fixed = dict(pairs)
        if len(fixed) < len(pairs):
            raise ValueError
    except ValueError:
        raise InputError(
            "Arguments `norm` and `fix` must be a number or inf, and MODE:SHARE, each mode once, but are "
            f"{shown(norm)} and {shown(fix)}."
        ) from None
    function: Any = load_metric(metric) if metric is not None and ":" in metric else metric
    target = Path(f"portrait-{_label(model)}.png") if out is None else out
    portrait(model, norm=size, metric=function, fixed=fixed or None, path=target, title=title)
    document = {"picture": str(target), "model": model.to_document()}
    say(json.dumps(strict(document)) if as_json else f"wrote {target}")
