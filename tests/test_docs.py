"""README, docs pages, docstring examples and example scripts run."""

import doctest
import importlib
import json
import pkgutil
import re
import runpy
from pathlib import Path

import matplotlib
import pytest

import hadaflow

matplotlib.use("Agg")
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = sorted(m.name for m in pkgutil.walk_packages(hadaflow.__path__, "hadaflow."))


RECIPES = ROOT / "docs" / "recipes.md"


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


# Pages of many blocks, each a structure of its own; what they show has tests of its own, too.
_SLOW_PAGES = ("errata.md", "model.md", "adding.md", "losses-and-optimizers.md", "theory-lab.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=pytest.mark.slow if p.name in _SLOW_PAGES else (), id=p.name)
        for p in PAGES
        if p != RECIPES
    ],
)
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks_of(page):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("number", range(1, len(blocks_of(RECIPES))))
def test_every_recipe_runs_by_itself_in_fewer_than_fifteen_lines(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    imports, recipe = blocks_of(RECIPES)[0], blocks_of(RECIPES)[number]
    assert len(recipe.strip().splitlines()) < 15 and "assert " in recipe
    exec(compile(imports + recipe, str(RECIPES), "exec"), {})


def test_every_recipe_is_answered():
    title, *recipes = re.split(r"^## ", RECIPES.read_text(), flags=re.MULTILINE)
    assert len(recipes) >= 8 and "import hadaflow as hf" in title
    for recipe in recipes:
        assert recipe.count("**Answer.**") == 1, recipe.splitlines()[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    """The `hadaflow …` lines, one after the other in one folder; `make` is what CI runs."""
    import shlex
    import sys

    from hadaflow.cli import commands as cli

    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    for line in (line for block in blocks for line in block.splitlines()):
        command = shlex.split(line, comments=True)
        if command[:1] == ["hadaflow"]:
            monkeypatch.setattr(sys, "argv", command)
            with pytest.raises(SystemExit) as end:
                cli.main()
            assert end.value.code == 0, line
            capsys.readouterr()


def test_the_pages_with_code_are_found():
    counts = {p.name: p.read_text().count("```python") for p in PAGES}
    assert counts["README.md"] == 2 and counts["model.md"] > 5 and counts["orbit-and-clock.md"] == 6
    assert counts["index.md"] == 3 and counts["metrics.md"] == 4 and counts["errata.md"] > 15
    assert counts["tutorial.md"] > 14 and counts["limits.md"] == 1 and counts["recipes.md"] == 8


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_functions_and_tests_named_in_the_paper_page_exist():
    text = (ROOT / "docs" / "paper.md").read_text()
    for file, test in re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", text):
        (found,) = (ROOT / "tests").rglob(file)
        content = found.read_text()
        assert not test or f"def {test}(" in content, test
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    column = " ".join(row[1] for row in rows)
    names = re.findall(r"`(?:UFM\.|Sylvester\.|Trajectory\.)?(\w+)(?:\(|`)", column)
    known = {
        *dir(hadaflow),
        *dir(hadaflow.UFM),
        *dir(hadaflow.Sylvester),
        *dir(hadaflow.Trajectory),
    }
    functions = {
        n for n in names if not n.startswith("test_") and n not in ("path_length", "hadaflow")
    }
    assert functions and functions <= known, functions - known


def test_the_paper_page_names_every_claim_and_no_other():
    from hadaflow.paper.verify import check_ids

    text = (ROOT / "docs" / "paper.md").read_text()
    rows = [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| ")][2:]
    named = {id for row in rows for id in re.findall(r"`([a-z0-9-]+)`", row)}
    assert named == set(check_ids(None))


def test_the_readme_counts_the_claims():
    from hadaflow.paper.verify import check_ids

    assert f"checks {len(check_ids(None))} claims" in (ROOT / "README.md").read_text()


def test_every_correction_is_on_the_errata_page():
    from hadaflow.paper.claim import CLAIMS
    from hadaflow.paper.verify import check_ids

    text = (ROOT / "docs" / "errata.md").read_text()
    corrected = {id for id in check_ids(None) if CLAIMS[id].correction is not None}
    assert corrected
    missing = {id for id in corrected if f"`{id}`" not in text}
    assert not missing, missing


def test_the_site_has_every_page_and_the_reference_every_name():
    site = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in site, page.name
    reference = (ROOT / "docs" / "reference.md").read_text()
    documented = set(re.findall(r"^::: hadaflow\.[\w.]+\.(\w+)$", reference, re.MULTILINE))
    names = {*hadaflow.__all__} - {
        "expressions",
        "losses",
        "optimizers",
        "starts",
    }  # modules, function by function
    assert names <= documented, names - documented
    for path in re.findall(r"^::: ([\w.]+)$", reference, re.MULTILINE):
        module, name = path.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), name), path


CERTIFICATES = sorted((ROOT / "docs" / "certificates").glob("*.json"))


def test_every_certificate_of_the_results_page_holds_and_has_its_row():
    from hadaflow.lab.certify import recheck

    page = (ROOT / "docs" / "counterexamples.md").read_text()
    linked = set(re.findall(r"\(certificates/([\w-]+\.json)\)", page))
    assert linked == {path.name for path in CERTIFICATES} and len(linked) > 50
    assert f"{len(linked)} certified" in (ROOT / "CHANGELOG.md").read_text()
    for path in CERTIFICATES:
        verdict = recheck(path)
        assert verdict.holds and verdict.certificate.sign == 1, path.name
        row = next(
            line for line in page.splitlines() if f"({path.parent.name}/{path.name})" in line
        )
        assert f"| {json.loads(path.read_text())['enclosure']} |" in row


def test_the_results_are_what_the_other_code_path_finds():
    """JAX at the certified states, for one certificate of each metric."""
    seen = {}
    for path in CERTIFICATES:
        document = json.loads(path.read_text())
        seen.setdefault((document["metric"], document["problem"]["depth"]), document)
    assert len(seen) >= 7
    for (metric, depth), document in seen.items():
        model = hadaflow.UFM(
            document["problem"]["classes"], group=document["problem"]["group"], depth=depth
        )
        C = None if document["C"] is None else [float(v) for v in document["C"][0]]
        state = hadaflow.spectrum([float(v) for v in document["a"]], C)
        rate = float(hadaflow.rate(metric, model, state))
        assert rate == pytest.approx(float(document["enclosure"][1:].split()[0]), rel=1e-6)


def test_every_dependency_has_its_line():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = project["dependencies"] + [r for extra in extras for r in extra]
    text = (ROOT / "docs" / "dependencies.md").read_text()
    for requirement in wanted:
        name = re.split(r"[<>=[]", requirement)[0]
        assert name in text, name
        assert ">=" in requirement and "<" not in requirement, requirement


def test_the_version_is_one_everywhere():
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    notes = (ROOT / "CHANGELOG.md").read_text()
    (date,) = re.findall(rf"^## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)$", notes, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in citation and f"\ndate-released: {date}\n" in citation


@pytest.mark.slow
def test_frozen_example(capsys):
    """SciPy reports success far from collapse with every method; hadaflow gets there."""
    names = runpy.run_path(str(ROOT / "examples" / "frozen.py"))
    *rivals, ours = names["main"]()
    assert {row[0] for row in rivals} == {"RK45", "RK23", "DOP853", "Radau", "BDF", "LSODA"}
    for _, report, _, deviation in rivals:
        assert report == "success" and deviation > 0.05
    assert ours[1] == "reached" and ours[3] < 1e-9
    # The table in the README is the one the script prints, but for the last digits.
    shown = re.search(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    printed, expected = capsys.readouterr().out.splitlines(), shown.group(1).splitlines()
    assert printed[:2] == expected[:2] and len(printed) == len(expected) == 9
    for line, row in zip(printed[2:8], expected[2:8], strict=True):
        assert line.split()[:2] == row.split()[:2]
        got, wanted = [[float(x) for x in text.split()[2:]] for text in (line, row)]
        assert got == pytest.approx(wanted, rel=1e-2)


GALLERY = {
    "neural_collapse": lambda run: (
        run.measure("nc1_cdnv")[-1] < 1e-4 and run.measure("nc2_etf_err")[-1] < 0.05
    ),
    "frozen_vectors": lambda runs: (
        runs["Hadamard start"].measure("off_diagonal").max() < 1e-12
        and runs["random start"].measure("off_diagonal")[-1] > 0.1
    ),
    "ten_classes": lambda run: run.measure("l2").argmax() > 0 and run.a_hat[-1].std() < 1e-6,
    "groups_of_eight": lambda runs: len({round(r.log10_time[-1]) for r in runs.values()}) == 3,
    "hierarchy": lambda halves: (
        list(halves.values()) == pytest.approx([6.51, 6.95, 8.75], abs=0.01)
    ),
    "regularization_path": lambda found: (
        found[2] == pytest.approx(1.0, abs=0.01) and found[3] < 0.8
    ),
    "depth_three": lambda runs: [r.status for r in runs] == ["never-collapses", "collapsed"],
    "lazy_to_rich": lambda run: run.measure("kl").max() == pytest.approx(5.45e-4, rel=1e-2),
    "collapse_time": lambda law: (
        law["classes"] == [256, 512, 1024, 2048, 4096]
        and all(0.8 < c < 1.1 for c in law["median"])
        and max(law["prediction_error"].values()) < 5e-3
    ),
    "large_steps": lambda ends: ends[0.9] < 1e-12 and ends[1.02] > 0.01 and ends[1.15] > 0.1,
    "race": lambda race: (
        [race[name].first[1e-3] for name in race] == [None, None, None, 59_440, 1_106_063]
        and race["Adam 0.01"].run.measure("collapse_deviation").min() < 0.06
        and race["Adam 0.01"].run.measure("collapse_deviation")[-1] > 0.1
    ),
    "smoothing": lambda median: (
        5.0e4 < median[0] < 5.2e4
        and 66 < median[-1] < 69
        and bool((median[1:] < median[:-1]).all())
    ),
    "two_starts": lambda runs: (
        runs["Gaussian start"].statistics("kl").mean.max() > 0.6
        and runs["Hadamard start"].statistics("kl").mean.max() < 0.43
    ),
}
PICTURES_OF_RECIPES = ("smoothing", "two_starts")


_SLOW = ("regularization_path", "collapse_time", "groups_of_eight", "lazy_to_rich", "smoothing")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in _SLOW else ()) for n in GALLERY]
)
def test_the_gallery_is_drawn_as_the_page_says(name, tmp_path, capsys):
    names = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    assert GALLERY[name](names["main"](str(tmp_path / "picture.png")))
    assert (tmp_path / "picture.png").stat().st_size > 20_000
    page = (RECIPES if name in PICTURES_OF_RECIPES else ROOT / "docs" / "gallery.md").read_text()
    assert f"{name}.py`" in page and f"images/{name}.png" in page


def test_every_example_is_in_the_gallery_the_recipes_or_the_readme():
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert scripts == {*GALLERY, "frozen"}
