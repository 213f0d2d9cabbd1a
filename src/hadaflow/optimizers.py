"""Optimizers for `descend` and `race`, and the text that spells them.

Each is a function of its `learning_rate` (a number, a list of them for runs side by side, or a schedule),
with hyperparameters called as in optax. Spectral ones act on singular values, in every reduced view:
`sgd`, `momentum`, `nesterov`, `normalized`, `novograd`, `muon`, `spectral`, `shampoo`. Elementwise ones
act on one row of the matrices of some starts: `sign`, `lion`, `rmsprop`, `adagrad`, `adam`, `adamw`,
`nadam`, `amsgrad`, `adan`. An optax transformation of one's own becomes either by `spectral` or by
`elementwise`.

Examples:
    >>> adam(0.01, b2=0.99)
    <optimizer adam:0.01:b2=0.99>
"""

from hadaflow.descent.optimizers.named import (
    adagrad as adagrad,
    adam as adam,
    adamw as adamw,
    adan as adan,
    amsgrad as amsgrad,
    elementwise as elementwise,
    lion as lion,
    momentum as momentum,
    muon as muon,
    nadam as nadam,
    nesterov as nesterov,
    normalized as normalized,
    novograd as novograd,
    parse as parse,
    rmsprop as rmsprop,
    sgd as sgd,
    shampoo as shampoo,
    sign as sign,
    spectral as spectral,
)

__all__ = [
    "adagrad",
    "adam",
    "adamw",
    "adan",
    "amsgrad",
    "elementwise",
    "lion",
    "momentum",
    "muon",
    "nadam",
    "nesterov",
    "normalized",
    "novograd",
    "parse",
    "rmsprop",
    "sgd",
    "shampoo",
    "sign",
    "spectral",
]
