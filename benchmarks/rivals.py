"""What a user would try instead: other solvers on the orbit, each in a process of its own.

    python benchmarks/rivals.py NAME CLASSES RTOL SECONDS

goes from a U start to max|(K−1)â − 1| = 1e-3 and prints, as lines of JSON, how far it is, and at the
end what it found; after so many seconds it gives up. Every rival gets the form of the problem that suits
it best, d log a/dL = b/b̄ with L = log‖a‖₁ and weights shifted so that nothing overflows; except
`textbook`, which is da/dt as printed in the paper.
"""

import functools
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import hadamard

TOLERANCE = 1e-3
FAR = 1e4  # log‖a‖₁ that none reaches
DENSE_CLASSES = 1024  # up to here rivals multiply by a matrix; a fast transform above is a gift
SAY_EVERY = 0.25  # seconds
MEMORY = 16 * 2**30  # bytes a rival may take


def u_start(K: int) -> np.ndarray:
    """The U start: 10⁻³ times uniform numbers on (0.5, 1.5)."""
    return 1e-3 * np.random.default_rng(0).uniform(0.5, 1.5, K - 1)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Road:
    """Says from inside a right-hand side how far the solver is; ends the process when time is up.

    Without a limit, inside another program, it is silent.
    """

    limit = float("inf")

    def __init__(self) -> None:
        self.began = self.said = time.perf_counter()

    def at(self, L: float) -> None:
        now = time.perf_counter()
        if self.limit < float("inf") and now - self.said > SAY_EVERY:
            self.said = now
            say(log_norm=float(L))
        if now - self.began > self.limit:
            os._exit(0)  # solvers in C would swallow an exception

    def end(self, L: float, reached: bool, why: str = "") -> None:
        say(log_norm=float(L), seconds=time.perf_counter() - self.began, reached=reached, why=why)


def fast_hadamard(v: np.ndarray) -> np.ndarray:
    """Walsh–Hadamard transform by NumPy's butterflies."""
    n, x = len(v), v
    for _ in range(n.bit_length() - 1):
        pairs = x.reshape(n // 2, 2)
        x = np.concatenate([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]])
    return x


def product_matrix(K: int) -> np.ndarray:
    return 1.0 - hadamard(K)[1:, 1:].astype(float)


def product(K: int) -> Callable[[np.ndarray], np.ndarray]:
    if K <= DENSE_CLASSES:
        psi = product_matrix(K)
        return lambda v: psi @ v

    def fast(v: np.ndarray) -> np.ndarray:
        w = fast_hadamard(np.concatenate([[0.0], v]))
        return w[0] - w[1:]

    return fast


def numpy_field(K: int, road: Road) -> Callable[[float, np.ndarray], np.ndarray]:
    psi = product(K)

    def field(L: float, z: np.ndarray) -> np.ndarray:
        road.at(L)
        a = np.exp(z - L)
        x = psi(a)
        e = np.exp((x.min() - x) * np.exp(L))
        b = psi(e)
        return b / (a @ b / a.sum())

    return field


def uncollapsed(z: np.ndarray) -> float:
    """Positive before collapse."""
    a = np.exp(z - z.max())
    return float(np.log(np.max(np.abs(a / a.mean() - 1)) / TOLERANCE))


def by_scipy(method: str, K: int, rtol: float) -> None:
    road, a0 = Road(), u_start(K)
    field = numpy_field(K, road)

    def event(L: float, z: np.ndarray) -> float:
        return uncollapsed(z)

    event.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    road.began = time.perf_counter()
    span = (float(np.log(a0.sum())), FAR)
    found: Any = solve_ivp(field, span, np.log(a0), method, events=event, rtol=rtol, atol=rtol)
    if len(found.t_events[0]):
        road.end(found.t_events[0][0], True)
    else:
        road.end(found.t[-1], False, found.message)


def textbook_field(K: int) -> Callable[[float, np.ndarray], np.ndarray]:
    """da/dt as the paper prints it."""
    Phi = hadamard(K).astype(float)

    def field(t: float, a: np.ndarray) -> np.ndarray:
        logits = Phi[:, 1:] @ a
        p = np.exp(logits - logits.max())
        return a * (1 - Phi[1:] @ (p / p.sum()))

    return field


def textbook(K: int, rtol: float) -> None:
    plain, road, a0 = textbook_field(K), Road(), u_start(K)

    def field(t: float, a: np.ndarray) -> np.ndarray:
        road.at(np.log(np.abs(a).sum()))
        return plain(t, a)

    def event(t: float, a: np.ndarray) -> float:
        return uncollapsed(np.log(np.abs(a)))

    event.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    found: Any = solve_ivp(
        field, (0, 1e300), a0, "LSODA", events=event, rtol=rtol, atol=1e-3 * rtol
    )
    end = np.log(found.y[:, -1].sum())
    reached = len(found.t_events[0]) > 0
    said = "freezes, 1 − p rounds to 0, and reports success at t = 1e300"
    road.end(end, reached, "" if reached else said if found.success else found.message)


def jax_orbit(K: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The field in L and the event of collapse, for diffrax."""
    import jax.numpy as jnp

    import hadaflow as hf

    psi_matrix = product_matrix(K) if K <= DENSE_CLASSES else None

    def psi(v):
        if psi_matrix is not None:
            return jnp.asarray(psi_matrix) @ v
        w = hf.walsh_hadamard(jnp.concatenate([jnp.zeros(1), v]))
        return w[0] - w[1:]

    def field(L, z, args):
        a = jnp.exp(z - L)
        x = psi(a)
        b = psi(jnp.exp((jnp.min(x) - x) * jnp.exp(L)))
        return b / (a @ b / jnp.sum(a))

    def left(t, y, args, **_):
        a = jnp.exp(y - jnp.max(y))
        return jnp.log(jnp.max(jnp.abs(a / jnp.mean(a) - 1)) / TOLERANCE)

    return field, left


def by_diffrax(name: str, K: int, rtol: float) -> None:
    import diffrax
    import jax
    import optimistix

    jax.config.update("jax_enable_x64", True)
    field, left = jax_orbit(K)
    saved = diffrax.SaveAt(t1=True, solver_state=True, controller_state=True)

    @jax.jit
    def some_steps(L, z, states, end):
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(field), getattr(diffrax, name)(), L, end, 1e-3, z, saveat=saved,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol), max_steps=1024,
            event=diffrax.Event(left, optimistix.Newton(1e-6, 1e-6)), throw=False,
            solver_state=states[0], controller_state=states[1],
        )  # fmt: skip
        arrived = found.result == diffrax.RESULTS.event_occurred
        going = found.result == diffrax.RESULTS.max_steps_reached
        return (
            found.ts[-1],
            found.ys[-1],
            (found.solver_state, found.controller_state),
            arrived,
            going,
        )

    a0, road, none = u_start(K), Road(), (None, None)
    L0, z0 = np.log(a0.sum()), np.log(a0)
    L, z, states, *_ = some_steps(L0, z0, none, L0 + 1e-2)  # compiles, for a start …
    jax.block_until_ready(some_steps(L, z, states, L0 + 2e-2))  # … and for what follows
    road.began, L, z, states = time.perf_counter(), L0, z0, none
    while True:
        L, z, states, arrived, going = some_steps(L, z, states, np.float64(FAR))
        road.at(float(L))
        if bool(arrived) or not bool(going):
            return road.end(float(L), bool(arrived), "" if bool(arrived) else "the solver gave up")


def by_cvode(K: int, rtol: float) -> None:
    CVODE = importlib.import_module("sksundae.cvode").CVODE
    road, a0 = Road(), u_start(K)
    field = numpy_field(K, road)

    def rhs(L: float, z: np.ndarray, slope: np.ndarray) -> None:
        slope[:] = field(L, z)

    def event(L: float, z: np.ndarray, events: np.ndarray) -> None:
        events[0] = uncollapsed(z)

    event.terminal = [True]  # pyright: ignore[reportFunctionMemberAccess]
    solver = CVODE(
        rhs, rtol=rtol, atol=rtol, linsolver="gmres", krylov_dim=30, max_num_steps=10**9,
        eventsfn=event, num_events=1,
    )  # fmt: skip
    road.began = time.perf_counter()
    found = solver.solve(np.array([np.log(a0.sum()), FAR]), np.log(a0))
    if found.t_events is not None and len(found.t_events):
        road.end(float(np.ravel(found.t_events)[0]), True)
    else:
        road.end(float(found.t[-1]), False, str(found.message))


def by_torch(K: int, rtol: float) -> None:
    torch: Any = importlib.import_module("torch")
    torchdiffeq: Any = importlib.import_module("torchdiffeq")
    torch.set_default_dtype(torch.float64)
    psi, road, a0 = torch.asarray(product_matrix(K)), Road(), u_start(K)

    def field(L: Any, z: Any) -> Any:
        road.at(float(L))
        a = torch.exp(z - L)
        x = psi @ a
        b = psi @ torch.exp((x.min() - x) * torch.exp(L))
        return b / (a @ b / a.sum())

    def event(L: Any, z: Any) -> Any:
        a = torch.exp(z - z.max())
        return torch.log(torch.max(torch.abs(a / a.mean() - 1)) / TOLERANCE)

    with torch.no_grad():
        L, _ = torchdiffeq.odeint_event(
            field, torch.log(torch.asarray(a0)), torch.log(torch.asarray(a0.sum())),
            event_fn=event, method="dopri5", rtol=rtol, atol=rtol,
            odeint_interface=torchdiffeq.odeint, options={"max_step": 1.0},
        )  # fmt: skip
    road.end(float(L), True)


def diffrax_batch(a0: np.ndarray, rtol: float) -> Callable[[], Any]:
    """Tsit5 under `vmap`, with an event in every lane: a call returns L at collapse. In float64."""
    import diffrax
    import jax
    import jax.numpy as jnp
    import optimistix

    field, left = jax_orbit(a0.shape[1] + 1)

    def one(a):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Tsit5(), jnp.log(jnp.sum(a)), 50.0, 1e-3, jnp.log(a),
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol), max_steps=10**7,
            event=diffrax.Event(left, optimistix.Newton(1e-6, 1e-6)), throw=False,
            saveat=diffrax.SaveAt(t1=True), adjoint=diffrax.ForwardMode(),
        ).ts[0]  # fmt: skip

    run, starts = jax.jit(jax.vmap(one)), jnp.asarray(a0)
    return lambda: run(starts)


def lsoda_one_by_one(a0: np.ndarray, rtol: float) -> None:
    field = numpy_field(a0.shape[1] + 1, Road())

    def event(L: float, z: np.ndarray) -> float:
        return uncollapsed(z)

    event.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    for a in a0:
        span = (float(np.log(a.sum())), 50.0)
        solve_ivp(field, span, np.log(a), "LSODA", events=event, rtol=rtol, atol=rtol)


RIVALS: dict[str, Callable[[int, float], None]] = {
    "NumPy + SciPy LSODA, textbook form": textbook,
    "NumPy + SciPy LSODA": functools.partial(by_scipy, "LSODA"),
    "NumPy + SciPy BDF": functools.partial(by_scipy, "BDF"),
    "NumPy + SciPy Radau": functools.partial(by_scipy, "Radau"),
    "diffrax Tsit5": functools.partial(by_diffrax, "Tsit5"),
    "diffrax Kvaerno5": functools.partial(by_diffrax, "Kvaerno5"),
    "scikit-sundae CVODE + GMRES": by_cvode,
    "torchdiffeq dopri5": by_torch,
}


if __name__ == "__main__":
    Road.limit = float(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        RIVALS[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]))
    except ImportError as error:
        say(missing=str(error))
    except Exception as error:
        say(why=f"{type(error).__name__}: {error}"[:200])
