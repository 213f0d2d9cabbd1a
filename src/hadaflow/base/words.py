"""Counts and groups in words."""

from collections.abc import Sequence


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number of things, in the grammar of counts.

    Examples:
        >>> counted(1, "sample"), counted(3, "sample"), counted(0, "class", "classes")
        ('1 sample', '3 samples', '0 classes')
    """
    return f"{number} {one if number == 1 else several or one + 's'}"


def group_name(orders: Sequence[int]) -> str:
    """The abelian group with cyclic factors of these orders."""
    return " × ".join(f"Z_{n}" for n in orders)


def lasting(seconds: float) -> str:
    """A time that is left, in as few digits as an estimate has.

    Examples:
        >>> lasting(0.3), lasting(3.2), lasting(47.0), lasting(200.0), lasting(8000.0)
        ('a moment', '3 s', '45 s', '3 min', '2.2 h')
    """
    if seconds < 1:
        return "a moment"
    if seconds < 90:
        return f"{round(seconds) if seconds < 10 else 5 * round(seconds / 5)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
