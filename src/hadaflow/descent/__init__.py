"""`descend`: gradient descent in both views."""
