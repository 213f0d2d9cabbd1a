"""Random members of the family, and how far a run of one is from an independent reference.

`draw(index)` is a member: model, start, view, and what is asked of the run. `excess(case, rtol)` is the
error of the run over what `rtol` promises: singular values each relative to itself (reduced view) or to
the largest (full view), the end of a run relative in u = log(1 + t), the logarithm of time.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

import hadaflow as hf
from hadaflow.model.fitting import fitted
from hadaflow.model.layers import layer_values
from references import (
    collapse_on_characters,
    factor_field,
    group_psi,
    integrate_factors,
    log_layer_flow,
)

# Every abelian group of 2 to 18 elements.
GROUPS = [
    (2,), (3,), (2, 2), (4,), (5,), (6,), (7,), (8,), (2, 4), (2, 2, 2), (9,), (3, 3), (10,), (11,),
    (12,), (2, 6), (13,), (14,), (15,), (16,), (2, 8), (4, 4), (2, 2, 4), (2, 2, 2, 2), (17,), (18,),
    (3, 6),
]  # fmt: skip
LATEST = 2.5  # log10 of the last time, scaled units
# The matrices are integrated to about this share of their largest singular value on the way.
RESOLUTION = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One member of the family and one question."""

    model: Any
    start: Any
    kind: str  # "times", "norm", "path" or "collapse"
    times: np.ndarray  # scaled
    full: bool
    tolerance: float = 0.0  # of collapse

    def __str__(self) -> str:
        view = "full" if self.full else "reduced"
        return f"{self.kind}, {view}, t = {self.times}, {self.tolerance:.3g}, {self.model}, {self.start}"


def symmetric(q, group):
    """`q` averaged over g and −g."""
    elements = np.indices(group).reshape(len(group), -1)
    other = np.ravel_multi_index(tuple(-elements % np.array(group)[:, None]), group)
    return (q + q[other]) / 2


def draw(index: int) -> Case:
    rng = np.random.default_rng([14, index])
    if rng.random() < 0.2:
        return _collapse(rng)
    group = GROUPS[rng.integers(len(GROUPS))]
    K, depth = math.prod(group), int(rng.integers(1, 5))
    options: dict[str, Any] = {
        "group": group,
        "depth": depth,
        "samples": int(rng.integers(1, 4)),
        "reduction": str(rng.choice(["sum", "mean"])),
        "temperature": 1.0 if rng.random() < 0.5 else float(10 ** rng.uniform(-0.4, 0.4)),
        "weight_decay": _decay(rng, depth),
    }
    if depth > 1 and rng.random() < 0.3:
        options["width"] = K + int(rng.integers(1, 3))
    labels = rng.choice(["hard", "hard", "smooth", "soft"])
    if labels == "smooth":
        options["label_smoothing"] = float(10 ** rng.uniform(-2, -0.3))
    if labels == "soft":
        q = symmetric(rng.dirichlet(np.ones(K)) * 0.5, group)
        q[0] += 0.5
        options["label_distribution"] = tuple(q / q.sum())
    model = hf.UFM(K, **options)
    a = np.exp(rng.uniform(math.log(0.01), math.log(2.0), model.modes))
    C = None
    if depth > 1 and rng.random() < 0.4:
        C = rng.uniform(-0.6, 0.6, (depth - 1, model.modes) if depth > 2 else model.modes)
    full = bool(rng.random() < 0.25)
    kind = "times"
    if not model.settles and not model.penalized and labels == "hard" and not full:
        kind = str(rng.choice(["times", "times", "norm", "path"]))
    times = np.sort(10 ** rng.uniform(-1.5, LATEST, 3))
    return Case(model, hf.spectrum(a, C), kind, times, full)


def _decay(rng, depth):
    """λ per unit of raw time: none, one for all layers, one each, or some of them zero."""
    kind = rng.integers(4)
    if kind < 2:
        return 0.0
    if kind == 2:
        return float(10 ** rng.uniform(-3, -0.3))
    return tuple(float(v) for v in 10 ** rng.uniform(-3, -0.3, depth) * (rng.random(depth) < 0.7))


def _collapse(rng) -> Case:
    group = GROUPS[rng.integers(len(GROUPS))]
    model = hf.UFM(math.prod(group), group=group, samples=int(rng.integers(1, 4)))
    if model.modes == 1:  # collapsed from the start
        return _collapse(rng)
    a = np.exp(rng.uniform(math.log(0.05), math.log(2.0), model.modes))
    tolerance = float(10 ** rng.uniform(-6, -1.5))
    return Case(model, hf.spectrum(a), "collapse", np.zeros(0), False, tolerance)


def excess(case: Case, rtol: float) -> float:
    """Largest error over what is promised: kept if at most 1."""
    if case.kind == "collapse":
        return _of_collapse(case, rtol)
    want, paths = _reference(case)
    if case.kind == "times":
        return _of_times(case, rtol, want)
    return _of_event(case, rtol, want[-1], paths[-1])


@functools.lru_cache(maxsize=4)
def _reference(case: Case):
    """Factors of the matrices at the case's times; the path length of the singular values goes with them.

    The path is carried as one more, 1 × 1, factor.
    """
    model = case.model
    begin = hf.hadamard(model, case.start)
    velocity = factor_field(
        model.classes, model.samples_by_class, labels=model.labels if model.soft_labels else None,
        divisor=model.loss_divisor, temperature=model.temperature, decays=model.decays,
    )  # fmt: skip

    def with_path(parts):
        *factors, _ = parts
        moved = velocity(factors)
        return [*moved, np.full((1, 1), _speed(model, factors, moved))]

    factors = (*begin.factors, np.zeros((1, 1)))
    rows = integrate_factors(with_path, factors, case.times / model.time_scale, rtol=1e-13)
    return [row[:-1] for row in rows], [float(row[-1][0, 0]) for row in rows]


def _speed(model, factors, moved) -> float:
    """Of the scaled singular values; their vectors are frozen."""
    U, V = _vectors(model)
    rate = np.zeros(model.classes)
    for k, part in enumerate(moved):
        Z = functools.reduce(np.matmul, [*factors[:k], part, *factors[k + 1 :]])
        rate += np.einsum("ki,kn,ni->i", U, Z, V)
    return float(np.linalg.norm(rate[1:])) / model.singular_value_scale


def _vectors(model):
    U = model.basis.vectors
    return U, np.repeat(U, model.samples, axis=0) / np.sqrt(model.samples)


def _values(model, factors) -> np.ndarray:
    """Signed scaled singular values of a Hadamard state, one per free mode."""
    U, V = _vectors(model)
    Z = functools.reduce(np.matmul, factors)
    diagonal = np.einsum("ki,kn,ni->i", U, Z, V)[1:]
    return model.basis.fold(diagonal) / model.singular_value_scale


def _of_times(case: Case, rtol: float, want) -> float:
    model = case.model
    start = hf.hadamard(model, case.start, rotation=0) if case.full else case.start
    run = hf.solve(model, start, times=case.times, rtol=rtol, progress=None)
    assert run.status == "reached", f"{run.message} {case}"
    matrices = np.array([np.abs(_values(model, factors)) for factors in want])
    floor = RESOLUTION * max(case.start.a.max(), matrices.max())
    if case.full:
        got = np.array([np.abs(_values(model, run.state(k).factors)) for k in range(1, len(run))])
        scale = matrices.max(axis=1, keepdims=True)
        return float(np.max(np.abs(got - matrices) / (rtol * scale + floor)))
    got, exact = run.a[1:], _log_reference(case)
    if exact is None:
        return float(np.max(np.abs(got - matrices) / (rtol * matrices + floor)))
    assert np.all(np.abs(exact - matrices) <= 1e-10 * exact + 10 * floor)  # the references agree
    return float(np.max(np.abs(got / exact - 1))) / rtol


def changes_sign(case: Case) -> bool:
    """May a mode pass through zero?"""
    return case.model.soft_labels and (case.model.depth == 1 or bool(np.any(case.start.C)))


@functools.lru_cache(maxsize=4)
def _log_reference(case: Case):
    """Singular values (times, modes), however small, to full relative accuracy.

    None if they may change sign.
    """
    model, basis = case.model, case.model.basis
    if changes_sign(case):
        return None
    scaled = fitted(model, case.start)
    raw = scaled.a * model.singular_value_scale, scaled.C * model.difference_scale
    layers = log_layer_flow(
        basis.group, basis.representatives[1:], basis.multiplicity, layer_values(model.depth, *raw),
        case.times / model.time_scale, n=model.samples, temperature=model.temperature,
        q=model.label_probabilities if model.soft_labels else None, decays=model.decays,
        divisor=model.loss_divisor,
    )  # fmt: skip
    return layers.prod(axis=1) / model.singular_value_scale


def _of_event(case: Case, rtol: float, factors, path) -> float:
    """The target is what the reference has at the last time: that time must come out."""
    model, t = case.model, case.times[-1]
    a = _values(model, factors)
    norm = float(np.sum(model.basis.expand(a)))
    until = hf.Norm(norm) if case.kind == "norm" else hf.PathLength(path)
    run = hf.solve(model, case.start, until, rtol=rtol, progress=None)
    assert run.status == "reached", f"{run.message} {case}"
    return abs(math.log1p(run.time[-1]) / math.log1p(t) - 1) / (rtol + 1e-12)


def _of_collapse(case: Case, rtol: float) -> float:
    basis = case.model.basis
    psi = group_psi(basis.group, basis.representatives[1:])
    log_norm, log10_time = collapse_on_characters(
        psi, basis.multiplicity, case.start.a, case.tolerance, 1e-13
    )
    run = hf.solve(case.model, case.start, hf.Collapse(case.tolerance), rtol=rtol, progress=None)
    assert run.status == "collapsed", f"{run.message} {case}"
    u, want = (np.logaddexp(0.0, v * math.log(10)) for v in (run.log10_time[-1], log10_time))
    return max(abs(u / want - 1), abs(run.log_norm[-1] / log_norm - 1)) / rtol
