"""`hadaflow cache`: what is kept of compiled programs, and `hadaflow cache clear`."""

import json
from typing import Any

import typer

from hadaflow.base.cache import VARIABLE, Cache, default_folder, switched_off, used_cache
from hadaflow.base.errors import InputError, printable
from hadaflow.cli.answers import say
from hadaflow.cli.arguments import JsonFlag

_app = typer.Typer(
    invoke_without_command=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None,
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(
        _app, name="cache", help="Compiled programs kept for the next run: where, how many."
    )


@_app.callback()
def cache_command(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Compiled programs kept for the next run: where, how many."""
    if context.invoked_subcommand is not None:
        return
    cache = _cache()
    sizes = [found.st_size for _, found in cache.entries()]
    told: dict[str, Any] = {
        "folder": str(cache.folder), "used": cache.is_trusted and not switched_off(),
        "programs": len(sizes), "bytes": sum(sizes), "most_bytes": cache.most_bytes,
    }  # fmt: skip
    if as_json:
        say(json.dumps(told))
        return
    say(f"folder    {printable(str(cache.folder), 300)}")
    say(
        f"programs  {len(sizes)}, {_megabytes(sum(sizes))} of at most {_megabytes(cache.most_bytes)}"
    )
    if switched_off():
        say(f"not used: {VARIABLE} is off")
    elif not cache.is_trusted:
        say("not used: the folder is somebody else's, or others may write to it")


@_app.command("clear")
def clear_command(as_json: JsonFlag = False) -> None:
    """Remove them all; what is needed again is compiled again."""
    count, size = _cache().clear()
    if as_json:
        say(json.dumps({"removed": count, "bytes": size}))
    else:
        say(f"removed {count} program{'' if count == 1 else 's'}, {_megabytes(size)}")


def _cache() -> Cache:
    """The cache of commands, also where it is switched off."""
    if (used := used_cache()) is not None:
        return used
    if (folder := default_folder()) is None:
        raise InputError(f"There is no home folder to keep programs in: name one by {VARIABLE}.")
    return Cache(folder.absolute())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
