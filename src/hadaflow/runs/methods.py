"""The methods of integration by name, and the choice of one."""

import dataclasses

DUAL = "dual"  # of the orbit alone: see `flow.dual`
METHODS = ("tsit5", "dopri8", "kvaerno5", DUAL)
AUTO_METHOD, STIFF_METHOD = "tsit5", "kvaerno5"
IMPLICIT = ("kvaerno5",)  # with dense systems to solve


@dataclasses.dataclass(frozen=True)
class Choice:
    """A method, why it was taken, and whether the caller insists on it."""

    method: str
    reason: str
    forced: bool = False
