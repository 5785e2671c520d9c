"""Objects of a cell's classes come back as the notebook's own, and leave those classes as they are."""

CELL = """
import enum
use_residual = False
class Net(torch.nn.Module):
    scale = 1
    def forward(self, x): return x + self.scale if use_residual else x * self.scale
class Size(enum.Enum): SMALL = 1; LARGE = 2
def train():
    Net.scale = 10
    return Net(), Size.LARGE
"""


def test_a_returned_instance_leaves_its_class_alone(notebook):
    notebook.run(CELL.strip())
    value = notebook.run(
        """
own_class, own_forward = Net, Net.forward
model, size = launch(train, world_size=2)[1]
use_residual = True
x = torch.tensor(2.0)
def call_it(model): return float(model(torch.tensor(2.0)))
(type(model) is own_class, Net.forward is own_forward, Net.scale, float(model(x)), size is Size.LARGE,
 launch(call_it, model, world_size=2).results)
""".strip()
    ).value
    assert value == (True, True, 1, 3.0, True, [3.0, 3.0])


def test_a_class_that_only_the_worker_defines_comes_whole(notebook):
    value = notebook.run(
        """
def make():
    class Pair:
        unit = "m"
        def __init__(self, a): self.a = a
        def doubled(self): return 2 * self.a
    return Pair(dist.get_rank())
pairs = launch(make, world_size=2).results
[(pair.a, pair.doubled(), pair.unit) for pair in pairs]
""".strip()
    ).value
    assert value == [(0, 0, "m"), (1, 2, "m")]


def test_a_class_that_was_defined_anew_is_the_new_one(notebook):
    define = (
        "class Point:\n    def __init__(self, x): self.x = x\n    version = %d\ndef make(): return Point(Point.version)"
    )
    notebook.run(define % 1)
    notebook.run("first = launch(make, world_size=2)[0]")
    notebook.run(define % 2)
    value = notebook.run(
        "second = launch(make, world_size=2)[0]\n(first.version, second.version, second.x, type(second) is Point)"
    )
    assert value.value == (1, 2, 2, True)
