"""One call of a verb: what was asked for, and what it is answered with."""
