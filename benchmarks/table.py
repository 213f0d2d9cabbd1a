"""The table of the benchmarks: its rows, printed, on a page of the docs, and as a picture."""

import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hadaflow.results.plotting import canvas, house_style

Row = dict[str, Any]
COLUMNS = ("what", "hadaflow", "rival", "its time", "ratio", "target", "")
MARKS = ("<!-- table -->", "<!-- end of table -->")
# Each with a contrast of at least 3 to white; markers tell them apart as well.
HUES = "#1f77b4 #cc5f00 #2ca02c #d62728 #9467bd #8c564b #c2508f #7a7a00".split()
# As the page has them; on a terminal they stay plain.
FORMULAS = [
    (r"log‖a‖₁ = ([\d.]+)", r"$\\log\\lVert a\\rVert_1 = \1$"),
    (r"\b([Kn]) = (\d+)", r"$\1 = \2$"),
    (r"\bt = 1e(\d+)", r"$t = 10^{\1}$"),
    ("Ψ", r"$\\Psi$"),
    ("1 − p", "$1 - p$"),
]


def row(
    what: str, ours: float, rival: str, theirs: float | None, target: float | None = None,
    note: str = "", **more: Any,
) -> Row:  # fmt: skip
    ratio = None if theirs is None else theirs / ours
    return {
        "what": what, "ours": ours, "rival": rival, "theirs": theirs, "ratio": ratio,
        "target": target, "note": note,
    } | more  # fmt: skip


def shown(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def cells(r: Row) -> list[str]:
    target = "" if r["target"] is None else f"≥ {r['target']:.3g}"
    ratio = "—" if r["ratio"] is None else f"{r['ratio']:.3g}×"
    return [r["what"], shown(r["ours"]), r["rival"], shown(r["theirs"]), ratio, target, r["note"]]


def print_table(rows: list[Row], console: Console) -> None:
    table = Table(*COLUMNS)
    for r in rows:
        table.add_row(*cells(r))
    console.print(table)


def write_page(rows: list[Row], where: str, path: Path) -> None:
    """The table as Markdown, between the marks of a page."""
    head = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    body = [typeset(" | ".join(cells(r))) for r in rows]
    lines = [f"| {line} |" for line in (*head, *body)]
    text = path.read_text()
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    path.write_text(
        "\n".join([before + MARKS[0], "", where + ".", "", *lines, "", MARKS[1] + after])
    )


def typeset(text: str) -> str:
    for plain, formula in FORMULAS:
        text = re.sub(plain, formula, text)
    return text


def draw(rows: list[Row], path: str) -> None:
    """Cost against K of the orbits to collapse; failures stand at the upper edge."""
    orbits = [r for r in rows if "classes" in r]
    with house_style():
        figure, axis = canvas(1, 1, (9, 5))
        for i, name in enumerate(dict.fromkeys(r["rival"] for r in orbits)):
            mine = [r for r in orbits if r["rival"] == name]
            done = [(r["classes"], r["theirs"]) for r in mine if r["theirs"] is not None]
            failed = [r["classes"] for r in mine if r["theirs"] is None]
            style = {"color": HUES[i - 1] if i else "black", "marker": "osv^D<>Pp"[i], "ms": 5}
            axis.plot(*(zip(*done, strict=True) if done else ([], [])), lw=1 if i else 2.5,
                      label=name, **style)  # fmt: skip
            axis.plot([K * 1.09 ** (i - 4) for K in failed], [200] * len(failed), ls="", **style)
        axis.axhline(200, color="0.8", lw=0.8, zorder=0)
        axis.text(2**3, 280, "collapse not reached", color="0.4", fontsize=8)
        axis.set(yscale="log", xlabel="classes K", ylabel="seconds", ylim=(5e-4, 600),
                 title="a U start to collapse, max|(K−1)â − 1| = 1e-3, rtol 1e-4")  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, dpi=130, bbox_inches="tight")
