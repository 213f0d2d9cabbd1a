"""Training of dense matrices by autodiff and plain optax. Nothing here imports hadaflow."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg


def characters(group):
    """Real orthonormal characters, trivial first, conjugate pairs side by side."""
    K = int(np.prod(group))
    elements = list(itertools.product(*map(range, group)))
    columns, seen = [], set()
    for h in elements:
        other = tuple(-x % n for x, n in zip(h, group, strict=True))
        if other in seen:
            continue
        seen.add(h)
        turns = [sum(x * y / n for x, y, n in zip(h, g, group, strict=True)) for g in elements]
        phases = 2 * np.pi * np.array(turns)
        columns.append(np.cos(phases) * np.sqrt((1 if h == other else 2) / K))
        if h != other:
            columns.append(np.sin(phases) * np.sqrt(2 / K))
    return np.stack(columns, axis=1)


def sylvester(K):
    return scipy.linalg.hadamard(K) / np.sqrt(K)


def rotation(d, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]


def signed_permutation(d, seed):
    rng = np.random.default_rng(seed)
    return np.eye(d)[rng.permutation(d)] * rng.choice([-1.0, 1.0], d)


def factors_of(U, layers, n, rotations):
    """W1 = U D R1', W2 = R1 D R2', …, H = R D V' for singular values of all K modes of each layer."""
    V = np.repeat(U, n, axis=0) / np.sqrt(n)
    if rotations and len(rotations[0]) < len(U):  # the width has no room for modes that are zero
        kept = np.any(np.stack(layers) > 0, axis=0)
        U, V, layers = U[:, kept], V[:, kept], [sigma[kept] for sigma in layers]
    left, found = U, []
    for sigma, R in zip(layers[:-1], rotations, strict=True):
        right = R[:, : len(sigma)]
        found.append((left * sigma) @ right.T)
        left = right
    return (*found, (left * layers[-1]) @ V.T)


def loss_of(factors, Y, kind, temperature, decays):
    Z = functools.reduce(jnp.matmul, factors)
    if kind == "mse":
        value = jnp.sum((Y - Z) ** 2) / 2
    elif kind == "hard":  # as a sum over wrong classes, whose derivative does not cancel
        wrong = jax.nn.logsumexp(jnp.where(Y > 0, -jnp.inf, Z / temperature), axis=0)
        value = jnp.sum(
            jax.nn.softplus(wrong - jnp.sum(jnp.where(Y > 0, Z, 0.0), axis=0) / temperature)
        )
    else:
        value = -jnp.sum(Y * jax.nn.log_softmax(Z / temperature, axis=0))
    return value + sum(d / 2 * jnp.sum(f**2) for d, f in zip(decays, factors, strict=True))


@functools.partial(jax.jit, static_argnames=("transformation", "steps", "kind"))
def _trained(factors, Y, temperature, decays, transformation, steps, kind):
    def step(carry, _):
        factors, state = carry
        gradient = jax.grad(loss_of)(factors, Y, kind, temperature, decays)
        updates, state = transformation.update(gradient, state, factors)
        return (optax.apply_updates(factors, updates), state), None

    begin = (factors, transformation.init(factors))
    return jax.lax.scan(step, begin, None, length=steps)[0][0]


def trained(factors, Y, transformation, steps, kind="cross_entropy", temperature=1.0, decays=None):
    """All factors after so many steps."""
    decays = (0.0,) * len(factors) if decays is None else decays
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        factors = tuple(map(jnp.asarray, factors))
        found = _trained(
            factors, jnp.asarray(Y), jnp.asarray(temperature), jnp.asarray(decays),
            transformation, steps, kind,
        )  # fmt: skip
        return tuple(np.asarray(f) for f in found)


def labels(K, n, smoothing=0.0):
    return np.repeat((1 - smoothing) * np.eye(K) + smoothing / K, n, axis=1)


# --- rules that optax lacks, in the plainest form ------------------------------------------------


def polar(rate):
    def one(G):
        U, s, Vt = jnp.linalg.svd(G, full_matrices=False)
        return -rate * (U * (s > 1e-9 * s[0])) @ Vt

    return optax.stateless(lambda updates, _: jax.tree.map(one, updates))


def shampoo(rate, eps):
    def init(params):
        return jax.tree.map(lambda p: (eps * jnp.eye(len(p)), eps * jnp.eye(p.shape[1])), params)

    def root(A):
        s, V = jnp.linalg.eigh(A)
        return (V * jnp.maximum(s, eps) ** -0.25) @ V.T

    def update(updates, state, params=None):
        sums = tuple((L + G @ G.T, R + G.T @ G) for (L, R), G in zip(state, updates, strict=True))
        steps = [root(L) @ G @ root(R) for (L, R), G in zip(sums, updates, strict=True)]
        return tuple(-rate * step for step in steps), sums

    return optax.GradientTransformation(init, update)


def normalized(rate, eps):
    def update(updates, state, params=None):
        size = jnp.sqrt(sum(jnp.sum(G**2) for G in updates))
        return tuple(-rate * G / (size + eps) for G in updates), state

    return optax.GradientTransformation(lambda params: (), update)
