"""Chapter 03's limit: the last batch is too large by its tensors alone, and the others leave a GPU's libraries room."""

import ast

import torch
import torch.nn.functional as F

from course_utils.measure import memory
from course_utils.models import LectureNet
from tools import notebooks

MIB = 2**20


def limit():
    """The arguments of `launch(train_within, allowance, sizes, …)` in the chapter."""
    (path,) = notebooks.notebook_paths(["03"])
    (call,) = (
        ast.parse(cell.source).body[0].value
        for cell in notebooks.read(path).cells
        if cell.source.startswith("launch(train_within")
    )
    return [eval(compile(ast.Expression(each), "03", "eval")) for each in call.args[1:]]


def peak_of(size):
    """The bytes that the tensors of a step add at most, and those that its activations take."""
    net, x, y = LectureNet(), torch.randn(size, 3, 32, 32), torch.randint(10, (size,))

    def step(phase):
        with phase("step"):
            F.cross_entropy(net(x), y).backward()

    with memory.Activations(net) as activations:
        F.cross_entropy(net(x), y)
    return 1e6 * max(memory.curve(step)[1]), activations.num_bytes


def test_the_last_batch_fails_and_the_one_before_leaves_room_for_cudnn():
    allowance, sizes = limit()
    most, activations = peak_of(sizes[-1])
    assert activations < allowance < most  # the text: its activations alone would have fitted
    # The allocator of a GPU takes large tensors in steps of 2 MiB and others from blocks of 20 MiB.
    assert peak_of(sizes[-2])[0] + 64 * MIB < allowance
