"""Files of runs that are whole, of the right sum, and cannot be: each is one sentence."""

import dataclasses
import json

import numpy as np
import pytest

import hadaflow as hf
from hadaflow.cli import commands as cli
from hadaflow.results import files as run_files

NAN, INF = float("nan"), float("inf")


def parts(run):
    """Record and arrays of a run, as they are written."""
    record = {name: getattr(run, name) for name in run_files.RECORD if name != "model"}
    model = dataclasses.asdict(run.model)
    return json.loads(json.dumps({"model": model, **record})), {
        name: np.array(values) for name, values in run._stored_arrays().items()
    }


@pytest.fixture(scope="module")
def reduced():
    return hf.solve(hf.UFM(4), [1.0, 0.5, 0.1], hf.Time(1e3), points=6, progress=None)


@pytest.fixture(scope="module")
def descent():
    start = hf.gaussian(hf.UFM(4), 0.3, [0, 1])
    return hf.descend(hf.UFM(4), start, 20, 0.1, points=5, progress=None)


def changed(record, arrays, path, value):
    """The parts with one entry replaced, or left out if the value is …."""
    *way, last = path
    place = arrays if isinstance(value, np.ndarray) or path[0] in arrays else record
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value


RECORD_CHANGES = [
    (("status",), "COLLAPSED"), (("status",), 3), (("status",), None), (("status",), ...),
    (("view",), "sideways"), (("view",), "full"), (("view",), []), (("units",), "si"),
    (("units",), None), (("message",), 5), (("message",), ...), (("steps",), -1), (("steps",), "many"),
    (("steps",), 1.5), (("steps",), True), (("settings",), []), (("diagnostics",), "none"),
    (("diagnostics",), {"statuses": 5}), (("diagnostics",), {"statuses": ["dancing"]}),
    (("versions",), {}), (("versions",), {"hadaflow": 1}), (("versions",), []), (("model",), {}),
    (("model",), "UFM"), (("model", "classes"), 5), (("model", "classes"), -1),
    (("model", "classes"), "4"), (("model", "classes"), 4.5), (("model", "classes"), None),
    (("model", "classes"), 10**30), (("model", "colour"), "red"), (("model", "depth"), 3),
    (("model", "depth"), 1), (("model", "depth"), 0), (("model", "width"), 1),
    (("model", "width"), "wide"), (("model", "loss"), "mse"), (("model", "loss"), "ramp"),
    (("model", "group"), [3]), (("model", "group"), "2x2"), (("model", "group"), [[2]]),
    (("model", "samples"), 0), (("model", "label_smoothing"), 2), (("model", "temperature"), 0),
    (("model", "temperature"), "hot"), (("model", "weight_decay"), [1]),
    (("model", "weight_decay"), "none"), (("model", "imbalance"), [[2, 1], [2, 3]]),
    (("model", "imbalance"), 7), (("model", "label_distribution"), [1, 2]),
    (("model", "reduction"), "max"), (("extra",), 1), (("status",), "mixed"),
    (("diagnostics",), {"statuses": ["failed"]}), (("model", "samples"), 10**300),
]  # fmt: skip
ARRAY_CHANGES = [
    (("log_a",), ...), (("C",), ...), (("log10_time",), ...), (("log_a",), np.zeros((6, 4))),
    (("log_a",), np.zeros((5, 3))), (("log_a",), np.zeros(3)), (("log_a",), np.zeros((6, 3, 1))),
    (("log_a",), np.full((6, 3), NAN)), (("log_a",), np.full((6, 3), INF)), (("C",), np.zeros((6, 2))),
    (("C",), np.full((6, 3), INF)), (("C",), np.zeros((6, 1, 3))), (("W",), np.zeros((6, 4, 4))),
    (("angles",), np.zeros((6, 1))), (("angles",), np.full((6, 3), NAN)),
    (("log10_time",), np.zeros(6)), (("log10_time",), np.full(6, NAN)),
    (("log10_time",), np.array([-INF, 1, 2, 3, 2.5, 4])), (("log10_time",), np.array([-INF, 1, 2, 3])),
    (("log10_time",), np.array([[-INF, 1, 2, 3, 4, 5]] * 2)), (("path_length",), np.zeros(3)),
    (("path_length",), np.full(6, NAN)), (("path_length",), -np.arange(6.0)),
    (("path_length",), np.arange(6.0)[::-1].copy()), (("log_path_length",), np.zeros(5)),
    (("log10_log10_time",), np.zeros((6, 2))), (("iterations",), np.array([1.0, 2, 3, 4, 5, 6])),
    (("iterations",), np.array([0, 1, 1, 2, 3, 4.0])), (("iterations",), np.full(6, NAN)),
    (("iterations",), np.array([0, 0.5, 1, 2, 3, 4])), (("iterations",), np.arange(5.0)),
    (("log_a",), np.zeros((0, 3))), (("angles",), np.ones((6, 3))),
    (("log10_time",), np.full(6, -INF)), (("log10_time",), np.array([-INF, -1e308, 1, 2, 3, 4])),
    (("log10_log10_time",), np.full(6, NAN)),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), [*RECORD_CHANGES, *ARRAY_CHANGES])
def test_a_file_that_cannot_be_a_run_is_refused(path, value, reduced, tmp_path):
    record, arrays = parts(reduced)
    changed(record, arrays, path, value)
    run_files.write_run(tmp_path / "run.nc", record, arrays)
    with pytest.raises(hf.InputError, match=r"Cannot read '.*run.nc': ") as refusal:
        hf.load(tmp_path / "run.nc")
    text = str(refusal.value)
    assert "\n" not in text and len(text) < 500 and text.endswith("."), text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("W",), ...), (("H",), np.zeros((2, 6, 4, 3))), (("W",), np.full((2, 6, 4, 4), NAN)),
        (("W",), np.zeros((6, 4, 4))), (("iterations",), np.zeros((2, 6))), (("view",), "reduced"),
        (("model", "width"), 5), (("model", "samples"), 2),
        (("diagnostics",), {"statuses": ["reached"]}),
    ],
)  # fmt: skip
def test_files_of_matrices_too(path, value, descent, tmp_path):
    record, arrays = parts(descent)
    changed(record, arrays, path, value)
    run_files.write_run(tmp_path / "run.nc", record, arrays)
    with pytest.raises(hf.InputError, match="Cannot read"):
        hf.load(tmp_path / "run.nc")


def test_what_is_unchanged_loads(reduced, descent, tmp_path):
    for run in (reduced, descent):
        run_files.write_run(tmp_path / "run.nc", *parts(run))
        assert str(hf.load(tmp_path / "run.nc")) == str(run)


def test_text_from_a_file_is_shown_and_not_obeyed(reduced, tmp_path, monkeypatch, capsys):
    record, arrays = parts(reduced)
    record["message"] = "fine\x1b]0;owned\x07\x1b[2J\u202e and \x9b31mred"
    record["settings"] = {"until\x1b[1m": ["\x1b[5m"]}
    run_files.write_run(tmp_path / "run.nc", record, arrays)
    run = hf.load(tmp_path / "run.nc")
    for text in (run.message, str(run), str(run.settings)):
        assert not any(c in text for c in "\x1b\x07\x9b\u202e")
    assert "fine" in run.message
    for flags in ([], ["--json"]):
        monkeypatch.setattr("sys.argv", ["hadaflow", "show", str(tmp_path / "run.nc"), *flags])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert end.value.code == 0 and not any(c in out + err for c in "\x1b\x07\x9b\u202e")


def test_another_schema_is_named(reduced, tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "SCHEMA", "hadaflow-trajectory-0")
    reduced.save(tmp_path / "old.nc")
    monkeypatch.undo()
    with pytest.raises(
        hf.InputError, match="its schema is 'hadaflow-trajectory-0', but this version"
    ):
        hf.load(tmp_path / "old.nc")


def test_devices_and_folders_are_no_files(tmp_path):
    for path in ("/dev/zero", tmp_path, "", "a\0b"):
        with pytest.raises(hf.InputError, match="Cannot read a run from"):
            hf.load(path)
