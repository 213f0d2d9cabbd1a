"""float64 without side effects."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hadaflow as hf


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("x64", [False, True])
def test_importing_and_solving_leave_the_global_setting_alone(x64):
    code = f"""
import jax
jax.config.update("jax_enable_x64", {x64})
import numpy as np
import hadaflow as hf
run = hf.solve(hf.UFM(classes=4), [0.1, 0.2, 0.3], times=[1e3], progress=None)
rate = hf.rate("kl", run.model, run.state(1))
print(jax.config.jax_enable_x64, run.a.dtype, type(run.a).__name__, np.asarray(rate).dtype,
      jax.numpy.ones(1).dtype, repr(float(run.a[-1, 0])))
"""
    setting, dtype, kind, rate, default, value = run_python(code).split()
    assert (setting, dtype, kind, rate) == (str(x64), "float64", "ndarray", "float64")
    assert default == ("float64" if x64 else "float32")
    here = hf.solve(hf.UFM(classes=4), [0.1, 0.2, 0.3], times=[1e3], progress=None)
    assert float(value) == here.a[-1, 0]


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_do_not_import_the_heavy_ones(argument):
    code = f"""
import sys
sys.argv = ["hadaflow", "{argument}"]
from hadaflow.cli.commands import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
heavy = {{"jax", "jaxlib", "scipy", "xarray", "pandas", "matplotlib", "diffrax", "optax"}}
heavy &= set(sys.modules)
assert not heavy, heavy
"""
    assert "hadaflow" in run_python(code)


DESCRIBED = """
import sys
import hadaflow as hf
from hadaflow.model.losses import LOSSES
from hadaflow.runs.targets import parse_target

for model in (
    hf.UFM(8), hf.UFM(4, loss="mse"), hf.UFM(6, group=(2, 3), label_smoothing=0.1, temperature=2.0),
    hf.UFM(4, depth=3, weight_decay=0.1), hf.UFM(4, imbalance=((2, 3), (2, 1))),
    hf.UFM(4, label_distribution=hf.hierarchical_labels((0.7, 0.2, 0.1), (2, 2))),
):
    print(model, repr(model), model.basis if model.imbalance is None else "", model.modes)
for basis in (hf.AbelianGroup((2, 3)), hf.Sylvester(8), hf.cyclic(5)):
    print(basis, repr(basis), basis.classes, basis.modes, basis.multiplicity)
for loss in LOSSES.values():
    print(loss(), loss.name)
for target in (
    hf.Time(1.0), hf.Time(log10=9.0), hf.Collapse(), hf.PredictedCollapse(), hf.Norm(3.0),
    hf.PathLength(2.0), hf.Steady(),
):
    print(target, repr(target), parse_target(str(target)) == target)
print(hf.spectrum([1.0, 2.0, 3.0], C=0.1), hf.parameters([[1.0]], [[1.0]]))
print(hf.enable_cache(sys.argv[0]), hf.disable_cache())
heavy = {"jax", "jaxlib", "scipy", "xarray", "pandas", "matplotlib", "diffrax", "optax"}
heavy &= set(sys.modules)
assert not heavy, heavy
"""


def test_what_describes_a_problem_does_not_import_the_heavy_ones():
    assert run_python(DESCRIBED).count("True") >= 6


def test_public_functions_take_lists_and_jax_arrays_and_return_numpy():
    model = hf.UFM(4)
    for a in ([1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 3.0])):
        for value in (model.velocity(a), model.basis.psi(a), model.drive(a)[0]):
            assert isinstance(value, np.ndarray) and value.dtype == np.float64
        assert isinstance(model.energy(a), np.float64)
    np.testing.assert_array_equal(model.basis.psi(jnp.array([1.0, 2.0, 3.0])), [8.0, 10.0, 6.0])


def test_public_names_are_all_there():
    for name in hf.__all__:
        assert getattr(hf, name) is not None
    assert set(hf.__all__) <= set(dir(hf))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hf.nothing
    assert callable(hf.solve)
    import hadaflow.cli.commands  # noqa: F401  (importing submodules must not shadow the verbs)

    assert callable(hf.solve) and callable(hf.margins)


def test_works_inside_a_users_own_jit():
    velocity = jax.jit(lambda a: hf.UFM(4).velocity(a))(jnp.array([1.0, 2.0, 3.0]))
    assert velocity.dtype == jnp.float32
    np.testing.assert_allclose(velocity, hf.UFM(4).velocity([1.0, 2.0, 3.0]), rtol=1e-5)
