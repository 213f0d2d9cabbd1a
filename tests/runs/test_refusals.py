"""Combinations that make no sense, or have no reduced view: one clear line each."""

import sys

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.cli import commands as cli

BLOCKS = ((4, 5), (4, 1))
THREE = ((2, 3), (2, 2), (4, 1))


def deep(a, C=None):
    return hf.solve(hf.UFM(4, depth=3), hf.spectrum(a, C), hf.Time(1))


def blocks(a=(0.3,) * 7, **options):
    return hf.solve(hf.UFM(8, imbalance=BLOCKS), hf.spectrum(a, **options), hf.Time(1))


TABLE = [
    (lambda: hf.certify("kl", ["1", "1"]), "`a` must hold K − 1 singular values, K a power of two"),
    (lambda: hf.solve(hf.UFM(8), [-1] * 7), "`start` must hold finite singular values"),
    (lambda: hf.solve(hf.UFM(8), [1.0] * 7, [1, 10, 100]), "are kept go to `times=`"),
    (lambda: hf.solve(hf.UFM(8), [1.0] * 7, "time:1").plot("x.foo"), "`path` must end in one of png"),
    (lambda: hf.solve(hf.UFM(8), [1.0] * 7, "collapse:-1"),
     "`until` must have a positive number behind its colon, but is 'collapse:-1'"),
    (lambda: hf.resume(hf.solve(hf.UFM(8), [1.0] * 7, "time:1"), "time:1e4"),
     "`progress` must be \"auto\", None or a function"),
    (lambda: hf.UFM(1), "`classes` must be from 2 to 2^24, but is 1"),
    (lambda: hf.UFM(2**24 + 1), "`classes` must be from 2 to 2^24"),
    (lambda: hf.UFM(8, depth=0), "`depth` must be a whole number of at least 1, but is 0"),
    (lambda: hf.UFM(8, depth=2.5), "`depth` must be a whole number"),
    (lambda: hf.UFM(8, depth=1, width=9), "`width` does not apply at depth 1"),
    (lambda: hf.UFM(8, weight_decay=(1, 2, 3)), "or 2 of them, one for each layer"),
    (lambda: hf.UFM(8, depth=4, weight_decay=(1, 2, 3)), "or 4 of them, one for each layer"),
    (lambda: hf.UFM(8, weight_decay=(0.1, -0.1)), "must be a number that is not negative"),
    (lambda: hf.UFM(8, imbalance=((8, 5),)), "`imbalance` must list at least two blocks"),
    (lambda: hf.UFM(8, imbalance=((4, 5), (4, 0))), "`imbalance` must list at least two blocks"),
    (lambda: hf.UFM(8, imbalance="4x5"), "`imbalance` must list at least two blocks"),
    (lambda: hf.UFM(8, imbalance=((4, 5), (3, 1))), "must have `classes` = 8 classes in all"),
    (lambda: hf.UFM(8, imbalance=BLOCKS, samples=2), "one of `samples` and `imbalance`"),
    (lambda: hf.UFM(8, imbalance=BLOCKS, group=(8,)), "`group` must be two groups"),
    (lambda: hf.UFM(8, imbalance=BLOCKS, group=((4,), (3,))), "(4 and 4), but is ((4,), (3,))"),
    (lambda: hf.UFM(8, imbalance=THREE, group=((2,), (2,), (4,))), "no reduced view of 3 blocks"),
    (lambda: hf.UFM(8, imbalance=BLOCKS, label_distribution=(0.3,) + (0.1,) * 7),
     "`label_distribution` is invariant under one group"),
    (lambda: hf.solve(hf.UFM(8, imbalance=THREE), [0.1] * 7, hf.Time(1)),
     "no reduced view of this imbalance (two blocks have one, but 2×3, 2×2, 4×1 are 3): use the full"),
    (lambda: hf.solve(hf.UFM(8, imbalance=BLOCKS, loss="mse"), [0.1] * 8, hf.Time(1)),
     "no reduced view of this imbalance (with loss = mse the constant mode"),
    (lambda: hf.lift(hf.UFM(8, imbalance=THREE), [0.1] * 7), "no reduced view of this imbalance"),
    (lambda: hf.solve(hf.UFM(8, imbalance=BLOCKS), [0.3] * 7), "`until` must be given with"),
    (lambda: hf.solve(hf.UFM(8, imbalance=BLOCKS), [0.3] * 7, hf.Collapse(1e-3)),
     "`until` cannot be Collapse with `imbalance`"),
    (lambda: blocks((0.3,) * 6), "inside the two blocks, then the one between them), but has 6"),
    (lambda: blocks(angle=2.0), "`angles` must be one angle from 0 to π/2"),
    (lambda: blocks(angle=[1.0, 2.0]), "`angle` must be one number"),
    (lambda: hf.solve(hf.UFM(8, imbalance=BLOCKS), hf.circulant([0.3] * 7), hf.Time(1)),
     "`angles` must be one angle"),
    (lambda: blocks((0.3,) * 6 + (0.0,), C=1.0), "the full view (`hadamard`) follows such a start"),
    (lambda: hf.measure("l2", hf.UFM(8, imbalance=BLOCKS), [0.3] * 7), "needs balanced classes"),
    (lambda: hf.measure("residual", hf.UFM(8, imbalance=BLOCKS),
                        hf.gaussian(hf.UFM(8, imbalance=BLOCKS), 1, 0)), "needs balanced classes"),
    (lambda: hf.fixed_point(hf.UFM(8, imbalance=BLOCKS, label_smoothing=0.1)),
     "must have balanced classes"),
    (lambda: hf.UFM(8, imbalance=BLOCKS).basis, "have no basis in common"),
    (lambda: hf.max_margin(hf.UFM(4, depth=3), hf.gaussian(hf.UFM(4, depth=3), 1, 0)),
     "it needs `depth` = 2"),
    (lambda: deep([1, 1, 1], np.ones((3, 3))), "`C` must have shape (2, 3) at depth 3"),
    (lambda: hf.stability_limit(hf.UFM(4), 0.5, at=2.0), "`momentum` must be 0 for a model with"),
    (lambda: hf.lift(hf.UFM(8, imbalance=BLOCKS), [0.3] * 8), "must have 7 singular values"),
    (lambda: hf.solve(hf.UFM(4), hf.spectrum([1, 1, 1], np.ones((2, 3))), hf.Time(1)),
     "`C` must have one row of differences at depth 2"),
    (lambda: hf.solve(hf.UFM(4, depth=1), hf.spectrum([1, 1, 1], 0.5), hf.Time(1)),
     "`C` must be zero at depth 1"),
    (lambda: hf.solve(hf.UFM(4, depth=1, weight_decay=0.1), [0.0, 1, 1], hf.Time(1)),
     "the full view (`hadamard`) follows such a start"),
    (lambda: hf.mse_exact(hf.UFM(4, depth=3, loss="mse"), [0.1] * 4, [1.0]), "depth 1 or 2"),
    (lambda: hf.linearized(hf.UFM(10), [0.1] * 5, [1.0]), "must have hard labels"),
    (lambda: hf.circulant(["a"]), "`values` must hold complex numbers"),
    (lambda: hf.solve(hf.UFM(6), hf.circulant([1, 1, 1j]), hf.Time(1)),
     "must be real for modes of multiplicity 1, but mode 3 is not"),
    (lambda: hf.solve(hf.UFM(5, loss="mse"), hf.circulant([1j, 1, 1]), hf.Time(1)),
     "must be real for modes of multiplicity 1, but mode 1 is not"),
    (lambda: hf.measure("l2", hf.UFM(5), hf.circulant([1, 1j])), "not told by the moduli"),
    (lambda: hf.stability_limit(hf.UFM(4)), "`at` must be the mean singular value"),
    (lambda: hf.stability_limit(hf.UFM(4), at=-1), "`at` must be the mean singular value"),
    (lambda: hf.stability_limit(hf.UFM(4, label_smoothing=0.1), at=1.0), "`at` is for models that"),
    (lambda: hf.stability_limit(hf.UFM(8, imbalance=BLOCKS), at=1.0), "must have balanced classes"),
    (lambda: hf.parameters(np.ones((2, 3)), np.ones((2, 3))), "must fit each other"),
    (lambda: hf.solve(hf.UFM(4, depth=3), hf.gaussian(hf.UFM(4), 1, 0), hf.Time(1)),
     "must have matrices of shapes ((4, 4), (4, 4), (4, 4)), but has"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "told"), TABLE, ids=range(len(TABLE)))
def test_a_bad_combination_gets_one_clear_line(call, told):
    with pytest.raises(hf.InputError) as error:
        call()
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--classes 8 --imbalance 4x5 --start 1", "at least two blocks"),
        (
            "--classes 8 --imbalance 4y5,4x1 --start 1",
            "blocks of classes x samples such as 4x5,4x1",
        ),
        ("--classes 8 --imbalance 2x3,2x2,4x1 --start 1,1 --until time:1", "use the full view"),
        ("--classes 8 --imbalance 4x5,4x1 --start 1,1,1,1,1,1,1", "`until` must be given"),
        ("--classes 8 --group 2x4,8 --start 1,1,1,1", "must be one group, such as 2x4"),
        (
            "--classes 4 --start 1,1,1 --unbalanced 1,2",
            "`unbalanced` must be one number or as many as `start`",
        ),
        ("--classes 4 --start 1,1,1 --unbalanced 1,2;3", "rows of one length"),
        ("--classes 4 --start 1,1,1 --unbalanced x", "`unbalanced` must be numbers"),
        ("--classes 4 --depth 3 --start 1,1,1 --unbalanced 1;2;3", "must have shape (2, 3)"),
        ("--classes 4 --depth 3 --start 1,1,1 --weight-decay 1,2", "or 3 of them"),
        ("--classes 5 --start 1+j2,1", "complex ones such as 1+0.5j"),
        ("--classes 5 --start 1+2j,1 --metric l2 --until time:1", "not told by the moduli"),
    ],
)
def test_so_does_the_command_line(arguments, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hadaflow", "solve", *arguments.split()])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == "" and err.count("\n") == 1 and told in err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, g: hf.solve(m, g.factors), r"write parameters\(W, H\)"),
        (lambda m, g: hf.solve(m, list(g.factors)), r"write parameters\(W, H\)"),
        (lambda m, g: hf.solve(m, g.Z), r"write parameters\(W, H\)"),
        (lambda m, g: hf.descend(m, g.factors, 3, 0.1), r"write parameters\(W, H\)"),
        (lambda m, g: hf.lift(m, g), "is a full state: `project` it"),
        (lambda m, g: hf.metric_names(m), "but is a UFM, which comes second"),
        (lambda m, g: hf.metric_names(m, "full"), "but is a UFM, which comes second"),
        (lambda m, g: hf.metric_names("sideways"), '"reduced" or "full", but is \'sideways\''),
        (lambda m, g: hf.metric_names("full", "full"), "`model` must be a UFM"),
        (lambda m, g: hf.measure("KL", m, [1.0] * 3), r"'KL' \(did you mean kl\?\)"),
        (lambda m, g: hf.measure("nc1", m, g), "did you mean nc1_cdnv or nc1_pinv or nc1_quot"),
        (lambda m, g: hf.measure("log-ratio", m, g), "did you mean log_ratio"),
        (lambda m, g: hf.measure(7, m, g), "must be a name or a function, but is 7"),
        (lambda m, g: hf.fixed_point(m), "must have soft labels or penalties"),
        (
            lambda m, g: hf.solve(m, "x" * 10**5),
            "`start` must be numbers separated by commas, @FILE or one of uniform",
        ),
        (lambda m, g: hf.solve(m, [1.0] * 3, times=range(10**5, 0, -1)), "strictly increasing"),
        (
            lambda m, g: hf.solve(m, [1.0] * 3, "x" * 10**5),
            "`until` must be one of time:NUMBER, collapse",
        ),
        (lambda m, g: hf.UFM("4" * 10**5), "`classes` must be a whole number"),
        (lambda m, g: hf.UFM(4, group=(2,) * 10**5), "`group` must"),
        (lambda m, g: hf.UFM(4, weight_decay=(1.0,) * 10**5), "`weight_decay` must"),
        (lambda m, g: hf.spectrum([[1.0] * 3] * 10**4 + [[-1.0] * 3]), "but has -1.0"),
        (lambda m, g: hf.gaussian(m, 1e300, 0), "`scale` must be at most"),
        (lambda m, g: hf.solve(m, [1e307, 1, 1]), "values of at most 6.25e"),
    ],
)
def test_what_is_said_of_bad_input(call, message):
    model = hf.UFM(4)
    with pytest.raises(hf.InputError, match=message) as refusal:
        call(model, hf.gaussian(model, 0.1, 0))
    assert len(str(refusal.value)) < 600 and "\n" not in str(refusal.value)


def test_overflow_is_no_warning():
    for start in ([1.0, 0.5, 0.3], hf.gaussian(hf.UFM(4), 0.3, 0)):
        run = hf.descend(hf.UFM(4), start, 5, 1e300, progress=None)
        assert run.status == "failed" and "overshoot" in run.message


def test_all_names_without_a_view():
    both = hf.metric_names()
    assert set(both) == {*hf.metric_names("reduced"), *hf.metric_names("full")}
