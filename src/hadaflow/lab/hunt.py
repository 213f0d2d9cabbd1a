r"""The hunter: states where the rate of a metric has the wrong sign, made readable and certified.

1. *Search.* Seeded starts of every shape and norm climb the rate per unit of log path length,
   $\|a\|_1\,dm/d\ell$, in log coordinates. It has no scale, so that the climb works at ordinary norms
   and far out in the large-norm limit alike.
2. *Refine.* What has the wrong sign climbs $\log|dm/dt|$, in a box of moderate numbers if the sign
   survives there: counterexamples a person can read.
3. *Simplify.* Entries are rounded to as few digits as the rate allows, and made equal where it allows.
4. *Certify.* Ball arithmetic decides; what it does not prove is not called found and certified.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hadaflow.base.checks import check_seconds, check_whole_number
from hadaflow.base.errors import InputError
from hadaflow.base.notebooks import shown_in_notebook
from hadaflow.base.precision import double_precision
from hadaflow.base.progress import Progress, Report, Rest, check_progress
from hadaflow.base.words import counted
from hadaflow.lab.certify import Certificate, certify
from hadaflow.lab.exact.balls import exact, written
from hadaflow.lab.quarry import FALL, KEPT, NOWHERE, OPTIONS, READABLE, RISE, Quarry
from hadaflow.metrics.measures import Metric
from hadaflow.model.ufm import UFM

_BATCH = 256  # starts that climb together
_SIMPLIFIED = 6  # of those refined the best, which are simplified and certified
_DIGITS = 6
_SHARE = 0.3  # of its rate that a state may lose by being simplified


@dataclasses.dataclass(frozen=True)
class Hunt:
    """What a hunt came to; `str` says it in words.

    `a` are decimals as text: exactly the state that was certified, or found. `rate` is dm/dt in scaled
    units. `starts` is how many starts were tried; nothing found in them proves nothing.
    """

    metric: str
    model: UFM
    seek: str
    found: bool
    certified: bool
    a: tuple[str, ...] | None
    C: Any
    rate: float | None
    certificate: Certificate | None
    starts: int
    seed: int
    seconds: float
    interrupted: bool
    message: str

    def to_document(self) -> dict[str, Any]:
        """The result as plain data, as `hadaflow hunt --json` prints it."""
        proof = self.certificate
        return {
            "found": self.found,
            "certified": self.certified,
            "metric": self.metric,
            "model": self.model.to_document(),
            "classes": self.model.classes,
            "group": list(self.model.basis.group),
            "depth": self.model.depth,
            "seek": self.seek,
            "a": None if self.a is None else list(self.a),
            "C": self.C,
            "rate": self.rate,
            "enclosure": None if proof is None else proof.enclosure,
            "starts": self.starts,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "message": self.message,
            "certificate": None if proof is None else proof.to_document(),
        }

    def __repr__(self) -> str:
        found = "certified" if self.certified else "found" if self.found else "not found"
        return f"<Hunt {found}: {self.metric}, {self.model.describe(short=True)}>"

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)

    def __str__(self) -> str:
        lines = [self.message, f"  model {self.model.describe(short=True)}"]
        if self.a is not None:
            lines.append(f"  a     ({', '.join(self.a)})")
            lines.append(f"  rate  {self.rate:.6g}")
        if self.certificate is not None:
            lines.append(f"  proof {self.certificate.enclosure} ({self.certificate.bits} bits)")
        return "\n".join(lines)


def hunt(
    metric: Metric,
    model: UFM,
    *,
    C: Any = None,
    balls: Callable[..., Any] | None = None,
    seek: str | None = None,
    starts: int = 2048,
    seconds: float = 60.0,
    seed: int = 0,
    progress: str | Report | None = "auto",
) -> Hunt:
    """Search for a state where `metric` moves the wrong way along the flow, and certify it.

    Args:
        metric: A name, `module:function`, or your own JAX-traceable function of the scaled singular
            values `a` of the free modes. It can be certified if it is written with arithmetic and
            `hadaflow.expressions`, or given once more as `balls`.
        model: The problem whose flow moves the state.
        C: Differences of the squared layer singular values, scaled units; zero (balanced) if left out.
        balls: The metric as a function of a sequence of `flint.arb`-like numbers, as in `certify`.
        seek: "rise" or "fall", what would be a counterexample: "rise", but "fall" for the margin.
        starts: How many starts to try at most.
        seconds: How long to search at most.
        seed: Seed of the starts: the same seed gives the same answer, unless time runs out.
        progress: As in `solve`.

    Returns:
        A `Hunt`. Interrupted, the best so far.

    Examples:
        >>> found = hunt("l2", UFM(classes=8), starts=256)
        >>> found.found, found.certified, found.certificate.sign
        (True, True, 1)
    """
    began = time.monotonic()
    quarry = Quarry.make(metric, model, C, seek)
    starts = check_whole_number("starts", starts, most=10**9)
    seed = check_whole_number("seed", seed, least=0)
    check_seconds(seconds)
    check_progress(progress)
    tried, best, reached, interrupted = 0, None, np.zeros((0, model.modes)), False
    rng, rest = np.random.default_rng(seed), Rest({"": 1.0}, seconds=seconds)
    try:
        with Progress(progress, f"hunting {quarry.name}") as bar, double_precision():

            def climbed(part: float) -> None:
                rest.hear("", (tried + part * min(_BATCH, starts - tried)) / starts)
                bar.report(f"{tried} of {starts} starts{rest.in_words('at most')}", rest.done())

            quarry.check_value()
            while tried < starts and (tried == 0 or time.monotonic() - began < seconds):
                count = min(_BATCH, starts - tried)
                reached = quarry.climb(quarry.draw(rng, _BATCH), count, climbed)
                tried += count
                bar.report(f"{tried} of {starts} starts, refining", tried / starts)
                best = _best(quarry, reached, balls)
                if best is not None:
                    break
    except KeyboardInterrupt:
        interrupted = True
        if best is None and len(reached):  # as it was found, in all its digits
            with double_precision():
                best = _decided(quarry, [[repr(float(v)) for v in np.exp(reached[0])]], balls)
    message = _in_words(quarry, best, f"{counted(tried, 'start')} (seed {seed})", interrupted)
    if best is None and not interrupted and tried < starts:
        message += f" Time ran out before {starts}."
    return Hunt(
        metric=quarry.name, model=model, seek=RISE if quarry.sign > 0 else FALL,
        found=best is not None, certified=best is not None and best.proof is not None,
        a=None if best is None else tuple(best.a), C=quarry.given_C,
        rate=None if best is None else best.rate, certificate=None if best is None else best.proof,
        starts=tried, seed=seed, seconds=time.monotonic() - began, interrupted=interrupted,
        message=message,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Found:
    """A state of the wrong sign, with its proof or the reason why there is none."""

    a: list[str]
    rate: float
    proof: Certificate | None
    reason: str = ""


def _in_words(quarry: Quarry, best: _Found | None, count: str, interrupted: bool) -> str:
    word = "rises" if quarry.sign > 0 else "falls"
    if best is None:
        text = f"Not found in {count}: no state where {quarry.name} {word}."
    else:
        kind = "Found and certified" if best.proof is not None else "Found, but uncertified"
        text = f"{kind}: {quarry.name} {word} at a state reached in {count}."
        text += f" {best.reason}" if best.reason else ""
    return f"Interrupted: {text[0].lower()}{text[1:]}" if interrupted else text


# --- from a state to a readable proof ------------------------------------------------------------


def _best(quarry: Quarry, reached: np.ndarray, balls: Callable[..., Any] | None) -> _Found | None:
    """The most readable of the states that can be certified; of one's own metric, else uncertified."""
    if not len(reached):
        return None
    speeds, states = quarry.refine(reached[:KEPT])
    options = []
    for log_speed, z in list(zip(speeds, states, strict=True))[:_SIMPLIFIED]:
        if log_speed < speeds[0] - math.log(30.0):
            break  # the rate of the best is far larger
        decimals = _simplified(quarry, np.exp(z))
        if decimals is not None:
            speed = quarry.log_speeds(np.array([decimals], dtype=float))[0]
            options.append((_complexity(decimals), -speed, decimals))
    return _decided(quarry, [decimals for *_, decimals in sorted(options)], balls)


def _decided(
    quarry: Quarry, options: list[list[str]], balls: Callable[..., Any] | None
) -> _Found | None:
    """The first of the states that ball arithmetic proves; of one's own metric, else uncertified."""
    uncertified = None
    for a in options:
        try:
            proof = certify(quarry.metric, a, quarry.model, C=quarry.given_C, balls=balls)
            reason = f"Its sign is undecided with {proof.bits} bits."
        except InputError as error:
            if isinstance(quarry.metric, str) or balls is not None:
                raise
            proof, reason = None, str(error)
        if proof is not None and proof.sign == quarry.sign:
            name = proof.metric if balls is not None else quarry.name
            return _Found(a, proof.rate, dataclasses.replace(proof, metric=name))
        undecided = proof is None or proof.sign == 0
        if uncertified is None and undecided and not isinstance(quarry.metric, str):
            values = np.array([[float(v) for v in a]])
            if quarry.beyond_rounding(np.log(values))[0]:
                rate = quarry.sign * float(np.exp(quarry.log_speeds(values)[0]))
                uncertified = _Found(a, rate, None, reason)
    return uncertified


def _complexity(decimals: list[str]) -> float:
    """Digits a reader has to take in: equal entries once, and a little for each."""
    digits = sum(len(v.replace(".", "").strip("0")) for v in set(decimals))
    return digits + len(set(decimals)) + 0.01 * sum(len(v) for v in decimals)


def _rounded(value: float, digits: int) -> str:
    return written(exact(f"{value:.{digits - 1}e}"))


def _near(value: float) -> list[str]:
    """Numbers of few digits near a value: rounded, and one unit more and less."""
    found = []
    for digits in range(1, _DIGITS):
        middle = exact(_rounded(value, digits))
        unit = exact(f"1e{math.floor(math.log10(float(middle))) - digits + 1}")
        found += [written(v) for v in (middle, middle - unit, middle + unit) if v > 0]
    return found


def _simplified(quarry: Quarry, a: np.ndarray) -> list[str] | None:
    """The state in as few digits, and as few different numbers, as its rate allows."""
    a = a[quarry.order(a)]
    floor = quarry.log_speeds(a[None])[0] + math.log(_SHARE)
    if floor < NOWHERE / 2:
        return None
    rounded = [[_rounded(v, digits) for v in a] for digits in range(1, 17)]
    enough = np.flatnonzero(quarry.log_speeds(np.array(rounded, dtype=float)) >= floor)
    if not len(enough):
        return None
    state = rounded[enough[0]]
    for _ in range(2):
        before = list(state)
        for i in np.argsort([-len(v) for v in state]):
            state = _simpler(quarry, state, int(i), floor)
        if state == before:
            break
    return state


def _simpler(quarry: Quarry, state: list[str], i: int, floor: float) -> list[str]:
    """The state with entry `i` as simple as its rate allows: fewer digits, or another entry's value."""
    value = float(state[i])
    others = [v for v in dict.fromkeys(state) if 0.3 < float(v) / value < 3.0][:20]
    round_ones = [v for v in ("1", "0.1") if 0.2 < float(v) / value < 5.0]
    values = list(dict.fromkeys([state[i], *others, *round_ones, *_near(value)]))[:OPTIONS]
    least = min(value, math.exp(READABLE[0]))  # stays in the box, where it is in it
    options = [[*state[:i], v, *state[i + 1 :]] for v in values if float(v) >= least]
    speeds = quarry.log_speeds(np.array(options, dtype=float))
    allowed = [(_complexity(o), -s, o) for o, s in zip(options, speeds, strict=True) if s >= floor]
    return min([*allowed, (_complexity(state), -floor, state)])[2]
