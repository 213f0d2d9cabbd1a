import itertools
import json
import math
from fractions import Fraction as F

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.algebra.bases import AbelianGroup, Sylvester, cyclic
from hadaflow.algebra.symmetries import canonical_order, generators
from hadaflow.lab.atlas import Atlas, atlas
from hadaflow.saddles.supports import check_support, face_on, limit_on
from references import dense_psi

GROUPS = [(6,), (7,), (8,), (2, 4), (3, 3), (2, 6), (4, 4), (2, 2, 4)]


def folded(orders):
    """Free modes {h, −h} of a group, from its definition: elements, multiplicity, folded Ψ."""
    everything = list(itertools.product(*map(range, orders)))
    minus = {g: tuple(-x % n for x, n in zip(g, orders, strict=True)) for g in everything}
    modes = [g for g in everything if any(g) and g <= minus[g]]
    count = np.array([1 + (minus[g] != g) for g in modes])
    turns = [
        [sum(x * y / n for x, y, n in zip(g, h, orders, strict=True)) for h in modes] for g in modes
    ]
    number = {g: i for i, h in enumerate(modes) for g in (h, minus[h])}
    return modes, count, (1 - np.cos(2 * np.pi * np.array(turns))) * count, number


def closure(perms, size):
    seen = {tuple(range(size))}
    fresh = list(seen)
    while fresh:
        fresh = {tuple(p[i] for i in q) for p in fresh for q in perms} - seen
        seen |= fresh
    return seen


# --- symmetries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", GROUPS)
def test_generators_give_all_automorphisms(orders):
    """Against all endomorphisms of the group that are one to one."""
    modes, _, _, number = folded(orders)
    everything = list(itertools.product(*map(range, orders)))
    targets = [
        [g for g in everything if all(n * x % m == 0 for x, m in zip(g, orders, strict=True))]
        for n in orders
    ]
    expected = set()
    for columns in itertools.product(*targets):
        images = np.array(everything) @ np.array(columns) % np.array(orders)
        images = list(map(tuple, images.tolist()))
        if len(set(images)) == len(everything):
            image = dict(zip(everything, images, strict=True))
            expected.add(tuple(number[image[h]] for h in modes))
    found = closure([p.tolist() for p in generators(AbelianGroup(orders))], len(modes))
    assert found == expected


@pytest.mark.parametrize(("K", "order"), [(2, 1), (4, 6), (8, 168)])
def test_sylvester_generators_give_the_general_linear_group(K, order):
    assert len(closure([p.tolist() for p in generators(Sylvester(K))], K - 1)) == order


@pytest.mark.parametrize("model", [hf.UFM(16), hf.UFM(12), hf.UFM(8, group=(2, 4))])
def test_the_flow_commutes_with_symmetries(model):
    a = np.random.default_rng(0).uniform(0.1, 2, model.modes)
    velocity = np.asarray(model.velocity(a))
    for perm in generators(model.basis):
        moved = model.basis.psi(a[perm])
        np.testing.assert_allclose(np.sort(moved), np.sort(model.basis.psi(a)), rtol=1e-13)
        np.testing.assert_allclose(model.velocity(a[perm]), velocity[perm], rtol=1e-12)


@pytest.mark.parametrize("basis", [Sylvester(16), cyclic(13), AbelianGroup((4, 4)), cyclic(6)])
def test_canonical_order_is_the_same_on_a_whole_orbit(basis):
    rng = np.random.default_rng(1)
    a = rng.uniform(0.1, 2, basis.modes)
    perms = generators(basis)
    first = a[canonical_order(basis, a)]
    moved = a
    for step in rng.integers(0, max(len(perms), 1), 20 if perms else 0):
        moved = moved[perms[step]]
    np.testing.assert_array_equal(moved[canonical_order(basis, moved)], first)
    np.testing.assert_allclose(np.sort(basis.psi(first)), np.sort(basis.psi(a)), rtol=1e-13)
    tied = np.where(a > 1, 1.0, 0.5)
    assert sorted(canonical_order(basis, tied)) == list(range(basis.modes))
    if isinstance(basis, Sylvester):
        assert first[0] == a.max() and first[1] == np.sort(a)[-2]


def test_canonical_order_of_a_group_with_too_many_symmetries():
    basis = AbelianGroup((2, 2, 2, 2, 2))
    np.testing.assert_array_equal(canonical_order(basis, np.arange(1.0, 32)), np.arange(31))
    with pytest.raises(hf.InputError, match="`a` must be one state of 31"):
        canonical_order(basis, np.ones(3))


# --- limits ------------------------------------------------------------------------------------------

# FORMULAS, section 11. Modes from 1: support, direction on it, margin, exits by mode (others: ∞).
EIGHT = {
    "point": ((1,), 7, [1], F(2), {}),
    "pair": ((1, 2), 21, [1, 1], F(1), {3: 2}),
    "line": ((1, 2, 3), 7, [1, 1, 1], F(4, 3), {}),
    "triangle": ((1, 2, 4), 28, [1, 1, 1], F(2, 3), {3: 2, 5: 2, 6: 2, 7: 3}),
    "line+point": ((1, 2, 3, 4), 28, [1, 1, 1, 2], F(4, 5), {5: 2, 6: 2, 7: 2}),
    "line complement": ((1, 2, 4, 7), 7, [1, 1, 1, 1], F(1), dict.fromkeys((3, 5, 6), F(4, 3))),
    "5 points": ((1, 2, 3, 4, 5), 21, [0, 1, 1, 1, 1], F(1), {6: 2, 7: 2}),
    "all": (tuple(range(1, 8)), 1, [1] * 7, F(8, 7), {}),
}


@pytest.fixture(scope="module")
def eight() -> Atlas:
    return atlas(hf.UFM(8), progress=None)


@pytest.fixture(scope="module")
def sixteen() -> Atlas:
    return atlas(hf.UFM(16), progress=None)


def test_the_table_of_eight_classes(eight):
    assert eight.complete and not eight.interrupted
    by_name = {s.name: s for s in eight.supports}
    assert len(by_name) == len(eight.supports) == 10
    for name, (support, size, ratio, margin, finite) in EIGHT.items():
        found = by_name[name]
        assert found.representative == support and found.orbit_size == size
        limit = found.limit
        assert limit.unique and limit.exact and limit.margin == margin
        direction = [F(0)] * 7
        for mode, r in zip(support, ratio, strict=True):
            direction[mode - 1] = F(r, sum(ratio))
        assert limit.vertices == (tuple(direction),)
        outside = {k: finite.get(k, math.inf) for k in range(1, 8) if k not in support}
        assert {k + 1: v for k, v in limit.exits.items()} == outside
    assert by_name["5 points"].limit.dying == (0,)
    family = by_name["6 points"]
    assert family.representative == (1, 2, 3, 4, 5, 6) and family.orbit_size == 7
    assert family.limit.margin == 1 and family.limit.exits == {6: 2} and not family.limit.unique
    # Equal inside the pairs i, i ⊕ 7, and no pair above one half: corners have two pairs at one half.
    pairs = [(1, 6), (2, 5), (3, 4)]
    corners = {
        tuple(F(i in p + q, 4) for i in range(1, 8)) for p, q in itertools.combinations(pairs, 2)
    }
    assert set(family.limit.vertices) == corners
    empty = by_name["none"].limit
    assert empty.margin is None and set(empty.exits.values()) == {math.inf}


def test_orbits_of_sixteen_classes(sixteen):
    """46 orbits, 36 of them spanning, by Burnside's lemma."""
    assert len(sixteen.supports) == 46 and sixteen.complete
    assert sum(s.orbit_size for s in sixteen.supports) == 2**15
    assert sum(s.rank == 4 for s in sixteen.supports) == 36
    # Invertible 4 × 4 matrices over F_2, as images of the four unit vectors; fixed subsets: 2^cycles.
    modes, images = np.arange(16), [np.zeros(1, dtype=int)]
    for _ in range(4):
        images = [np.append(i, i ^ v) for i in images for v in modes if v not in i]
    matrices = np.array(images)
    assert len(matrices) == 20160
    cycles, power = np.zeros(len(matrices)), np.tile(modes, (len(matrices), 1))
    fixed = []
    for _ in range(15):  # orders of elements divide 1…15; mean fixed points over a period = cycles
        power = np.take_along_axis(matrices, power, axis=1)
        fixed.append((power == modes)[:, 1:])
    lengths = np.argmax(np.array(fixed), axis=0) + 1  # of the cycle through each mode
    cycles = np.round((1 / lengths).sum(axis=1)).astype(int)
    assert np.mean(2.0**cycles) == 46


def test_representatives_are_first_of_their_orbit(sixteen):
    perms = generators(Sylvester(16))
    for support in sixteen.supports[4:12]:
        orbit = fresh = {support.representative}
        while fresh:
            fresh = {
                tuple(sorted(int(p[i - 1]) + 1 for i in s)) for s in fresh for p in perms
            } - orbit
            orbit = orbit | fresh
        assert len(orbit) == support.orbit_size and min(orbit) == support.representative


@pytest.mark.parametrize("orders", [(6,), (7,), (12,), (2, 4), (3, 3), (4, 4)])
def test_limits_solve_the_game(orders):
    """Feasible, never beaten by another direction, and optimal by weak duality."""
    modes, count, psi, _ = folded(orders)
    basis = AbelianGroup(orders)
    rng = np.random.default_rng(0)
    for _ in range(12):
        size = rng.integers(1, len(modes) + 1)
        S = np.sort(rng.permutation(len(modes))[:size])
        limit = limit_on(basis, S.tolist())
        seen = np.any(psi[:, S] > 1e-12, axis=1)
        margin = float(limit.margin)
        for vertex in limit.vertices:
            a = np.array(vertex, dtype=float)
            assert np.all(a >= 0) and set(np.flatnonzero(a)) <= set(limit.active) <= set(S)
            assert count @ a == pytest.approx(1, abs=1e-12)
            x = psi @ a
            assert x[seen].min() == pytest.approx(margin, rel=1e-12)
            np.testing.assert_allclose(x[list(limit.ties)], margin, rtol=1e-12)
        others = rng.dirichlet(np.full(size, 0.5), 2000)
        directions = np.zeros((2000, len(modes)))
        directions[:, S] = others / count[S]
        assert (directions @ psi.T)[:, seen].min(axis=1).max() <= margin + 1e-12
        # Weights on the tight margins under which no mode of S gains more than the margin.
        from scipy.optimize import linprog

        ties = list(limit.ties)
        gains = psi[np.ix_(S, ties)]
        bound = linprog(
            np.zeros(len(ties)), gains, np.full(size, margin + 1e-9), count[ties][None], [1]
        )
        assert bound.status == 0


def test_other_groups_by_hand():
    # Z_6: x = (a_1/2·2, …): support {2, 3} has margins 3a_2 (g = 2), 3a_2 + 2a_3 (g = 1), 2a_3 (g = 3).
    limit = limit_on(cyclic(6), (1, 2))
    assert limit.vertices == ((F(0), F(2, 7), F(3, 7)),) and limit.margin == F(6, 7)
    # Z_3²: two modes at 1/4 each and margin 3/4, two modes left, each with b = 3/2.
    limit = limit_on(AbelianGroup((3, 3)), (0, 1))
    assert limit.margin == F(3, 4) and limit.exits == {2: 2, 3: 2}
    # Z_7: one mode has the margin 1 − cos(2π/7), no fraction, and its direction is one.
    limit = limit_on(cyclic(7), (0,))
    assert limit.exact and limit.vertices == ((F(1, 2), 0, 0),)
    lowest = 1 - math.cos(2 * math.pi / 7)
    assert isinstance(limit.margin, float) and limit.margin == pytest.approx(lowest, rel=1e-14)
    exits = [(1 - math.cos(2 * math.pi * k / 7)) / lowest for k in (2, 3)]
    assert list(limit.exits.values()) == pytest.approx(exits, rel=1e-13)
    # Two modes: margins 1 and 3 are equal at w_1 c_1 + w_2 c_2 = w_1 c_3 + w_2 c_1.
    c = [1 - math.cos(2 * math.pi * k / 7) for k in range(4)]
    limit = limit_on(cyclic(7), (0, 1))
    w = np.linalg.solve([[c[1] - c[3], c[2] - c[1]], [1, 1]], [0, 1])
    assert not limit.exact
    np.testing.assert_allclose(limit.vertices[0][:2], w / 2, rtol=1e-13)


@pytest.mark.parametrize("orders", [(6,), (2, 4), (3, 3), (7,)])
def test_atlases_of_other_groups(orders):
    """Orbits against sets of subsets under all automorphisms; ranks against subgroups."""
    modes, count, _, _ = folded(orders)
    perms = closure([p.tolist() for p in generators(AbelianGroup(orders))], len(modes))
    subsets = {
        frozenset(s)
        for n in range(len(modes) + 1)
        for s in itertools.combinations(range(len(modes)), n)
    }
    orbits = {frozenset(frozenset(p[i] for i in s) for p in perms) for s in subsets}
    found = atlas(hf.UFM(math.prod(orders), group=orders), progress=None)
    assert sorted(s.orbit_size for s in found.supports) == sorted(map(len, orbits))
    everything = list(itertools.product(*map(range, orders)))

    def spanned(generating):
        sums = {(0,) * len(orders)}
        for g in generating:
            steps = range(math.lcm(*orders))
            sums = {
                tuple((x + k * y) % n for x, y, n in zip(s, g, orders, strict=True))
                for s in sums for k in steps
            }  # fmt: skip
        return frozenset(sums)

    for support in found.supports:
        group = spanned(modes[i - 1] for i in support.representative)
        fewest = next(
            n
            for n in range(4)
            if any(spanned(g) == group for g in itertools.combinations(everything, n))
        )
        assert support.rank == fewest
    collapsed = found.supports[-1].limit
    K = math.prod(orders)
    assert collapsed.vertices == ((F(1, K - 1),) * len(modes),) and collapsed.margin == F(K, K - 1)
    assert collapsed.margin * (K - 1) == K and count.sum() == K - 1


# --- exits -------------------------------------------------------------------------------------------


def measured_exits(model, support, norm):
    """b_k/b̄ at the end of a run on the support, by dense matrices."""
    rng = np.random.default_rng(0)
    a = np.zeros(model.modes)
    a[list(support)] = rng.uniform(0.3, 1.5, len(support))
    run = hf.solve(model, a, hf.Norm(norm), progress=None)
    x = model.basis.dense_psi @ run.a[-1]
    seen = np.any(model.basis.dense_psi[:, list(support)] > 1e-12, axis=1)
    e = np.where(seen, np.exp(x[seen].min() - x), 0.0)
    b = model.basis.dense_psi @ e
    return b / (model.basis.multiplicity * run.a_hat[-1] @ b)


@pytest.mark.parametrize(
    ("model", "support", "tolerance"),
    [
        (hf.UFM(8), (0, 1, 2, 3), 5e-4),
        (hf.UFM(8), (0, 1, 3, 6), 1e-6),
        (hf.UFM(8), (0, 1, 2, 3, 4), 5e-3),  # one mode dies
        (hf.UFM(16), (0, 1, 3, 6, 7), 2e-3),  # decided by the entropy
        (hf.UFM(16), (0, 1, 2, 3, 4, 7, 13), 1e-2),  # so is this one, to irrational ratios
        (hf.UFM(16), (0, 1, 2, 3, 4, 7, 9), 5e-2),  # two dying modes push equally
        (hf.UFM(7), (0, 1), 1e-3),
    ],
)
def test_exits_by_integration(model, support, tolerance):
    limit = limit_on(model.basis, support)
    measured = measured_exits(model, support, 1000.0)
    finite = {k: float(r) for k, r in limit.exits.items() if r < math.inf}
    assert finite
    for k, ratio in finite.items():
        assert measured[k] == pytest.approx(ratio, abs=tolerance)


def test_exits_with_a_square_root():
    """Largest entropy by SciPy: ratios in Q(√3), where only some are the same for all shares."""
    from scipy.linalg import null_space
    from scipy.optimize import minimize

    support = [0, 1, 2, 3, 4, 7, 13]
    limit = limit_on(Sylvester(16), support)
    C = dense_psi(16)[:, list(limit.ties)]
    equations = np.vstack([C[support], np.ones(C.shape[1])])
    start = np.linalg.lstsq(equations, np.append(np.full(7, 0.8), 1.0), rcond=None)[0]
    assert np.all(start > 0) and np.allclose(equations @ start, np.append(np.full(7, 0.8), 1.0))
    along = null_space(equations)

    def entropy(z):
        y = start + along @ z
        return float(np.sum(y * np.log(y))) if np.all(y > 0) else 1e3

    options = {"xatol": 1e-9, "fatol": 1e-15, "maxiter": 2000}
    z = minimize(entropy, np.zeros(along.shape[1]), method="Nelder-Mead", options=options).x
    measured = C @ (start + along @ z) / 0.8
    root = 3**-0.5
    expected = {5: 2 - 2 * root, 6: 3 - 2 * root, 8: 2.0, 14: 2.0}
    expected |= dict.fromkeys((9, 10, 11, 12), 1 + root)
    assert {k: float(r) for k, r in limit.exits.items()} == pytest.approx(expected, rel=1e-13)
    assert {k: measured[k] for k in expected} == pytest.approx(expected, abs=1e-6)
    assert isinstance(limit.exits[8], F) and isinstance(limit.exits[14], F)


def test_an_off_support_mode_grows_at_its_exit_ratio():
    """The slope d log a_k / d log ‖a‖ of a tiny mode beside the line + point saddle is 2."""
    model = hf.UFM(8)
    a = np.array([1.0, 1, 1, 2, 1e-200, 0, 0])
    runs = [hf.solve(model, a, hf.Norm(n), progress=None) for n in (500.0, 2000.0)]
    slope = (runs[1].log_a[-1, 4] - runs[0].log_a[-1, 4]) / math.log(4)
    assert slope == pytest.approx(float(limit_on(model.basis, (0, 1, 2, 3)).exits[4]), abs=5e-3)


# --- the atlas as a whole ----------------------------------------------------------------------------


def test_transitions_of_eight_classes(eight):
    """By hand from the table: where the ratio exceeds 1, and what support that makes."""
    name = [s.name for s in eight.supports]
    steps = {(name[t.source], name[t.target]) for t in eight.transitions}
    assert steps == {
        ("none", "point"), ("point", "pair"), ("pair", "line"), ("pair", "triangle"),
        ("line", "line+point"), ("triangle", "line+point"), ("triangle", "line complement"),
        ("line+point", "5 points"), ("line complement", "5 points"), ("5 points", "6 points"),
        ("6 points", "all"),
    }  # fmt: skip
    assert len(eight.transitions) == 7 + 6 + 5 + 4 + 4 + 3 + 3 + 2 + 1
    triangle = name.index("triangle")
    joined = [t.mode for t in eight.transitions if name[t.target] == "line complement"]
    assert joined == [7] and eight.supports[triangle].representative == (1, 2, 4)


def test_document_and_table(eight, sixteen):
    text = json.dumps(eight.to_document(), allow_nan=False)
    document = json.loads(text)
    assert document["classes"] == 8 and document["group"] == [2, 2, 2] and document["complete"]
    row = document["supports"][5]
    assert row["name"] == "line+point" and row["margin"] == "4/5" and row["index"] == 5
    assert row["directions"] == [["1/5", "1/5", "1/5", "2/5", "0", "0", "0"]]
    assert row["ties"] == [1, 2, 3, 4] and row["exits"] == {"5": 2.0, "6": 2.0, "7": 2.0}
    assert document["supports"][1]["exits"] == dict.fromkeys("234567")
    assert document["supports"][0]["margin"] is None and document["supports"][0]["directions"] == []
    assert {"from": 5, "to": 7, "mode": 6} in document["transitions"]
    line = next(x for x in str(eight).splitlines() if "triangle" in x)
    assert line.split("  ")[-1].strip() == "2×3, 3" and "1:1:1" in line
    assert len(sixteen.table().splitlines()) == 47
    assert "0.8453, 1.5774×4, 1.8453, 2×2" in sixteen.table()


def test_the_picture(eight, sixteen, tmp_path):
    figure = eight.plot(tmp_path / "atlas.png")
    assert (tmp_path / "atlas.png").read_bytes().startswith(b"\x89PNG")
    words = {t.get_text().split("\n")[0] for t in figure.axes[0].texts}
    assert {s.name for s in eight.supports} <= words
    # One number for each support, no two at the same place.
    texts = [t for t in sixteen.plot().axes[0].texts if t.get_text().isdigit()]
    assert len({t.xy for t in texts}) == 46
    with pytest.raises(hf.InputError, match="`path` must end in"):
        eight.plot(tmp_path / "atlas.txt")


def test_random_supports_of_many_modes():
    reports = []
    model = hf.UFM(32)
    found = atlas(model, starts=40, progress=lambda text, share: reports.append(share))
    assert not found.complete and not found.interrupted and reports[-1] <= 1
    sizes = [len(s.representative) for s in found.supports]
    assert sizes == sorted(sizes) and set(sizes) == set(range(32))
    psi = dense_psi(32)
    for support in found.supports[1::4]:
        a = np.array(support.limit.vertices[0], dtype=float)
        seen = np.any(psi[:, np.array(support.representative) - 1] > 0, axis=1)
        assert (psi @ a)[seen].min() == pytest.approx(float(support.limit.margin), rel=1e-12)
        assert support.orbit_size is None
    assert found.to_document()["supports"][3]["orbit_size"] is None
    again = atlas(model, starts=40, progress=None)
    assert [s.representative for s in again.supports] == [s.representative for s in found.supports]
    assert len(atlas(model, seconds=1e-9, progress=None).supports) <= 1


def test_interruption_keeps_what_is_finished():
    def stop(text, share):
        if text.startswith("4 "):
            raise KeyboardInterrupt

    found = atlas(hf.UFM(8), progress=stop)
    assert found.interrupted and not found.complete and len(found.supports) == 4
    assert all(t.target < 4 for t in found.transitions)


def test_models_outside_the_scope():
    for model, reason in [
        (hf.UFM(8, depth=3), "low-rank directions attract"),
        (hf.UFM(8, depth=1), "do not stay zero"),
        (hf.UFM(8, loss="mse"), "mse has another orbit"),
        (hf.UFM(8, label_smoothing=0.1), "soft labels"),
        (hf.UFM(8, weight_decay=0.1), "penalties"),
        (hf.UFM(8, imbalance=((4, 5), (4, 1))), "no one basis"),
    ]:
        with pytest.raises(hf.InputError, match=reason):
            atlas(model)
    assert len(atlas(hf.UFM(4, temperature=3.0, samples=2), progress=None).supports) == 4
    for name, value in [("starts", 0), ("seconds", -1.0), ("seed", 1.5), ("progress", 3)]:
        with pytest.raises(hf.InputError, match=f"`{name}`"):
            atlas(hf.UFM(4), **{name: value})
    for support in [(7,), (0, 0), 3, (0.5,)]:
        with pytest.raises(hf.InputError, match="`support` must be different modes from 0 to 6"):
            check_support(Sylvester(8), support)
    with pytest.raises(hf.InputError, match="at least one, but"):
        face_on(Sylvester(8), ())
