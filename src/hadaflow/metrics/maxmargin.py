r"""The max-margin problem behind the flow (Eq. 3): margins, value, and distance from a KKT point."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from hadaflow.algebra.padding import modes_first, modes_last
from hadaflow.base.errors import InputError
from hadaflow.base.precision import double_precision
from hadaflow.model.fitting import check_parameters, fitted
from hadaflow.model.states import Parameters
from hadaflow.model.ufm import UFM, check_model

# A dense non-negative least-squares problem is solved, whose cost grows like the cube of this.
_LARGEST_PROBLEM = 1000


def margins(model: UFM, state: Any) -> np.ndarray:
    r"""Margins of every sample: $(w_c - w_{c'})^\top h_{ic}$, right logit minus each wrong one.

    A full state gives shape $(\dots, Kn, K-1)$, the wrong classes in order. A spectrum gives
    $(\Psi a)_j$ in scaled units, one for each free mode: every sample has the same margins. For two
    blocks of classes those of a sample of each block, its own classes first, then the other block.
    """
    check_model(model)
    if not isinstance(state, Parameters):
        scaled = fitted(model, state)
        with double_precision():
            angles = None if scaled.angles is None else modes_first(scaled.angles)
            found = model.view_of(angles).margins(jnp.asarray(modes_first(scaled.a)), angles)
            return np.asarray(modes_last(jnp.concatenate(found), scaled.a.shape[:-1]))
    with np.errstate(over="ignore", invalid="ignore"):
        Z = check_parameters(model, state).Z
    K = model.classes
    label = np.repeat(np.arange(K), model.samples_by_class)
    sample = np.arange(model.total_samples)
    with np.errstate(invalid="ignore"):
        difference = Z[..., label, sample][..., None, :] - Z
    if not np.all(np.isfinite(difference)):
        raise InputError("Argument `state` must have logits, which are numbers, but they overflow.")
    wrong = np.array([[k for k in range(K) if k != c] for c in label])
    return np.swapaxes(difference, -1, -2)[..., sample[:, None], wrong]


@dataclasses.dataclass(frozen=True, eq=False)
class MaxMargin:
    """A full state read as a point of the max-margin problem, rescaled to smallest margin 1."""

    smallest_margin: float
    value: float
    optimal_value: float
    kkt_residual: float
    multipliers: np.ndarray

    def __str__(self) -> str:
        return (
            f"max-margin problem: value {self.value:.8g} (at best {self.optimal_value:.8g}), "
            f"KKT residual {self.kkt_residual:.3g}, smallest margin {self.smallest_margin:.6g}"
        )


def max_margin(model: UFM, state: Parameters) -> MaxMargin:
    r"""Value and KKT residual of Eq. (3), $\min\frac12\|W\|^2 + \frac12\|H\|^2$, margins $\ge1$.

    The state is scaled to smallest margin 1. Its KKT residual is the smallest, over multipliers
    $\lambda \ge 0$, of the root of squared stationarity plus complementarity,

    $$\|W - \Lambda H^\top\|^2 + \|H - W^\top\Lambda\|^2 + \sum_j \lambda_j^2 (m_j - 1)^2,\qquad
      \Lambda_{\cdot,ic} = \sum_{c'} \lambda_{icc'}(e_c - e_{c'}),$$

    relative to $\|(W, H)\|$: zero exactly at KKT points. The optimal value, attained at neural
    collapse, is $(K-1)\sqrt n$.
    """
    check_model(model)
    if model.depth != 2 or model.imbalance is not None:
        raise InputError(
            "The max-margin problem of Eq. (3) is about W and H of balanced classes: it needs "
            "`depth` = 2 and no `imbalance`."
        )
    state = check_parameters(model, state)
    if state.batch:
        raise InputError(f"Argument `state` must be one state, but is a batch of {state.batch}.")
    K, n, d = model.classes, model.samples, model.feature_width
    count, equations = K * n * (K - 1), d * (K + K * n)
    if count > _LARGEST_PROBLEM:
        raise InputError(
            f"The KKT residual needs {count} multipliers, but the limit is {_LARGEST_PROBLEM}."
        )
    all_margins = margins(model, state)
    smallest = float(all_margins.min())
    if not smallest > 0:
        raise InputError(
            "Argument `state` must classify every sample correctly to be feasible for Eq. (3), "
            f"but its smallest margin is {smallest:g}."
        )
    from scipy.optimize import nnls  # heavy import, used here alone

    W, H = state.W / np.sqrt(smallest), state.H / np.sqrt(smallest)
    slack = (all_margins / smallest - 1).ravel()
    system = np.zeros((equations + count, count))
    column = 0
    for sample in range(K * n):
        c = sample // n
        for other in range(K):
            if other == c:
                continue
            dW, dH = np.zeros((K, d)), np.zeros((d, K * n))
            dW[c], dW[other] = H[:, sample], -H[:, sample]
            dH[:, sample] = W[c] - W[other]
            system[:equations, column] = np.concatenate([dW.ravel(), dH.ravel()])
            column += 1
    system[equations:, :] = np.diag(slack)
    target = np.concatenate([W.ravel(), H.ravel(), np.zeros(count)])
    multipliers, residual = nnls(system, target, maxiter=30 * count)
    norm_squared = float(np.sum(W**2) + np.sum(H**2))
    return MaxMargin(
        smallest_margin=smallest,
        value=norm_squared / 2,
        optimal_value=(K - 1) * float(np.sqrt(n)),
        kkt_residual=float(residual) / np.sqrt(norm_squared),
        multipliers=multipliers.reshape(K * n, K - 1),
    )
