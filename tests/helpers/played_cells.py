"""The cells of a chapter, run in order on a simulated machine with GPUs, with its launches.

They run as they are, except that numbers may be made smaller, and cells left out. Each figure is held against what was
used: the GPUs that its caption counts are those on which its cell, or the last one that measured, computed.
"""

import ast
import contextlib
import functools
import io
import re

import matplotlib.pyplot as plt
import pytest

import course_utils
from course_utils import hardware
from course_utils.measure import claims
from tests.helpers.played_gpus import PlayedGpus, on_machine
from tools import notebooks

HERE = "this machine: "  # begins what a caption says of a measurement
SHARED = "GPUs with gloo"


def run_chapter(chapter, num_gpus, smaller=None, left_out=()):
    """Run the chapter's cells and return their names.

    `smaller` is {text: replacement}, `left_out` holds words of cells. Of an exercise, and of a cell that is left out,
    only the definitions run. A cell that fails on purpose must fail without workers; with workers it is left out.
    Raises AssertionError where a text or words are not in the chapter.
    """
    (path,) = notebooks.notebook_paths([chapter])
    cells, not_found = [], {*(smaller or ()), *left_out}
    for cell in notebooks.read(path).cells:
        if cell.cell_type == "code":
            source, found = notebooks.of_notebook(cell.source), {text for text in not_found if text in cell.source}
            for text in [each for each in smaller or () if each in cell.source]:
                source = source.replace(text, smaller[text])
            fails = notebooks.FAILS_ON_PURPOSE in cell.metadata.get("tags", [])
            is_out = any(words in cell.source for words in left_out) or source.startswith("# Exercise")
            is_out |= fails and "launch(" in source
            cells.append((source, fails, is_out))
            not_found -= found
    assert not not_found, f"no cell has {not_found}"
    with played_notebook(num_gpus) as (names, used):
        names["__name__"] = path.stem
        for i, (source, fails, is_out) in enumerate(cells):
            body = [node for node in ast.parse(source).body if not is_out or notebooks.is_definition(node, ())]
            code = compile(ast.Module(body, type_ignores=[]), f"code cell {i} of chapter {chapter}", "exec")
            with used.in_cell(), pytest.raises(Exception) if fails and not is_out else contextlib.nullcontext():
                exec(code, names)
    return names


@contextlib.contextmanager
def played_notebook(num_gpus):
    used = Used()
    with pytest.MonkeyPatch.context() as patch, PlayedGpus(num_gpus) as gpus:
        patch.setattr(course_utils, "launch", functools.partial(placed_on_machine, num_gpus, used))
        patch.setattr(plt, "close", used.check)
        patch.setattr(claims, "is_quick", lambda: True)
        gpus.used = used.now
        with contextlib.redirect_stdout(io.StringIO()):
            yield {}, used


def placed_on_machine(num_gpus, used, worker, *args, world_size=None, backend="auto", **kwargs):
    by_launch = set()
    world_size = world_size or hardware.default_world_size()
    placement = hardware.choose_backend(world_size, backend)
    try:
        run = on_machine(num_gpus, worker, *args, world_size=world_size, backend=backend, used=by_launch, **kwargs)
    finally:
        computed = any(each.startswith("cuda:") for each in by_launch)
        used.now |= by_launch | {"launched"} | ({SHARED} if computed and placement.backend == "gloo" else set())
    run.placement = placement
    return run


class Used:
    """The GPUs and backends that a cell used, itself or in workers, as a figure's caption must name them."""

    def __init__(self):
        self.now, self._before = set(), set()

    @contextlib.contextmanager
    def in_cell(self):
        yield
        if self.now:
            self._before = set(self.now)
            self.now.clear()

    def check(self, figure):
        """Of a figure that is complete: raise AssertionError if its caption names others."""
        caption = " ".join(figure.get_supxlabel().split())
        if HERE in caption:
            used = self.now or self._before
            num_gpus = sum(each.startswith("cuda:") for each in used)
            named = sum(int(n or 1) for n in re.findall(r"(?:(\d+) × )?NVIDIA", caption))
            fewest = min(num_gpus, 1) if "launched" in used else num_gpus  # a figure may show one rank of several
            assert fewest <= named <= num_gpus, f"{num_gpus} GPUs were used, and the caption says: {caption}"
            if "workers with" in caption:
                assert ("with NCCL" in caption) == ("nccl" in used), f"{sorted(used)} were used: {caption}"
                has_gloo = bool(re.search("NVIDIA[^;]* workers? with gloo", caption))
                assert has_gloo == (SHARED in used), f"{sorted(used)} were used: {caption}"
