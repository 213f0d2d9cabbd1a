r"""Symmetries of the flow: the automorphisms of the class group, acting on the free modes.

An automorphism $\varphi$ of the characters sends $a_h$ to $a_{\varphi(h)}$ and permutes the margins by
its dual, because $\Psi$ depends on a character and an element through their pairing alone. So the flow
commutes with it. For Sylvester the group is $GL(m, 2)$.
"""

import functools
import math

import numpy as np

from hadaflow.algebra.bases import Basis, Sylvester
from hadaflow.base.errors import InputError

# Up to here all permutations are listed to find the canonical one.
_LISTED = 20_000


def generators(basis: Basis) -> list[np.ndarray]:
    r"""Permutations of the free modes that generate the action of $\mathrm{Aut}(G)$.

    `a[perm]` is the transformed state. A transvection and the cyclic shift of bits generate
    $GL(m, 2)$. For other groups: units of each cyclic factor, and for each pair of factors
    $e_i \to e_i + (n_j/\gcd(n_i, n_j))\,e_j$. Their powers act on each p-part alone, and there, over a
    local ring, Gaussian elimination writes every automorphism as a product of such.

    Examples:
        >>> from hadaflow.algebra.bases import AbelianGroup
        >>> [len(generators(b)) for b in (Sylvester(8), AbelianGroup((4, 4)))]
        [2, 3]
    """
    if isinstance(basis, Sylvester):
        modes, bits = np.arange(1, basis.classes), basis.classes.bit_length() - 1
        shift = (modes << 1 | modes >> (bits - 1)) & (basis.classes - 1)
        images = [modes ^ (modes >> 1 & 1), shift] if bits > 1 else []
        return [image - 1 for image in images]
    number = class_numbers(basis)
    elements = np.array(np.unravel_index(basis.representatives[1:], basis.group))
    found: dict[bytes, np.ndarray] = {np.arange(basis.modes).tobytes(): np.arange(0)}
    for matrix in _elementary(basis.group):
        image = matrix @ elements % np.array(basis.group)[:, None]
        perm = number[np.ravel_multi_index(tuple(image), basis.group)] - 1
        found.setdefault(perm.tobytes(), perm)
    return list(found.values())[1:]  # the first is the identity


def class_numbers(basis: Basis) -> np.ndarray:
    """For every element of the group the free mode (from 1) it belongs to; 0 for the trivial one."""
    firsts = basis.representatives
    number = np.empty(basis.classes, dtype=int)
    elements = np.array(np.unravel_index(firsts, basis.group))
    opposite = tuple(-elements % np.array(basis.group)[:, None])
    number[firsts] = np.arange(len(firsts))
    number[np.ravel_multi_index(opposite, basis.group)] = np.arange(len(firsts))
    return number


def _elementary(orders: tuple[int, ...]) -> list[np.ndarray]:
    """Integer matrices, acting on columns of coordinates, that generate the automorphisms."""
    matrices = []
    for i, n in enumerate(orders):
        for unit in _unit_generators(n):
            matrices.append(np.eye(len(orders), dtype=int))
            matrices[-1][i, i] = unit
        for j, other in enumerate(orders):
            if i != j and math.gcd(n, other) > 1:
                matrices.append(np.eye(len(orders), dtype=int))
                matrices[-1][j, i] = other // math.gcd(n, other)
    return matrices


def _unit_generators(n: int) -> list[int]:
    """Numbers that generate the units modulo n."""
    chosen, reached = [], {1}
    for unit in range(2, n):
        if math.gcd(unit, n) > 1 or unit in reached:
            continue
        chosen.append(unit)
        coset = reached
        while not (coset := {unit * r % n for r in coset}) <= reached:
            reached = reached | coset
    return chosen


def canonical_order(basis: Basis, a: np.ndarray) -> np.ndarray:
    r"""A symmetry that puts large values first: `a[perm]` is the representative of the orbit of a.

    Sylvester: the largest mode, the next largest, then each next largest outside the span of those
    before it go to modes 1, 2, 4, …. Other groups: the lexicographically largest `a[perm]`, if the
    symmetries are at most 20000, else the order as it is. Among equal values the first is taken, so
    for Sylvester states with ties the representative may depend on where in the orbit they started.
    """
    a = np.asarray(a, dtype=float)
    if a.shape != (basis.modes,):
        raise InputError(
            f"Argument `a` must be one state of {basis.modes} free modes, but has shape {a.shape}."
        )
    if isinstance(basis, Sylvester):
        return _greedy_frame(basis.classes, a)
    listed = _all_symmetries(basis)
    if listed is None:
        return np.arange(basis.modes)
    for mode in range(basis.modes):
        values = a[listed[:, mode]]
        listed = listed[values == values.max()]
    return listed[0].copy()


def _greedy_frame(classes: int, a: np.ndarray) -> np.ndarray:
    """Images of all modes under the linear map that takes 1, 2, 4, … to the greedy basis of `a`."""
    image, inside = np.zeros(1, dtype=int), np.zeros(classes, dtype=bool)
    inside[0] = True
    for mode in np.argsort(-a, kind="stable") + 1:
        if inside[mode]:
            continue
        image = np.concatenate([image, image ^ mode])
        inside[image] = True
        if len(image) == classes:
            break
    return image[1:] - 1


@functools.lru_cache(maxsize=16)
def _all_symmetries(basis: Basis) -> np.ndarray | None:
    """All permutations, one a row, the identity first; None if there are too many."""
    moves = generators(basis)
    identity = np.arange(basis.modes)
    seen, fresh = {identity.tobytes(): identity}, [identity]
    while fresh:
        after = [p[q] for p in fresh for q in moves]
        fresh = []
        for perm in after:
            if seen.setdefault(perm.tobytes(), perm) is perm:
                fresh.append(perm)
        if len(seen) > _LISTED:
            return None
    return np.array(list(seen.values()))
