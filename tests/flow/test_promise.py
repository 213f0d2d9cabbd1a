"""The promise `rtol`, against DOP853 on the matrices and other references: see `promises`."""

import pytest

from hadaflow.base.compiling import let_go
from promises import changes_sign, draw, excess

# Of every kind and view; some broke the promise while one step's tolerance was a fifth of it.
SOME = (0, 1, 4, 5, 10, 13, 19)


@pytest.mark.parametrize("index", SOME)
def test_some_members_of_the_family_keep_the_promise(index):
    case = draw(index)
    for rtol in (1e-6, 1e-8):
        assert excess(case, rtol) <= 1, case


@pytest.mark.slow
@pytest.mark.parametrize("part", range(100))
def test_a_thousand_members_of_the_family_keep_the_promise(part):
    for index in range(10 * part, 10 * part + 10):
        case = draw(index)
        for rtol in (1e-6, 1e-8):
            assert excess(case, rtol) <= 1, f"{index}, {rtol}: {case}"
    let_go()


def test_the_draw_has_every_kind():
    cases = [draw(index) for index in range(1000)]
    assert {c.kind for c in cases} == {"times", "norm", "path", "collapse"}
    assert len({c.model.basis.group for c in cases}) == 27
    for part in ("depth", "samples", "reduction"):
        assert len({getattr(c.model, part) for c in cases}) == {"depth": 4, "samples": 3}.get(
            part, 2
        )
    shares = [
        sum(map(bool, kind)) / 1000
        for kind in zip(
            *((c.full, c.model.penalized, c.model.soft_labels, changes_sign(c)) for c in cases),
            strict=True,
        )
    ]
    assert min(shares) > 0.1 and max(shares) < 0.6


def test_a_wrong_run_breaks_the_promise(monkeypatch):
    """A hundred times the tolerance is noticed."""
    import promises

    solve = promises.hf.solve
    loose = lambda *args, rtol, **options: solve(*args, rtol=100 * rtol, **options)  # noqa: E731
    monkeypatch.setattr(promises.hf, "solve", loose)
    assert max(excess(draw(index), 1e-6) for index in (10, 19)) > 1
