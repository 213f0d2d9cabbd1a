"""The command as a process: it can be interrupted from its first moment on."""

import sys

from hadaflow.base.interruption import exit_code, listening


def run() -> None:
    """`hadaflow` on the command line."""
    try:
        with listening():
            from hadaflow.cli.commands import run as answer
    except KeyboardInterrupt:
        print("hadaflow: interrupted", file=sys.stderr)
        sys.exit(exit_code())
    answer()


if __name__ == "__main__":
    run()
