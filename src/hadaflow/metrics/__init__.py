"""Metrics of states, their exact rates, and margins."""
