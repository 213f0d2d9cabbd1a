"""The report: one HTML page with everything in it, readable offline and on a phone."""

import base64
import html
from pathlib import Path
from typing import Any

from hadaflow.base.files import write_atomically
from hadaflow.paper.figures import FIGURES

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --ok: #1a7f37; --bad: #b3261e; }
body { font: 16px/1.55 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 62rem; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
img { width: 100%; height: auto; background: #fff; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
td, th { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.ok { color: var(--ok); } .bad { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; } details { margin: .6rem 0; } summary { cursor: pointer; }
.corrected { color: #9a6700; } pre { white-space: pre-wrap; margin: .3rem 0; font-size: .85rem; }
.where { color: #888; font-weight: normal; font-size: 1rem; }
nav a { display: inline-block; margin: 0 .8rem .3rem 0; }
"""

PAPER = (
    "<i>Diagonalizing the Softmax: Hadamard Initialization for Tractable Cross-Entropy Dynamics</i> "
    "(Garrod, Keating, Thrampoulidis, arXiv:2512.04006)"
)

_READINGS = """
<p>Where the paper leaves a choice, these are ours. <b>Scale:</b> an entry of W and H has total
standard deviation e<sup>−δ</sup>/√K (δ = 6, or 0 for the standard scale). <b>Loss:</b> summed over
samples as in Eq. (1); the burn-in times quoted for K = 8 and for δ = 0 fit an averaged loss, which
stretches time by K: the figure <a href="#readings">readings</a> shows both. <b>Hadamard start:</b>
D<sub>W</sub> = D<sub>H</sub> = √σ(Z) with rotation R = I and the trivial mode zero. <b>Order:</b> the
largest singular value goes to the first non-trivial column (descending); from K = 8 on the outcome
depends on it, because the flow is invariant under GL(m, 2) only. <b>KL of Random:</b> from the
largest K − 1 singular values. <b>Residual:</b> with U normalized; with the printed U it would be
K² − 1 for a Hadamard start instead of 0. <b>Width d &gt; K:</b> the deviation stays
e<sup>−δ</sup>/√K.</p>
"""


def write_report(folder: Path, records: list[dict[str, Any]]) -> Path:
    """`report.html` from the records of the figures and their pictures."""
    sections = "\n".join(_section(folder, record) for record in records)
    links = " ".join(f'<a href="#{r["name"]}">{r["name"]}</a>' for r in records)
    failed = [r["name"] for r in records for c in r["checks"] if not c["holds"]]
    count = sum(len(r["checks"]) for r in records)
    verdict = (
        f'<p class="ok">All {count} checks hold.</p>'
        if not failed
        else f'<p class="bad">Checks fail in: {", ".join(dict.fromkeys(failed))}.</p>'
    )
    versions = ", ".join(f"{k} {v}" for k, v in records[0]["versions"].items()) if records else ""
    claims = (
        '<p>The <a href="claims.html">claims of the paper</a>, checked.</p>'
        if (folder / "claims.html").exists()
        else ""
    )
    body = f"""<h1>Diagonalizing the Softmax, reproduced</h1>
<p>The figures of {PAPER}, computed by hadaflow. Each stands with its settings, what its numbers were
checked for, and where we differ from the paper.</p>
{verdict}{claims}<nav>{links}</nav>
<h2>Readings</h2>{_READINGS}
{sections}
<h2>Made with</h2><p>{html.escape(versions)}</p>"""
    return write_page(folder / "report.html", "hadaflow: the paper reproduced", body)


def write_page(path: Path, title: str, body: str) -> Path:
    """One HTML page with its style inside, written whole or not at all."""
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{_STYLE}</style></head><body>
{body}
</body></html>
"""
    write_atomically(path, lambda tmp: Path(tmp).write_text(page, encoding="utf-8"))
    return path


def _section(folder: Path, record: dict[str, Any]) -> str:
    figure = FIGURES[record["name"]]
    picture = base64.b64encode((folder / f"{figure.name}.png").read_bytes()).decode()
    rows = "".join(_check_row(c) for c in record["checks"])
    shown = {k: v for k, v in record["settings"].items() if v is not None}
    if shown.pop("quick"):
        shown = {"quick": "adaptive solutions of the flow instead of descent"} | shown
    settings = "".join(
        f"<tr><td>{html.escape(k)}</td><td>{html.escape(str(v))}</td></tr>"
        for k, v in shown.items()
    )
    files = " · ".join(html.escape(f) for f in record["files"])
    title = html.escape(figure.title)
    return f"""<h2 id="{figure.name}">{title} <span class="where">{html.escape(figure.where)}</span></h2>
<img alt="{title}" src="data:image/png;base64,{picture}">
<p>{html.escape(figure.caption)}</p>
<p><b>Where we differ.</b> {html.escape(figure.differs)}</p>
<div class="scroll"><table><tr><th>check</th><th>value</th><th></th></tr>{rows}</table></div>
<details><summary>settings and files ({record["seconds"]:.1f} s)</summary>
<table>{settings}</table><p>{files}</p></details>"""


def _check_row(check: dict[str, Any]) -> str:
    mark = '<td class="ok">holds</td>' if check["holds"] else '<td class="bad">fails</td>'
    value = f'<td class="number">{check["value"]:.6g}</td>'
    return f"<tr><td>{html.escape(check['statement'])}</td>{value}{mark}</tr>"
