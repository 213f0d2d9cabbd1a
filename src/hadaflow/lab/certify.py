r"""Certificates: rigorous signs of the rate of a metric, as small files that anyone can check again.

Checking computes everything anew in ball arithmetic, from the definitions in `ball_flow` and
`ball_metrics`: nothing here uses the model, the metrics or JAX, and nothing in a file is believed.
"""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any

import flint
from flint import arb

from hadaflow.base.checks import is_whole_number
from hadaflow.base.errors import InputError, printable, shown
from hadaflow.base.files import read_text_file, write_atomically
from hadaflow.base.notebooks import shown_in_notebook
from hadaflow.base.words import group_name
from hadaflow.lab.exact.ball_flow import CROSS_ENTROPY, ExactState, Matrix, Setting
from hadaflow.lab.exact.ball_metrics import METRICS, check_setting
from hadaflow.lab.exact.balls import (
    LAST_BITS,
    Enclosure,
    check_denominators,
    enclose,
    exact,
    written,
)
from hadaflow.lab.exact.exact_problems import (
    DEEPEST,
    LARGEST,
    Rows,
    broken,
    entry_list,
    exact_differences,
    problem_document,
    read_problem,
    setting_of,
    too_many,
    written_number,
)
from hadaflow.lab.own_metrics import (
    exact_metric,
    find_metric,
    load_metric,
    metric_name,
    source_digest,
)
from hadaflow.lab.proof_time import Stopwatch

SCHEMA = "hadaflow-certificate-2"
_FIRST_SCHEMA = "hadaflow-certificate-1"  # the same, but `source` is of the function's text alone
_MOST_BYTES = 2**24  # of a certificate
_MOST_BITS = 2**16
_PRINTED = 1e-15  # what printing may add to a radius, relatively


def metric_rate(
    metric: str,
    a: Iterable[Any],
    psi: Matrix | None = None,
    depth: int = 2,
    relative: float = 1e-15,
) -> Enclosure:
    """Rigorous enclosure of dm/dt along the reduced flow on Sylvester's basis, in scaled units.

    Examples:
        >>> print(metric_rate("l2", ["1", "1", "1", "1.25", "0.01", "0.01", "0.01"]).sign)
        1
    """
    state = [exact(v) for v in a]
    if len(state) & (len(state) + 1) or not state:
        raise InputError(
            "Argument `a` must have K − 1 entries, K a power of two, one for each non-trivial mode, "
            f"but has {len(state)}."
        )
    if not is_whole_number(depth, 1, DEEPEST):
        raise InputError(f"Argument `depth` must be from 1 to {DEEPEST}, but is {shown(depth)}.")
    setting = Setting.walsh(len(state) + 1, depth)
    check_setting(metric, setting)
    _check_positive(state)
    return enclose(lambda: METRICS[metric](ExactState.of(setting, state, psi=psi)).rate, relative)


def _check_positive(state: Sequence[Fraction]) -> None:
    for value in state:
        if value <= 0:
            raise InputError(
                "Argument `a` must hold positive numbers, one for each free mode, but has "
                f"{written(value)}."
            )


# --- certificates --------------------------------------------------------------------------------

_WORD = {1: "rises", -1: "falls", 0: "has an undecided sign"}
_RELATION = {1: "> 0", -1: "< 0", 0: "undecided"}


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A proven sign of dm/dt at one exact state, in scaled units.

    `sign` is 1 (the metric rises), −1 (it falls) or 0 (not decided with `bits` bits). `save` writes a
    file that `hadaflow certify FILE` checks from scratch.
    """

    metric: str
    setting: Setting
    a: tuple[Fraction, ...]
    C: Rows | None
    enclosure: str
    bits: int
    sign: int
    rate: float
    source: str | None = None

    @functools.cached_property
    def statement(self) -> str:
        """What is proven, in one line."""
        group = group_name(self.setting.group)
        at = ", ".join(written(v) for v in self.a)
        return f"d({self.metric})/dt {_RELATION[self.sign]} at a = ({at}) on {group}" + _rest(self)

    def to_document(self) -> dict[str, Any]:
        """The certificate as plain data."""
        return {
            "schema": SCHEMA,
            "statement": self.statement,
            "metric": self.metric,
            "source": self.source,
            "problem": problem_document(self.setting),
            "a": [written(v) for v in self.a],
            "C": None if self.C is None else [[written(v) for v in row] for row in self.C],
            "sign": self.sign,
            "enclosure": self.enclosure,
            "bits": self.bits,
            "versions": _versions(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate as JSON; all of it or nothing."""
        if not self.sign:
            raise InputError(
                f"Nothing is proven: the sign is undecided with {self.bits} bits, so there is no "
                "certificate to write."
            )
        text = json.dumps(self.to_document(), ensure_ascii=False, indent=1) + "\n"
        write_atomically(Path(path), lambda tmp: Path(tmp).write_text(text, encoding="utf-8"))

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)

    def __str__(self) -> str:
        text = f"{self.statement}\n  rate {self.enclosure} ({self.bits} bits)"
        if self.metric.startswith("__main__:"):
            text += (
                "\n  The function has no module: a file of this is checked by `recheck(file, metric=…)` "
                "alone, unless it is moved to one."
            )
        return text


def _rest(certificate: Certificate) -> str:
    """What differs from the paper's model."""
    setting = certificate.setting
    parts = [] if setting.depth == 2 else [f"depth {setting.depth}"]
    if certificate.C is not None:
        rows = "; ".join(", ".join(written(v) for v in row) for row in certificate.C)
        parts.append(f"C = ({rows})")
    if setting.loss != CROSS_ENTROPY:
        parts.append(setting.loss)
    if setting.label_smoothing:
        parts.append(f"label smoothing {written(setting.label_smoothing)}")
    if setting.label_distribution is not None:
        parts.append(f"labels ({', '.join(written(q) for q in setting.label_distribution)})")
    if setting.temperature != 1:
        parts.append(f"temperature {written(setting.temperature)}")
    if any(setting.weight_decay):
        decays = ", ".join(written(v) for v in setting.weight_decay)
        parts.append(f"weight decay ({decays}), {setting.samples} samples, {setting.reduction}")
    return "".join(f", {part}" for part in parts)


def _versions() -> dict[str, str]:
    try:
        own = metadata.version("hadaflow")
    except metadata.PackageNotFoundError:  # run from its sources, without being installed
        own = "not installed"
    return {
        "hadaflow": own,
        "python-flint": flint.__version__,
        "FLINT": flint.__FLINT_VERSION__,
    }


def certify(
    metric: Any,
    a: Iterable[Any],
    flow: Any = None,
    *,
    C: Any = None,
    balls: Callable[..., Any] | None = None,
    most_bits: int = LAST_BITS,
    seconds: float | None = None,
) -> Certificate:
    r"""Prove the sign of dm/dt at an exactly given state, in ball arithmetic.

    Args:
        metric: A metric's name, `module:function`, or your own function of `a`, written with
            arithmetic and `hadaflow.expressions`.
        a: Singular values of the free modes, scaled units: decimals or fractions as text ("0.1",
            "1/3") are taken as written, floats as the binary fractions they are.
        flow: The `UFM` whose flow moves the state; left out, the paper's model with $K-1$ entries.
        C: Differences of the squared layer singular values, as in `spectrum`; zero if left out.
        balls: For a function of your own in JAX: the same metric as a function of a sequence of
            `flint.arb`-like numbers (arithmetic, `log`, `exp`, `sqrt`, `max`, `min`).
        most_bits: Precision is doubled from 64 bits until the sign is proven, up to this.
        seconds: Refuse, before it is begun, what would take longer; None for however long it takes.

    Examples:
        >>> found = certify("l2", ["1", "1", "1", "1.25", "0.01", "0.01", "0.01"])
        >>> found.sign, found.enclosure[:7]
        (1, '[0.0007')
    """
    if isinstance(a, str) or not isinstance(a, Iterable):
        raise InputError(f"Argument `a` must be a list of numbers, but is {shown(a)}.")
    if flow is not None and not hasattr(flow, "label_distribution"):
        raise InputError(f"Argument `flow` must be a UFM, but is {type(flow).__name__}.")
    state = tuple(exact(v) for v in a)
    if flow is None:
        if len(state) & (len(state) + 1) or not state:
            raise InputError(
                "Argument `a` must hold K − 1 singular values, K a power of two, where `flow` is left "
                f"out, but holds {len(state)}; another model is given as `flow`."
            )
        setting = Setting.walsh(len(state) + 1)
    else:
        setting = setting_of(flow)
    if not isinstance(most_bits, int) or not 64 <= most_bits <= _MOST_BITS:
        raise InputError(
            f"Argument `most_bits` must be from 64 to 2^16, but is {shown(most_bits)}."
        )
    function = load_metric(metric) if isinstance(metric, str) and ":" in metric else metric
    source = None
    if callable(function):
        source = source_digest(balls or function)
    rows = exact_differences(setting, C, len(state))
    proof = _prove(
        metric_name(balls or metric), setting, state, rows, source, balls or function,
        Stopwatch(seconds, setting, rows is not None), most_bits,
    )  # fmt: skip
    if balls is not None and callable(function):
        _check_same(function, flow, proof)
    return proof


def _check_same(function: Callable[..., Any], flow: Any, proof: Certificate) -> None:
    """Refuse `balls` that are another metric than the function in JAX."""
    from hadaflow.metrics.measures import rate  # JAX, which proofs and checks do not need
    from hadaflow.model.states import spectrum
    from hadaflow.model.ufm import UFM

    model = UFM(proof.setting.classes) if flow is None else flow
    C = None if proof.C is None else [[float(v) for v in row] for row in proof.C]
    C = C[0] if C is not None and model.depth == 2 else C
    found = float(rate(function, model, spectrum([float(v) for v in proof.a], C)))
    if not math.isclose(found, proof.rate, rel_tol=1e-5, abs_tol=1e-12):
        raise InputError(
            f"Argument `balls` must be the metric itself, but its rate is {proof.rate:.6g} where that "
            f"of `metric` is {found:.6g}."
        )


def _prove(
    name: str, setting: Setting, state: tuple[Fraction, ...], C: Rows | None, source: str | None,
    function: Any, watch: Stopwatch, most_bits: int,
) -> Certificate:  # fmt: skip
    """The certificate of what ball arithmetic finds."""
    wanted = setting.modes + setting.has_constant_mode
    if setting.classes > LARGEST:
        raise too_many(setting.classes)
    if setting.depth > DEEPEST:
        raise InputError(
            f"Certificates go to depth {DEEPEST}, but the problem has depth {shown(setting.depth)}."
        )
    if len(state) != wanted:
        raise InputError(
            f"Argument `a` must have {wanted} singular values for `classes` = {setting.classes} on "
            f"the group {setting.group}, but has {len(state)}."
        )
    _check_positive(state)
    check_denominators("a", state)
    if callable(function):
        evaluate = exact_metric(function)
    else:
        check_setting(function, setting)
        evaluate = METRICS[function]
    found = enclose(
        lambda: evaluate(ExactState.of(setting, state, C)).rate,
        most_bits=most_bits,
        begin=watch.begin,
    )
    return Certificate(
        name, setting, state, C, str(found), found.bits, found.sign, found.value, source
    )


# --- checking a file -----------------------------------------------------------------------------


_KEYS = {
    "schema", "statement", "metric", "source", "problem", "a", "C", "sign", "enclosure", "bits",
    "versions",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of checking a certificate: does it hold, and if not, why not."""

    holds: bool
    reason: str
    certificate: Certificate  # computed anew

    def __str__(self) -> str:
        word = "holds" if self.holds else "FAILS"
        return f"{word}: {self.reason}\n  recomputed {self.certificate}"

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)


def read_certificate(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The document in a file, unchecked."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise InputError(f"Cannot check {shown(str(path))}: it has an entry twice.")
        return dict(pairs)

    text = read_text_file("the certificate", path, _MOST_BYTES)
    try:
        document = json.loads(text, object_pairs_hook=once)
    except InputError:
        raise
    except (ValueError, RecursionError):
        raise InputError(
            f"Cannot read the certificate from {shown(str(path), 200)}: not a JSON document."
        ) from None
    if not isinstance(document, dict):
        raise _other_schema(None)
    _check_schema(document)
    return document


def _check_schema(document: dict[str, Any]) -> None:
    """Older certificates are as good as new ones, but for metrics of one's own."""
    schema, metric = document.get("schema"), document.get("metric")
    if not isinstance(schema, str) or schema not in (SCHEMA, _FIRST_SCHEMA):
        raise _other_schema(schema)
    if schema == _FIRST_SCHEMA and isinstance(metric, str) and ":" in metric:
        raise InputError(
            f"The certificate cannot be checked: its schema is {shown(schema)}, which for a metric of "
            f"one's own told nothing of the rest of its module; make it anew, as {SCHEMA!r}."
        )


def _other_schema(given: Any) -> InputError:
    return InputError(
        f"The certificate cannot be checked: its schema is {shown(given)}, but this version checks "
        f"{SCHEMA!r} and {_FIRST_SCHEMA!r}."
    )


def recheck(
    certificate: str | os.PathLike[str] | dict[str, Any],
    metric: Callable[..., Any] | None = None,
    *,
    allow_import: bool = False,
    seconds: float = 60.0,
) -> Verdict:
    """Check a certificate from scratch: a file of at most 16 MB, or its document.

    The rate is enclosed anew from the input alone. The certificate holds if the new enclosure proves
    the sign it states, lies inside the enclosure it states, and the statement is the one that follows.
    Checking runs no code that the file names, unless you allow it.

    Args:
        certificate: The file, or the document in it.
        metric: For a metric of one's own, the function itself.
        allow_import: For a metric of one's own, run the module that the certificate names, if its file
            is the one that the certificate was made for. What that module imports is not compared.
        seconds: What would take longer is refused before it is begun.
    """
    document = certificate if isinstance(certificate, dict) else read_certificate(certificate)
    _check_schema(document)
    if set(document) != _KEYS:
        strange = printable(", ".join(sorted(map(str, set(document) ^ _KEYS))), 200)
        raise InputError(f"The certificate cannot be used: check its entries {strange}.")
    for name, kind in (("bits", int), ("sign", int), ("statement", str), ("versions", dict)):
        if type(document[name]) is not kind:
            raise broken(name, document[name])
    if not 2 <= document["bits"] <= _MOST_BITS:
        raise broken("bits", document["bits"])
    setting, stated = read_problem(document["problem"]), _ball_of(document["enclosure"])
    state = tuple(written_number(v) for v in entry_list(document, "a"))
    C = _read_differences(document["C"], setting, len(state))
    watch = Stopwatch(seconds, setting, C is not None)
    function = _read_metric(document, metric, allow_import)
    most = max(LAST_BITS, document["bits"])
    again = _prove(document["metric"], setting, state, C, document["source"], function, watch, most)
    reason = _why_not(document, stated, again, _Rates(again, function, watch))
    return Verdict(not reason, reason or again.statement, again)


def _read_differences(C: Any, setting: Setting, modes: int) -> Rows | None:
    if C is None:
        return None
    if not isinstance(C, list) or not all(isinstance(row, list) for row in C):
        raise broken("C", C)
    return exact_differences(setting, [[written_number(v) for v in row] for row in C], modes)


def _read_metric(
    document: dict[str, Any], metric: Callable[..., Any] | None, allow_import: bool
) -> Any:
    """A metric's name, or the function that the certificate was made for."""
    name, digest = document["metric"], document["source"]
    if not isinstance(name, str):
        raise broken("metric", name)
    if ":" not in name:
        if digest is not None:
            raise broken("source", digest)
        if metric is not None and metric != name:
            raise InputError(
                "Argument `metric` is for a metric of one's own; this certificate is about "
                f"{shown(name)}, but {shown(metric)} was given."
            )
        return name
    if metric is not None:
        if metric_name(metric) != name or source_digest(metric) != digest:
            raise InputError(
                f"The certificate is for other code: {shown(name)} is not the function given as "
                f"`metric`, `{metric_name(metric)}`, or reads differently."
            )
        return metric
    source, function = find_metric(name)
    paths = " and ".join(shown(str(file.path), 200) for file in source.files)
    if source.digest != digest:
        raise InputError(
            f"The certificate is for other code: {paths} read differently than when it was made for "
            f"{shown(name)}."
        )
    if not allow_import:
        raise InputError(
            f"Checking {shown(name)} would run {paths} and call `{function}`: allow it with "
            "--allow-import (`allow_import=True`) if you trust that code, or give the function itself "
            "as `metric`."
        )
    return source.load(function)


def _why_not(document: dict[str, Any], stated: Any, again: Certificate, rates: "_Rates") -> str:
    """Why the certificate does not hold; nothing if it does."""
    bits = document["bits"]
    if again.sign == 0:
        return f"the sign is undecided with {again.bits} bits"
    if document["sign"] != again.sign:
        return f"{again.metric} {_WORD[again.sign]} there: the rate is {again.enclosure}"
    found = rates.at(bits)
    if not (found > 0 if again.sign > 0 else found < 0):
        return f"{bits} bits do not prove it: {again.bits} do"
    wide = stated.rad() > 2 * found.rad() + abs(found.mid()) * _PRINTED
    if wide or not rates.are_inside(stated):
        return f"the enclosure is not that of the rate, which is {again.enclosure}"
    if document["statement"] != again.statement:
        return f"the statement is not what is proven, which is: {again.statement}"
    return ""


def _ball_of(text: Any) -> Any:
    try:
        if not isinstance(text, str) or len(text) > 1000:
            raise ValueError
        with flint.ctx.workprec(512):
            found = arb(text)
        if not found.is_finite():
            raise ValueError
        return found
    except (ValueError, ZeroDivisionError):
        raise broken("enclosure", text) from None


@dataclasses.dataclass(frozen=True)
class _Rates:
    """The rate of what a certificate is about, with any number of bits that there is time for."""

    certificate: Certificate
    function: Any
    watch: Stopwatch

    def at(self, bits: int) -> Any:
        known, function = self.certificate, self.function
        evaluate = exact_metric(function) if callable(function) else METRICS[function]
        self.watch.begin(bits)
        with flint.ctx.workprec(bits):
            return evaluate(ExactState.of(known.setting, known.a, known.C)).rate

    def are_inside(self, stated: Any) -> bool:
        """Is the rate inside the stated ball? With more bits, until it is clear."""
        bits = 2 * self.certificate.bits
        while bits <= 2 * _MOST_BITS:
            rate = self.at(bits)
            if stated.contains(rate):
                return True
            if not stated.overlaps(rate):
                return False
            bits *= 2
        return False
