"""How the paper's experiments are run, and what a user may change about it."""

import dataclasses
import math
from typing import Any

from hadaflow.base.errors import InputError, shown


@dataclasses.dataclass(frozen=True)
class Settings:
    """The paper's setup (Section 6), each part of which can be changed.

    `classes`, `width` and `scale` are None where the figure's own value holds. The scale is the
    total standard deviation of an entry of W and H, e^{−δ}/√K in the paper.
    """

    seeds: int = 10
    seed: int = 0
    steps: int = 10**6
    learning_rate: float = 0.01
    points: int = 100
    reduction: str = "sum"
    order: str | int = "descending"
    quick: bool = False
    classes: int | None = None
    width: int | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "points"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(
                    f"Argument `{name}` must be a whole number of at least 1, but is {shown(value)}."
                )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise InputError(
                f"Argument `seed` must be a whole number of at least 0, but is {shown(self.seed)}."
            )
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(
                f"Argument `learning_rate` must be a positive number, but is {shown(self.learning_rate)}."
            )
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(
                f"Argument `scale` must be a positive number, but is {shown(self.scale)}."
            )

        if self.order not in ("descending", "ascending") and not isinstance(self.order, int):
            raise InputError(
                'Argument `order` must be "descending", "ascending" or a seed, '
                f"but is {shown(self.order)}."
            )

    @property
    def all_seeds(self) -> range:
        """The seeds of the runs, one after the other from `seed` on."""
        return range(self.seed, self.seed + self.seeds)

    def record(self) -> dict[str, Any]:
        """As plain data, to be written beside a figure and compared by the next run."""
        return dataclasses.asdict(self)

    def plain(self) -> dict[str, Any]:
        """The same as attributes of a NetCDF file, which knows neither None nor booleans."""
        return {
            k: ("none" if v is None else int(v) if isinstance(v, bool) else v)
            for k, v in self.record().items()
        }
