"""Limits on supports of modes, and the saddles a run passes."""
