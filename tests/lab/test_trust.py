"""Files from strangers and code of one's own: nothing is run unasked, nothing ends in a traceback."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

import hadaflow as hf
from hadaflow import expressions as ex
from hadaflow.base.errors import printable, shown, visible
from hadaflow.base.files import read_text_file
from hadaflow.cli import commands as cli
from hadaflow.lab.certify import recheck
from hadaflow.lab.own_modules import find_source
from hadaflow.lab.proof_time import expected_seconds

V = ["1", "1", "1", "1.25", "0.01", "0.01", "0.01"]
CUBES = (
    "from hadaflow import expressions as ex\ndef cubes(a):\n    return ex.sum((a/ex.sum(a))**3)\n"
)


@pytest.fixture
def hadaflow(monkeypatch, capsys):
    """Run a command in this process; returns exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["hadaflow", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def refused(call, *told):
    with pytest.raises(hf.InputError) as error:
        call()
    text = str(error.value)
    assert all(part in text for part in told) and text == printable(text) and len(text) < 900, text
    return text


# --- checking runs nothing -----------------------------------------------------------------------


def test_checking_imports_nothing_unless_allowed(folder, hadaflow):
    (folder / "mine.py").write_text(CUBES)
    hf.certify("mine:cubes", V).save("c.json")
    del sys.modules["mine"]
    (folder / "mine.py").write_text(CUBES + "open('ran', 'w').close()\n")
    document = json.loads(Path("c.json").read_text())
    assert document["schema"] == "hadaflow-certificate-2"
    refused(lambda: recheck("c.json", allow_import=True), "for other code", "mine.py")
    document["source"] = hashlib.sha256((folder / "mine.py").read_bytes()).hexdigest()
    Path("c.json").write_text(json.dumps(document))
    refused(lambda: recheck("c.json"), str(folder / "mine.py"), "`cubes`", "--allow-import")
    code, out, err = hadaflow("certify", "c.json")
    assert code == 2 and not out and err.count("\n") == 1 and "would run" in err
    assert "mine" not in sys.modules and not Path("ran").exists()
    assert hadaflow("certify", "c.json", "--allow-import")[0] == 0 and Path("ran").exists()


def test_a_hunt_for_a_metric_of_ones_own_is_checked(folder, hadaflow):
    (folder / "mine.py").write_text(CUBES)
    code, out, _ = hadaflow(
        "hunt", "mine:cubes", "--classes", 8, "--starts", 256, "--out", "c.json", "--json"
    )
    assert code == 0 and json.loads(out)["certified"]
    assert hadaflow("certify", "c.json")[0] == 2
    code, out, _ = hadaflow("certify", "c.json", "--allow-import")
    assert code == 0 and out.startswith("holds")


def test_packages_on_the_way_are_neither_run_nor_left_out(folder):
    (folder / "pack" / "inner").mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text("open('ran', 'w').close()\n")
    (folder / "pack" / "inner" / "__init__.py").write_text("POWER = 3\n")
    source = CUBES.replace("**3", "**POWER") + "from . import POWER\n"
    (folder / "pack" / "inner" / "mine.py").write_text(source)
    proof = hf.certify("pack.inner.mine:cubes", V)
    os.unlink("ran")
    for name in [name for name in sys.modules if name.startswith("pack")]:
        del sys.modules[name]
    told = refused(lambda: recheck(proof.to_document()), "mine.py", "would run")
    assert told.count("__init__.py") == 2 and not Path("ran").exists()
    assert recheck(proof.to_document(), allow_import=True).holds and Path("ran").exists()
    (folder / "pack" / "inner" / "__init__.py").write_text("POWER = 4\n")
    refused(lambda: recheck(proof.to_document(), allow_import=True), "for other code")


def test_a_folder_without_init_is_a_package_too(folder):
    (folder / "loose").mkdir()
    (folder / "loose" / "mine.py").write_text(CUBES)
    proof = hf.certify("loose.mine:cubes", V)
    assert proof.source == hashlib.sha256(CUBES.encode()).hexdigest()
    assert recheck(proof.to_document(), allow_import=True).holds


def test_what_runs_is_what_was_compared(folder):
    """Not the compiled file beside it, nor a module of this name from elsewhere."""
    import importlib.util
    import py_compile

    evil = folder / "evil.py"
    evil.write_text("open('ran', 'w').close()\n" + CUBES)
    (folder / "mine.py").write_text(CUBES)
    cached = importlib.util.cache_from_source(str(folder / "mine.py"))
    py_compile.compile(
        str(evil), cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    proof = hf.certify("mine:cubes", V)
    assert recheck(proof.to_document(), allow_import=True).holds and not Path("ran").exists()
    (folder / "calendar.py").write_text(CUBES)
    import calendar

    refused(lambda: hf.certify("calendar:cubes", V), "another one of this name is loaded already")
    assert sys.modules["calendar"] is calendar


def test_a_changed_file_is_run_as_it_is_now(folder):
    (folder / "mine.py").write_text(CUBES)
    first = hf.certify("mine:cubes", V)
    (folder / "mine.py").write_text(CUBES.replace("**3", "**2"))
    second = hf.certify("mine:cubes", V)
    assert first.source != second.source and first.rate != second.rate
    assert recheck(second.to_document(), allow_import=True).holds


def test_anything_else_in_the_module_counts(folder):
    (folder / "mine.py").write_text("POWER = 3\n" + CUBES.replace("**3", "**POWER"))
    proof = hf.certify("mine:cubes", V)
    (folder / "mine.py").write_text("POWER = 2\n" + CUBES.replace("**3", "**POWER"))
    refused(lambda: recheck(proof.to_document(), allow_import=True), "for other code")


def local_metric(a):
    return ex.sum((a / ex.sum(a)) ** 3)


def other_metric(a):
    return ex.sum((a / ex.sum(a)) ** 4)


def test_a_function_is_given_instead():
    document = hf.certify(local_metric, V).to_document()
    assert recheck(document, local_metric).holds
    refused(lambda: recheck(document, other_metric), "for other code", "other_metric")
    renamed = json.loads(json.dumps(document).replace("local_metric", "other_metric"))
    refused(lambda: recheck(renamed, local_metric), "for other code")
    typed = eval("lambda a: sum(a[1:], a[0])", {"__name__": "__main__", "sum": sum})
    document = hf.certify(typed, V).to_document()
    assert document["metric"] == "__main__:<lambda>" and recheck(document, typed).holds
    refused(
        lambda: recheck(document, allow_import=True),
        "give the function itself to `recheck` as `metric`",
    )


def test_a_certificate_of_the_first_schema():
    old = hf.certify("l2", V).to_document() | {"schema": "hadaflow-certificate-1"}
    assert recheck(old).holds
    own = hf.certify(local_metric, V).to_document() | {"schema": "hadaflow-certificate-1"}
    refused(lambda: recheck(own, local_metric), "its schema is 'hadaflow-certificate-1'", "anew")


NOT_OWN = {
    "builtins:print": "no Python file of a module 'builtins'",
    "sys:exit": "no Python file of a module 'sys'",
    "calendar:sys.exit": "is not a function that",
    "mine:system": "is not a function that",  # from os
    "mine:dirname": "is not a function that",  # a Python function, of another module
    "mine:Kind": "is not a function that",
    "mine:Kind()": "no place of its own in a module",
    "mine:call": "is not a function that",  # an object
    "mine:jnp.sum": "is not a function that",
    "mine:number": "is not a function that",
    "mine:nothing": "has no attribute 'nothing'",
    "mine/../mine:cubes": "no Python file of a module",
    "..mine:cubes": "no Python file of a module",
    "mine.deeper:cubes": "no Python file of a module",
    "__main__:cubes": "no place of its own in a module",
    "mine:<lambda>": "no place of its own in a module",
    "mine:": "module:function",
    ":": "module:function",
    "min\0e:cubes": "no Python file of a module",
    "broken:f": "SyntaxError",
    "zero:f": "null bytes",
    "x" * 5000 + ":f": "no Python file of a module",
}


@pytest.mark.parametrize("name", NOT_OWN, ids=range(len(NOT_OWN)))
def test_only_functions_that_the_module_defines_count(folder, name, hadaflow):
    (folder / "mine.py").write_text(
        "from os import system\nfrom os.path import dirname\nimport jax.numpy as jnp\n" + CUBES
        + "class Kind:\n    def __call__(self, a):\n        return cubes(a)\n"
        "call = Kind().__call__\nnumber = 3\n"
    )  # fmt: skip
    (folder / "broken.py").write_text("def f(a:\n")
    (folder / "zero.py").write_bytes(b"def f(a):\0\n")
    refused(lambda: hf.certify(name, V), NOT_OWN[name])
    refused(lambda: hf.hunt(name, hf.UFM(4), progress=None), NOT_OWN[name])
    refused(lambda: hf.worst_rise(name, hf.UFM(4), progress=None), NOT_OWN[name])
    if "\0" not in name:
        code, out, err = hadaflow("portrait", "--classes", 4, "--metric", name)
        assert code == 2 and not out and err.count("\n") == 1 and NOT_OWN[name] in err
    document = hf.certify("l2", V).to_document() | {"metric": name}
    refused(lambda: recheck(document))


@pytest.mark.slow
def test_a_function_behind_a_decorator_is_still_its_own(folder):
    (folder / "mine.py").write_text(
        "import jax\nimport jax.numpy as jnp\n@jax.jit\ndef own(a):\n    return jnp.sum(a**2)\n"
    )
    found = hf.hunt("mine:own", hf.UFM(4), starts=64, progress=None)
    assert found.found and not found.certified and "cannot be evaluated exactly" in found.message


# --- metrics that fail ---------------------------------------------------------------------------

FAILING = {
    "raise SystemExit": "SystemExit",
    "raise SystemExit(3)": "SystemExit: 3",
    "import sys; sys.exit('bye')": "bye",
    "raise GeneratorExit": "GeneratorExit",
    "raise Own('x\\n\\x1b[2Jy')": r"Own: x \x1b[2Jy",
    "raise Interrupt": "Interrupt",
    "raise Silent": "Silent",
    "raise StopIteration": "StopIteration",
    "raise MemoryError": "MemoryError",
    "return again(a)": "RecursionError",
    "return None": "",
    "return 'three'": "",
    "return a": "one number",
    "return True": "",
    "return 1j": "",
    "return {}": "",
    "return print": "",
}
HEAD = """
class Own(BaseException):
    pass
class Interrupt(KeyboardInterrupt):
    pass
class Silent(Exception):
    def __str__(self):
        raise Own
def again(a):
    return again(a)
"""


@pytest.mark.parametrize("body", FAILING)
def test_a_metric_that_fails_is_one_sentence(folder, body, hadaflow):
    (folder / "mine.py").write_text(HEAD + f"def own(a):\n    {body}\n")
    for command in (
        ("hunt", "mine:own", "--classes", 4),
        ("rise", "mine:own", "--classes", 4),
        ("certify", "mine:own", "--classes", 4),
        ("certify", "mine:own", "--classes", 4, "--start", "1,2,3"),
        ("portrait", "--classes", 4, "--metric", "mine:own"),
    ):
        code, out, err = hadaflow(*command)
        assert code == 2 and not out and err.count("\n") == 1 and "0x7" not in err, (command, err)
        assert FAILING[body] in err and "\x1b" not in err, (command, err)


@pytest.mark.parametrize("body", [b for b in FAILING if b.startswith(("raise", "import"))])
def test_so_is_a_module_that_fails(folder, body, hadaflow):
    (folder / "mine.py").write_text(HEAD + f"def own(a):\n    return a.sum()\n{body}\n")
    for command in (
        ("hunt", "mine:own", "--classes", 4),
        ("portrait", "--classes", 4, "--metric", "mine:own"),
    ):
        code, out, err = hadaflow(*command)
        assert code == 2 and not out and err.count("\n") == 1 and FAILING[body] in err, err
    assert "mine" not in sys.modules


def test_an_interruption_stays_one():
    def interrupted(a):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hf.certify(interrupted, V)
    assert hf.hunt(interrupted, hf.UFM(4), progress=None).interrupted
    with pytest.raises(KeyboardInterrupt):
        hf.portrait(hf.UFM(4), metric=interrupted)


def test_no_addresses_are_told():
    def own(a):
        return jnp.sum(jnp.asarray(a) ** 2)

    found = hf.hunt(own, hf.UFM(4), starts=64, progress=None)
    assert found.found and not found.certified and " at 0x" not in str(found), str(found)

    class Metric:
        def __call__(self, a):
            return ex.sum(a**2)

    found = hf.hunt(Metric(), hf.UFM(4), starts=64, progress=None)
    assert "needs a metric that is a function" in found.message and " at 0x" not in str(found)
    assert " at 0x" not in shown([own, Metric(), {1: own}])
    refused(lambda: hf.certify(own, [own] * 3), "must hold finite numbers")
    refused(
        lambda: hf.hunt(object(), hf.UFM(4)), "must be a name or a function, but is <object object>"
    )


# --- every entry of a certificate ----------------------------------------------------------------

NASTY = [
    None, True, False, 0, -1, 1, 2**70, 10**5000, 1.5, float("nan"), float("inf"), "1e400", "nan",
    "inf", "-inf", "1/0", "0/0", "[nan]", "[inf +/- 1]", "[1 +/- inf]", "", " ", "0", "-1", "²", "١",
    "1_0", "0x1", "\0", "\x1b[2J", "\ud800", "9" * 3900, "9" * 20_000, "1/" + "9" * 20_000,
    "0." + "0" * 3990 + "1", "1e-999999999", [], [[]], [[[]]], ["1"] * 7, [["1"] * 7], ["1/0"],
    [None] * 7, [0] * 7, {}, {"a": []}, {1: 2}, [2, 2, 2], [10**9] * 3, [2] * 10**5, "l2", "kl",
    "sys:exit", "cross_entropy", "mse", "mean", 3, 64, 65, 2**16, 2**16 + 1, object(), print,
]  # fmt: skip


def places(document):
    """Paths of all entries, of the lists the first and last."""
    if isinstance(document, dict):
        inner = list(document.items())
    elif isinstance(document, list):
        inner = [(k, document[k]) for k in sorted({0, len(document) - 1}) if document]
    else:
        inner = []
    for key, value in inner:
        yield (key,)
        for rest in places(value):
            yield (key, *rest)


def replaced(document, place, value):
    copy = json.loads(json.dumps(document))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return copy


@pytest.mark.parametrize("C", [None, ["0", "1", "2"]])
def test_no_entry_of_a_certificate_can_be_anything_else(C):
    model = hf.UFM(4, samples=2, label_smoothing=0.1, weight_decay=(0.1, 0.2))
    document = hf.certify("kl", ["1", "0.7", "0.3"], model, C=C).to_document()
    assert recheck(document).holds
    for place in places(document):
        for value in NASTY:
            changed = replaced(document, place, value)
            began = time.monotonic()
            try:
                verdict = recheck(changed)
            except hf.InputError as error:
                told = str(error)
                assert told == printable(told) and len(told) < 600, (place, told)
            else:
                # Only the same once more, versions, which prove nothing, and bits that do as well.
                harmless = changed == document or place[0] in ("versions", "bits")
                assert not verdict.holds or harmless, (place, shown(value))
            assert time.monotonic() - began < 10, place


def test_no_document_is_anything_else(tmp_path):
    texts = [
        json.dumps(v) for v in NASTY if not callable(v) and v != 10**5000 and type(v) is not object
    ]
    for text in (*texts, "1" * 5000, "[" * 10**5, '{"schema": ' * 10**4, "{}}", "\ufeff{}"):
        (tmp_path / "c.json").write_text(text)
        refused(lambda: recheck(tmp_path / "c.json"))


def test_numbers_of_any_length_are_written_and_read():
    from fractions import Fraction

    for number in (Fraction(1, 2**12_900), Fraction(3**8000, 2**4000), Fraction(1, 5**4000)):
        proof = hf.certify("l2", [number, 1, 1])
        assert recheck(proof.to_document()).holds
    primes = [p for p in range(10**4, 10**5) if all(p % q for q in range(2, 317))][:2000]
    many = [Fraction(1, p**300) for p in primes[:7]]
    refused(lambda: hf.certify("l2", ["1", "1", "1e-999999999"]), "at most 4000 digits")
    refused(lambda: hf.certify("margin", many), "a common denominator of at most 4000 digits")


# --- bounds --------------------------------------------------------------------------------------


def test_a_check_that_would_take_minutes_is_refused_at_once(tmp_path, hadaflow):
    model = hf.UFM(512, group=(512,), depth=100)
    document = hf.certify("l2", ["1", *["1.01"] * 255], model).to_document() | {"bits": 2**16}
    (tmp_path / "c.json").write_text(json.dumps(document))
    began = time.monotonic()
    code, out, err = hadaflow("certify", tmp_path / "c.json")
    assert code == 2 and not out and err.count("\n") == 1 and time.monotonic() - began < 30
    assert "`seconds` = 60 does not leave time for 65536 bits" in err and "depth 100" in err


def test_the_expected_time_is_about_right():
    """Within a factor of ten, at a size where it is seconds."""
    model = hf.UFM(64, group=(64,), depth=30)
    proof = hf.certify("l2", [*["1"] * 31, "1.01"], model, C=[str(k) for k in range(32)])
    began = time.monotonic()
    hf.certify("l2", proof.a, model, C=[str(k) for k in range(32)])
    taken = time.monotonic() - began
    assert 0.1 < taken / expected_seconds(proof.setting, True, 64) < 10


def test_time_is_up(hadaflow, tmp_path):
    hf.certify("l2", V).save(tmp_path / "c.json")
    for seconds in ("nan", "0", "-1", "-inf"):
        code, out, err = hadaflow("certify", tmp_path / "c.json", "--seconds", seconds)
        assert code == 2 and not out and "`seconds` must be a positive number" in err
    code, out, err = hadaflow("certify", tmp_path / "c.json", "--seconds", "1e-300")
    assert code == 2 and not out and err.startswith("hadaflow: Not decided: `seconds` = 1e-300")
    for seconds in ("inf", "1e308"):
        assert hadaflow("certify", tmp_path / "c.json", "--seconds", seconds)[0] == 0
    refused(lambda: recheck(tmp_path / "c.json", seconds=10**400), "`seconds` must be")
    # Decided at 64 bits, or never: an exact zero is not looked at for longer than allowed.
    slow = lambda a: time.sleep(0.2) or a.sum() - a.sum()  # noqa: E731
    refused(lambda: hf.certify(slow, ["1", "1", "1"], seconds=0.5), "Not decided")


LONG = "9" * 30


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        *((("atlas", "--classes", 4, "--seconds", s), "`seconds` must") for s in ("nan", 0, -1)),
        *((("hunt", "l2", "--classes", 4, "--seconds", s), "`seconds` must") for s in ("nan", -1)),
        *((("rise", "l2", "--classes", 4, "--seconds", s), "`seconds` must") for s in ("nan", 0)),
        (("certify", "l2", "--classes", 4, "--seconds", "nan"), "`seconds` must"),
        (("hunt", "l2", "--classes", 4, "--starts", LONG), "`starts` must be a whole number"),
        (("rise", "l2", "--classes", 4, "--starts", LONG), "`starts` must be a whole number"),
        (("atlas", "--classes", 4, "--starts", LONG), "`starts` must be a whole number"),
        (("hunt", "l2", "--classes", 4, "--seed", "9" * 5000), "--seed"),
        (
            ("certify", "l2", "--classes", 4, "--start", "1,1,1e-999999999"),
            "`start` must be decimals",
        ),
        (
            ("atlas", "--classes", 4, "--unbalanced", "1e-999999999"),
            "`unbalanced` must be decimals",
        ),
        (("hunt", "l2", "--classes", 4, "--unbalanced", "1e-999999999"), "`unbalanced` must be"),
        (("certify", "/dev/zero"), "it is not a regular file"),
        (("certify", "."), "it is a folder"),
        (("certify", "pipe"), "it is not a regular file"),
        (("certify", "large.json"), "it has more than 16 MB"),
        (("certify", "bytes.json"), "it is not text in UTF-8"),
        (("solve", "--classes", 4, "--start", "@/dev/zero"), "it is not a regular file"),
        (("solve", "--classes", 4, "--start", "@pipe"), "it is not a regular file"),
        (("solve", "--classes", 4, "--start", "1,1,1", "--labels", "/dev/zero"), "regular file"),
        (("solve", "--classes", 4, "--start", "1,1,1", "--labels", "."), "it is a folder"),
        (("certify", "l2", "--classes", 4, "--start", "@/dev/zero"), "it is not a regular file"),
    ],
)
def test_bounds_are_one_line_and_exit_2(hadaflow, folder, arguments, told):
    os.mkfifo("pipe")
    with open("large.json", "wb") as file:
        file.truncate(2**24 + 1)
    Path("bytes.json").write_bytes(b"\xff\xfe{}")
    code, out, err = hadaflow(*arguments)
    assert code == 2 and out == "" and told in err and err.count("\n") == 1 and len(err) < 500


@pytest.mark.parametrize(
    "arguments",
    [
        ("atlas", "--classes", 4, "--seconds", "1e-300"),
        ("atlas", "--classes", 4, "--seconds", "1e-300", "--json"),
        ("atlas", "--classes", 4, "--seconds", "inf"),
        ("atlas", "--classes", 4, "--seconds", "1e308", "--seed", LONG),
        ("hunt", "l2", "--classes", 4, "--seconds", "1e-300", "--seed", LONG, "--json"),
        ("hunt", "l2", "--classes", 4, "--seconds", "inf", "--starts", 64),
        pytest.param(
            ("rise", "l2", "--classes", 4, "--seconds", "1e-300", "--seed", LONG),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_extremes_that_mean_something_are_taken(hadaflow, folder, arguments):
    code, out, err = hadaflow(*arguments)
    assert code == 0 and out and not err
    assert "1e-300" not in arguments or "NaN" not in out


# --- what is printed -----------------------------------------------------------------------------


def test_text_from_a_file_is_shown_and_not_obeyed(hadaflow, folder):
    proof = hf.certify("l2", V)
    name = "c\x1b[2J\n\u202eholds.json"
    proof.save(name)
    code, out, err = hadaflow("certify", name)
    assert code == 0 and out.count("\n") == 3 and "\x1b" not in out and "\u202e" not in out
    evil = "l2\x1b]0;title\x07\n\x9b2J\u2066"
    document = proof.to_document()
    for change in (
        {"metric": evil}, {"metric": f"os:{evil}"}, {"metric": f"{evil}:x"}, {"statement": evil},
        {"enclosure": evil}, {"schema": evil}, {"a": [evil] * 7}, {evil: 1}, {"problem": {evil: 1}},
        {"sign": -1},
    ):  # fmt: skip
        Path(name).write_text(json.dumps(document | change))
        code, out, err = hadaflow("certify", name)
        assert code in (1, 2) and err.count("\n") == 1
        for text in (out, err):
            assert not any(c in text for c in "\x1b\x07\x9b\u2066\u202e"), (change, text)
        assert out == "" or (out.count("\n") == 3 and out.startswith("FAILS"))


def test_printable():
    assert printable("a\tb\r\n c\u2028d") == "a b c d" and printable("é×ψ 漢") == "é×ψ 漢"
    assert printable("x" * 100, 10) == "x" * 9 + "…" and printable("\x1b" * 9, 8) == "\\x1b\\x1…"
    assert visible("a\n\x1b\ud800\U000e0041") == "a\n\\x1b\\ud800\\U000e0041"
    assert shown(10**5000) == "a value of type int" and len(shown("x" * 10**6)) == 80


def test_a_text_file_is_read(tmp_path):
    path = tmp_path / "t"
    path.write_text("χ" * 10)
    assert read_text_file("the text", path, 20) == "χ" * 10
    refused(lambda: read_text_file("the text", path, 19), "more than 19 bytes", "the text from")
    refused(lambda: read_text_file("the text", "a\0b", 19), "no such name")
    refused(lambda: read_text_file("the text", "x" * 5000, 19), "File name too long")


def test_finding_a_module_runs_nothing():
    code = (
        "import sys; from hadaflow.lab.own_modules import find_source; "
        "assert find_source('xml.dom.minidom').path.name == 'minidom.py'; "
        "assert 'xml.dom' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert find_source("no_such_module") is None and find_source("") is None
