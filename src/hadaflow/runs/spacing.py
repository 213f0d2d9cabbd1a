"""Where a run is saved: where its state changes, not evenly in time."""

from typing import NamedTuple

import numpy as np

from hadaflow.model.clock import log10_from_u, u_from_log10

FIRST_SAVED = -2.0  # log10 of the first saved time, unless the run is shorter
# Shares of the points that go to each of the changes below, so that none of them is missed.
_SHARES = {"direction": 0.4, "norm": 0.2, "logs": 0.2, "time": 0.2}
_NODES = 1024  # of time, between which the changes are interpolated
_FAINTEST = 1e-30  # share of ‖a‖₁ below which the log of a mode tells no story any more


class Profile(NamedTuple):
    """States on the way as numbers whose changes are what a picture shows; times are the first axis."""

    shares: np.ndarray  # of ‖a‖₁, or entries of the logits over their norm
    log_norm: np.ndarray

    @classmethod
    def of_logs(cls, log_a: np.ndarray) -> "Profile":
        """From logs of the K − 1 singular values, however large."""
        top = np.max(log_a, axis=1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0.0)
        a = np.exp(log_a - top)
        total = np.sum(a, axis=1, keepdims=True)
        total = np.where(total > 0, total, 1.0)
        return cls(a / total, np.log(total[:, 0]) + top[:, 0])

    def __getitem__(self, index) -> "Profile":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Profile(self.shares[index], self.log_norm[index])


def changes(profile: Profile) -> dict[str, np.ndarray]:
    """How much has changed up to each state since the first: direction, its logs, and log‖a‖₁.

    The direction moves by half the sum of |Δâ|, which is 1 from one mode to another; its logs by the
    largest |Δ log â|, which sees modes that are small.
    """
    shares, logs = profile.shares, np.log(np.maximum(np.abs(profile.shares), _FAINTEST))
    steps = {
        "direction": 0.5 * np.abs(np.diff(shares, axis=0)).sum(axis=1),
        "logs": np.abs(np.diff(logs, axis=0)).max(axis=1, initial=0.0),
        "norm": np.abs(np.diff(profile.log_norm)),
    }
    return {name: np.concatenate([[0.0], np.cumsum(step)]) for name, step in steps.items()}


def story(changed: dict[str, np.ndarray], log10_time: np.ndarray) -> np.ndarray:
    """How much of the run has been told by each time, from 0 to 1: a mean of all kinds of change."""
    found = {**changed, "time": log10_time - log10_time[0]}
    told, shares = np.zeros(len(log10_time)), 0.0
    for name, share in _SHARES.items():
        whole = found[name][-1] - found[name][0]
        if whole > 1e-12:  # else nothing but rounding
            told, shares = told + share * (found[name] - found[name][0]) / whole, shares + share
    return told / shares if shares else told


def evenly(told: np.ndarray, count: int) -> np.ndarray:
    """Numbers of at most so many of the states, the last one among them, even in what they tell."""
    if len(told) <= count:
        return np.arange(len(told))
    wanted = told[0] + (told[-1] - told[0]) * np.arange(1, count + 1) / count
    nearest = np.minimum(np.searchsorted(told, wanted), len(told) - 1)
    before = np.maximum(nearest - 1, 0)
    closer = np.abs(told[before] - wanted) < np.abs(told[nearest] - wanted)
    found = np.where(closer, before, nearest)
    found[-1] = len(told) - 1
    return np.unique(found)


def spaced(us: np.ndarray, profile: Profile, count: int) -> np.ndarray:
    """So many u = log(1 + t), the last of `us` among them, even in what they tell of a run.

    `us` increase from 0 on and are those of the states on the way that the profile is of.
    """
    end = float(us[-1])
    last = float(log10_from_u(np.float64(end)))
    first = min(FIRST_SAVED, last - 3)
    if count < 2 or not np.isfinite(last):
        return np.array([end])
    even = np.linspace(first, last, _NODES)
    own = us[(us > u_from_log10(np.float64(first))) & (us < end)]
    nodes = np.unique(np.concatenate([u_from_log10(even), own, [end]]))
    nodes = nodes[nodes <= end]
    changed = {name: np.interp(nodes, us, made) for name, made in changes(profile).items()}
    log10_time = log10_from_u(nodes)
    told = story(changed, log10_time)
    # A part of the mean is time itself, so that it rises from node to node.
    wanted = np.linspace(0.0, told[-1], count)
    found = u_from_log10(np.interp(wanted, told, log10_time))
    found[-1] = end
    return np.unique(found[found <= end])


def geometric(end: float, count: int) -> np.ndarray:
    """So many u, even in log time, up to `end`: where nothing is known of the states."""
    last = float(log10_from_u(np.float64(end)))
    us = u_from_log10(np.linspace(min(FIRST_SAVED, last - 3), last, count))
    us[-1] = end
    return us
