"""A loss of one's own: a function `loss(logits, label)` that JAX can trace."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from hadaflow.algebra.padding import with_front
from hadaflow.algebra.shapes import Logits, Margins, Modes, Number, One, Padded, Samples
from hadaflow.base.errors import InputError, failures_told, printable, shown
from hadaflow.base.lazy import jax, jnp
from hadaflow.base.precision import double_precision
from hadaflow.model.losses.loss import LogitLoss, logits_of

_TRIES, _CLOSE = 4, 1e-9  # random logits on which the symmetries are tried


@dataclasses.dataclass(frozen=True)
class Own(LogitLoss):
    """A function of the logits of one sample (one number for each class) and of its class.

    Its slope is found by automatic differentiation. With `log_loss`, the log of the same, accurate where
    the loss itself underflows, the force is found from that and goes on as far as the built-in ones;
    without it rounding stops it.

    Args:
        loss: The function.
        log_loss: Its log, if there is an accurate one.
        settles: Does the loss have its least value at finite logits?

    Examples:
        >>> import jax
        >>> def loss(logits, label):
        ...     return jax.nn.logsumexp(logits) - logits[label]
        >>> str(Own(loss))
        'own:__main__.loss'
    """

    loss: Callable[[Any, Any], Any]
    log_loss: Callable[[Any, Any], Any] | None = None
    settles: bool = False
    moves_constant: bool = True  # found out by `probed`
    name: ClassVar[str] = "own"
    alike: ClassVar[bool] = False
    pulls_back = True

    def __post_init__(self) -> None:
        for name in ("loss", "log_loss"):
            if not callable(getattr(self, name)) and (name == "loss" or self.log_loss is not None):
                raise InputError(
                    f"Argument `{name}` must be a function of logits and label, "
                    f"but is {shown(getattr(self, name))}."
                )

    def __str__(self) -> str:
        module = getattr(self.loss, "__module__", None) or "?"
        name = getattr(self.loss, "__qualname__", type(self.loss).__name__)
        return printable(f"own:{module}.{name}", 120)

    @property
    def log_form(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.log_loss is not None

    # --- what it is --------------------------------------------------------------------------------

    def probed(self, classes: int) -> Self:
        """With what has been found out about it on random logits; refused where it is no loss."""
        rng = np.random.default_rng(0)
        with double_precision(), failures_told(self._untraceable):
            z = rng.normal(size=classes)
            value = jnp.asarray(self.loss(jnp.asarray(z), 0))
            if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
                raise InputError(
                    f"Argument `loss` must return one real number, but returns {value.dtype} of shape "
                    f"{value.shape}."
                )
            value = float(value)
            slope = np.asarray(jax.grad(self.loss)(jnp.asarray(z), 0))
            shifted = float(self.loss(jnp.asarray(z + 1.0), 0))
            told = None if self.log_loss is None else float(self.log_loss(jnp.asarray(z), 0))
        if not (np.isfinite(value) and np.all(np.isfinite(slope))):
            raise InputError(
                "Argument `loss` must be a finite number with a finite slope at logits of ordinary size."
            )
        moves = abs(shifted - value) > _CLOSE * (1 + abs(value))
        if told is not None:
            if value <= 0 or not abs(told - np.log(value)) < 1e-6 * (1 + abs(told)):
                raise InputError(
                    f"Argument `log_loss` must be the log of the loss, {np.log(max(value, 1e-300)):.6g} "
                    f"at a random point, but is {told:.6g} there."
                )
        return dataclasses.replace(self, moves_constant=bool(moves))

    def asymmetry(self, basis: Any) -> str:
        """Why the reduced view cannot have it: which symmetry of the classes it breaks; else nothing."""
        rng, K, worst = np.random.default_rng(1), basis.classes, ("", 0.0)
        elements = np.stack(np.unravel_index(np.arange(K), basis.group))

        def place(moved: np.ndarray) -> np.ndarray:
            found: Any = np.ravel_multi_index(moved % np.array(basis.group)[:, None], basis.group)
            return found

        with double_precision():
            for _ in range(_TRIES):
                z, label = rng.normal(size=K), int(rng.integers(K))
                value = float(self.loss(jnp.asarray(z), label))
                by = elements[:, [int(rng.integers(1, K))]]
                tried = {
                    "classes are not treated alike (it changes when all are shifted by one of the "
                    "group)": (z[place(elements - by)], int(place(elements[:, [label]] + by)[0])),
                    "g and −g are not treated alike": (
                        z[place(2 * elements[:, [label]] - elements)], label
                    ),
                }  # fmt: skip
                for why, (turned, right) in tried.items():
                    off = abs(float(self.loss(jnp.asarray(turned), right)) - value) / (
                        1 + abs(value)
                    )
                    worst = max(worst, (why, off), key=lambda w: w[1])
        return worst[0] if worst[1] > _CLOSE else ""

    def _untraceable(self, reason: str) -> str:
        return f"Argument `loss`: {printable(str(self), 80)} cannot be traced by JAX ({reason})."

    # --- its slope ---------------------------------------------------------------------------------

    def _slopes(self, Z: Any, labels: Any) -> tuple[Any, Any]:
        """Minus the slopes of samples, rows of logits, as (direction, slowness)."""
        if self.log_loss is None:
            slopes, slowness = jax.vmap(jax.grad(self.loss))(Z, labels), jnp.zeros(len(Z))
        else:
            logs, slopes = jax.vmap(jax.value_and_grad(self.log_loss))(Z, labels)
            slowness = -logs
        if not self.moves_constant:  # where 1 − p has rounded to zero, the wrong classes have not
            own = jnp.arange(Z.shape[1])[None] == labels[:, None]
            wrong = jnp.where(own, 0.0, slopes)
            slopes = jnp.where(own, -jnp.sum(wrong, axis=1, keepdims=True), wrong)
        return -slopes, slowness

    def _of_class_zero(self, c: Any) -> tuple[Any, Any]:
        """The same of samples of class 0, one after the other on the last axis, if there are several."""
        rows = c.reshape(len(c), -1).T
        slopes, slowness = self._slopes(rows, jnp.zeros(len(rows), int))
        return slopes.T.reshape(c.shape), slowness.reshape(1, *c.shape[1:])

    def _everywhere(self, basis: Any, c: Any) -> Any:
        """Logits of all classes from those of the first member of every {g, −g}."""
        return c[_members(basis)]

    def pull(self, c: Margins, counts: Any = None) -> tuple[Margins, One]:
        return self._of_class_zero(c)

    def push(self, x: Margins, counts: Any = None) -> tuple[Margins, One]:
        direction, slowness = self._of_class_zero(jnp.concatenate([jnp.zeros_like(x[:1]), -x]))
        return -direction[1:], slowness

    def drive(self, basis: Any, a: Padded) -> tuple[Padded, One]:
        if self.moves_constant:
            c = logits_of(basis, a)
        else:
            c = -with_front(basis.padded_psi(a), 0.0)
        direction, slowness = self._of_class_zero(self._everywhere(basis, c))
        everything = jnp.sum(direction, axis=0, keepdims=True)
        direction = direction[basis.representatives]
        missing = with_front(basis.padded_psi(with_front(direction, 0.0)), 0.0)
        return (everything if self.moves_constant else 0.0) - missing, slowness

    def _log_values(self, Z: Any, labels: Any) -> Any:
        if self.log_loss is not None:
            return jax.vmap(self.log_loss)(Z, labels)
        return jnp.log(jax.vmap(self.loss)(Z, labels))

    def log_energy(self, x: Margins, counts: Any = None) -> Number:
        return self.log_energy_of_logits(jnp.concatenate([jnp.zeros_like(x[:1]), -x]))

    def log_energy_of_logits(self, c: Margins, counts: Any = None) -> Number:
        rows = c.reshape(len(c), -1).T
        return self._log_values(rows, jnp.zeros(len(rows), int)).reshape(c.shape[1:])

    def log_energy_of_modes(self, basis: Any, a: Modes) -> Number:
        front = a if self.moves_constant else jnp.concatenate([jnp.zeros_like(a[:1]), a])
        return self.log_energy_of_logits(self._everywhere(basis, logits_of(basis, front)))

    # --- of matrices -------------------------------------------------------------------------------

    def matrix_drive(self, Z: Logits, one_hot: Any) -> tuple[Logits, Number]:
        rows = jnp.swapaxes(Z, -1, -2)
        labels = jnp.broadcast_to(jnp.argmax(one_hot, axis=-2), rows.shape[:-1])
        slopes, slowness = self._slopes(rows.reshape(-1, rows.shape[-1]), labels.reshape(-1))
        slowness = slowness.reshape(labels.shape)
        least = jnp.min(slowness, axis=-1, keepdims=True)
        slopes = slopes.reshape(rows.shape) * jnp.exp(least - slowness)[..., None]
        return jnp.swapaxes(slopes, -1, -2), least[..., 0]

    def log_losses(self, Z: Logits, one_hot: Any) -> Samples:
        rows = jnp.swapaxes(Z, -1, -2)
        labels = jnp.broadcast_to(jnp.argmax(one_hot, axis=-2), rows.shape[:-1])
        return self._log_values(rows.reshape(-1, rows.shape[-1]), labels.reshape(-1)).reshape(
            labels.shape
        )


def _members(basis: Any) -> np.ndarray:
    """For every element of the group the place of {g, −g} among the representatives."""
    elements = np.stack(np.unravel_index(np.arange(basis.classes), basis.group))
    negative = np.ravel_multi_index(-elements % np.array(basis.group)[:, None], basis.group)
    return np.searchsorted(basis.representatives, np.minimum(np.arange(basis.classes), negative))
