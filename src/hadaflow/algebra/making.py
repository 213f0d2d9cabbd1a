"""Which basis a number of classes has, or a group on them."""

from hadaflow.algebra.bases import AbelianGroup, Basis, Sylvester, cyclic
from hadaflow.algebra.transforms import LARGEST
from hadaflow.base.errors import InputError, shown


def make_basis(classes: int, group: tuple[int, ...] | None) -> Basis:
    """The basis of a model: Sylvester for a power of two, else cyclic, unless a group is named."""
    if classes < 2 or classes > LARGEST:
        raise InputError(f"Argument `classes` must be from 2 to 2^24, but is {shown(classes)}.")
    if group is None and classes & (classes - 1):
        return cyclic(classes)
    if group is None or all(n == 2 for n in group):
        return Sylvester(classes)
    return AbelianGroup(group)
