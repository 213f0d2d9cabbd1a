"""Trajectories, their files and pictures."""
