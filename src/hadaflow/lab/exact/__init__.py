"""The flow and its metrics in ball arithmetic."""
