"""Transforms, groups, bases and their symmetries."""
