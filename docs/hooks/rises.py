"""What rises for which loss: `python docs/hooks/rises.py` hunts every cell and writes the table.

A cell is a loss, a metric and a group: one hunt, one line of `docs/rises.jsonl`. What is there is not
hunted again, unless with more starts, so that Ctrl-C costs one cell; `--table` writes the table of what
is there. Depth 2, balanced layers, hard labels, seed 0. Where the hunter finds nothing, states that it
found for other losses are tried at many norms.
"""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hadaflow as hf

DOCS = Path(__file__).parents[1]
FILE, PAGE = DOCS / "rises.jsonl", DOCS / "losses-and-optimizers.md"
BEGIN, END = "<!-- rises: begin -->", "<!-- rises: end -->"

# Functions of the probability have the orbit of cross-entropy. For mse every metric provably falls.
LOSSES = (
    "cross_entropy", "brier", "pairwise_logistic", "hinge", "squared_hinge", "one_vs_rest",
    "siglip:10:-10",
)  # fmt: skip
METRICS = ("l2", "reverse_kl", "frobenius", "collapse_deviation", "log_ratio", "kl")
GROUPS = ((6,), (7,), (2, 2, 2), (2, 4), (9,), (2, 2, 2, 2), (2, 2))
PROVEN_METRIC, PROVEN_GROUP = "kl", (2, 2)
EXAMPLE = "l2", (6,)
STARTS, SECONDS = {"kl": 10_000, "collapse_deviation": 10_000}, 600.0
_FEW = 2048

Cell = dict[str, Any]


def starts_of(metric: str) -> int:
    return STARTS.get(metric, _FEW)


def model_of(loss: str, group: tuple[int, ...]) -> hf.UFM:
    return hf.UFM(math.prod(group), group=group, loss=loss)


def cells() -> dict[tuple[Any, ...], Cell]:
    """What has been hunted, by loss, metric and group; of a cell the last line counts."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    found = map(json.loads, lines)
    return {(c["loss"], c["metric"], tuple(c["group"])): c for c in found}


def wanted() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    return ((loss, metric, g) for metric in METRICS for g in GROUPS for loss in LOSSES)


def make() -> None:
    """Hunt what is missing, each cell written as soon as it is known."""
    known = cells()
    missing = [cell for cell in wanted() if not _is_done(known.get(cell), starts_of(cell[1]))]
    for i, (loss, metric, group) in enumerate(missing, start=1):
        found = hf.hunt(
            metric, model_of(loss, group), starts=starts_of(metric), seconds=SECONDS, progress=None
        )
        if found.interrupted:
            sys.exit(130)
        proof = found.certificate or borrowed(loss, metric, group, known)
        cell = known[loss, metric, group] = {
            "loss": loss,
            "metric": metric,
            "group": group,
            "starts": found.starts,
            "a": None if proof is None else proof.to_document()["a"],
            "enclosure": None if proof is None else proof.enclosure,
        }
        with FILE.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        told = proof.statement if proof else f"{metric}, {loss}, {group}: not found"
        print(f"{i}/{len(missing)} {found.seconds:5.1f} s  {told}", flush=True)


def borrowed(
    loss: str, metric: str, group: tuple[int, ...], known: dict[tuple[Any, ...], Cell]
) -> hf.Certificate | None:
    """A proof at a state that was found for another loss, at the norm where it rises fastest."""
    model = model_of(loss, group)
    others = [c["a"] for (_, m, g), c in known.items() if (m, g) == (metric, group) and c["a"]]
    if not others or model.has_constant_mode:
        return None
    shapes = np.array([a[-model.modes :] for a in others], dtype=float)
    norms = np.geomspace(0.1, 100.0, 200)
    states = (norms[:, None, None] * shapes / shapes.sum(axis=1, keepdims=True)).reshape(
        -1, model.modes
    )
    best = states[np.nanargmax(hf.rate(metric, model, states))]
    proof = hf.certify(metric, [f"{v:.2g}" for v in best], model)
    return proof if proof.sign > 0 else None


def _is_done(cell: Cell | None, starts: int) -> bool:
    return cell is not None and (cell["a"] is not None or cell["starts"] >= starts)


def name_of(group: tuple[int, ...]) -> str:
    if set(group) == {2}:
        return f"$Z_2^{len(group)}$"
    product = r"\times ".join(f"Z_{n}" for n in group)
    return f"${product}$"


def _where(rising: list[tuple[int, ...]], hunted: list[tuple[int, ...]]) -> str:
    """The groups on which a metric rises: those, or all but a few."""
    missed = [g for g in hunted if g not in rising]
    if not rising:
        return "—"
    if len(missed) > len(rising):
        return ", ".join(map(name_of, rising))
    return "all" if not missed else f"all but {', '.join(map(name_of, missed))}"


def table(known: dict[tuple[Any, ...], Cell]) -> str:
    metrics = [m for m in METRICS if m != PROVEN_METRIC]
    metric, group = EXAMPLE
    head = ["loss", *(f"`{m}`" for m in metrics), f"`{metric}` on {name_of(group)} at", "rises by"]
    rows = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for loss in LOSSES:
        row = [f"`{loss}`"]
        for metric in metrics:
            hunted = [g for g in GROUPS if g != PROVEN_GROUP and (loss, metric, g) in known]
            row.append(_where([g for g in hunted if known[loss, metric, g]["a"]], hunted))
        example = known[(loss, *EXAMPLE)]
        row += [", ".join(example["a"]), example["enclosure"]]
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def write_table() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(cells())}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    if "--table" not in sys.argv:
        make()
    write_table()
