"""The command line: arguments to one library call.

JAX and the rest are imported inside the commands, so that `--help` is instant.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from hadaflow.base.cache import cache_of_commands
from hadaflow.base.errors import InputError, no_device, printable, shown
from hadaflow.base.interruption import asked, exit_code, listening, stop_listening
from hadaflow.cli.answers import (
    claim_lines,
    complain,
    drop_output,
    finish,
    replace_closed_streams,
    say,
    strict,
    try_to,
)
from hadaflow.cli.arguments import (
    JsonFlag,
    Metrics,
    Optimizer,
    Reduction,
    SummaryFlag,
    Units,
    UnitsOption,
    check_output,
    check_summary,
    parse_numbers,
    with_model,
)
from hadaflow.cli.cache_commands import register as register_cache
from hadaflow.cli.lab_commands import register
from hadaflow.cli.number_commands import register_numbers
from hadaflow.cli.starting import ViewOption, with_start

app = typer.Typer(
    name="hadaflow",
    help="A laboratory for cross-entropy training dynamics.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


_LONG_NAME = 100  # letters of a picture's name
_TRAIN_METRICS = ("loss", "kl", "l2", "alignment_w", "alignment_h", "alignment_z", "residual")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"hadaflow {version('hadaflow')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command("solve")
@with_model
@with_start
def solve_command(
    model: Any,
    begin: Any,
    until: Annotated[
        str | None,
        typer.Option(
            help="time:T, log10time:X, collapse[:TOL], predicted-collapse[:TOL], norm:X, path:X or "
            "steady[:TOL] [default: collapse:1e-6, or steady:1e-8 where the flow settles]"
        ),
    ] = None,
    times: Annotated[str | None, typer.Option(help="Keep the states at these times.")] = None,
    log10_times: Annotated[
        str | None, typer.Option(help="Keep the states at these times, given by their log10.")
    ] = None,
    units: UnitsOption = Units.scaled,
    metric: Metrics = None,
    rtol: Annotated[float, typer.Option(help="Global relative error.")] = 1e-8,
    points: Annotated[
        int | None,
        typer.Option(help="Number of saved points [default: 200, fewer for many classes]."),
    ] = None,
    method: Annotated[str, typer.Option(help="auto, tsit5, dopri8, kvaerno5 or dual.")] = "auto",
    geometry: Annotated[
        str, typer.Option(help="Of steepest descent: euclidean, sign or spectral.")
    ] = "euclidean",
    decay: Annotated[
        float, typer.Option(help="Decoupled decay in the sign or spectral geometry.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Write the trajectory to this NetCDF file.")] = (
        None
    ),
    only_estimate: Annotated[
        bool, typer.Option("--estimate", help="Say method, memory and time, and stop.")
    ] = False,
    summary: SummaryFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Follow the gradient flow: of singular values (--start), many at once, or of matrices (--init)."""
    from hadaflow.cli.documents import solve_document, summary_document
    from hadaflow.flow.estimates import estimate
    from hadaflow.flow.solver import solve
    from hadaflow.metrics.measures import check_metric

    check_summary(summary, as_json)
    for name in metric or []:
        check_metric(name, begin.view, model)
    state = begin.of_solve(model, units.value)
    check_output(out, run=True)
    asked: dict[str, Any] = {
        "until": until,
        "times": None if times is None else parse_numbers("times", times),
        "log10_times": None if log10_times is None else parse_numbers("log10-times", log10_times),
        "units": units.value,
        "points": points,
        "rtol": rtol,
        "method": method,
        "geometry": geometry,
        "decay": decay,
    }
    if only_estimate:
        found = estimate(model, state, **asked)
        say(json.dumps(strict(dataclasses.asdict(found))) if as_json else str(found))
        return
    run = solve(model, state, **asked, progress=None if as_json else "auto")
    run.settings.update(begin.said(model, state))
    finish(run, summary_document if summary else solve_document, metric or [], out, as_json)


@app.command("train")
@with_model
@with_start
def train_command(
    model: Any,
    begin: Any,
    steps: Annotated[int, typer.Option(help="Iterations, at most.")],
    optimizer: Optimizer = None,
    lr: Annotated[
        str | None,
        typer.Option(
            help="Learning rate; several, separated by commas, are runs side by side [default: that of "
            "--optimizer, or 0.01]."
        ),
    ] = None,
    momentum: Annotated[
        float, typer.Option(help="Heavy-ball momentum, of gradient descent.")
    ] = 0.0,
    decay: Annotated[
        float | None,
        typer.Option(help="Decoupled weight decay of the optimizer [default: the optimizer's]."),
    ] = None,
    view: ViewOption = None,
    until: Annotated[
        str | None,
        typer.Option(help="Stop at the first iteration that meets it: collapse[:TOL] or norm:X."),
    ] = None,
    points: Annotated[int, typer.Option(help="About how many iterations to keep.")] = 100,
    units: UnitsOption = Units.scaled,
    metric: Metrics = None,
    out: Annotated[Path | None, typer.Option(help="Write the trajectories to this file.")] = None,
    summary: SummaryFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train, by descent or another optimizer: matrices (--init), many seeds at once, or singular values
    (--start).
    """
    from hadaflow.cli.documents import summary_document, train_document
    from hadaflow.descent.descend import descend
    from hadaflow.descent.optimizers import named
    from hadaflow.metrics.measures import applies, check_metric

    check_summary(summary, as_json)
    rates = parse_numbers("lr", "0.01" if lr is None else lr)
    rate: Any = rates if len(rates) != 1 else rates[0]
    chosen: Any = {"optimizer": rate, "momentum": momentum}
    if optimizer is not None:
        named.check_once(optimizer, None if lr is None else rate, decay)
        chosen |= {"optimizer": named.parse(optimizer, rate, decay)}
    elif decay is not None:
        chosen = {"optimizer": named.sgd(rate, momentum or None, weight_decay=decay)}
    begin = begin.seen(view).for_train(len(rates) > 1)
    names = metric or [name for name in _TRAIN_METRICS if applies(name, begin.view, model)]
    for name in names:
        check_metric(name, begin.view, model)
    check_output(out, run=True)
    state = begin.of_train(model, units.value)
    run = descend(
        model, state, steps, **chosen, until=until, rotation=begin.lift, points=points,
        units=units.value, progress=None if as_json else "auto",
    )  # fmt: skip
    run.settings.update(begin.said(model, state))
    finish(run, summary_document if summary else train_document, names, out, as_json)


@app.command("race")
@with_model
@with_start
def race_command(
    model: Any,
    begin: Any,
    optimizer: Annotated[
        list[str],
        typer.Option(
            help="An optimizer such as adam:0.01 or lion:0.001:weight_decay=0; once for each."
        ),
    ],
    lr: Annotated[
        float, typer.Option(help="Learning rate of those that are spelled without one.")
    ] = 0.01,
    view: ViewOption = None,
    until: Annotated[
        str | None, typer.Option(help="Where each stops: collapse[:TOL], norm:X or never.")
    ] = "collapse:0.001",
    steps: Annotated[int, typer.Option(help="Iterations, at most.")] = 200_000,
    points: Annotated[int, typer.Option(help="About how many iterations to keep.")] = 200,
    units: UnitsOption = Units.scaled,
    plot: Annotated[Path | None, typer.Option(help="Picture to write.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Several optimizers from one start: which of them collapses when."""
    from hadaflow.cli.documents import race_document
    from hadaflow.descent.optimizers import named
    from hadaflow.descent.race import check_different, race
    from hadaflow.results.plotting import check_picture

    if plot is not None:
        check_picture(plot)
        check_output(plot)
    state = begin.seen(view).of_race(model, units.value)
    check_different(optimizer)
    runners = {text: named.parse(text, lr) for text in optimizer}
    found = race(
        model, state, runners, None if until == "never" else until, steps, rotation=begin.lift,
        points=points, units=units.value, progress=None if as_json else "auto",
    )  # fmt: skip
    trouble = try_to(lambda path: found.plot(path) and None, plot)
    say(json.dumps(strict(race_document(found)), allow_nan=False) if as_json else str(found))
    if trouble is not None:
        raise trouble
    if plot is not None and not as_json:
        say(f"wrote {plot}")
    statuses = {run.status for run in found.runs.values()}
    if "interrupted" in statuses or asked():
        raise typer.Exit(exit_code())
    if "failed" in statuses:
        raise typer.Exit(1)


@app.command("show")
def show_command(
    file: Annotated[Path, typer.Argument(help="A trajectory file.")],
    metric: Metrics = None,
    summary: SummaryFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Describe a saved trajectory."""
    from hadaflow.cli.documents import document_of
    from hadaflow.metrics.measures import check_metric
    from hadaflow.results.batch import load

    check_summary(summary, as_json)
    run = load(file)
    for name in metric or []:
        check_metric(name, run.view, run.model)
    finish(run, document_of(run, summary), metric or [], None, as_json)


@app.command("plot")
def plot_command(
    files: Annotated[list[Path], typer.Argument(help="A trajectory file, or several to compare.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="What to draw: a, a_hat or a metric; may be repeated [default: a, a_hat, "
                     "kl and l2; of several files kl and l2]."),
    ] = None,
    x: Annotated[
        str,
        typer.Option(help="The axis: log10_time, log_norm, log10_log10_time, time, path_length, "
                     "log10_iteration, iteration, or auto, on which the whole story shows."),
    ] = "auto",
    spread: Annotated[
        str,
        typer.Option(help="The runs of a batch: quantiles, 'standard error' or all [default: by "
                     "whether they have their own times]."),
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Picture to write [default: named after the files].")
    ] = None,
    as_json: JsonFlag = False,
) -> None:  # fmt: skip
    """Draw a saved trajectory, or compare several in one picture."""
    from hadaflow.results.batch import load
    from hadaflow.results.compare import compare
    from hadaflow.results.plotting import check_picture

    for file in files:
        if not file.name:
            raise InputError(f"Cannot read a run from {shown(str(file))}: it is a folder.")
    target = _picture_of(files) if out is None else out
    if target.resolve() in [file.resolve() for file in files]:
        raise InputError(
            f"The picture would overwrite {shown(str(target))}: give another name with --out."
        )
    check_picture(target, "out")
    if len(files) == 1:
        load(files[0]).plot(target, metrics=metric or None, x=x, spread=spread)
    else:
        runs = {name: load(file) for name, file in zip(_names(files), files, strict=True)}
        compare(runs, metric or None, x=x, spread=spread, path=target)
    say(json.dumps(strict({"picture": str(target)})) if as_json else f"wrote {target}")


def _picture_of(files: list[Path]) -> Path:
    """Beside the first file and named after all of them, or after the first where that is long."""
    name = "-".join(file.stem for file in files)
    if len(name) > _LONG_NAME:
        name = f"{files[0].stem[:_LONG_NAME]}-and-{len(files) - 1}-more"
    return files[0].with_name(f"{name}.png" if len(files) > 1 else f"{files[0].stem}.png")


def _names(files: list[Path]) -> list[str]:
    """What files are called in a legend: without folders, unless two would be called alike."""
    short = [file.stem for file in files]
    names = short if len(set(short)) == len(short) else [str(file) for file in files]
    if len(set(names)) < len(names):
        raise InputError("Argument `files` must name each file once.")
    return [printable(name, 40) for name in names]


@app.command("resume")
def resume_command(
    file: Annotated[Path, typer.Argument(help="A trajectory file of an interrupted run.")],
    metric: Metrics = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the whole run [default: the same file].")
    ] = None,
    as_json: JsonFlag = False,
    summary: SummaryFlag = False,
) -> None:
    """Go on with a run that was interrupted, from where it was."""
    from hadaflow.cli.documents import document_of
    from hadaflow.descent.resuming import resume
    from hadaflow.metrics.measures import check_metric
    from hadaflow.results.batch import load

    check_summary(summary, as_json)
    before = load(file)
    for name in metric or []:
        check_metric(name, before.view, before.model)
    check_output(out or file, run=True)
    run = resume(before, progress=None if as_json else "auto")
    if run is before and not as_json:
        say("nothing is left to do: the run has ended")
    written = out or (None if run is before else file)
    finish(run, document_of(run, summary), metric or [], written, as_json)


@app.command("reproduce")
def reproduce_command(
    figures: Annotated[list[str] | None, typer.Argument(help="Figures [default: all].")] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("out"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Adaptive solutions of the flow instead of descent.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Draw finished figures again.")] = False,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 10,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    steps: Annotated[int, typer.Option(help="Iterations of descent.")] = 10**6,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.01,
    classes: Annotated[int | None, typer.Option(help="Classes [default: the figure's].")] = None,
    width: Annotated[int | None, typer.Option(help="Width [default: the figure's].")] = None,
    scale: Annotated[
        float | None, typer.Option(help="Deviation of an entry [default: the figure's].")
    ] = None,
    reduction: Annotated[Reduction, typer.Option(help="Loss over samples: sum or mean.")] = (
        Reduction.sum
    ),
    order: Annotated[
        str, typer.Option(help="Order of matched values: descending, ascending or a seed.")
    ] = "descending",
    as_json: JsonFlag = False,
) -> None:
    """Draw the paper's figures, with their data and a report page."""
    from hadaflow.paper.figures import FIGURES
    from hadaflow.paper.reproduce import check_names, failed_checks, reproduce
    from hadaflow.paper.settings import Settings

    names = check_names(figures)
    settings = Settings(
        seeds=seeds, seed=seed, steps=steps, learning_rate=lr, reduction=reduction.value, quick=quick,
        order=int(order) if order.isascii() and order.isdigit() else order, classes=classes,
        width=width, scale=scale,
    )  # fmt: skip
    try:
        records = reproduce(names, out, settings, fresh=fresh, progress=not as_json)
    except KeyboardInterrupt:
        complain("interrupted; finished figures are kept, and the next run continues with the rest")
        raise typer.Exit(exit_code()) from None
    failed = {r["name"]: failed_checks(r) for r in records}
    if as_json:
        say(json.dumps(strict({"report": str(out / "report.html"), "figures": records})))
    else:
        for record in records:
            wrong = failed[record["name"]]
            verdict = (
                f"FAILS: {'; '.join(wrong)}" if wrong else f"{len(record['checks'])} checks hold"
            )
            say(f"{record['name']:<18} {record['seconds']:6.1f} s  {verdict}")
        say(f"report: {out / 'report.html'}")
    broken = [f"{n}: {c}" for n in names if FIGURES[n].as_in_paper(settings) for c in failed[n]]
    if broken:
        complain(f"checks fail at the settings of the paper: {'; '.join(broken)}")
        raise typer.Exit(1)


@app.command("verify")
def verify_command(
    claims: Annotated[list[str] | None, typer.Argument(help="Claims by ID [default: all].")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write claims.json and claims.html to this folder.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check claims of the paper and beyond: certified, holds, corrected or fails as stated."""
    from hadaflow.paper.claims_page import check_folder, write_claims
    from hadaflow.paper.verify import check_ids, unexpected, verify

    ids = check_ids(claims)
    if out is not None:
        check_folder(out)
    found, interrupted = verify(ids, progress=not as_json)
    records = strict(found)
    folder = out if records else None
    trouble = try_to(lambda path: write_claims(path, records), folder)
    if as_json:
        say(json.dumps(records, allow_nan=False))
    else:
        for record in records:
            say("\n".join(claim_lines(record)))
        count = Counter(record["status"] for record in records)
        say("; ".join(f"{number} {status}" for status, number in count.most_common()))
    if trouble is not None:
        raise trouble
    if folder is not None and not as_json:
        say(f"page: {folder / 'claims.html'}")
    if interrupted:
        complain("interrupted; the claims above are those that were finished")
        raise typer.Exit(exit_code())
    if wrong := unexpected(records):
        complain(f"not as expected: {'; '.join(wrong)}")
        raise typer.Exit(1)


register_numbers(app)
register(app)
register_cache(app)

# Typer brings its own copy of click, or uses the installed one, depending on its version.
_CommandLineError: Any = typer.BadParameter.__mro__[2]
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EIO)
_ASKED_BY_SHELL = "_HADAFLOW_COMPLETE"  # set by what --install-completion writes
_READER_GONE = 128 + 13  # what the shell says of a program that SIGPIPE ended


def main() -> None:
    """Entry point: input errors are one line on stderr and exit code 2, without a traceback."""
    with listening():
        code = _answer()
    sys.exit(code)


def _answer() -> int:
    """Carry out what the command line asks for; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that knows only ASCII still gets an answer
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore
    # Notices about matplotlib's folders and fonts are not for those who asked for a picture.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        with cache_of_commands():
            return _carry_out(sys.argv[1:] or ["--help"])
    except BrokenPipeError:
        drop_output()
        return _READER_GONE
    except (InputError, _CommandLineError, OSError) as error:
        complain(_in_words(error))
        drop_output()
        return 2
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return exit_code()
    except Exception as error:
        if asked():  # an interruption that something in between has made into another error
            complain("interrupted")
            return exit_code()
        if (told := no_device(error)) is None:
            raise
        complain(told)
        return 2


def _in_words(error: Any) -> str:
    if isinstance(error, _CommandLineError):
        return printable(error.format_message(), 300)  # pyright: ignore
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        return f"Cannot write to standard output: {error.strerror}."
    return str(error)


def _carry_out(arguments: list[str]) -> int:
    command: Any = typer.main.get_command(app)
    if os.environ.get(_ASKED_BY_SHELL):
        command.main(prog_name="hadaflow")  # prints what could stand here, and exits
    try:
        with command.make_context("hadaflow", arguments) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
    return 0


def run() -> None:
    """`main` as a process of its own, which ends at once when its work is done.

    JAX's threads, torn down with the interpreter after an interruption, can crash it.
    """
    replace_closed_streams()
    folder = os.environ.get("MPLCONFIGDIR")
    with listening():
        code = _answer()
        stop_listening()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        if (made := os.environ.get("MPLCONFIGDIR")) not in (None, folder):
            shutil.rmtree(str(made), ignore_errors=True)  # matplotlib's, had it been asked
        if "jax" in sys.modules:
            os._exit(code)
        sys.exit(code)
