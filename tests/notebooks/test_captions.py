"""Every figure of a chapter says where its values come from, and one of a launch says what the launch used."""

import ast
import importlib
import inspect
import re
import types

import pytest

from course_utils import hardware, plots
from course_utils.grade.chapter_cells import of_notebook
from tests.helpers import machines
from tools import notebooks


def drawers(path):
    """{"plots.lines" or "figures.gantt": how it can be told the origin of its values}, for those with a caption."""
    rooms = {"plots": plots}
    for line in "\n".join(cell.source for cell in notebooks.read(path).cells).splitlines():
        if line.startswith("from course_utils.chapters.") and "figures" in line:
            rooms["figures"] = importlib.import_module(f"{line.split()[1]}.figures")
    found = {}
    for room, module in rooms.items():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            origins = {"source", "placement"} & inspect.signature(function).parameters.keys()
            if origins:
                found[f"{room}.{name}"] = origins
    return found


def complaints(sources, captioned):
    """One for each figure that names no origin, or whose cell launches without handing over where it ran."""
    trees = [ast.parse(of_notebook(source)) for source in sources]
    handed_over = set()  # names and attributes that hold a placement
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and holds_placement(node.value, handed_over):
                handed_over |= {each.id for target in node.targets for each in ast.walk(target) if is_name(each)}
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".append"):
                if any(holds_placement(each, handed_over) for each in node.args):
                    handed_over.add(ast.unparse(node.func).removesuffix(".append"))
    for i, tree in enumerate(trees):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        launches = any(ast.unparse(call.func) == "launch" for call in calls)
        for call in calls:
            drawer = ast.unparse(call.func)
            if drawer not in captioned:
                continue
            given = {each.arg: each.value for each in call.keywords}
            if None in given:
                continue  # **settings: drawing it tells
            if not {"source", "placement"} & given.keys():
                yield f"code cell {i}: {drawer} names neither a placement nor a source"
            if "placement" not in given:
                continue
            if any(name in ast.unparse(given["placement"]) for name in ("choose_backend", "machine(")):
                yield f"code cell {i}: {drawer} asks the machine for the placement"
            if launches and not holds_placement(given["placement"], handed_over):
                yield f"code cell {i}: {drawer} beside a launch, without the placement of its run"


def is_name(node):
    return isinstance(node, ast.Name)


def holds_placement(node, handed_over):
    return any(
        isinstance(each, ast.Attribute) and each.attr == "placement" or is_name(each) and each.id in handed_over
        for each in ast.walk(node)
    )


@pytest.mark.parametrize("path", notebooks.notebook_paths(), ids=lambda path: path.stem)
def test_every_figure_of_a_chapter_names_the_origin_of_its_values(path):
    code = [cell.source for cell in notebooks.read(path).cells if cell.cell_type == "code"]
    assert list(complaints(code, drawers(path))) == []


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("plots.bars(found, 'ms', 'Bars.')", "names neither"),
        ("run = launch(work)\nplots.bars(run[0], 'ms', 'Bars.', placement=device)", "without the placement"),
        ("plots.bars(found, 'ms', 'Bars.', placement=hardware.choose_backend(4))", "asks the machine"),
        ("run = launch(work)\nplots.bars(run[0], 'ms', 'Bars.', placement=run.placement.on_cpu())", None),
        ("run = launch(work)\nused = [run.placement]\nplots.bars(run[0], 'ms', 'Bars.', placement=used)", None),
        ("plots.bars(found, 'ms', 'Bars.', source='counted')", None),
    ],
)
def test_such_a_figure_would_be_found(code, complaint):
    found = list(complaints([code], {"plots.bars": {"source", "placement"}}))
    assert [complaint in each for each in found] == [True] * (complaint is not None)


def test_the_sweep_that_computes_on_the_cpu_does_not_name_a_gpu(monkeypatch):
    """Chapter 03's two workers time steps on the CPU, also where `launch` gives each a GPU and NCCL."""
    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    machines.play(monkeypatch, machines.A100)
    cells = [cell.source for cell in notebooks.read(notebooks.notebook_paths(["03"])[0]).cells]
    (code,) = (source for source in cells if "freed memory is returned, or kept" in source)
    (given,) = re.findall(r"placement=(\[.*\]),", code)
    run = types.SimpleNamespace(placement=hardware.choose_backend(2, "gloo"))
    assert "A100" not in hardware.used(*eval(given, {"run": run}))


ON_THE_CPU = {"00": "gloo", "10": "auto", "12": "gloo", "14": "gloo"}  # by chapter: the backend of launch


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("chapter", ON_THE_CPU)
def test_figures_of_workers_on_the_cpu_do_not_name_a_gpu(chapter, num_gpus, monkeypatch):
    """Four workers compute on the CPU here, except that chapter 10's and 12's take GPUs where each has its own."""
    for name in ("CUDA_VISIBLE_DEVICES", "COURSE_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    machines.play(monkeypatch, *[machines.A100] * num_gpus)
    code = "\n".join(cell.source for cell in notebooks.read(notebooks.notebook_paths([chapter])[0]).cells)
    if "hardware.keep_to_cpu()" in code:
        monkeypatch.setenv("COURSE_DEVICE", "cpu")
    has_own = chapter in ("10", "12") and num_gpus >= 4
    placement = hardware.choose_backend(4, "nccl" if has_own else ON_THE_CPU[chapter])
    ways = re.findall(r"\.placement\b(?:\.(\w+)\(\))?", code)
    assert ways, "no figure of a launch"
    for way in ways:
        used = hardware.used(getattr(placement, way)() if way else placement)
        assert ("4 × NVIDIA A100" in used) == has_own and ("NVIDIA" in used) == has_own, (
            f"run.placement, {way or 'as it is'}: {used}"
        )
