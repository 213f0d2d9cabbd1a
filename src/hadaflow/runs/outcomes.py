"""How an integration ended, and where it was on the way."""

import dataclasses
import enum
from typing import Any, NamedTuple

import numpy as np


class Ending(enum.Enum):
    """Why an integration went no further."""

    DONE = "all requested times were reached"
    EVENT = "the target was reached"
    NEVER = "the target was proven to be out of reach for ever"
    REST = "the flow has come to rest"
    GIVEN_UP = "the target is too far away"
    STUCK = "steps became too small"
    INTERRUPTED = "somebody asked to stop"


class Stop(NamedTuple):
    """An ending before the end, and its reason in words."""

    ending: Ending
    reason: str = ""


@dataclasses.dataclass
class Outcome:
    """How an integration ended, and its states on the way."""

    ending: Ending
    us: np.ndarray
    ys: Any
    accepted: int = 0
    rejected: int = 0
    reason: str = ""
    # By how much the relative error of log(1 + t) at an event exceeds that of what is watched.
    sensitivity: float = 0.0

    @property
    def last(self) -> float:
        """Where it ended, in u."""
        return float(self.us[-1]) if len(self.us) else 0.0
