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
