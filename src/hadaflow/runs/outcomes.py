"""How an integration ended, and where it was on the way."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class Outcome:
    """How an integration ended: "done", "event", "gave up", "stuck" or "interrupted"."""

    ending: str
    us: np.ndarray
    ys: Any
    accepted: int = 0
    rejected: int = 0
    reason: str = ""
