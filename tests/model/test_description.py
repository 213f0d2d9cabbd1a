"""A model in words and as plain data."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hadaflow as hf
from hadaflow.base.words import counted


@st.composite
def options(draw):
    """Options of any model, those that do not go together left out."""
    group = draw(st.sampled_from([None, (4,), (2, 4), (7,), (2, 3, 2)]))
    classes = int(np.prod(group)) if group else draw(st.integers(2, 20))
    depth = draw(st.integers(1, 4))
    found = {"classes": classes, "group": group, "depth": depth, "loss": "cross_entropy"}
    found["reduction"] = draw(st.sampled_from(["sum", "mean"]))
    if draw(st.booleans()):
        numbers = st.floats(0, 1e3)
        found["weight_decay"] = tuple(draw(numbers) for _ in range(depth))
    if depth > 1 and draw(st.booleans()):
        found["width"] = draw(st.integers(1, 50))
    kind = draw(st.sampled_from(["mse", "hard", "smooth", "soft", "blocks"]))
    if kind == "blocks":
        found["imbalance"] = ((1, draw(st.integers(1, 9))), (classes - 1, 3))
        found["group"] = None
    else:
        found["samples"] = draw(st.integers(1, 100))
    if kind == "mse":
        return found | {"loss": "mse"}
    if draw(st.booleans()):
        found["temperature"] = draw(st.floats(1e-3, 1e3))
    if kind == "smooth":
        found["label_smoothing"] = draw(st.floats(0, 0.999))
    if kind == "soft":
        masses = draw(st.lists(st.floats(0.01, 1), min_size=classes, max_size=classes))
        basis = hf.UFM(classes, group=group).basis
        elements = np.indices(basis.group).reshape(len(basis.group), -1)
        orders = np.array(basis.group)[:, None]
        negative = np.ravel_multi_index(tuple(-elements % orders), basis.group)
        q = np.array(masses) + np.array(masses)[negative]
        found["label_distribution"] = tuple(q / q.sum())
    return found


@settings(max_examples=300, deadline=None)
@given(options())
def test_a_document_makes_the_same_model_again(chosen):
    model = hf.UFM(**chosen)
    text = json.dumps(model.to_document(), allow_nan=False)
    again = hf.UFM(**json.loads(text))
    assert again == model and json.dumps(again.to_document()) == text


@settings(max_examples=300, deadline=None)
@given(options())
def test_everything_that_is_not_a_default_is_said(chosen):
    """Each option with its number, in both forms; what is a default is not said in the short one."""
    model = hf.UFM(**chosen)
    said = {
        "label smoothing": model.label_smoothing != 0, "temperature": model.temperature != 1,
        "weight decay": any(model.decays), "labels (": model.label_distribution is not None,
        "group": model.group is not None, "width": model.width != model.classes,
        "mse": model.loss == "mse", "mean": model.reduction == "mean",
    }  # fmt: skip
    long, short = model.describe(), model.describe(short=True)
    for words, wanted in said.items():
        assert (words in short) == wanted and (words in long) >= wanted, (words, short, long)
    assert (f"depth {model.depth}" in short) == (
        model.depth != 2
    ) and f"depth {model.depth}" in long
    assert f"{model.classes} classes" in long and f"K = {model.classes}" in short
    for number in (model.label_smoothing, model.temperature, *model.decays):
        assert number in (0, 1) or f"{number:g}" in short
    if model.imbalance is None:
        assert f"× {counted(model.samples, 'sample')}" in long
        assert (f"n = {model.samples}" in short) == (model.samples > 1)


def test_models_that_differ_are_told_apart():
    model = hf.UFM(8)
    others = [
        {"samples": 2}, {"width": 9}, {"depth": 3}, {"loss": "mse"}, {"reduction": "mean"},
        {"group": (2, 4)}, {"label_smoothing": 0.1}, {"temperature": 2.0}, {"weight_decay": 0.1},
        {"label_distribution": (0.3, *(0.1,) * 7)}, {"imbalance": ((4, 2), (4, 1))},
    ]  # fmt: skip
    names = {name for other in others for name in other}
    assert names == {f.name for f in dataclasses.fields(hf.UFM)} - {"classes"}
    for short in (False, True):
        texts = {hf.UFM(8, **o).describe(short) for o in others}
        assert len(texts | {model.describe(short)}) == len(others) + 1


@pytest.mark.parametrize(
    ("model", "long", "short"),
    [
        (hf.UFM(8), "8 classes × 1 sample, depth 2, cross_entropy (sum)", "K = 8"),
        (
            hf.UFM(8, samples=2, group=(2, 4), label_smoothing=0.1, weight_decay=(0.2, 0.05)),
            "8 classes × 2 samples, depth 2, cross_entropy (sum), group Z_2 × Z_4, "
            "label smoothing 0.1, weight decay (0.2, 0.05)",
            "K = 8, n = 2, group Z_2 × Z_4, label smoothing 0.1, weight decay (0.2, 0.05)",
        ),
        (
            hf.UFM(5, imbalance=((1, 4), (4, 1)), group=(None, (2, 2)), temperature=3),
            "5 classes (1×4, 4×1 samples), depth 2, cross_entropy (sum), "
            "groups none and Z_2 × Z_2, temperature 3",
            "K = 5, n = 1×4, 4×1, groups none and Z_2 × Z_2, temperature 3",
        ),
    ],
)
def test_both_forms(model, long, short):
    assert model.describe() == long and model.describe(short=True) == short


def test_a_run_says_its_model_everywhere():
    model = hf.UFM(4, label_smoothing=0.1, temperature=2)
    run = hf.solve(model, [0.1, 0.2, 0.3], hf.Time(1.0), points=2, progress=None)
    assert f"  model       {model.describe()}, reduced view" in str(run)
    assert repr(run) == "<Trajectory reached: 2 points, K = 4, label smoothing 0.1, temperature 2>"
    title = run.plot().get_suptitle()
    assert title == "K = 4, label smoothing 0.1, temperature 2: reached"


def test_counts_have_their_grammar():
    assert hf.UFM(3).basis.describe() == (
        "Z_3: 3 classes, 1 free mode: 1 conjugate pair of characters (multiplicity 2)"
    )
    assert hf.UFM(2).basis.describe() == "Z_2: 2 classes, 1 free mode, one singular value"
    assert hf.UFM(4, group=(4,)).basis.describe() == (
        "Z_4: 4 classes, 2 free modes: 1 conjugate pair of characters (multiplicity 2) and "
        "1 real one (multiplicity 1)"
    )
    blocks = hf.UFM(4, imbalance=((3, 2), (1, 1))).modes_of_view.describe()
    assert blocks.startswith("3 classes of 2 samples (Z_3") and "; 1 class of 1 sample;" in blocks
