"""The command line."""


def run() -> None:
    """`hadaflow` on the command line."""
    from hadaflow.cli.commands import run as answer

    answer()
