"""Named starts of the reduced view, drawn from seeds or fixed, and the text that spells them.

Each takes `seeds`, an int or a list of them for a batch whose run i is that of seed i alone, and `C`,
`angle` and `units` as `spectrum` does. Wherever a start is taken its spelling is, too:
`solve(model, "uniform:0.1:1:0")`.
"""

from hadaflow.model.named_starts import (
    figure1 as figure1,
    log_uniform as log_uniform,
    lognormal as lognormal,
    parse as parse,
    small as small,
    uniform as uniform,
)

__all__ = ["figure1", "log_uniform", "lognormal", "parse", "small", "uniform"]
