"""How long a proof takes, and whether there is time for it."""

import time

from hadaflow.base.checks import check_seconds
from hadaflow.base.errors import InputError
from hadaflow.lab.exact.ball_flow import Setting

# Measured on an ordinary machine, in seconds: one product of balls, per bit of it, and the bookkeeping
# of one entry of Ψ.
_PRODUCT, _PER_BIT, _ENTRY = 1.5e-7, 8e-10, 1e-5


def expected_seconds(setting: Setting, unbalanced: bool, bits: int) -> float:
    """Roughly the time of one evaluation of the flow and a metric."""
    entries, layers = setting.modes**2, setting.modes * setting.depth**2
    if unbalanced and setting.depth > 2:
        layers *= 60 + bits.bit_length()  # steps of Newton for the layers' singular values
    return (4 * entries + layers) * (_PRODUCT + _PER_BIT * bits) + _ENTRY * entries


class Stopwatch:
    """Refuses to begin what does not end within the time that is left."""

    def __init__(self, seconds: float | None, setting: Setting, unbalanced: bool) -> None:
        self.seconds = None if seconds is None else check_seconds(seconds)
        self.setting, self.unbalanced = setting, unbalanced
        self.began = time.monotonic()

    def begin(self, bits: int) -> None:
        """Called before each evaluation with so many bits."""
        if self.seconds is None:
            return
        left = self.seconds - (time.monotonic() - self.began)
        wanted = expected_seconds(self.setting, self.unbalanced, bits)
        if left <= 0 or wanted > left:
            raise InputError(
                f"Not decided: `seconds` = {self.seconds:g} does not leave time for {bits} bits, which "
                f"take about {max(wanted, 0.001):.2g} seconds for {self.setting.classes} classes at "
                f"depth {self.setting.depth}; allow more."
            )
