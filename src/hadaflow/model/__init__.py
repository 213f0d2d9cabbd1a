"""The model: its options, layers, labels, states and starts, in both views."""
