"""Optimizers, and how each of them acts on a Hadamard state."""
