"""The notebooks of the site: what they store is whole, and is what they say when run from scratch."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
HOOK = runpy.run_path(str(ROOT / "docs" / "hooks" / "notebooks.py"))
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def code_of(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def said_by(cell):
    return "\n".join(said for kind, said in HOOK["outputs_of"](cell) if kind == "text/plain")


def numbers_in(text):
    return [float(v) for v in re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", text)]


def test_there_are_two():
    assert len(NOTEBOOKS) == 2


@by_name
def test_what_is_stored_is_whole(path):
    notebook = json.loads(path.read_text())
    cells = code_of(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error" and output.get("name") != "stderr"
            if "image/png" in output.get("data", {}):
                assert len(cell["metadata"]["alt"]) > 40
    assert sum(len(cell["outputs"]) for cell in cells) > len(cells) / 2
    assert path.stat().st_size < 400_000
    for link in re.findall(
        r"\]\(([^)#:]+)", "".join("".join(c["source"]) for c in notebook["cells"])
    ):
        assert (path.parent / link).exists(), link


@by_name
def test_its_page_has_all_of_it(path):
    notebook = json.loads(path.read_text())
    page, pictures = HOOK["as_markdown"](notebook, path.stem)
    assert f"notebooks/{path.stem}.md\n" in (ROOT / "mkdocs.yml").read_text()
    assert page.startswith("# ") and f"({path.name})" in page
    assert all(f"]({name})" in page and data[:4] == b"\x89PNG" for name, data in pictures.items())
    for cell in notebook["cells"]:
        assert "".join(cell["source"]).replace(".ipynb)", ".md)") in page
        if cell["cell_type"] == "code":
            assert all(said.rstrip() in page for said in said_by(cell).split("\n"))


def test_links_to_notebooks_lead_to_their_pages():
    text = "[a](notebooks/a.ipynb), [b](../notebooks/b.ipynb#c), [d](d.ipynb), [e](notebooks/e.md)"
    assert HOOK["on_page_markdown"](text) == (
        "[a](notebooks/a.md), [b](../notebooks/b.md#c), [d](d.ipynb), [e](notebooks/e.md)"
    )


@pytest.mark.slow
@by_name
def test_they_say_the_same_when_they_run_from_scratch(path):
    """A cell that fails raises; numbers of cells with the tag agree, and so do the kinds of outputs."""
    stored = json.loads(path.read_text())
    fresh = HOOK["run"](path)
    compared = 0
    for old, new in zip(code_of(stored), code_of(fresh), strict=True):
        kinds = [[kind for kind, _ in HOOK["outputs_of"](cell)] for cell in (old, new)]
        assert kinds[0] == kinds[1], "".join(old["source"])
        if "numbers" in old["metadata"].get("tags", ()):
            expected = numbers_in(said_by(old))
            assert numbers_in(said_by(new)) == pytest.approx(expected, rel=1e-3, abs=1e-12)
            compared += len(expected)
    assert compared > 0
