"""The claims of the paper, by subject, and those beyond it; importing this package registers them all."""

from hadaflow.paper.claims import (  # noqa: F401, I001 (registered on import, in the order of the paper)
    structure,
    dynamics,
    rates,
    monotonicity,
    basin,
    limits,
    initialization,
    normalized,
    definitions,
    experiments,
    comparisons,
    training,
)
