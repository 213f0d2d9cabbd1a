"""Where runs of the command line begin: singular values as text, or matrices of some kind.

JAX and the rest are imported inside the functions, so that `--help` is instant.
"""

import dataclasses
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from hadaflow.base.checks import check_whole_number
from hadaflow.base.errors import InputError
from hadaflow.cli.arguments import Unbalanced, parse_unbalanced, with_options

_TRAINED = 10  # runs of `train`, where nothing else is said


class View(StrEnum):
    reduced = "reduced"
    full = "full"


class Init(StrEnum):
    gaussian = "gaussian"
    hadamard = "hadamard"
    matched = "matched"


StartText = Annotated[
    str | None,
    typer.Option(
        help="Singular values: numbers separated by commas (complex ones start a mode with a phase), "
        "@FILE, uniform:LOW:HIGH:SEED, log-uniform:LOW:HIGH:SEED, lognormal:SIGMA:SEED, "
        "small:SCALE:SEED or figure1."
    ),
]
InitOption = Annotated[
    Init | None,
    typer.Option(
        help="Follow matrices: Gaussian ones, Hadamard ones (of --start, or drawn) or those matched to "
        "Gaussian ones [default: singular values, where --start is given; else gaussian in train]."
    ),
]
Scale = Annotated[
    float | None,
    typer.Option(help="Standard deviation of an entry of drawn matrices [default: e^-6/√classes]."),
]
Rotation = Annotated[
    str | None,
    typer.Option(
        help="R of hadamard and matched starts: identity, circulant or a seed; with --start alone, which "
        "matrices an elementwise optimizer is meant to move: identity or circulant [default: identity, "
        "or circulant where the optimizer needs it]."
    ),
]
Order = Annotated[
    str | None,
    typer.Option(help="Of matched values: descending, ascending or a seed [default: descending]."),
]
Seeds = Annotated[
    int | None,
    typer.Option(help="Number of runs, with seeds seed, seed + 1, … [default: 1; in train 10]."),
]
Seed = Annotated[int | None, typer.Option(help="First seed of what is drawn [default: 0].")]
Angle = Annotated[
    float | None,
    typer.Option(help="Angle of the mode between two blocks of --imbalance, from 0 to π/2."),
]


ViewOption = Annotated[
    View | None,
    typer.Option(help="Train singular values or matrices [default: reduced with --start alone]."),
]


@dataclasses.dataclass(frozen=True)
class Beginning:
    """The options of a start, which it is made of when the model is known."""

    start: StartText = None
    init: InitOption = None
    scale: Scale = None
    rotation: Rotation = None
    order: Order = None
    seeds: Seeds = None
    seed: Seed = None
    angle: Angle = None
    unbalanced: Unbalanced = None

    @property
    def view(self) -> str:
        """Which of the two views is followed."""
        return "reduced" if self.init is None else "full"

    def of_solve(self, model: Any, units: str) -> Any:
        """Singular values, a batch of them with --seeds, or one state of matrices."""
        if self.start is None and self.init is None:
            raise InputError("Argument `start` must be given, or `init` for a start of matrices.")
        self._check()
        if self.init is None:
            return self._spectrum(model, units)
        if self.seeds is not None:
            raise InputError(
                "Argument `seeds` goes with singular values (--start) in `solve`, which follows "
                "matrices one at a time; `train` takes many."
            )
        return self._matrices(model, units, self.seed or 0)

    def of_train(self, model: Any, units: str) -> Any:
        """A batch with one run for each seed, or the one start that is not drawn."""
        lifted = self.init is None  # and `rotation` says how
        (dataclasses.replace(self, rotation=None) if lifted else self)._check()
        if self.init is None:
            return self._spectrum(model, units)
        return self._matrices(model, units, self._list)

    def of_race(self, model: Any, units: str) -> Any:
        """One start."""
        if self.start is None and self.init is None:
            raise InputError("Argument `start` must be given, or `init` for a start of matrices.")
        if self.seeds is not None:
            raise InputError("Argument `seeds` does not go with a race, which is from one start.")
        lifted = self.init is None
        (dataclasses.replace(self, rotation=None) if lifted else self)._check()
        return (
            self._spectrum(model, units) if lifted else self._matrices(model, units, self.seed or 0)
        )

    @property
    def lift(self) -> str | None:
        """The rotation of the matrices that singular values stand for."""
        return self.rotation if self.init is None else None

    def seen(self, view: View | None) -> "Beginning":
        """The same in a view: matrices of singular values are Hadamard ones, unless something is said."""
        if view is View.reduced and (self.init is not None or self.start is None):
            raise InputError(
                "Argument `view` can be reduced for singular values (--start without --init) alone."
            )
        if view is View.full and self.start is not None and self.init is None:
            return dataclasses.replace(self, init=Init.hadamard)
        return self

    def for_train(self, several: bool = False) -> "Beginning":
        """The same with what `train` means by options that are left out.

        `several` learning rates make a run each of one start.
        """
        from hadaflow.model.named_starts import wants_seed

        self._check_seeds()
        seeds = self.seeds
        if self.start is None or wants_seed(self.start):
            seeds = seeds or (1 if several else _TRAINED)
        elif seeds == 1:  # one run is what such a start has
            seeds = None
        init = Init.gaussian if self.start is None and self.init is None else self.init
        return dataclasses.replace(self, init=init, seeds=seeds)

    def said(self, model: Any, state: Any) -> dict[str, Any]:
        """What the settings of a run say of its start."""
        from hadaflow.model.starts import default_scale

        several = isinstance(state.seed, list)
        drawn = self.init is not None and self.start is None
        found = {
            "init": None if self.init is None else self.init.value,
            "scale": default_scale(model) if drawn and self.scale is None else self.scale,
            "rotation": self.rotation, "order": self.order, "angle": self.angle,
            "unbalanced": self.unbalanced, "seeds": len(state.seed) if several else None,
        }  # fmt: skip
        first = state.seed[0] if several else state.seed
        told = {name: value for name, value in found.items() if value is not None}
        return {"start": self.start, "seed": first, **told}

    @property
    def _list(self) -> list[int]:
        first = self.seed or 0
        return list(range(first, first + (self.seeds or 1)))

    def _spectrum(self, model: Any, units: str) -> Any:
        from hadaflow.model.named_starts import parse

        assert self.start is not None
        try:
            return parse(
                model, self.start, seeds=self.seed if self.seeds is None else self._list,
                C=parse_unbalanced(self.unbalanced), angle=self.angle, units=units,
            )  # fmt: skip
        except InputError as error:  # which knows the names of the library
            told = str(error).replace("`a`", "`start`")
            raise InputError(told.replace("Argument `C`", "Argument `unbalanced`")) from None

    def _matrices(self, model: Any, units: str, seeds: Any) -> Any:
        from hadaflow.model.starts import gaussian, hadamard, matched_spectrum, random_hadamard

        rotation = _text_or_seed(self.rotation or "identity")
        if self.init is Init.gaussian:
            return gaussian(model, self.scale, seeds)
        if self.init is Init.matched:
            order = _text_or_seed(self.order or "descending")
            matched = matched_spectrum(model, gaussian(model, self.scale, seeds), order)
            return hadamard(model, matched, rotation)
        if self.start is not None:
            return hadamard(model, self._spectrum(model, units), rotation)
        C = parse_unbalanced(self.unbalanced)
        return random_hadamard(model, self.scale, seeds, C, rotation, units)

    def _check(self) -> None:
        """Refuse options that this kind of start does not have."""
        self._check_seeds()
        hadamard, drawn = self.init is Init.hadamard, self.start is None
        if self.init is not None and not hadamard:
            for name in ("start", "unbalanced"):
                if getattr(self, name) is not None:
                    raise InputError(f"Argument `{name}` goes with --init hadamard alone.")
        rules = {
            "scale": (self.init is not None and drawn, "matrices that are drawn (--init)"),
            "rotation": (self.init not in (None, Init.gaussian), "--init hadamard and matched"),
            "order": (self.init is Init.matched, "--init matched"),
            "angle": (not drawn, "--start"),
        }
        for name, (fits, what) in rules.items():
            if getattr(self, name) is not None and not fits:
                raise InputError(f"Argument `{name}` goes with {what} alone.")

    def _check_seeds(self) -> None:
        if self.seeds is not None:
            check_whole_number("seeds", self.seeds, most=10**6)
        if self.seed is not None:
            check_whole_number("seed", self.seed, least=0)


def _text_or_seed(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 1000 else text


def with_start(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options of a start in place of its argument `begin`."""
    options = list(inspect.signature(Beginning).parameters.values())
    return with_options(command, "begin", options, Beginning)
