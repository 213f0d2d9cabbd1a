"""Shapes of the arrays of compiled code, for readers and for the checker of types.

Modes are the first axis; the runs of a batch, if any, the last. What has an entry in front for the
trivial mode is padded.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Complex, Float

    Modes = Float[Array, "modes *runs"]
    Padded = Float[Array, "1+modes *runs"]
    Margins = Float[Array, "wrong *runs"]
    One = Float[Array, "1 *runs"]  # one number of every run, beside modes
    Number = Float[Array, "*runs"]
    Layers = Float[Array, "layers modes *runs"]
    Amplitudes = Complex[Array, "layers modes *runs"]
    ComplexModes = Complex[Array, "modes *runs"]
    Angles = Float[Array, "angles *runs"]
    Logits = Float[Array, "*batch classes samples"]
    Samples = Float[Array, "*batch samples"]
    State = Float[Array, "state *runs"]  # what a flow of singular values integrates
    Going = Bool[Array, "*runs"]
else:  # nothing is checked while a program runs, and nothing is imported for it
    Modes = Padded = Margins = One = Number = Layers = Amplitudes = ComplexModes = Any
    Angles = Logits = Samples = State = Going = Any
