"""The claims of the paper, by subject; importing this package registers them all."""

from hadaflow.theory.claims import (  # noqa: F401 (registered on import)
    dynamics,
    experiments,
    initialization,
    limits,
    monotonicity,
    rates,
    structure,
)
