"""Certificates: rates of every metric for every model, files, tampering, metrics of one's own."""

import json
import subprocess
import sys
from fractions import Fraction

import flint
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hadaflow as hf
from hadaflow import expressions as ex
from hadaflow.lab.certify import recheck
from hadaflow.lab.exact.ball_flow import Setting
from hadaflow.lab.exact.ball_metrics import METRICS
from hadaflow.lab.exact.balls import Rated, exact, increasing_root, largest, written

V = ["1", "1", "1", "1.25", "0.01", "0.01", "0.01"]  # Theorem 4's start

LABELS = (0.6, 0.1, 0.05, 0.1, 0.05, 0.1)  # on Z_6: the same for g and −g


def symmetric_labels(K):
    q = np.array([1.0 / (2 + min(g, K - g)) for g in range(K)])
    q = np.round(q / q.sum(), 3)
    q[0] += 1 - q.sum()
    return tuple(q)


MODELS = {
    "walsh": (hf.UFM(8), None, ("kl", "frobenius", "log_ratio", "alignment_w")),
    "Z_6": (hf.UFM(6), None, ("reverse_kl", "l2", "margin", "collapse_deviation")),
    "Z_2 x Z_4": (hf.UFM(8, group=(2, 4)), None, ("kl", "log_energy", "margin")),
    "logits": (hf.UFM(5, depth=1), None, ("l2", "energy")),
    "depth 3": (hf.UFM(7, depth=3), None, ("loss",)),
    "differences": (hf.UFM(4), ["0", "1", "-2"], ("kl", "alignment_w", "alignment_h")),
    "deep differences": (
        hf.UFM(4, depth=3), [["0.5", "-1", "2"], ["0", "0.3", "1"]], ("alignment_h",),
    ),
    "smoothing": (hf.UFM(9, label_smoothing=0.1), None, ("label_divergence", "energy", "kl")),
    "deep smoothing": (hf.UFM(4, depth=4, label_smoothing=0.2), None, ("label_divergence",)),
    "soft differences": (
        hf.UFM(4, label_smoothing=0.2), ["1", "0", "2"], ("label_divergence", "log_loss"),
    ),
    "labels": (
        hf.UFM(6, label_distribution=symmetric_labels(6), temperature=0.7), None,
        ("label_divergence", "loss"),
    ),
    "penalty": (
        hf.UFM(4, samples=3, weight_decay=(0.1, 0.3), reduction="mean"), ["1", "0", "-1"],
        ("alignment_w", "kl", "log_loss"),
    ),
    "mse": (hf.UFM(4, loss="mse"), None, ("energy", "l2", "alignment_z")),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_rate_is_that_of_the_other_code_path(name):
    """Ball arithmetic and JAX share nothing but the definitions."""
    model, C, metrics = MODELS[name]
    a = [
        written(Fraction(int(k), 100))
        for k in np.random.default_rng(3).integers(5, 200, model.modes)
    ]
    state = hf.spectrum([float(v) for v in a], None if C is None else np.array(C, dtype=float))
    for metric in metrics:
        proof = hf.certify(metric, a, model, C=C)
        want = float(hf.rate(metric, model, state))
        assert proof.sign == np.sign(want)
        assert proof.rate == pytest.approx(want, rel=1e-7), metric


def test_every_metric_of_the_reduced_view_is_certified_somewhere():
    tried = {metric for *_, metrics in MODELS.values() for metric in metrics}
    named = {*hf.metric_names("reduced"), "label_divergence"}
    assert tried == named == set(METRICS)


def mp_flow(a, orders, depth):
    """The velocity from the K × K softmax itself, in 40 digits: no Ψ, no folding."""
    setting = Setting(orders)
    K, elements = setting.classes, list(np.ndindex(*orders))
    number = {}
    for i, g in enumerate(setting.elements):
        number[g] = number[tuple(-x % n for x, n in zip(g, orders, strict=True))] = i

    def character(h, g):
        turn = sum(mp.mpf(x * y) / n for x, y, n in zip(h, g, orders, strict=True))
        return mp.cos(2 * mp.pi * turn)

    zero = elements[0]
    c = [
        mp.fsum(a[number[h]] * character(h, g) for h in elements if h != zero) for g in elements
    ]  # scaled: logits over K times K
    e = [mp.exp(v) for v in c]
    P = [v / mp.fsum(e) for v in e]
    power = 2 - mp.mpf(2) / depth
    rates = []
    for i, h in enumerate(setting.elements):
        nu = mp.fsum(p * character(h, g) for p, g in zip(P, elements, strict=True))
        rates.append(a[i] ** power * (1 - nu))
    return rates, K


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([(7,), (9,), (2, 6), (2, 2, 2), (4, 4), (5,)]),
    st.sampled_from([1, 2, 3, 5]),
    st.integers(0, 10**6),
)
def test_kl_against_the_softmax_in_high_precision(orders, depth, seed):
    setting = Setting(orders)
    numerators = np.random.default_rng(seed).integers(1, 300, setting.modes)
    state = [Fraction(int(k), 100) for k in numerators]
    model = hf.UFM(setting.classes, group=orders, depth=depth)
    proof = hf.certify("kl", state, model)
    with mp.workdps(40):
        a = [mp.mpf(v.numerator) / v.denominator for v in state]
        rates, K = mp_flow(a, orders, depth)
        m = setting.multiplicity
        norm = mp.fsum(w * v for w, v in zip(m, a, strict=True))
        growth = mp.fsum(w * r for w, r in zip(m, rates, strict=True)) / norm
        logs = mp.fsum(w * r / v for w, r, v in zip(m, rates, a, strict=True)) / (K - 1)
        want = growth - logs
        assert abs(mp.mpf(proof.rate) - want) <= 1e-14 * abs(want)
    assert depth > 2 or proof.sign == -1  # Theorem 3 carries over to every group


def test_sixty_four_classes_and_more():
    """Certified values of the log-ratio vector of Appendix B.3, with ones in the further modes."""
    sixteen = "5.01 0.99 2 5 1 5 1 2 1 5 3 5 1 5 1".split()
    for K, want in ((16, 1.825e-13), (32, 4.11e-20), (64, 1.04e-33)):
        proof = hf.certify("log_ratio", [*sixteen, *["1"] * (K - 16)])
        assert proof.sign == 1 and proof.rate == pytest.approx(want, rel=5e-3)
    proof = hf.certify("l2", [*V, *["0.000001"] * 120])
    assert proof.sign == 1 and proof.setting.classes == 128


def test_other_groups_as_published():
    """Values certified elsewhere, by hand-written balls."""
    for K, group, a, metric, want in [
        (8, (8,), "0.01 1.4 1 0.01", "l2", 4.39e-5),
        (9, (9,), "1.5 0.01 0.01 1", "l2", 3.42e-4),
        (10, (10,), "0.01 1 0.01 1 1.5", "l2", 9.06e-4),
        (6, (6,), "0.001 1 1.25", "reverse_kl", 2.94e-4),
        (12, (12,), "2.01 0.1 0.1 0.1 2 0.09", "log_ratio", 5.69e-3),
    ]:
        proof = hf.certify(metric, a.split(), hf.UFM(K, group=group))
        assert proof.sign == 1 and proof.rate == pytest.approx(want, rel=2e-3)


# --- numbers -------------------------------------------------------------------------------------


@given(st.fractions(max_denominator=10**6))
def test_written_numbers_are_read_back(value):
    assert exact(written(value)) == value


def test_ties_are_proven_by_how_numbers_are_made():
    one, other = Rated.constant("0.1").with_rate(3), Rated.constant("0.1")
    slower = other.with_rate(-1)
    tied = largest([v.log() + 1 for v in (slower, one, other, slower)])
    assert tied.rate.contains(30)  # the one that leaves first; its log by 3/0.1
    # The same number made in two ways: nothing proves the tie, so both rates stay possible.
    rate = largest([one + 1, other * 11]).rate
    assert rate.contains(3) and rate.contains(0)


def test_roots_far_below_their_offsets_are_enclosed():
    """V (v + 10⁶)² = 10⁻⁸⁰: v is 10⁻⁹² to all digits."""
    tiny = increasing_root([Fraction(0), Fraction(10**6), Fraction(10**6)], Fraction(1, 10**80))
    assert tiny > 0 and abs(tiny * 10**92 - 1) < 1e-12
    proof = hf.certify("l2", ["1e-40", "1", "1"], hf.UFM(4, depth=3), C=-100)
    assert proof.sign != 0


def test_a_fixed_point_of_zero_is_no_obstacle():
    """Labels whose second mode is worth nothing: its term of the divergence is a itself."""
    model = hf.UFM(4, label_distribution=[0.4, 0.4, 0.1, 0.1])
    proof = hf.certify("label_divergence", ["1", "0.3", "0.5"], model)
    want = float(hf.rate("label_divergence", model, [1.0, 0.3, 0.5]))
    assert proof.sign == np.sign(want) and proof.rate == pytest.approx(want, rel=1e-9)
    assert proof.to_document()["problem"]["label_distribution"] == ["0.4", "0.4", "0.1", "0.1"]


def test_roots_are_enclosed():
    with flint.ctx.workprec(128):
        root = increasing_root([Fraction(0), Fraction(1, 3), Fraction(2)], Fraction(7, 2))
        digits = root.mid().str(40, radius=False)
    with mp.workdps(50):
        want = mp.findroot(lambda v: v * (v + mp.mpf(1) / 3) * (v + 2) - mp.mpf(7) / 2, 1)
        assert abs(mp.mpf(digits) - want) <= mp.mpf(float(root.rad())) < 1e-28


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path):
    path = tmp_path / "certificate.json"
    hf.certify("l2", V).save(path)
    return path


def test_a_file_is_checked_again(certificate):
    verdict = recheck(certificate)
    assert verdict.holds and verdict.reason.startswith("d(l2)/dt > 0")
    document = json.loads(certificate.read_text())
    assert document["a"] == V and document["bits"] == 64 and "python-flint" in document["versions"]


def changed(document, **entries):
    return document | entries


def restated(document, **problem):
    """The problem changed, with the statement that would go with it."""
    changed = document | {"problem": document["problem"] | problem}
    if problem["label_distribution"]:
        labels = ", ".join(problem["label_distribution"])
        changed["statement"] = f"{document['statement']}, labels ({labels})"
    return changed


TAMPERED = {
    "another state": lambda d: changed(d, a=[*V[:3], "1.2", *V[4:]]),
    "another state and statement": lambda d: json.loads(json.dumps(d).replace("1.25", "1.2")),
    "state and enclosure to match": lambda d: json.loads(
        json.dumps(d).replace("1.25", "1.2").replace(d["enclosure"], "[0.0007 +/- 1e-16]")
    ),
    "a state where it falls": lambda d: json.loads(json.dumps(d).replace("1.25", "3")),
    "the other sign": lambda d: changed(
        d, sign=-1, enclosure="[-0.0007330787094099466 +/- 7.40e-20]",
        statement=d["statement"].replace(">", "<"),
    ),
    "another enclosure": lambda d: changed(d, enclosure="[0.00073307870941 +/- 1e-17]"),
    "an enclosure of everything": lambda d: changed(d, enclosure="[1 +/- 1]"),
    "another metric": lambda d: changed(
        d, metric="frobenius", statement=d["statement"].replace("l2", "frobenius")
    ),
    "another group": lambda d: changed(
        d, problem=d["problem"] | {"group": [15], "classes": 15},
        statement=d["statement"].replace("Z_2 × Z_2 × Z_2", "Z_15"),
    ),
    "another depth": lambda d: changed(
        d, problem=d["problem"] | {"depth": 1, "weight_decay": ["0"]}
    ),
    "smoothing": lambda d: changed(d, problem=d["problem"] | {"label_smoothing": "0.1"}),
    "differences": lambda d: changed(d, C=[["0", "0", "0", "1", "0", "0", "0"]]),
    "fewer bits": lambda d: changed(d, bits=8),
    "labels that no flow has": lambda d: restated(
        d, label_distribution=["0.8", "0.07", "0.03", "0.02", "0.02", "0.02", "0.02", "0.02"]
    ),
    "labels that are not their own mirror image": lambda d: restated(
        d | {"a": ["1", "2", "3", "1"]}, group=[8],
        label_distribution=["0.6", "0.1", "0.05", "0.05", "0.05", "0.05", "0.05", "0.05"],
    ),
    "a larger claim": lambda d: changed(d, statement=d["statement"] + ", and for every K"),
}  # fmt: skip


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_certificate_fails(certificate, how):
    document = TAMPERED[how](json.loads(certificate.read_text()))
    if "mirror" in how:
        with pytest.raises(hf.InputError, match="`problem` cannot be used"):
            recheck(document)
        return
    verdict = recheck(document)
    assert not verdict.holds and verdict.reason


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": "other-1"}, "its schema is 'other-1'"),
        ({"a": ["1", "x"]}, "`number` cannot be used"),
        ({"a": ["1e9"] * 7}, "`number` cannot be used"),
        ({"a": V[:3]}, "must have 7 singular values"),
        ({"a": ["0", *V[1:]]}, "must hold positive numbers"),
        ({"metric": "nope"}, "Unknown metric 'nope'"),
        ({"metric": 3}, "`metric` cannot be used"),
        ({"metric": "no_such_module:f"}, "Cannot load the metric"),
        ({"enclosure": "about 7e-4"}, "`enclosure` cannot be used"),
        ({"problem": {}}, "`problem` cannot be used"),
        ({"extra": 1}, "check its entries extra"),
        ({"sign": True}, "`sign` cannot be used"),
        ({"sign": 1.0}, "`sign` cannot be used"),
        ({"source": "0" * 64}, "`source` cannot be used"),
        ({"versions": None}, "`versions` cannot be used"),
        ({"a": ["\u0661", *V[1:]]}, "`number` cannot be used"),
        ({"metric": ".x:y"}, "Cannot load the metric '.x:y'"),
    ],
)
def test_a_certificate_for_other_code_is_refused(certificate, change, told):
    certificate.write_text(json.dumps(json.loads(certificate.read_text()) | change))
    with pytest.raises(hf.InputError) as error:
        recheck(certificate)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(hf.InputError, match="Cannot read"):
        recheck(tmp_path / "none.json")
    (tmp_path / "torn.json").write_text('{"schema": ')
    with pytest.raises(hf.InputError, match="not a JSON document"):
        recheck(tmp_path / "torn.json")
    (tmp_path / "twice.json").write_text('{"statement": "KL rises", "statement": "d(l2)/dt > 0"}')
    with pytest.raises(hf.InputError, match="an entry twice"):
        recheck(tmp_path / "twice.json")


def test_checking_needs_no_jax(certificate):
    code = (
        "import sys; from hadaflow.lab.certify import recheck; "
        f"assert recheck({str(certificate)!r}).holds; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_undecided_sign_is_no_certificate(tmp_path):
    proof = hf.certify("kl", ["1"] * 7, most_bits=256)
    assert proof.sign == 0 and proof.bits == 256 and "undecided" in proof.statement
    with pytest.raises(hf.InputError, match="Nothing is proven"):
        proof.save(tmp_path / "c.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "named", "told"),
    [
        (("l2", ["1"] * 6), {}, "`a` must hold K − 1 singular values"),
        (("l2", ["1"] * 6, hf.UFM(8)), {}, "`a` must have 7 singular values"),
        (("l2", "1,2,3"), {}, "`a` must be a list of numbers"),
        (("l2", ["1", "2", "nan"]), {}, "`a` must hold finite numbers, but has 'nan'"),
        (("l2", V, "gradient"), {}, "`flow` must be a UFM, but is str"),
        (("l2", V), {"C": [1, 2]}, "`C` must be one number, 7 of them"),
        (("l2", ["1", "2"], hf.UFM(5, depth=1)), {"C": 1}, "`C` must be zero at depth 1"),
        (("label_divergence", V), {}, "must have soft labels"),
        (("alignment_w", ["1", "2"], hf.UFM(5, depth=1)), {}, "needs `depth` of at least 2"),
        (("l2", V), {"most_bits": 3}, "`most_bits` must be from 64"),
        (("l2", [Fraction(1, 2**20000), 1, 1]), {}, "at most 4000 digits"),
        (("kl", V, hf.UFM(8, imbalance=((4, 2), (4, 1)))), {}, "balanced classes"),
    ],
)
def test_nothing_is_proven_about_nonsense(arguments, named, told):
    with pytest.raises(hf.InputError) as error:
        hf.certify(*arguments, **named)
    assert told in str(error.value) and "\n" not in str(error.value)


# --- metrics of one's own ------------------------------------------------------------------------


def spread(a):
    share = a / ex.sum(a)
    return ex.largest(share) - ex.smallest(share)


def everything(a):
    """All helpers at once."""
    share = a / ex.norm(a)
    return (
        ex.exp(-ex.mean(share)) + ex.sqrt(ex.sum(share**3)) * ex.tanh(ex.log(a[0]))
        + ex.absolute(a[1] - 2) ** 1.5
    )  # fmt: skip


@pytest.mark.parametrize("metric", [spread, everything])
def test_the_helpers_mean_the_same_in_both_arithmetics(metric):
    a = ["0.7", "1.3", "0.2", "1.1", "0.4", "0.9", "0.05"]
    want = float(hf.rate(metric, hf.UFM(8), [float(v) for v in a]))
    assert hf.certify(metric, a).rate == pytest.approx(want, rel=1e-10)


def test_a_metric_given_as_an_arb_function():
    import jax.numpy as jnp

    def own(a):
        return jnp.sum(jnp.log1p(a))

    with pytest.raises(hf.InputError, match=r"hadaflow\.expressions"):
        hf.certify(own, V)
    proof = hf.certify(
        own, V, balls=lambda a: sum(((1 + v).log() for v in a[1:]), (1 + a[0]).log())
    )
    want = float(hf.rate(own, hf.UFM(8), [float(v) for v in V]))
    assert proof.rate == pytest.approx(want, rel=1e-10)


def test_balls_must_be_the_metric():
    with pytest.raises(hf.InputError, match="`balls` must be the metric itself"):
        hf.certify(lambda a: a[0] / a.sum(), V, balls=lambda a: sum(a[1:], a[0]))


def test_exact_numbers_are_not_compared():
    with pytest.raises(hf.InputError, match="exact numbers are compared with `largest`"):
        hf.certify(lambda a: (a * (a == a[0])).sum(), V)


def test_fewer_bits_than_it_takes(tmp_path):
    """A proof with 100 bits is checked as one with 100 bits."""
    model = hf.UFM(6)
    proof = hf.certify("reverse_kl", ["0.001", "1", "1.25"], model, most_bits=100)
    assert proof.sign == 1 and proof.bits == 100 and recheck(proof.to_document()).holds


def test_shared_expressions_cost_nothing():
    def squares(a):
        for _ in range(25):
            a = a * a / ex.sum(a)
        return ex.largest(a)

    assert hf.certify(squares, ["1", "1", "1"]).bits > 0


def test_a_metric_from_a_module_is_checked_as_the_code_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = (
        "from hadaflow import expressions as ex\n"
        "def cubes(a):\n    return ex.sum((a/ex.sum(a))**3)\n"
    )  # fmt: skip
    (tmp_path / "own_metric.py").write_text(source)
    hf.certify("own_metric:cubes", V).save("c.json")
    assert recheck("c.json", allow_import=True).holds
    (tmp_path / "own_metric.py").write_text(source.replace("**3", "**4"))
    with pytest.raises(hf.InputError, match="for other code"):
        recheck("c.json")
    with pytest.raises(hf.InputError, match="Cannot load the metric 'own_metric:none'"):
        hf.certify("own_metric:none", V)


def test_a_metric_must_return_a_number_made_from_a():
    with pytest.raises(hf.InputError, match="must return one number"):
        hf.certify(lambda a: a, V)
    with pytest.raises(hf.InputError, match="must return one number"):
        hf.certify(lambda a: 1.0, V)
