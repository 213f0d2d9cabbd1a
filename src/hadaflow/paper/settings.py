"""How the paper's experiments are run, and what a user may change about it."""

import dataclasses
from typing import Any

from hadaflow.base.checks import check_positive, check_whole_number
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
        for name, least in (("seeds", 1), ("steps", 1), ("points", 1), ("seed", 0)):
            checked = check_whole_number(name, getattr(self, name), least=least)
            object.__setattr__(self, name, checked)
        object.__setattr__(
            self, "learning_rate", check_positive("learning_rate", self.learning_rate)
        )
        if self.scale is not None:
            object.__setattr__(self, "scale", check_positive("scale", self.scale))
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
