"""The optimizers by their names. Hyperparameters are called, and are usually, as in optax.

Each takes a `learning_rate`: a number, a list of them (a run for each, side by side) or a schedule, a
function of the step. Each takes a `weight_decay`, which is decoupled: it shrinks the parameters and does
not pass through the rule.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from hadaflow.base.checks import check_whole_number
from hadaflow.base.errors import InputError, meant, shown
from hadaflow.base.lazy import optax
from hadaflow.descent.optimizers import transformations
from hadaflow.descent.optimizers.optimizer import (
    ELEMENTWISE,
    SPECTRAL,
    Kind,
    LearningRate,
    Named,
    Optimizer,
    is_transformation,
)
from hadaflow.descent.optimizers.own import wrapped

_MUON = (3.4445, -4.7750, 2.0315)


def sgd(
    learning_rate: LearningRate, momentum: float | None = None, nesterov: bool = False, *,
    weight_decay: float = 0.0,
) -> Optimizer:  # fmt: skip
    """Gradient descent, with momentum if it is given (`optax.sgd`)."""
    return _made("sgd", locals())


def momentum(
    learning_rate: LearningRate, momentum: float = 0.9, *, weight_decay: float = 0.0
) -> Optimizer:
    """Heavy ball: `sgd` with momentum."""
    return _made("momentum", locals())


def nesterov(
    learning_rate: LearningRate, momentum: float = 0.9, *, weight_decay: float = 0.0
) -> Optimizer:
    """Nesterov's momentum: `sgd` that looks ahead."""
    return _made("nesterov", locals())


def normalized(
    learning_rate: LearningRate, eps: float = 1e-6, *, weight_decay: float = 0.0
) -> Optimizer:
    """The gradient of all parameters divided by its norm (`optax.normalize_by_update_norm`).

    With `eps` = 0 it goes on where gradients underflow.
    """
    return _made("normalized", locals())


def sign(learning_rate: LearningRate, *, weight_decay: float = 0.0) -> Optimizer:
    """Signs of the gradient (`optax.sign_sgd`)."""
    return _made("sign", locals())


def lion(
    learning_rate: LearningRate, b1: float = 0.9, b2: float = 0.99, *, weight_decay: float = 1e-3
) -> Optimizer:
    """Lion: signs of momentum (`optax.lion`)."""
    return _made("lion", locals())


def rmsprop(
    learning_rate: LearningRate, decay: float = 0.9, eps: float = 1e-8, initial_scale: float = 0.0,
    eps_in_sqrt: bool = True, centered: bool = False, momentum: float | None = None,
    nesterov: bool = False, bias_correction: bool = False, *, weight_decay: float = 0.0,
) -> Optimizer:  # fmt: skip
    """RMSProp (`optax.rmsprop`); its `decay` is that of the mean of squares."""
    return _made("rmsprop", locals())


def adagrad(
    learning_rate: LearningRate, initial_accumulator_value: float = 0.1, eps: float = 1e-7, *,
    weight_decay: float = 0.0,
) -> Optimizer:  # fmt: skip
    """Adagrad (`optax.adagrad`)."""
    return _made("adagrad", locals())


def adam(
    learning_rate: LearningRate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
    eps_root: float = 0.0, *, weight_decay: float = 0.0,
) -> Optimizer:  # fmt: skip
    """Adam (`optax.adam`).

    Examples:
        >>> print(adam(0.01), adam([0.1, 0.01], b1=0.5))
        adam:0.01 adam:0.1,0.01:b1=0.5
    """
    return _made("adam", locals())


def adamw(
    learning_rate: LearningRate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
    eps_root: float = 0.0, *, weight_decay: float = 1e-4, nesterov: bool = False,
) -> Optimizer:  # fmt: skip
    """Adam with decoupled decay (`optax.adamw`)."""
    return _made("adamw", locals())


def nadam(
    learning_rate: LearningRate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
    eps_root: float = 0.0, *, weight_decay: float = 0.0,
) -> Optimizer:  # fmt: skip
    """Adam with Nesterov's momentum (`optax.nadam`)."""
    return _made("nadam", locals())


def amsgrad(
    learning_rate: LearningRate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
    eps_root: float = 0.0, *, weight_decay: float = 0.0,
) -> Optimizer:  # fmt: skip
    """Adam that never forgets its largest gradients (`optax.amsgrad`)."""
    return _made("amsgrad", locals())


def adan(
    learning_rate: LearningRate, b1: float = 0.98, b2: float = 0.92, b3: float = 0.99,
    eps: float = 1e-8, eps_root: float = 1e-8, *, weight_decay: float = 0.0,
) -> Optimizer:  # fmt: skip
    """Adan (`optax.adan`)."""
    return _made("adan", locals())


def novograd(
    learning_rate: LearningRate, b1: float = 0.9, b2: float = 0.25, eps: float = 1e-6,
    eps_root: float = 0.0, *, weight_decay: float = 0.0,
) -> Optimizer:  # fmt: skip
    """NovoGrad: momentum of gradients over the norms of their layers (`optax.novograd`)."""
    return _made("novograd", locals())


def muon(
    learning_rate: LearningRate, ns_coeffs: tuple[float, float, float] = _MUON, ns_steps: int = 5,
    beta: float = 0.95, eps: float = 1e-8, *, weight_decay: float = 0.0, nesterov: bool = True,
    preconditioning: str = "frobenius",
) -> Optimizer:  # fmt: skip
    """Muon (`optax.contrib.muon`): odd polynomials on the singular values of momentum.

    With `eps` = 0 it goes on where gradients underflow.
    """
    allowed = transformations.PRECONDITIONINGS
    if preconditioning not in allowed:
        raise InputError(
            f"Argument `preconditioning` must be one of {', '.join(allowed)} (others do not act on "
            f"singular values), but is {shown(preconditioning)}."
        )
    if not isinstance(ns_coeffs, tuple | list) or len(ns_coeffs) != 3:
        raise InputError(f"Argument `ns_coeffs` must be three numbers, but is {shown(ns_coeffs)}.")
    ns_steps = check_whole_number("ns_steps", ns_steps, most=100)
    return _made("muon", {k: v for k, v in locals().items() if k != "allowed"})


def spectral(learning_rate: LearningRate | Any, *, weight_decay: float = 0.0) -> Optimizer:
    """Spectral descent: every singular value of the gradient replaced by 1.

    Or, given an optax transformation of one's own in place of a learning rate: that, taken to act on
    singular values. It is tried on small matrices first.

    Examples:
        >>> import optax
        >>> spectral(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)))
        <optimizer spectral:optax>
    """
    if is_transformation(learning_rate):
        return wrapped(learning_rate, SPECTRAL)
    return _made("spectral", locals())


def shampoo(
    learning_rate: LearningRate, eps: float = 1e-6, *, weight_decay: float = 0.0
) -> Optimizer:
    """Shampoo, its statistics beginning at `eps` times the identity: Adagrad on singular values."""
    return _made("shampoo", locals())


def elementwise(transformation: Any) -> Optimizer:
    """An optax transformation of one's own that acts on every entry by itself.

    It is tried on small matrices first.

    Examples:
        >>> import optax
        >>> elementwise(optax.adabelief(0.01))
        <optimizer elementwise:optax>
    """
    if not is_transformation(transformation):
        raise InputError(
            "Argument `transformation` must be an optax transformation, but is "
            f"{shown(transformation)}."
        )
    return wrapped(transformation, ELEMENTWISE)


# --- what they are made of -----------------------------------------------------------------------


def _steps(rule: Any, learning_rate: Any, weight_decay: Any) -> Any:
    return optax.chain(
        rule, optax.add_decayed_weights(weight_decay), optax.scale_by_learning_rate(learning_rate)
    )


def _of_rule(rule: str, /, *, learning_rate: Any, weight_decay: Any, **numbers: Any) -> Any:
    return _steps(getattr(optax, rule)(**numbers), learning_rate, weight_decay)


def _sgd(*, learning_rate: Any, weight_decay: Any, momentum: Any, nesterov: bool) -> Any:
    rule = optax.identity() if momentum is None else optax.trace(momentum, nesterov)
    return _steps(rule, learning_rate, weight_decay)


def _rmsprop(
    *, learning_rate: Any, weight_decay: Any, momentum: Any, nesterov: bool, centered: bool,
    **numbers: Any,
) -> Any:  # fmt: skip
    rule = optax.scale_by_stddev if centered else optax.scale_by_rms
    steps = _steps(rule(**numbers), learning_rate, weight_decay)
    return steps if momentum is None else optax.chain(steps, optax.trace(momentum, nesterov))


def _novograd(*, learning_rate: Any, **numbers: Any) -> Any:
    return optax.chain(
        optax.scale_by_novograd(**numbers), optax.scale_by_learning_rate(learning_rate)
    )


def _muon(*, ns_steps: int, **numbers: Any) -> Any:
    return optax.contrib.muon(ns_steps=ns_steps, **numbers)


def _muon_of_values(
    *, learning_rate: Any, weight_decay: Any, beta: Any, eps: Any, shapes: Any,
    ns_coeffs: Any, ns_steps: int, nesterov: bool, preconditioning: str,
) -> Any:  # fmt: skip
    rule = transformations.scale_values_by_muon(
        beta, eps, shapes, coefficients=ns_coeffs, ns_steps=ns_steps, nesterov=nesterov,
        norm=preconditioning,
    )  # fmt: skip
    return _steps(rule, learning_rate, weight_decay)


def _polar(*, learning_rate: Any, weight_decay: Any) -> Any:
    return _steps(transformations.polar(), learning_rate, weight_decay)


def _shampoo(*, learning_rate: Any, weight_decay: Any, eps: Any) -> Any:
    return _steps(transformations.scale_by_shampoo(eps), learning_rate, weight_decay)


def _shampoo_of_values(*, learning_rate: Any, weight_decay: Any, eps: Any) -> Any:
    return _steps(transformations.values_by_shampoo(eps), learning_rate, weight_decay)


_of = functools.partial
_sign = _of(_of_rule, "scale_by_sign")
_KINDS = {
    kind.name: kind
    for kind in (
        Kind("sgd", SPECTRAL, _sgd, descent=True),
        Kind("momentum", SPECTRAL, _of(_sgd, nesterov=False), descent=True),
        Kind("nesterov", SPECTRAL, _of(_sgd, nesterov=True)),
        Kind("normalized", SPECTRAL, _of(_of_rule, "normalize_by_update_norm"), scaleless=True),
        Kind("novograd", SPECTRAL, _novograd),
        Kind("muon", SPECTRAL, _muon, _muon_of_values, shaped=True, memory="beta", scaleless=True),
        Kind("spectral", SPECTRAL, _polar, _sign, scaleless=True),
        Kind("shampoo", SPECTRAL, _shampoo, _shampoo_of_values),
        Kind("sign", ELEMENTWISE, _sign, scaleless=True),
        Kind("lion", ELEMENTWISE, _of(_of_rule, "scale_by_lion"), memory="b2", scaleless=True),
        Kind("rmsprop", ELEMENTWISE, _rmsprop),
        Kind("adagrad", ELEMENTWISE, _of(_of_rule, "scale_by_rss")),
        Kind("adam", ELEMENTWISE, _of(_of_rule, "scale_by_adam")),
        Kind("adamw", ELEMENTWISE, _of(_of_rule, "scale_by_adam")),
        Kind("nadam", ELEMENTWISE, _of(_of_rule, "scale_by_adam", nesterov=True)),
        Kind("amsgrad", ELEMENTWISE, _of(_of_rule, "scale_by_amsgrad")),
        Kind("adan", ELEMENTWISE, _of(_of_rule, "scale_by_adan")),
    )
}
FUNCTIONS: dict[str, Callable[..., Optimizer]] = {name: globals()[name] for name in _KINDS}


def _made(name: str, given: dict[str, Any]) -> Named:
    return Named.of(_KINDS[name], _usual(name), dict(given))


@functools.cache
def _usual(name: str) -> dict[str, Any]:
    return {n: p.default for n, p in inspect.signature(FUNCTIONS[name]).parameters.items()}


# --- text ----------------------------------------------------------------------------------------


def parse(text: str, learning_rate: Any = None, weight_decay: Any = None) -> Optimizer:
    """The optimizer that a text spells, `adam`, `adam:0.01` or `adamw:0.01:b1=0.8:weight_decay=0.1`.

    The learning rate is the one given where the text has none; so is the decay.

    Examples:
        >>> print(parse("lion:0.001:weight_decay=0"))
        lion:0.001:weight_decay=0
    """
    name, rate, numbers = _read(text)
    learning_rate = learning_rate if rate is None else rate
    if learning_rate is None:
        raise InputError(
            f"Argument `optimizer` must have a learning rate, such as {name}:0.01, but is {shown(text)}."
        )
    decay = {} if weight_decay is None else {"weight_decay": weight_decay}
    return FUNCTIONS[name](learning_rate, **(decay | numbers))


def check_once(text: str, learning_rate: Any, weight_decay: Any = None) -> None:
    """Refuse a number that is given both by the text and beside it."""
    _, rate, numbers = _read(text)
    beside = {"learning_rate": learning_rate, "weight_decay": weight_decay}
    for name, given in beside.items():
        spelled = (numbers | {"learning_rate": rate}).get(name)
        if given is not None and spelled is not None:
            raise InputError(
                f"Argument `{name}` is given twice, {shown(given)} and in {shown(text)}: leave out one."
            )


def _read(text: str) -> tuple[str, Any, dict[str, Any]]:
    """The name of an optimizer, its learning rate, if it has one, and its other numbers."""
    name, *parts = text.strip().split(":")
    if name not in FUNCTIONS:
        raise InputError(
            f"Argument `optimizer` must be one of {', '.join(FUNCTIONS)}, but is {shown(text)}"
            f"{meant(name, FUNCTIONS)}."
        )
    known = _usual(name)
    rate = _rates(parts.pop(0), text) if parts and "=" not in parts[0] else None
    numbers = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in known or key == "learning_rate" or not value:
            own = ", ".join(n for n in known if n != "learning_rate")
            raise InputError(
                f"Argument `optimizer` must be spelled {name}:RATE:NAME=NUMBER with names among {own}, "
                f"but is {shown(text)}."
            )
        numbers[key] = _value(value, text)
    return name, rate, numbers


def _rates(text: str, whole: str) -> Any:
    found = [_value(part, whole) for part in text.split(",")]
    return found if len(found) > 1 else found[0]


def _value(text: str, whole: str) -> Any:
    """A number, true, false or a word."""
    if text in ("true", "false"):
        return text == "true"
    try:
        number = float(text)
    except ValueError:
        if text.isidentifier():
            return text
        raise InputError(
            f"Argument `optimizer` must have numbers, but {shown(text)} in {shown(whole)} is none."
        ) from None
    return int(number) if number.is_integer() and text.isdigit() and number else number
