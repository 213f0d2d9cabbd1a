r"""The gradient flow in log time, $u = \log(1+t)$: what a march integrates, one kind in each file.

Beside the state runs the path length, which is the time of the normalized gradient flow: one orbit,
several clocks. Nothing overflows, because the force enters only as $e^{u - \text{slowness}}$, and
nothing freezes, because $1 - p$ is never formed.
"""
