"""What a notebook and `print` show of every kind of result."""

import base64
import io

import numpy as np
import pytest
from matplotlib.image import imread

import hadaflow as hf

MODEL = hf.UFM(8)
FIGURE_1 = [1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3, 1e-3]


def picture_in(shown: str) -> np.ndarray:
    data = shown.split("data:image/png;base64,")[1].split("'")[0]
    return imread(io.BytesIO(base64.b64decode(data)))


@pytest.fixture(scope="module")
def results():
    run = hf.solve(MODEL, FIGURE_1, hf.Time(1e3))
    return {
        "run": run,
        "batch": hf.solve(MODEL, [FIGURE_1, FIGURE_1[::-1]], hf.Collapse(1e-2)),
        "descent": hf.descend(hf.UFM(4), hf.gaussian(hf.UFM(4), 0.1, [0, 1]), 20, 0.1),
        "atlas": hf.atlas(MODEL),
        "hunt": hf.hunt("l2", MODEL, starts=512),
    }


@pytest.mark.parametrize("kind", ["run", "batch", "descent", "atlas"])
def test_what_has_a_picture_shows_it(results, kind):
    shown = results[kind]._repr_html_()
    assert "<pre" in shown and str(results[kind]).splitlines()[0] in shown
    picture = picture_in(shown)
    assert picture.ndim == 3 and picture.std() > 0.01 and len(shown) < 300_000


def test_hunts_certificates_and_verdicts_say_their_sentence(results, tmp_path):
    hunt = results["hunt"]
    certificate = hunt.certificate
    certificate.save(tmp_path / "c.json")
    verdict = hf.recheck(tmp_path / "c.json")
    assert str(verdict).startswith("holds: ") and certificate.enclosure in str(verdict)
    for result in (hunt, certificate, verdict):
        shown = result._repr_html_()
        assert certificate.enclosure in shown and "<img" not in shown
    assert "&gt; 0" in certificate._repr_html_(), "text is escaped"


def test_what_cannot_be_drawn_is_said_alone():
    run = hf.solve(MODEL, FIGURE_1, hf.Time(1e3), points=2)
    broken = hf.Trajectory(
        **{
            f: getattr(run, f) for f in ("model", "view", "arrays", "log10_time", "status", "units")
        },
        message="no <picture>",
    )
    object.__setattr__(broken, "log10_log10_time", None)
    shown = broken._repr_html_()
    assert "no &lt;picture&gt;" in shown


def test_pictures_are_shown_without_global_state(results):
    import sys

    figure = results["run"].plot()
    assert imread(io.BytesIO(figure._repr_png_())).shape[2] == 4
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


def test_tables_of_runs(results):
    run, table = results["run"], results["run"].to_dataframe(["l2"])
    assert list(table.columns)[:2] == ["log10_time", "log_norm"] and list(table.columns)[-1] == "l2"
    np.testing.assert_array_equal(table["a_hat_4"], run.a_hat[:, 3])
    np.testing.assert_array_equal(table["l2"], run.measure("l2"))


def test_other_results_print_readably():
    best = hf.max_margin(MODEL, hf.hadamard(MODEL, [1.0] * 7))
    assert "KKT residual" in str(best) and "value 7 (at best 7)" in str(best)


def test_small_results_print_readably(results):
    run = results["run"]
    (dip, *_) = run.extremes("l2")
    assert str(dip).startswith("minimum 0.") and "at log10 t = " in str(dip)
    (half,) = run.crossings("kl", run.measure("kl").mean())
    assert str(half).startswith("falls through ")
    foretold = hf.predict_collapse(MODEL, FIGURE_1)
    assert "collapse foretold at log‖a‖₁ = " in str(foretold)
    mean = results["descent"].statistics("kl")
    assert str(mean).startswith("mean ± standard error over runs: 0.") and "→" in str(mean)
    cost = hf.estimate(MODEL, FIGURE_1)
    for result in (dip, foretold, mean, cost):
        assert str(result).split(" (")[0] in result._repr_html_()
    assert repr(results["hunt"]) == "<Hunt certified: l2, K = 8>"


def test_prints_say_nothing_of_what_was_not_done():
    still = hf.solve(MODEL, [1.0] * 7)
    assert "0 steps\n" in str(still)
    blocks = hf.UFM(8, imbalance=((4, 5), (4, 1)))
    lines = str(hf.solve(blocks, [0.1] * 7, times=[1.0])).splitlines()
    assert all(line == line.rstrip() for line in lines)
