"""Random command lines: a grammar of the whole command line, with nasty values among the good ones.

`line(seed)` is a list of arguments. Steps, seeds, seconds and `reproduce` are bounded, so that a line
takes seconds; numbers of classes too, which decide what is compiled.
"""

import numpy as np

NASTY = (
    "", " ", "nan", "inf", "-inf", "-1", "0", "-0.0", "1e308", "1e-320", "1e400", "-1e300", "²", "١٢",
    "0x10", "1_000", "None", "true", "@", "@/dev/zero", "@missing.txt", "@.", "/", ".", "..", "\x1b[31m",
    "a" * 3000, "9" * 20, "1" + "0" * 400, "--", "1,,2", ",", ";", "1;2", "uniform::", "uniform:0:1:x",
    "1/0", "1/3", "é", "\u202eabc", "1e", "+", "1.5.2", "[1, 2]", "{}", "*", "%s", "{0}", "$HOME", "~",
    "1+1j", "j", "1e5j", "x" * 300 + ".nc", "2.5", "1e999999999", "-", "0,0,0", "\t1", "1\n2", "٣",
)  # fmt: skip

# Models whose options are given together: what is compiled is shared by many lines.
MODELS = (
    "--classes 4", "--classes 4", "--classes 8", "--classes 3", "--classes 2", "--classes 5",
    "--classes 6", "--classes 8 --group 2x4", "--classes 4 --samples 3", "--classes 4 --depth 1",
    "--classes 4 --depth 3", "--classes 4 --label-smoothing 0.1", "--classes 4 --weight-decay 0.05",
    "--classes 4 --loss mse", "--classes 4 --temperature 2", "--classes 4 --weight-decay 0,0.1",
    "--classes 4 --imbalance 2x3,2x1", "--classes 6 --label-smoothing 0.999 --depth 1",
)  # fmt: skip
MODES = {
    "--classes 3": 1, "--classes 2": 1, "--classes 5": 2, "--classes 6": 3, "--classes 8": 7,
    "--classes 8 --group 2x4": 5, "--classes 4 --loss mse": 4,
    "--classes 6 --label-smoothing 0.999 --depth 1": 3,
}  # fmt: skip
MODEL_OPTIONS = {
    "--classes": ("2", "4", "7", "16"), "--samples": ("1", "2"), "--group": ("4", "2x2", "2x4", "8"),
    "--depth": ("1", "2", "3"), "--loss": ("mse", "cross_entropy"), "--label-smoothing": ("0", "0.5"),
    "--labels": ("labels.txt",), "--temperature": ("0.5", "1"), "--weight-decay": ("0", "0.1,0.1"),
    "--imbalance": ("2x2,2x1", "3x1"),
    "--width": ("4", "2", "9"), "--reduction": ("mean", "sum"),
}  # fmt: skip
METRICS = (
    "kl",
    "l2",
    "reverse_kl",
    "margin",
    "loss",
    "log_energy",
    "residual",
    "alignment_w",
    "nc1",
)
UNTIL = (
    "time:1", "time:1e6", "log10time:300", "log10time:-5", "collapse:1e-3", "collapse:1e-6", "norm:20",
    "norm:1e5", "path:3", "steady:1e-6", "predicted-collapse", "predicted-collapse:0.01", "time:1e-300",
    "norm:1e-300", "path:1e-12", "collapse:0.9", "soon", "time", "time:",
)  # fmt: skip
STARTS = (
    "uniform:0.1:1:0", "uniform:0:1:3", "uniform:0:0:1", "uniform:1e-12:5:2", "log-uniform:1e-6:1:1",
    "lognormal:2:0", "lognormal:400:1", "small:1e-3:5", "small:1e300:0", "figure1", "figure2",
)  # fmt: skip
UNSEEDED = ("uniform:0.1:1", "log-uniform:0.01:2", "lognormal:1", "small:0.5", "figure1", "1,1,1")
VALUES = (
    "1",
    "0.5",
    "0.1",
    "0.001",
    "0",
    "2",
    "10",
    "1e-12",
    "1e-300",
    "1e5",
    "1e200",
    ".3",
    "1e-5",
)


class Writer:
    """Draws one line."""

    def __init__(self, seed: int, nasty: float) -> None:
        self.rng, self.nasty = np.random.default_rng([2026, seed]), nasty

    def one(self, values):
        return str(values[self.rng.integers(len(values))])

    def value(self, good):
        return self.one(NASTY) if self.rng.random() < self.nasty else self.one(good)

    def often(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def options(self, table, share=0.12):
        found = []
        for name, good in table.items():
            if self.often(share):
                found += [name] if good is None else [name, self.value(good)]
        return found

    def model(self):
        """Options of a model, and how many singular values its start has."""
        chosen = self.one(MODELS)
        words = [v for i, v in enumerate(chosen.split())]
        words = [self.value((v,)) if not v.startswith("--") else v for v in words]
        if self.often(0.1):
            words += self.options(MODEL_OPTIONS, 0.2)
        return words, MODES.get(chosen, 3)

    def start(self, modes: int) -> str:
        if self.often(0.3):
            return self.value(STARTS)
        if self.often(0.04):
            return ",".join(f"{self.one(VALUES)}+{self.one(VALUES)}j" for _ in range(modes))
        wanted = modes if self.often(0.95) else modes + int(self.rng.integers(-1, 2))
        return ",".join(
            self.value(VALUES) if self.often(0.3) else self.one(VALUES) for _ in range(wanted)
        )

    def solve(self):
        model, modes = self.model()
        table = {
            "--until": UNTIL, "--units": ("raw", "scaled"), "--metric": METRICS,
            "--rtol": ("1e-6", "1e-8", "1e-4"), "--points": ("2", "20", "300"),
            "--method": ("auto", "tsit5", "dual"), "--out": ("run.nc",), "--estimate": None,
            "--unbalanced": ("0", "1", "0,1,2"), "--log10-times": ("0,3", "-2,1,40", "3,2"),
            "--times": ("0,1,2", "1e-3,1e5", "2,1"), "--summary": None,
        }  # fmt: skip
        return ["solve", *model, *self.beginning(modes), *self.options(table, 0.2)]

    def beginning(self, modes: int):
        """Where a run starts: text, drawn with several seeds, or matrices."""
        kind = self.rng.random()
        rare = {
            "--seed": ("0", "7"), "--scale": ("0.1", "3", "1e300"), "--rotation": ("identity", "3"),
            "--order": ("ascending", "2"), "--angle": ("0.5", "9"),
        }  # fmt: skip
        if kind < 0.7:
            return ["--start", self.start(modes), *self.options(rare, 0.02)]
        if kind < 0.85:
            several = ["--start", self.value(UNSEEDED), "--seeds", self.value(("1", "2", "3"))]
            return [*several, *self.options(rare, 0.1)]
        init = ["--init", self.value(("gaussian", "hadamard", "matched"))]
        own = ["--start", self.start(modes)] if self.often(0.3) else []
        bounded = [] if self.often(0.3) else ["--until", self.value(("time:5", "norm:3", "path:2"))]
        return [*init, *own, *bounded, *self.options(rare, 0.2)]

    def train(self):
        model, modes = self.model()
        table = {
            "--rotation": ("identity", "1"), "--order": ("descending", "0"), "--summary": None,
            "--lr": ("0.01", "1", "100", "1e-300"), "--width": ("4", "3", "1", "9"),
            "--init": ("gaussian", "hadamard", "matched"), "--scale": ("0.1", "1e-300", "1e300", "3"),
            "--seed": ("0", "7"), "--momentum": ("0.9", "0"), "--reduction": ("mean", "sum"),
            "--points": ("3", "50"), "--metric": METRICS, "--units": ("raw", "scaled"),
            "--out": ("run.nc",), "--unbalanced": ("0.1",),
        }  # fmt: skip
        bounded = [
            "--steps",
            self.value(("1", "20", "300")),
            "--seeds",
            self.value(("1", "2", "3")),
        ]
        if self.often(0.3):
            bounded += ["--start", self.value(UNSEEDED) if self.often(0.5) else self.start(modes)]
            if self.often(0.5):
                bounded = ["--steps", self.value(("1", "20", "300")), *bounded[4:]]
        return ["train", *model, *bounded, *self.options(table)]

    def file(self):
        command = self.one(("show", "plot", "plot", "certify", "resume"))
        names = (
            "good.nc",
            "batch.nc",
            "damaged.nc",
            "words.txt",
            "certificate.json",
            "forged.json",
        )
        table = (
            {"--metric": METRICS, "--summary": None}
            if command in ("show", "resume")
            else {
                "--out": ("p.png", "p.pdf", "p.docx"),
                "--x": ("auto", "log_norm", "iteration", "time", "log10_log10_time", "x"),
                "--spread": ("all", "quantiles", "standard error", "some"),
                "--metric": METRICS,
            }
        )
        if command == "resume":
            table |= {"--out": ("out.nc", "nowhere/out.nc")}
        if command == "plot" and self.often(0.4):
            several = [self.value(names) for _ in range(2)]
            return [command, *several, *self.options(table, 0.3)]
        if command == "certify":
            table = {"--seconds": ("5", "1e-300"), "--allow-import": None}
        return [command, self.value(names), *self.options(table, 0.3)]

    def lab(self):
        model, _ = self.model()
        command = self.one(("hunt", "rise", "atlas", "portrait", "certify"))
        bounded = [
            "--seconds",
            self.value(("1", "1e-300", "2")),
            "--starts",
            self.value(("64", "100")),
        ]
        own = self.options({"--seed": ("0", "3"), "--unbalanced": ("0", "1")}, 0.1)
        metric = [
            self.value((*METRICS, "kl", "l2", "own:largest", "own:missing", "sys:exit", "os:"))
        ]
        if command == "portrait":
            table = {
                "--norm": ("1", "inf", "1e-3"), "--metric": METRICS, "--fix": ("1:0.2", "9:2"),
                "--out": ("p.png",), "--title": ("mine", "$x$"),
            }  # fmt: skip
            return [command, *model, *self.options(table, 0.3)]
        if command == "certify":
            own = ["--start", self.start(3), *self.options({"--most-bits": ("128", "9")}, 0.2)]
        out = self.options({"--out": ("p.png" if command == "atlas" else "out.json",)}, 0.2)
        return [command, *([] if command == "atlas" else metric), *model, *bounded, *own, *out]

    def numbers(self):
        """The commands that answer with a few numbers."""
        model, modes = self.model()
        command = self.one(("predict-collapse", "fixed-point", "stability-limit"))
        table = {
            "predict-collapse": {"--tolerance": ("1e-3", "0.5", "2"), "--units": ("raw", "scaled")},
            "fixed-point": {"--units": ("raw", "scaled")},
            "stability-limit": {"--at": ("2", "0.5"), "--momentum": ("0", "0.9")},
        }[command]
        own = ["--start", self.start(modes)] if command == "predict-collapse" else []
        return [command, *model, *own, *self.options(table, 0.4)]

    def paper(self):
        if self.often(0.5):
            return [
                "verify",
                self.value(("no-such-claim", "l2-counterexample")),
                *self.options({"--out": (".",)}),
            ]
        # At least one argument that no figure can be drawn with: drawing takes minutes.
        bad = self.one(
            ("--seeds=0", "--steps=-1", "--lr=nan", "--order=²", "--classes=1", "--scale=-1")
        )
        table = {
            "--order": ("ascending", "3"),
            "--width": ("4",),
            "--seed": ("1",),
            "--quick": None,
        }
        return ["reproduce", self.value(("k4", "figure-99")), bad, *self.options(table, 0.2)]

    def nonsense(self):
        return [self.one(NASTY) for _ in range(int(self.rng.integers(0, 3)))]


KINDS = ("solve",) * 9 + ("train",) * 5 + ("file",) * 3 + ("lab",) * 4
KINDS += ("numbers", "numbers", "paper", "nonsense")


def line(seed: int, nasty: float = 0.06) -> list[str]:
    """One command line; the same for the same seed."""
    writer = Writer(seed, nasty)
    words = getattr(writer, writer.one(KINDS))()
    return [*words, "--json"] if writer.often(0.6) else words
