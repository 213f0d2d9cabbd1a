"""`solve`: the gradient flow, its methods and its marches."""
