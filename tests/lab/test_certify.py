"""Ball arithmetic against an independent high-precision computation, and its promises."""

from decimal import Decimal
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hadaflow as hf
from hadaflow.lab.certify import metric_rate
from hadaflow.lab.exact.ball_flow import ExactState, sylvester_psi
from hadaflow.lab.exact.balls import enclose, exact
from hadaflow.lab.trial_states import proven_signs, pushed_states, random_states

METRICS = ("kl", "reverse_kl", "l2", "frobenius", "log_ratio")


def mp_metric(name, a):
    norm = mp.fsum(a)
    hat, m = [v / norm for v in a], len(a)
    if name == "kl":
        return -mp.log(m) - mp.fsum(mp.log(v) for v in hat) / m
    if name == "reverse_kl":
        return mp.log(m) + mp.fsum(v * mp.log(v) for v in hat)
    if name == "l2":
        return mp.fsum((v - mp.mpf(1) / m) ** 2 for v in hat) / 2
    if name == "frobenius":
        length = mp.sqrt(mp.fsum(v**2 for v in a))
        return mp.fsum((v / length - 1 / mp.sqrt(m)) ** 2 for v in a)
    return mp.log(max(a)) - mp.log(min(a))


def mp_rate(name, a, depth=2):
    """Derivative of the metric along the flow, by a central difference in 60 digits."""
    with mp.workdps(60):
        a = [mp.mpf(v.numerator) / v.denominator for v in a]
        psi = sylvester_psi(len(a) + 1)
        e = [mp.exp(-mp.fsum(p * v for p, v in zip(row, a, strict=True))) for row in psi]
        D = 1 + mp.fsum(e)
        b = [mp.fsum(p * v for p, v in zip(row, e, strict=True)) for row in psi]
        velocity = [(v if depth == 2 else 1) * w / D for v, w in zip(a, b, strict=True)]
        h = mp.mpf(10) ** -20
        ahead, behind = (
            mp_metric(name, [v + s * h * w for v, w in zip(a, velocity, strict=True)])
            for s in (1, -1)
        )
        return (ahead - behind) / (2 * h)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(METRICS),
    st.sampled_from([1, 2]),
    st.sampled_from([4, 8, 16]).flatmap(
        lambda K: st.lists(
            st.integers(1, 4000).map(lambda n: Fraction(n, 1000)),
            min_size=K - 1, max_size=K - 1, unique=True,
        )
    ),
)  # fmt: skip
def test_enclosure_contains_the_rate_and_agrees_with_jax(metric, depth, a):
    rate = metric_rate(metric, a, depth=depth)
    want = mp_rate(metric, a, depth)
    assert abs(mp.mpf(str(rate.ball.mid().str(25, radius=False))) - want) <= 1e-13 * abs(want)
    model = hf.UFM(len(a) + 1, depth=depth)
    jax_rate = float(hf.rate(metric, model, [float(v) for v in a]))
    scale = np.abs(model.velocity(np.array([float(v) for v in a]))).max()
    assert abs(jax_rate - rate.value) <= 1e-9 * (abs(rate.value) + scale)


def test_exact_reads_numbers_as_written():
    assert exact("0.1") == Fraction(1, 10)
    assert exact(0.1) == Fraction(0.1) != Fraction(1, 10)
    assert exact("1e-3") == Fraction(1, 1000)
    assert exact(Decimal("0.1")) == Fraction(1, 10)
    assert exact(np.int64(2**53 + 1)) == 2**53 + 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("l2", ["1"] * 6), "`a` must have K − 1 entries, K a power of two"),
        (("l2", ["1", "-1", "1"]), "`a` must hold positive numbers"),
        (("l2", ["1", "0", "1"]), "`a` must hold positive numbers"),
        (("l2", []), "`a` must have K − 1 entries"),
        (("l2", ["1", "x", "1"]), "`a` must hold finite numbers, but has 'x'"),
        (("l2", [1, float("nan"), 1]), "`a` must hold finite numbers, but has nan"),
        (("l3", ["1", "2", "3"]), "Unknown metric 'l3'; allowed are kl"),
        (("l2", ["1", "2", "3"], None, 0), "`depth` must be from 1 to 100, but is 0"),
    ],
)
def test_nothing_is_proven_about_nonsense(arguments, told):
    with pytest.raises(hf.InputError) as error:
        metric_rate(*arguments)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_ties_take_the_right_derivative():
    # All equal but one: the largest among the tied decides, whichever comes first.
    a = [Fraction(1), Fraction(1), Fraction(1, 2)]
    flow = ExactState.at(a)
    rates = [float((v / w).mid()) for v, w in zip(flow.velocity, flow.a, strict=True)]
    assert metric_rate("log_ratio", a).value == pytest.approx(max(rates[:2]) - rates[2], rel=1e-12)


def test_an_exact_zero_is_not_decided():
    assert metric_rate("kl", ["1"] * 7).sign == 0


def test_precision_is_raised_until_the_sign_is_proven():
    near = [Fraction(1) + Fraction(k, 10**60) for k in range(7)]
    found = metric_rate("kl", near)
    assert found.sign == -1 and found.bits > 256


def test_precision_of_other_code_is_left_alone():
    import flint

    before = flint.ctx.prec
    enclose(lambda: flint.arb(2).sqrt())
    assert flint.ctx.prec == before


def test_random_states_are_full_rank_and_varied():
    states = random_states(8, 500, seed=1)
    assert np.all(states > 0) and np.all(np.ptp(states, axis=1) > 0)
    norms = states.sum(axis=1)
    assert norms.min() < 1e-3 and norms.max() > 10
    ratio = states.max(axis=1) / states.min(axis=1)
    assert ratio.min() < 1 + 1e-6 and ratio.max() > 1e8
    assert any(len(set(row)) < 7 for row in states), "ties are among the adversarial cases"


def test_the_optimizer_finds_a_violation_where_there_is_one():
    from hadaflow.metrics import distances
    from hadaflow.paper.claims.monotonicity import relative_rate

    starts = random_states(8, 20, seed=3, low=0, high=1)
    pushed = pushed_states(relative_rate(distances.l2, 8, 2), starts)
    signs = proven_signs(lambda a: metric_rate("l2", a, relative=0.5), pushed)
    assert np.any(signs > 0), "M does rise at K = 8"
