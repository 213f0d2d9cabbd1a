"""Certificates of the results page, and its table: `python docs/hooks/results.py` makes both anew.

Counterexamples of the paper and of its extension are certified as printed; those of the hunter are
what `hadaflow hunt` finds with the seed given.
"""

import json
import math
import sys
from pathlib import Path

import hadaflow as hf

DOCS = Path(__file__).parents[1]
FOLDER, PAGE = DOCS / "certificates", DOCS / "counterexamples.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"

SIXTEEN = "5.01 0.99 2 5 1 5 1 2 1 5 3 5 1 5 1".split()
V, W = ([*"1 1 1 1.25".split(), *[small] * 3] for small in ("0.01", "0.0001"))

# metric, group, state as printed, where
PRINTED = [
    ("l2", (2,) * 3, V, "Theorem 4"),
    *(("l2", (2,) * m, [*V, *["0.000001"] * (2**m - 8)], "Theorem 4, embedded") for m in (4, 5, 6)),
    ("reverse_kl", (2,) * 3, W, "Appendix B.3"),
    ("frobenius", (2,) * 3, W, "Appendix B.3"),
    ("log_ratio", (2,) * 4, SIXTEEN, "Appendix B.3"),
    *(
        ("log_ratio", (2,) * m, [*SIXTEEN, *["1"] * (2**m - 16)], "Appendix B.3, extended")
        for m in (5, 6)
    ),
    ("l2", (6,), "0.01 1 1.2".split(), "by hand"),
    ("l2", (7,), "1.2 0.01 1".split(), "by hand"),
    ("l2", (8,), "0.01 1.4 1 0.01".split(), "by hand"),
    ("l2", (2, 4), "0.01 1 1.25 1 0.01".split(), "by hand"),
    ("l2", (9,), "1.5 0.01 0.01 1".split(), "by hand"),
    ("l2", (10,), "0.01 1 0.01 1 1.5".split(), "by hand"),
    ("reverse_kl", (6,), "0.001 1 1.25".split(), "by hand"),
    ("log_ratio", (10,), "2 0.1 0.1 2.01 0.09".split(), "by hand"),
    ("log_ratio", (12,), "2.01 0.1 0.1 0.1 2 0.09".split(), "by hand"),
]

# metric, group, depth, differences
HUNTED = [
    ("l2", (2,) * 3, 2, None),
    ("reverse_kl", (2,) * 3, 2, None),
    ("frobenius", (2,) * 3, 2, None),
    ("collapse_deviation", (2,) * 3, 2, None),
    *(("log_ratio", (2,) * m, 2, None) for m in (4, 5, 6)),
    *(("l2", (n,), 2, None) for n in (6, 7, 8, 9, 10, 11, 12, 13, 16)),
    *(("l2", g, 2, None) for g in ((2, 4), (2, 6), (4, 4), (2, 8))),
    *(("reverse_kl", (n,), 2, None) for n in (6, 7, 10)),
    *(("log_ratio", g, 2, None) for g in ((8,), (10,), (12,), (2, 6), (16,), (4, 4), (2, 8))),
    ("kl", (2, 2), 2, ("0", "1", "2")),
    ("alignment_w", (2, 2), 2, ("0", "1", "2")),
    *(("kl", (2,) * m, depth, None) for m, depth in ((2, 3), (3, 3), (2, 4))),
]


def model_of(group, depth=2):
    return hf.UFM(math.prod(group), group=group, depth=depth)


def file_of(metric, group, depth, C, source):
    name = f"{metric}-z{'x'.join(map(str, group))}"
    if set(group) == {2}:
        name = f"{metric}-k{2 ** len(group)}"
    if depth != 2:
        name += f"-depth{depth}"
    return FOLDER / f"{name}{'-differences' if C else ''}-{source}.json"


def make() -> None:
    FOLDER.mkdir(exist_ok=True)
    for metric, group, a, where in PRINTED:
        path = file_of(metric, group, 2, None, "paper" if "by" not in where else "hand")
        hf.certify(metric, a, model_of(group)).save(path)
    for metric, group, depth, C in HUNTED:
        found = hf.hunt(metric, model_of(group, depth), C=C, progress=None)
        print(f"{found.seconds:6.1f} s  {found.message} {found.certificate.enclosure}", flush=True)
        found.certificate.save(file_of(metric, group, depth, C, "hunt"))


def short(values: list[str]) -> str:
    """A state on one line: long runs of equal entries are counted."""
    parts, i = [], 0
    while i < len(values):
        count = next((k for k, v in enumerate(values[i:]) if v != values[i]), len(values) - i)
        parts += [f"{values[i]} ×{count}"] if count > 4 else values[i : i + count]
        i += count
    return ", ".join(parts)


def row(path: Path) -> str:
    document = json.loads(path.read_text())
    problem = document["problem"]
    group = problem["group"]
    name = f"K = {problem['classes']}"
    if set(group) != {2}:
        name = r"\times ".join(f"Z_{{{n}}}" for n in group)
    name = f"${name}$"
    extra = "" if problem["depth"] == 2 else f", depth {problem['depth']}"
    if document["C"] is not None:
        extra += f", $C = ({', '.join(document['C'][0])})$"
    source = {"paper": "paper", "hand": "by hand", "hunt": "hunter"}[path.stem.rsplit("-", 1)[1]]
    link = f"[{path.stem}](certificates/{path.name})"
    return (
        f"| `{document['metric']}` | {name}{extra} | {short(document['a'])} | "
        f"{document['enclosure']} | {source} | {link} |"
    )


def write_table() -> None:
    order = (
        "l2",
        "reverse_kl",
        "frobenius",
        "collapse_deviation",
        "log_ratio",
        "kl",
        "alignment_w",
    )
    files = sorted(
        FOLDER.glob("*.json"), key=lambda p: (len(json.loads(p.read_text())["a"]), p.name)
    )
    files.sort(key=lambda p: order.index(json.loads(p.read_text())["metric"]))
    head = "| metric | flow | $a$ (scaled) | $dm/dt$ | from | certificate |"
    table = "\n".join([head, "| --- " * 6 + "|", *map(row, files)])
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    if "--table" not in sys.argv:
        make()
    write_table()
