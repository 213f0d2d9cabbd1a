"""The hunter: what it must find, must not find, and how it reports."""

import json
import math
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import hadaflow as hf
from hadaflow import expressions as ex
from hadaflow.cli import commands as cli
from hadaflow.lab import quarry as hunting
from hadaflow.lab.certify import recheck
from hadaflow.lab.exact.balls import exact


def numpy_rate(metric, model, a):
    """dm/dt as a quotient to the right along the velocity, from the characters: no JAX, no balls."""
    orders = model.basis.group
    elements = np.array(list(np.ndindex(*orders)))
    turns = (elements / np.array(orders)) @ elements.T
    full = 1 - np.cos(2 * np.pi * turns)  # on all elements, nothing folded
    class_of = np.array([min(tuple(g), tuple(-g % np.array(orders))) for g in elements])
    first = [tuple(g) for g in np.unique(class_of, axis=0)][1:]
    place = np.array([-1 if not any(g) else first.index(tuple(g)) for g in class_of])
    spread = np.where(place >= 0, a[place], 0.0)
    e = np.exp(-full @ spread)
    force = full @ e / e.sum()
    v = a * np.array([force[list(place).index(i)] for i in range(len(a))])
    h = 1e-6 / np.abs(v / a).max()
    value = [metric(a + k * h * v) for k in (0, 1, 2)]
    return (-3 * value[0] + 4 * value[1] - value[2]) / (2 * h)


def expanded(model, a):
    return np.repeat(a, model.basis.multiplicity)


NUMPY = {
    "l2": lambda s: ((s / s.sum() - 1 / len(s)) ** 2).sum() / 2,
    "reverse_kl": lambda s: (s / s.sum() * np.log(s / s.sum())).sum(),
    "frobenius": lambda s: ((s / np.linalg.norm(s) - len(s) ** -0.5) ** 2).sum(),
    "log_ratio": lambda s: np.log(s.max() / s.min()),
}


def check_found(found, metric, own=None):
    """Found, certified, readable, and rising by an independent computation."""
    assert found.found and found.certified and found.certificate.sign == 1
    assert recheck(found.certificate.to_document(), own).holds
    a = np.array([float(v) for v in found.a])
    assert list(found.a) == found.certificate.to_document()["a"]
    assert a.min() >= 0.01 and a.max() <= 20 and found.rate > 1e-8
    assert all(len(v.replace(".", "").strip("0")) <= 3 for v in found.a), found.a
    if metric in NUMPY and found.model.depth == 2 and found.C is None:
        value = numpy_rate(lambda v: NUMPY[metric](expanded(found.model, v)), found.model, a)
        assert value == pytest.approx(found.rate, rel=1e-4)


# The list that must be found; the first two and a deep model in every run, the rest in `slow`.
MUST = [
    ("l2", {"classes": 8}, None),
    ("log_ratio", {"classes": 16}, None),
    ("kl", {"classes": 4, "depth": 3}, None),
    ("kl", {"classes": 4}, [0, 1, 2]),
    ("reverse_kl", {"classes": 8}, None),
    ("frobenius", {"classes": 8}, None),
    ("log_ratio", {"classes": 32}, None),
    ("l2", {"classes": 6}, None),
    ("l2", {"classes": 7}, None),
    ("l2", {"classes": 9}, None),
    ("l2", {"classes": 10}, None),
]


@pytest.mark.parametrize(
    ("metric", "options", "C"),
    [pytest.param(*case, marks=() if i < 3 else pytest.mark.slow) for i, case in enumerate(MUST)],
)
def test_what_must_be_found(metric, options, C):
    found = hf.hunt(metric, hf.UFM(**options), C=C, progress=None)
    check_found(found, metric)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("metric", "options", "C"), MUST)
def test_other_seeds_find_too(metric, options, C, seed):
    check_found(hf.hunt(metric, hf.UFM(**options), C=C, seed=seed, progress=None), metric)


MONOTONE = [
    ("kl", {"classes": 8}),
    ("l2", {"classes": 4}),
    ("log_ratio", {"classes": 8}),
    ("l2", {"classes": 5}),
    ("l2", {"classes": 9, "group": (3, 3)}),
    *(("kl", {"classes": math.prod(g), "group": g}) for g in
      [(2, 2), (3,), (5,), (6,), (7,), (8,), (2, 4), (9,), (3, 3), (10,), (12,), (16,), (2, 2, 2, 2)]),
]  # fmt: skip


@pytest.mark.parametrize(("metric", "options"), MONOTONE[:2])
def test_what_must_not_be_found(metric, options):
    missed = hf.hunt(metric, hf.UFM(**options), starts=300, progress=None)
    assert not missed.found and not missed.certified and missed.a is None and missed.starts == 300
    assert missed.message.startswith("Not found in 300 starts") and "monoton" not in str(missed)


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "options"), MONOTONE)
def test_what_must_not_be_found_in_ten_thousand_starts(metric, options):
    missed = hf.hunt(metric, hf.UFM(**options), starts=10_000, seconds=600, progress=None)
    assert not missed.found and missed.starts == 10_000


# --- metrics nobody has published ----------------------------------------------------------------


def third_moment(a):
    """Σ â³: a distance from uniform, as M is."""
    return ex.sum((a / ex.sum(a)) ** 3)


def half_norm(a):
    """1/(Σ√â)², by operators alone."""
    share = a / a.sum()
    return 1 / ((share**0.5).sum()) ** 2


def test_a_metric_nobody_has_published_is_found_and_certified():
    found = hf.hunt(third_moment, hf.UFM(8), progress=None, starts=512)
    check_found(found, "third_moment", third_moment)
    assert found.metric.endswith(":third_moment")
    a = np.array([float(v) for v in found.a])
    value = numpy_rate(lambda v: ((v / v.sum()) ** 3).sum(), hf.UFM(8), a)
    assert value == pytest.approx(found.rate, rel=1e-5)


@pytest.mark.slow
def test_a_metric_of_operators_alone_is_certified():
    check_found(hf.hunt(half_norm, hf.UFM(8), progress=None), "half_norm", half_norm)


@pytest.fixture(scope="module")
def in_jax():
    """A metric that only JAX can evaluate, on few modes: it rises as M does on Z_6."""

    def own(a):
        share = jnp.repeat(a, np.array([2, 2, 1]), total_repeat_length=5) / (
            2 * a[0] + 2 * a[1] + a[2]
        )
        return jnp.sum((share - 0.2) ** 2)

    return own


def test_what_cannot_be_evaluated_exactly_is_found_but_uncertified(in_jax):
    found = hf.hunt(in_jax, hf.UFM(6), starts=256, progress=None)
    assert found.found and not found.certified and found.certificate is None
    assert found.message.startswith("Found, but uncertified") and found.rate > 0
    assert "cannot be evaluated exactly" in found.message
    assert hf.rate("l2", hf.UFM(6), [float(v) for v in found.a]) > 0

    def balls(a):
        norm = 2 * a[0] + 2 * a[1] + a[2]
        gaps = [v / norm - exact("0.2") for v in (a[0], a[0], a[1], a[1], a[2])]
        return sum((g * g for g in gaps[1:]), gaps[0] * gaps[0])

    again = hf.hunt(in_jax, hf.UFM(6), starts=256, balls=balls, progress=None)
    assert again.certified and again.a == found.a and again.certificate.metric.endswith("balls")


@pytest.mark.slow
def test_size_does_not_matter_and_rounding_is_no_find():
    small = hf.hunt(lambda a: 1e-14 * ex.sum((a / ex.sum(a)) ** 2), hf.UFM(8), progress=None)
    assert small.found and small.certified
    constant = hf.hunt(
        lambda a: 1e8 * jnp.sum(a / jnp.sum(a)), hf.UFM(8), starts=256, progress=None
    )
    assert not constant.found


@pytest.mark.parametrize(
    ("metric", "options", "named", "told"),
    [
        ("l3", {"classes": 8}, {}, "Unknown metric 'l3'"),
        (lambda a: a, {"classes": 4}, {}, "must return one number, but this one has shape (3,)"),
        (lambda a: 1, {"classes": 4}, {}, "must return a real number, but this one returns int"),
        (lambda a: jnp.log(-jnp.sum(a)), {"classes": 4}, {}, "must be a finite number"),
        (lambda a: a.sum() if a[0] > 1 else 0, {"classes": 4}, {}, "cannot be traced by JAX"),
        ("no_such:metric", {"classes": 4}, {}, "Cannot load the metric"),
        ("l2", {"classes": 8}, {"starts": 0}, "`starts` must be a whole number"),
        ("l2", {"classes": 8}, {"seconds": -1}, "`seconds` must be a positive number"),
        ("l2", {"classes": 8}, {"seek": "up"}, '`seek` must be "rise" or "fall"'),
        ("kl", {"classes": 8, "imbalance": ((4, 2), (4, 1))}, {}, "balanced classes"),
        ("kl", {"classes": 512}, {}, "255 free modes"),
        ("kl", {"classes": 4}, {"C": [1, 2]}, "`C` must be one number or as many as `a`"),
    ],
)
def test_bad_input_is_one_line(metric, options, named, told):
    with pytest.raises(hf.InputError) as error:
        hf.hunt(metric, hf.UFM(**options), progress=None, **named)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_it_is_repeatable_and_can_be_interrupted(monkeypatch):
    one, two = (hf.hunt("l2", hf.UFM(6), seed=5, progress=None) for _ in range(2))
    assert one.a == two.a and one.certificate == two.certificate

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(hunting.Quarry, "refine", interrupted)
    stopped = hf.hunt("l2", hf.UFM(6), progress=None)
    assert stopped.interrupted and stopped.certified and stopped.starts == 256
    assert stopped.message.startswith("Interrupted: found and certified")
    monkeypatch.setattr(hunting.Quarry, "climb", interrupted)
    stopped = hf.hunt("l2", hf.UFM(6), progress=None)
    assert stopped.interrupted and not stopped.found and stopped.starts == 0
    assert stopped.message.startswith("Interrupted: not found in 0 starts")


def test_time_runs_out():
    short = hf.hunt("kl", hf.UFM(4), starts=10**6, seconds=0.01, progress=None)
    assert not short.found and short.starts < 10**6 and "Time ran out" in short.message


def test_far_out_the_rate_is_still_seen():
    """At norms where dm/dt underflows, its log does not."""
    quarry = hunting.Quarry.make("l2", hf.UFM(8), None, None)
    import jax

    with jax.enable_x64(True):
        far = quarry.log_speeds(np.array([[1000.0, 1000, 1000, 1250, 1, 1, 1]]))
    assert -1e5 < far[0] < -745


# --- how bad does it get -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_worst_rise_approaches_its_limit(tmp_path):
    """From uniform on four modes to (1, 1, 1, 2)/5 M rises by ½(7/25 − 1/4) = 0.015."""
    worst = hf.worst_rise("l2", hf.UFM(8), starts=320, progress=None)
    assert 0.0135 < worst.rise < 0.015
    again = hf.solve(hf.UFM(8), worst.a, hf.Time(log10=worst.log10_peak), progress=None)
    assert again.measure("l2")[-1] - again.measure("l2")[0] == pytest.approx(worst.rise, rel=1e-5)
    worst.plot(tmp_path / "rise.png")
    worst.save(tmp_path / "rise.nc")
    assert (tmp_path / "rise.png").stat().st_size > 20_000
    assert hf.load(tmp_path / "rise.nc").measure("l2").max() == pytest.approx(worst.peak)
    assert json.loads(json.dumps(worst.to_document() | {"a": worst.a.tolist()}))["rise"] > 0


@pytest.mark.slow
def test_no_rise_of_the_lyapunov_function():
    none = hf.worst_rise("kl", hf.UFM(4), starts=256, progress=None)
    assert none.rise <= 1e-9 and str(none).startswith("No rise")


# --- command line --------------------------------------------------------------------------------


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


KEYS = {
    "found", "certified", "metric", "classes", "group", "a", "rate", "enclosure", "starts", "seed",
    "certificate",
}  # fmt: skip


def test_the_commands_from_conjecture_to_checked_file(hadaflow, tmp_path):
    path = tmp_path / "c.json"
    code, out, err = hadaflow("hunt", "l2", "--classes", 6, "--json", "--out", path)
    document = json.loads(out)
    assert code == 0 and not err and set(document) >= KEYS
    assert document["found"] and document["certified"] and document["group"] == [6]
    assert all(isinstance(v, str) for v in document["a"]) and document["seed"] == 0
    assert document["certificate"] == json.loads(path.read_text())
    code, out, _ = hadaflow("certify", path)
    assert code == 0 and out.startswith("holds")
    code, out, _ = hadaflow("certify", path, "--json")
    assert code == 0 and json.loads(out)["holds"]
    other = document["certificate"] | {"a": ["1", "1", "2"]}
    path.write_text(json.dumps(other))
    code, out, err = hadaflow("certify", path)
    assert code == 1 and out.startswith("FAILS") and err.startswith("hadaflow: does not hold")


def test_a_sign_is_proven_at_a_given_state(hadaflow, tmp_path):
    path = tmp_path / "c.json"
    code, out, _ = hadaflow(
        "certify", "kl", "--classes", 4, "--unbalanced", "0,1,2", "--start", "1,1.01,1/2", "--json",
        "--out", path,
    )  # fmt: skip
    document = json.loads(out)
    assert (
        code == 0 and document["a"] == ["1", "1.01", "0.5"] and document["C"] == [["0", "1", "2"]]
    )
    assert document["sign"] in (-1, 1) and hadaflow("certify", path)[0] == 0
    code, out, _ = hadaflow("certify", "kl", "--classes", 4, "--starts", 64)
    assert code == 0 and out.startswith("Not found in 64 starts")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("hunt", "nope", "--classes", 8), "Unknown metric 'nope'"),
        (("hunt", "l2"), "classes"),
        (("hunt", "l2", "--classes", 6, "--unbalanced", "1,x,2"), "`unbalanced` must be numbers"),
        (("certify", "none.json"), "Cannot read the certificate from 'none.json'"),
        (("certify", "none.json", "--depth", 3), "`depth` describes a model and needs `classes`"),
        (("certify", "none.json", "--start", "1,1"), "`start` goes with a metric"),
        (("certify", "l2", "--classes", 4, "--start", "1,1,1e999"), "`start` must be decimals"),
        (("certify", "l2", "--classes", 4, "--start", "1,1"), "must have 3 singular values"),
        (("certify", "l2", "kl", "--classes", 4), "Give one metric"),
        (("rise", "l2", "--classes", 4, "--low", 2, "--high", 1), "`low` and `high` must have"),
        (("rise", "l2", "--classes", 4, "--picture", "x.txt"), "must end in one of png"),
        (("portrait", "--classes", 4, "--norm", "big"), "`norm` and `fix`"),
        (("atlas", "--classes", 4, "--unbalanced", "1/3"), "`unbalanced` must be"),
        (("atlas", "--classes", 1000000), "255 free modes"),
        (("atlas", "--classes", 4, "--starts", 0), "`starts` must be a whole number"),
        (("portrait", "--classes", 8, "--fix", "4:0.1", "--fix", "4:0.2"), "each mode once"),
    ],
)
def test_errors_are_one_line_and_exit_2(hadaflow, arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = hadaflow(*arguments)
    assert code == 2 and out == "" and told in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_interrupted_hunt_says_what_it_has(hadaflow, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(hunting.Quarry, "climb", interrupted)
    code, out, _ = hadaflow("hunt", "l2", "--classes", 6, "--json")
    document = json.loads(out)
    assert code == 130 and document["interrupted"] and not document["found"]
