"""Executed notebooks as pages of the site: what they store is turned into Markdown, nothing is run.

So their formulas, links and code look like those of all other pages. `python docs/hooks/notebooks.py`
(`make notebooks`) runs them from scratch and stores what they say.
"""

import base64
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
_FENCE = "`" * 4
_LINK = re.compile(r"(\]\((?:[\w./-]*/)?notebooks/[\w-]+)\.ipynb([#)])")
_LINK_BETWEEN = re.compile(r"(\]\([\w-]+)\.ipynb([#)])")


def text_of(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


# --- pages ---------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Beside each notebook its page, and its pictures as files."""
    from mkdocs.structure.files import File

    for path in NOTEBOOKS:
        place = f"notebooks/{path.stem}"
        page, pictures = as_markdown(json.loads(path.read_text()), path.stem)
        files.append(File.generated(config, f"{place}.md", content=page))
        for name, data in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links to notebooks, which lead somewhere in the repository too, lead to their pages."""
    return _LINK.sub(r"\1.md\2", markdown)


def as_markdown(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = text_of(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_LINK_BETWEEN.sub(r"\1.md\2", source))
            continue
        parts.append(f"{_FENCE}python\n{source}\n{_FENCE}")
        for kind, said in outputs_of(cell):
            if kind == "image/png":
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(said)
                parts.append(f"![{cell['metadata']['alt']}]({file})")
            elif kind == "text/html":
                # What scrolls can be reached without a mouse.
                said = said.replace("<pre ", '<pre tabindex="0" ')
                parts.append(f'<div class="output">\n{said}\n</div>')
            else:
                parts.append(f"{_FENCE}{{.text .output}}\n{said.rstrip()}\n{_FENCE}")
    parts.insert(
        1, f"*This page is a notebook, to run and to change: [{name}.ipynb]({name}.ipynb).*"
    )
    return "\n\n".join(parts) + "\n", pictures


def outputs_of(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a cell has said: its printed text, and of each result the richest form."""
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield "text/plain", text_of(output["text"])
        else:
            forms = output["data"]
            kind = next(k for k in ("image/png", "text/html", "text/plain") if k in forms)
            yield kind, text_of(forms[kind])


# --- running them --------------------------------------------------------------------------------


def run(path: Path) -> Any:
    """The notebook with the outputs that it gives from scratch; a cell that fails raises."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=600, kernel_name="python3", record_timing=False,
            coalesce_streams=True, extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
        ).execute()  # fmt: skip
    for output in (o for cell in notebook.cells for o in cell.get("outputs", ())):
        if len(output.get("data", {})) > 1:
            del output.data["text/plain"]  # of a result that has a better form, with times in it
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


if __name__ == "__main__":
    import nbformat

    for path in NOTEBOOKS:
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        nbformat.write(run(path), path)
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
