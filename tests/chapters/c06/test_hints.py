"""The lines that the chapter's text tells readers to run: each must run as it is printed."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from course_utils import hardware
from course_utils.chapters.c06_splitting_a_model_by_layers import figures
from course_utils.measure.held import Held
from course_utils.parallel import pipeline
from course_utils.parallel.device_group import DeviceGroup

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
(CHAPTER,) = NOTEBOOKS.glob("06_*.ipynb")
CELLS = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]


def printed(call):
    """Return the one line of the text, between backticks, that begins with `call`."""
    text = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    (line,) = re.findall(rf"`({re.escape(call)}[^`]*)`", text)
    return line


def run(names, code):
    """Run the code cell that contains `code`."""
    (source,) = ["".join(c["source"]) for c in CELLS if c["cell_type"] == "code" and code in "".join(c["source"])]
    exec(source, names)


@pytest.fixture
def names():
    names = {"figures": figures, "pipeline": pipeline, "torch": torch, "nn": nn, "hardware": hardware, "Held": Held}
    (solution,) = NOTEBOOKS.glob("solutions/06_*.py")
    for part in solution.read_text(encoding="utf-8").split("# %%"):
        if "def emit_1f1b" in part:
            exec(part, names)
    return names


def test_the_hint_draws_the_readers_list(names, capsys):
    eval(printed("figures.gantt(pipeline.place(emit_1f1b"), names)
    assert "mine" in capsys.readouterr().out


def test_the_executor_runs_the_readers_list(names):
    def make_layers():
        torch.manual_seed(0)
        return [nn.Linear(4, 4) for _ in range(9)]

    names |= {"F": nn.functional, "DeviceGroup": DeviceGroup, "make_layers": make_layers}
    names |= {"x": torch.rand(16, 4), "y": torch.arange(16) % 4}
    for code in ("class Mailbox:", "class Executor(Mailbox):", "def run_schedule("):
        run(names, code)
    (loss, *gradients), _, _ = eval(printed("run_schedule(emit_1f1b"), names)
    whole = nn.Sequential(*make_layers()).double()
    expected = nn.functional.cross_entropy(whole(names["x"].double()), names["y"])
    expected.backward()
    torch.testing.assert_close([loss, *gradients], [expected.detach(), *(p.grad for p in whole.parameters())])
