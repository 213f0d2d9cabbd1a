"""The equations of a model in its views. Structure is static, numbers are traced: `of(model)` makes one."""
