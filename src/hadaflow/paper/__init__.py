"""The figures and experiments of the paper, each a small spec over the library."""
