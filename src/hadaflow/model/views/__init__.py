"""The equations of a model in its views: structure is static, numbers are traced."""
