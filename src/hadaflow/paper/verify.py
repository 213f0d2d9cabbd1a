"""`verify`: check claims by name on every core, and tell which do not come out as expected."""

import traceback
from typing import Any

from hadaflow.base.errors import InputError, meant, no_device, shown
from hadaflow.base.workers import group, run_all
from hadaflow.paper import claims as _registered  # noqa: F401 (importing registers the claims)
from hadaflow.paper.claim import CLAIMS, FAILS, Finding

# Claims that share a computation go to one worker together, the rest in pieces of this size.
_PIECE = 8


def check_ids(ids: list[str] | None) -> list[str]:
    """The claims asked for, all of them if none is named."""
    for id in ids or []:
        if id not in CLAIMS:
            nearest = meant(id, CLAIMS)
            allowed = ", ".join(CLAIMS)
            raise InputError(f"Unknown claim {shown(id)}{nearest}; allowed are {allowed}.")
    return list(dict.fromkeys(ids or CLAIMS))


def verify(
    ids: list[str] | None = None, *, workers: int = 2, progress: bool = True
) -> tuple[list[dict[str, Any]], bool]:
    """Check the claims; returns a record for each that was finished, and whether it was interrupted."""
    ids = check_ids(ids)
    found: dict[str, dict[str, Any]] = {}
    interrupted = False
    try:
        if len(ids) == 1:
            found[ids[0]] = check(ids[0])
        else:
            run_all(
                group(ids, lambda id: CLAIMS[id].shares, _PIECE), _check, workers=workers,
                progress=progress, finished=found.__setitem__, cost=lambda id: CLAIMS[id].seconds,
            )  # fmt: skip
    except KeyboardInterrupt:
        interrupted = True
    return [found[id] for id in ids if id in found], interrupted


def check(id: str) -> dict[str, Any]:
    """The record of one claim. A check that breaks down counts as failed, with the reason."""
    claim = CLAIMS[id]
    try:
        found = claim.check()
    except Exception as error:
        if (told := no_device(error)) is not None:
            raise InputError(told) from error
        frame = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error} ({frame.name}, line {frame.lineno})"
        found = Finding(FAILS, {"error": told})
    return claim.record(found)


def unexpected(records: list[dict[str, Any]]) -> list[str]:
    """What to say of each claim whose status is not the one recorded for it."""
    return [
        f"{r['id']} (expected {CLAIMS[r['id']].expected}, is {r['status']})"
        for r in records
        if r["status"] != CLAIMS[r["id"]].expected
    ]


def _check(id: str, report: Any) -> dict[str, Any]:
    return check(id)
