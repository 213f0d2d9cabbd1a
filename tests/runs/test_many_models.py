"""One verb for a list of models, or for names with models: each as it would be alone, compiled once."""

import numpy as np
import pytest

import hadaflow as hf
from runs.test_compilations import NOTHING, spent

SMOOTHINGS = [0.01, 0.02, 0.05, 0.1]
STARTS = np.random.default_rng(0).uniform(0.1, 0.5, (5, 3))


def test_a_list_of_models_gives_a_list_of_results():
    models = [hf.UFM(4, label_smoothing=s) for s in SMOOTHINGS]
    runs = hf.solve(models, STARTS, hf.Time(100.0))
    assert len(runs) == 4
    for model, batch in zip(models, runs, strict=True):
        assert batch.model is model and isinstance(batch, hf.Batch) and len(batch) == 5
        alone = hf.solve(model, STARTS[2], hf.Time(100.0))
        np.testing.assert_allclose(batch[2].a[-1], alone.a[-1], rtol=1e-7)
    descents = hf.descend(models, [0.1, 0.2, 0.3], 100, 0.01)
    assert [run.iterations[-1] for run in descents] == [100] * 4


def test_names_with_models_give_names_with_results():
    models = {f"s = {s}": hf.UFM(4, label_smoothing=s) for s in SMOOTHINGS}
    runs = hf.solve(models, [0.1, 0.2, 0.3], hf.Time(100.0))
    assert list(runs) == list(models)
    assert len(hf.compare(runs, "kl").axes[0].lines) == 4


def test_many_models_are_compiled_once():
    def solved(smoothings):
        models = [hf.UFM(4, label_smoothing=s) for s in smoothings]
        return lambda: hf.solve(models, STARTS, hf.Time(100.0), progress=None)

    solved([0.01])()
    assert spent(solved(SMOOTHINGS)) == NOTHING


def test_an_interruption_keeps_the_results_before_it():
    heard = []

    def stop(text, fraction=None):
        if not text.startswith("compiling"):
            heard.append(text)
        if len(heard) == 3:
            heard.clear()
            raise KeyboardInterrupt

    models = [hf.UFM(4, temperature=t) for t in (1.0, 0.9, 0.8)]
    runs = hf.descend(models, [0.1, 0.2, 0.3], 20_000, 0.01, progress=stop)
    assert len(runs) < 3 and runs[-1].status == "interrupted"


def test_no_models_are_refused():
    with pytest.raises(hf.InputError, match="`model` must be at least one model"):
        hf.solve([], [0.1, 0.2, 0.3])
    with pytest.raises(hf.InputError, match="`model` must be a UFM, but is str"):
        hf.solve(["model"], [0.1, 0.2, 0.3])
