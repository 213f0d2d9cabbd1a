"""What a claim is: a statement of the paper, how it is checked, and what came of it."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

CERTIFIED, HOLDS, CORRECTED, FAILS = "certified", "holds", "corrected", "fails as stated"
STATUSES = (CERTIFIED, HOLDS, CORRECTED, FAILS)


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of a check: its status, the numbers behind it, and a rigorous enclosure if any."""

    status: str
    value: Any
    enclosure: Any = None


def finding(
    value: Any,
    *,
    printed: bool,
    corrected: bool | None = None,
    certified: bool = False,
    enclosure: Any = None,
) -> Finding:
    """The status that follows from the evidence.

    Args:
        value: The numbers found.
        printed: Does the statement hold as the paper prints it?
        corrected: Does its corrected form hold? None where the paper needs no correction.
        certified: Is what holds proven by ball arithmetic or exact integers?
        enclosure: The proof's ball, or a dictionary of them.
    """
    if printed and corrected is not False:
        status = CERTIFIED if certified else HOLDS
    else:
        status = CORRECTED if corrected else FAILS
    return Finding(status, value, enclosure)


def larger(worst: float, error: Any) -> float:
    """The larger of two errors; NaN counts as infinite, where Python's `max` may drop it."""
    number = float(error)
    return math.inf if math.isnan(number) else max(worst, number)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper with its check.

    The check is a function whose keyword arguments are the ingredients of the statement: formulas,
    matrices, data. Their defaults are the true ones; the tests replace one at a time and see the
    status change.
    """

    id: str
    where: str
    statement: str
    method: str
    expected: str
    paper_value: Any
    correction: str | None
    check: Callable[..., Finding]
    shares: str | None  # claims that share an expensive computation are checked in one process
    seconds: float  # about how long the check takes, for an estimate of the rest

    def record(self, found: Finding) -> dict[str, Any]:
        """The claim as plain data, as `hadaflow verify --json` prints it."""
        return {
            "id": self.id,
            "where": self.where,
            "statement": self.statement,
            "status": found.status,
            "method": self.method,
            "value": found.value,
            "paper_value": self.paper_value,
            "enclosure": found.enclosure,
            "correction": self.correction,
        }


CLAIMS: dict[str, Claim] = {}


def claim(
    where: str,
    statement: str,
    method: str,
    expected: str = HOLDS,
    *,
    paper_value: Any = None,
    correction: str | None = None,
    shares: str | None = None,
    seconds: float = 0.2,
) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
    """Register a check under its own name, dashes for underscores."""
    assert expected in STATUSES
    assert expected != CORRECTED or correction

    def register(check: Callable[..., Finding]) -> Callable[..., Finding]:
        id = re.sub("_", "-", check.__name__)
        CLAIMS[id] = Claim(
            id, where, statement, method, expected, paper_value, correction, check, shares, seconds
        )
        return check

    return register
