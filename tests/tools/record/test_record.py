"""What a notebook measured is kept with its provenance, compared with the last record, and read on other machines."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_utils import hardware, recorded
from tests.helpers import machines
from tools import notebooks
from tools.record import __main__ as record
from tools.record import keeping as records

ROOT = Path(__file__).resolve().parents[3]
MEASURES = """from course_utils import recorded
recorded.keep("bandwidth", {"copy": [10.0, 20.0], "device": "cpu"})
recorded.keep("steps", {"median_s": 0.5})"""
CLAIMS = """from course_utils.measure.claims import claim
claim("Two are faster than one: 10 against 20 ms.", True)
claim("It takes 3 ms.", True)"""


def write_notebook(folder, *cells, name="03_sample"):
    path = folder / f"{name}.ipynb"
    nb = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=notebooks.METADATA)
    notebooks.write(notebooks.normalise(nb), path)
    return path


def everything_in(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_kernel_that_dies_as_it_starts_is_started_again(tmp_path, monkeypatch):
    """As it does where another program has taken a port that was chosen for it; but not for ever."""
    kernel = tmp_path / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    for left_to_die, works in ((2, True), (3, False)):
        (tmp_path / "left").write_text("x" * left_to_die)
        die = f"[ -s {tmp_path}/left ] && truncate -s -1 {tmp_path}/left && exit 1"
        argv = ["bash", "-c", f'{die}; exec {sys.executable} -m ipykernel_launcher -f "$0"', "{connection_file}"]
        kernel.write_text(json.dumps({"argv": argv, "display_name": "dies", "language": "python"}))
        nb = new_notebook(cells=[new_code_cell("6 * 7")], metadata=notebooks.METADATA)
        if works:
            assert notebooks.execute(nb, tmp_path).cells[0].outputs[0].data["text/plain"] == "42"
        else:
            with pytest.raises(RuntimeError, match="Kernel died"):
                notebooks.execute(nb, tmp_path)


def test_a_notebook_is_recorded(tmp_path):
    folder, here = tmp_path / "notebooks", records.machine_folder(tmp_path / "recorded")
    folder.mkdir()
    path = write_notebook(folder, MEASURES, "1 + 1")
    problems, changes = record.record(path, records=tmp_path / "recorded")
    assert not problems and changes == ["the first record of this machine: bandwidth, steps"]
    assert notebooks.read(path).cells[1].outputs[0].data["text/plain"] == "2"
    assert sorted(os.listdir(here)) == ["03_bandwidth.json", "03_steps.json"]
    found = recorded.read(here / "03_bandwidth.json")
    assert found.values == {"copy": [10.0, 20.0], "device": "cpu"} and found.machine == hardware.machine()
    assert found.provenance["command"] == "make record ARGS=03"
    assert found.provenance.keys() >= {"gpus", "system", "python", "torch", "date", "commit"}

    # One that measures and then fails costs nothing, nor does one that must not be committed.
    before = everything_in(tmp_path / "recorded")
    for cell, reason in (("1 / 0", "ZeroDivisionError"), (f"print({str(tmp_path)!r})", "on this machine only")):
        path = write_notebook(folder, MEASURES.replace("10.0", "11.0"), cell)
        as_written = path.read_bytes()
        problems, changes = record.record(path, records=tmp_path / "recorded")
        assert len(problems) == 1 and reason in problems[0] and not changes
        assert everything_in(tmp_path / "recorded") == before and path.read_bytes() == as_written

    path = write_notebook(folder, MEASURES.replace("10.0", "11.0"), name="04_other")
    problems, _ = record.record(path, records=tmp_path / "recorded")
    assert problems == [
        f"the name {name!r} is taken by {here.name}/03_{name}.json: keep it under another name, or delete that file"
        for name in ("bandwidth", "steps")
    ]
    assert everything_in(tmp_path / "recorded") == before


@pytest.mark.parametrize(
    "cell, reason",
    [
        ("import time; time.sleep(60)", "cell 1: .*timed out"),
        ("import os; os._exit(3)", "cell 1: Kernel died"),
    ],
)
def test_a_cell_that_does_not_end_is_named(tmp_path, cell, reason):
    nb = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell(cell)])
    with pytest.raises(notebooks.CellFailed, match=f"(?s){reason}"):
        notebooks.execute(nb, tmp_path, timeout_s=2)


def test_the_command_prints_what_changed(tmp_path):
    """`python -m tools.record` in a checkout of its own, as `make record` runs it."""
    for name in ("course_utils", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "notebooks").mkdir()
    path = write_notebook(tmp_path / "notebooks", MEASURES, CLAIMS)
    nb = notebooks.read(path)
    nb.cells[1].outputs = [
        new_output("stream", name="stdout", text="→ Two are faster: 9 against 20 ms.\n→ It takes 3 ms.\n")
    ]
    notebooks.write(nb, path)
    before = {"bandwidth": {"copy": [8.0, 20.0], "device": "cpu"}, "steps": {"median_s": 0.5}}
    records.save_chapter("03", before, "a test", tmp_path / "data" / "recorded")
    done = subprocess.run(
        [sys.executable, "-m", "tools.record", "03"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0].startswith("03_sample …") and lines[1].startswith("against the record of 20")
    assert lines[2:] == [
        "bandwidth['copy'][0]: 8 → 10 (+25 %)",
        "3 as before",
        "now claimed: Two are faster than one: 10 against 20 ms.",
    ]
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    "machine, folder",
    [
        ("2 × NVIDIA H200", "2-nvidia-h200"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb, Tesla T4", "nvidia-a100-sxm4-80gb-mig-1g-10gb-tesla-t4"),
        ("2 CPU cores (AMD EPYC), no GPU", "2-cpu-cores-amd-epyc-no-gpu"),
    ],
)
def test_the_folder_of_a_machine(tmp_path, machine, folder):
    assert records.machine_folder(tmp_path, machine) == tmp_path / folder


# What changed


def save(folder, **values):
    return records.save_chapter("07", values, "a test", folder)


def test_the_largest_changes_come_first_and_the_rest_is_counted(tmp_path):
    first = {f"point {i}": 100.0 for i in range(40)} | {"zero": 0, "label": "slow", "lost": [1, 2], "same": 3}
    assert save(tmp_path, curve=first, other={"x": 1}) == ["the first record of this machine: curve, other"]
    then = {f"point {i}": 100.0 + i for i in range(40)} | {"zero": 1, "label": "fast", "won": [1, 2, 3, 4], "same": 3}
    lines = save(tmp_path, curve=then)
    assert lines[0] == "no longer kept, and deleted: other"
    assert lines[1].startswith("against the record of 20")
    assert lines[2:] == [
        "  new: curve['won'][0], curve['won'][1], curve['won'][2] and 1 more",
        "  gone: curve['lost'][0], curve['lost'][1]",
        "  curve['label']: 'slow' → 'fast'",
        "  curve['zero']: 0 → 1",
        *(f"  curve['point {i}']: 100 → {100 + i} (+{i} %)" for i in range(39, 31, -1)),
        "  … and 31 more, the largest (+31 %)",
        "  2 as before",
    ]
    assert [path.name for path in records.machine_folder(tmp_path).iterdir()] == ["07_curve.json"]
    assert save(tmp_path, curve=then)[1:] == ["  47 as before"]


def test_other_versions_are_named(tmp_path):
    save(tmp_path, curve={"x": 1})
    path = records.machine_folder(tmp_path) / "07_curve.json"
    content = json.loads(path.read_text())
    content["provenance"] |= {"torch": "2.0.1", "driver": "535.1"}
    path.write_text(json.dumps(content))
    lines = save(tmp_path, curve={"x": 1})
    assert f"  torch 2.0.1 → {recorded.read(path).provenance['torch']}" in lines
    assert any(line.startswith("  driver 535.1 → ") for line in lines)


def test_a_damaged_record_is_replaced_and_said(tmp_path):
    save(tmp_path, curve={"x": 1})
    path = records.machine_folder(tmp_path) / "07_curve.json"
    path.write_text("{")
    lines = save(tmp_path, curve={"x": 2})
    assert lines[0].startswith(f"not compared: the record {path.parent.name}/07_curve.json is damaged")
    assert recorded.read(path).values == {"x": 2}


# keep


@pytest.mark.parametrize(
    "name, values, error, said",
    [
        ("Copy GB/s", {}, ValueError, "name is 'Copy GB/s': a record's name is one word"),
        ("../up", {}, ValueError, "one word"),
        (3, {}, ValueError, "one word"),
        ("curve", [1, 2], TypeError, "the values of 'curve' are a list: give a dict"),
        ("curve", {"x": [1.0, float("nan")]}, ValueError, r"curve\['x'\]\[1\] is nan"),
        ("curve", {"x": float("inf")}, ValueError, "is inf"),
        ("curve", {"x": {64: 1.0}}, TypeError, r"curve\['x'\] has the key 64, and JSON's keys are text: write '64'"),
        ("curve", {"x": torch.ones(2)}, TypeError, r"curve\['x'\] is a torch.Tensor.*\.tolist\(\)"),
        ("curve", {"x": np.float32(1)}, TypeError, "is a numpy.float32"),
        ("curve", {"x": {1, 2}}, TypeError, "is a builtins.set"),
    ],
    ids=repr,
)
def test_what_json_does_not_hold_is_refused_also_where_nothing_is_recorded(monkeypatch, name, values, error, said):
    monkeypatch.delenv("COURSE_RECORD", raising=False)
    with pytest.raises(error, match=said):
        recorded.keep(name, values)


def test_a_name_is_kept_once(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_RECORD", str(tmp_path))
    recorded.keep("curve", {"x": (1, None, True, "é"), "y": {"z": np.float64(0.5)}})
    with pytest.raises(ValueError, match="has kept 'curve' already"):
        recorded.keep("curve", {"x": 2})
    assert os.listdir(tmp_path) == ["curve.json"]
    assert json.loads((tmp_path / "curve.json").read_text()) == {"x": [1, None, True, "é"], "y": {"z": 0.5}}


def test_a_notebook_that_keeps_to_the_cpu_beside_a_gpu_records_nothing(tmp_path, monkeypatch, capsys):
    played = pytest.MonkeyPatch()
    machines.play(played, "T4")
    gpu = hardware.machine()
    monkeypatch.setenv("COURSE_RECORD", str(tmp_path))
    monkeypatch.setenv("COURSE_RECORD_OF", gpu)
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    recorded.keep("curve", {"x": 1})
    assert os.listdir(tmp_path) == [] and "not recorded: 'curve' was measured on" in capsys.readouterr().out
    monkeypatch.delenv("COURSE_DEVICE")
    recorded.keep("curve", {"x": 1})
    played.undo()
    assert os.listdir(tmp_path) == ["curve.json"]


# elsewhere


def write_record(folder, machine, name="01_curve", gpus=("NVIDIA H200",), **values):
    path = folder / machine.lower().replace(" ", "-") / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    provenance = {"machine": machine, "gpus": list(gpus)}
    path.write_text(json.dumps({"provenance": provenance, "values": values}), encoding="utf-8")
    return path


def test_records_of_other_machines_with_a_gpu(tmp_path):
    assert recorded.elsewhere("curve", tmp_path / "absent") == []
    write_record(tmp_path, "an H200", x=1)
    write_record(tmp_path, "8 × A100", x=2)
    write_record(tmp_path, "a laptop", gpus=())
    write_record(tmp_path, hardware.machine())
    write_record(tmp_path, "another", name="01_learning_curve")
    write_record(tmp_path, "another", name="01_curve_of_loss")
    found = recorded.elsewhere("curve", tmp_path)
    assert [(one.machine, one.values) for one in found] == [("8 × A100", {"x": 2}), ("an H200", {"x": 1})]
    assert found[0].provenance["gpus"] == ["NVIDIA H200"]


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "it is no JSON"),
        ('{"values": {"x": 1', "it is no JSON"),
        ("[]", "it lacks its values or its machine"),
        ('{"values": {}, "provenance": {}}', "it lacks"),
        ('{"values": 3, "provenance": {"machine": "x"}}', "it lacks"),
        (b"\xff\xfe", "it is no JSON"),
    ],
    ids=repr,
)
def test_a_damaged_record_is_named(tmp_path, text, why):
    path = write_record(tmp_path, "an H200")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"^the record an-h200/01_curve.json is damaged \({why}.*\): restore it"):
        recorded.elsewhere("curve", tmp_path)
    recorded.elsewhere("other", tmp_path)


def test_the_package_without_its_repository_has_no_records(tmp_path):
    shutil.copytree(ROOT / "course_utils", tmp_path / "course_utils", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from course_utils import recorded; print(recorded.__file__, recorded.elsewhere('curve'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{tmp_path}/course_utils/recorded.py []\n", done.stderr


def test_the_records_of_the_repository_are_sound():
    for path in recorded.FOLDER.glob("*/*.json"):
        provenance = recorded.read(path).provenance
        assert provenance.keys() >= {"machine", "python", "torch", "date", "commit", "command"}, path
