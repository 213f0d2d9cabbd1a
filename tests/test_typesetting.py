"""Formulas of the pages and of the reference are typeset, and pictures are told in words."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
# Blocks of code and what is printed, inline code, comments of HTML, formulas, pictures, addresses.
SET_APART = re.compile(
    r"```.*?```|^(?: {4}|>>> ).*?$|`[^`\n]*`|<!--.*?-->|\$\$.*?\$\$|\$[^$]+\$|!\[[^\]]*\]|\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
# What only formulas have: symbols, indices, powers, equations with the paper's letters.
FORMULA = re.compile(
    r"[‖âΨΦΣ√ᵀᵐ⊗⊙⟨⁻⁰¹²³⁴-⁹₀-₉α-ω]|\w\^|\b[A-Za-z]_[A-Za-z0-9]\b|\b[KNndatM] [=≥≤<>≈−] ?[\dKNnM]|log10"
)


def plain_formulas(text: str) -> list[str]:
    bare = SET_APART.sub(" ", text)
    return [bare[max(m.start() - 30, 0) : m.end() + 30] for m in FORMULA.finditer(bare)]


@pytest.mark.parametrize(
    "formula", ["with a_i = 1", "at t ≈ 10^6", "D_W", "K = 8", "log‖a‖₁", "K − 1 modes"]
)
def test_plain_formulas_are_seen(formula):
    assert plain_formulas(f"Here {formula} stands.") and not plain_formulas(f"Here ${formula}$.")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_formulas_of_a_page_are_typeset(page):
    assert plain_formulas(page.read_text()) == []


def _documented() -> list[str]:
    text = (ROOT / "docs" / "reference.md").read_text()
    return re.findall(r"^::: ([\w.]+\.\w+)$", text, re.MULTILINE)


@pytest.mark.parametrize("path", _documented())
def test_formulas_of_the_reference_are_typeset(path):
    module, name = path.rsplit(".", 1)
    found = getattr(importlib.import_module(module), name)
    members = [v for k, v in vars(found).items() if k[:1] != "_"] if inspect.isclass(found) else []
    for each in (found, *members):
        own = getattr(each, "func", each)  # of a cached property
        text = (inspect.isroutine(own) or isinstance(own, type | property)) and own.__doc__
        # Examples end a docstring, or stand before another heading of its sections.
        text = re.sub(r"Examples:\n.*?(?=\n\n {0,8}\S|\Z)", "", text or "", flags=re.DOTALL)
        assert plain_formulas(inspect.cleandoc(text)) == [], each


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_pictures_are_told_in_words(page):
    for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
        assert len(words) > 40, target
