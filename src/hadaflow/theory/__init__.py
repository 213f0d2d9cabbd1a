"""The theory lab: the paper's statements as checkable claims, and certificates in ball arithmetic."""
