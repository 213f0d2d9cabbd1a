"""The claims as a file for programs and a page for readers."""

import html
import json
from collections import Counter
from pathlib import Path
from typing import Any

from hadaflow.base.errors import InputError, shown
from hadaflow.base.files import check_writable, locked, write_atomically
from hadaflow.paper.claim import CERTIFIED, CLAIMS, CORRECTED, FAILS, HOLDS
from hadaflow.paper.report import PAPER, write_page
from hadaflow.results.trajectory import package_versions

_CLASS = {CERTIFIED: "ok", HOLDS: "ok", CORRECTED: "corrected", FAILS: "bad"}


def check_folder(folder: Path) -> None:
    """Refuse before the work a folder that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write to {shown(str(folder))}: {error.strerror}.") from error
    for name in ("claims.json", "claims.html"):
        check_writable(folder / name)


def write_claims(folder: Path, records: list[dict[str, Any]]) -> Path:
    """`claims.json` and `claims.html` in `folder`; returns the page.

    Claims that are there from an earlier run of this version stay, unless they were checked again.
    """
    with locked(folder):  # another run may be adding its claims
        known = {r["id"]: r for r in [*_earlier(folder), *records]}
        return _write([known[id] for id in CLAIMS if id in known], folder)


def _write(records: list[dict[str, Any]], folder: Path) -> Path:
    document = {"version": package_versions()["hadaflow"], "claims": records}
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    write_atomically(
        folder / "claims.json", lambda tmp: Path(tmp).write_text(text, encoding="utf-8")
    )
    count = Counter(r["status"] for r in records)
    summary = ", ".join(f"{n} {status}" for status, n in count.most_common())
    sections = "\n".join(_section(r) for r in records)
    body = f"""<h1>The claims, checked</h1>
<p>The statements of {PAPER}, and some beyond it: {summary}.</p>
<p><b>certified</b>: proven by exact integers or ball arithmetic. <b>holds</b>: in every case tried.
<b>corrected</b>: wrong or loose as printed; the corrected form was checked.</p>
{sections}"""
    return write_page(folder / "claims.html", "hadaflow: the claims, checked", body)


def _earlier(folder: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
        same = document["version"] == package_versions()["hadaflow"]
        return [r for r in document["claims"] if r["id"] in CLAIMS] if same else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _section(record: dict[str, Any]) -> str:
    status = record["status"]
    lines = [("method", record["method"])]
    if record["correction"]:
        lines.append(("correction", record["correction"]))
    told = "".join(f"<p><b>{name}.</b> {html.escape(text)}</p>" for name, text in lines)
    numbers = {
        "found": record["value"],
        "paper": record["paper_value"],
        "enclosure": record["enclosure"],
    }
    shown = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>"
        for key, value in numbers.items()
        for name, text in _rows(key, value)
    )
    return f"""<h2 id="{record["id"]}">{record["id"]} <span class="{_CLASS[status]}">{status}</span>
<span class="where">{html.escape(record["where"])}</span></h2>
<p>{html.escape(record["statement"])}</p>{told}
<div class="scroll"><table>{shown}</table></div>"""


def _rows(name: str, value: Any) -> list[tuple[str, str]]:
    """A nested value as rows of a table."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [row for key, v in value.items() for row in _rows(f"{name}, {key}", v)]
    if isinstance(value, list):
        return [(name, ", ".join(_number(v) for v in value))]
    return [(name, _number(value))]


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
