"""`run.export(folder)`: the files it writes run without a notebook, and come to the same."""

import ast
import re
from pathlib import Path

import pytest

BESIDE = "def doubled(x):\n    return 2 * x\n\ndef tripled(x):\n    return 3 * x\n"

CELLS = """
import functools, math
import torch.nn.functional as F
from torch import nn
WIDTH = 3
table = torch.arange(4.0)

class Doubled(nn.Linear):
    def forward(self, x):
        return scale(super().forward(x), 2)

class Destroyed:
    def __del__(self):
        print("destroyed")

def scale(x, factor):
    return x * factor

def work(start, *, power):
    torch.manual_seed(0)
    math.kept = Destroyed()
    x = torch.full((1, WIDTH), float(start)) ** power
    y = F.relu(Doubled(WIDTH, 4)(x)).sum() + table.sum() + math.floor(1.5)
    dist.all_reduce(y)
    return y.item()
"""


@pytest.fixture
def notebook(notebook):
    """The shared notebook, whose names are afterwards what they were; it has a module beside it."""
    (notebook.directory / "beside_the_export.py").write_text(BESIDE)
    with notebook.keeping_names():
        yield notebook


@pytest.fixture
def run_program(torchrun):
    """A function that returns {rank: what it returned, as text} of an exported program under torchrun, two ranks."""

    def run(program):
        codes, said = torchrun(program)
        assert codes == [0, 0], said
        assert "destroyed" not in "".join(said)  # Python's own end, where gloo may abort, is left out
        return dict(re.findall(r"^rank (\d): (.*)$", "".join(said), flags=re.MULTILINE))

    return run


@pytest.fixture
def as_launched(notebook, run_program, tmp_path):
    """A function that returns the text of an exported program, once its ranks have returned what a launch's did."""

    def compare(call):
        results = notebook.run(f"run = launch({call}, world_size=2); [str(result) for result in run.results]").value
        paths = notebook.run(f"[str(path) for path in run.export({str(tmp_path)!r})]").value
        assert run_program(Path(paths[0])) == {str(rank): result for rank, result in enumerate(results)}
        return Path(paths[0]).read_text()

    return compare


def test_the_files_run_under_torchrun(notebook, run_program, tmp_path):
    notebook.run(CELLS)
    results = notebook.run("run = launch(work, 2, power=3, world_size=2); run.results").value
    notebook.run(f"paths = run.export({str(tmp_path / 'job')!r})")
    names = notebook.run("[path.name for path in paths]").value
    assert names == ["work.py", "work.arguments", "work.sbatch"]
    program = (tmp_path / "job" / "work.py").read_text()
    ast.parse(program)
    assert (
        "WIDTH = 3" in program
        and "import torch.nn.functional as F" in program
        and "class Doubled(nn.Linear):" in program
    )
    assert run_program(tmp_path / "job" / "work.py") == {str(rank): str(value) for rank, value in enumerate(results)}
    batch = (tmp_path / "job" / "work.sbatch").read_text()
    assert "--nproc-per-node 2" in batch and "work.py" in batch


def test_a_long_result_is_printed_in_short(notebook, run_program, tmp_path):
    notebook.run("def weights():\n    return {f'layer {i}': [0.0] * 100 for i in range(100)}")
    notebook.run(f"launch(weights, world_size=2).export({str(tmp_path)!r})")
    assert re.fullmatch(r"\{'layer 0': \[0\.0, 0\.0, .{,500}", run_program(tmp_path / "weights.py")["0"])
    assert 'torch.save(returned, f"weights_{' in (tmp_path / "weights.py").read_text()


def test_two_nodes_make_a_batch_file_for_two(notebook, tmp_path):
    notebook.run("from course_utils import Nodes\ndef work():\n    return dist.get_rank()")
    notebook.run(f"launch(work, world_size=4, on=Nodes(2)).export({str(tmp_path)!r})")
    batch = Path(tmp_path, "work.sbatch").read_text()
    assert "#SBATCH --nodes=2" in batch and "--nproc-per-node 2" in batch


# Each line of `main` uses some form of function, or of global, that a worker may use.
FORMS = """
import collections, concurrent.futures, dataclasses, enum, functools, math, typing, xml.dom.minidom
from dataclasses import dataclass
from typing import NamedTuple
import beside_the_export
from beside_the_export import tripled as threefold

LIMITS, NAME, RATE, NOTHING, ENDLESS, UNKNOWN = {"low": [1, 2]}, "a \\"name\\"", 0.5, None, math.inf, math.nan
ORDERED, DTYPE = collections.OrderedDict(a=1), torch.float64

@dataclass(order=True)
class Settings:
    rate: float = 0.25
    names: list = dataclasses.field(default_factory=list)

class Plain:
    kind = "plain"

class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"

class Level(enum.IntEnum):
    LOW = 1

class Point(NamedTuple):
    x: int
    y: int = 2

Pair = collections.namedtuple("Pair", "a b")

class Base:
    def __init__(self, factor):
        self.factor = factor
    def apply(self, x):
        return x * self.factor

class Derived(Base):
    @property
    def double(self):
        return 2 * self.factor
    @classmethod
    def make(cls):
        return cls(7)
    @staticmethod
    def half(x):
        return x / 2
    def apply(self, x):
        return super().apply(x) + helper(x)
    def __call__(self, x):
        return self.apply(x) + 1

class Misleading:
    def helper(self):
        return "a method"

def helper(x):
    return x + 100

other_name = helper

def rate():
    return "the older"

def rate():
    return "the newer"

def counted(function):
    @functools.wraps(function)
    def wrapper(*args):
        return "counted", function(*args)
    return wrapper

@counted
def decorated(x):
    return x + 1

@functools.lru_cache(maxsize=None)
def cached(x):
    return 2 * x

@functools.singledispatch
def shown(x):
    return "something"

@shown.register
def _(x: int):
    return "a number"

@torch.no_grad()
def without_gradients(x):
    return torch.is_grad_enabled()

def make_adder(amount):
    def add(x):
        return x + amount
    return add

add_five = make_adder(5)
square = lambda x: x * x
pair = [lambda x: x + 1, lambda x: x + 2]
partial = functools.partial(helper, 3)

def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)

def is_even(n):
    return n == 0 or is_odd(n - 1)

def is_odd(n):
    return n != 0 and is_even(n - 1)

WIDTH = 4
def with_defaults(x, width=WIDTH, dtype=torch.float32, *, name="none", made=None):
    return x, width, dtype, name, made
WIDTH = 5

calls = 0
def count():
    global calls
    calls += 1
    return calls

class Changed:
    limit = 1
    def tell(self):
        return self.limit
Changed.limit = 2
Changed.more = lambda self: "more"

if WIDTH == 5:
    def conditional():
        return "of five"
else:
    def conditional():
        return "of another"

class Node:
    def special(self):
        return Special()

class Leaf(Node):
    def tell(self):
        return "leaf"

class Special(Leaf):
    def tell(self):
        return "special " + super().tell()

class Old:
    def tell(self):
        return "old"

class New(Old):
    def more(self):
        return self.tell()

class Old:
    def tell(self):
        return "newer than New"

def hung():
    return hung.calls
hung.calls = 7

class First:
    def next(self) -> "Second":
        return Second()

class Second:
    def next(self, start: First) -> First:
        return start

class First:
    def next(self, start: Second) -> Second:
        return start

loud = Derived(3)
table = torch.arange(3.0)
payload, given, sys, open, Path = "payload", "given", "no module", "no function", "no path"
nested = []
nested.append(nested)

def main(settings: Settings, point, colour, level, *, called):
    parts = [LIMITS, NAME, RATE, NOTHING, ENDLESS, UNKNOWN, ORDERED, DTYPE, payload, given, sys, open, Path, WIDTH]
    parts += [Leaf().special().tell(), New().more(), Old().tell(), hung(), First().next(Second()).next(3), len(nested)]
    parts += [concurrent.futures.FIRST_COMPLETED, xml.dom.minidom.Node.TEXT_NODE]
    parts += [settings == Settings(0.5, ["a"]), isinstance(settings, Settings), Settings(), Plain().kind, Plain.kind]
    parts += [colour is Colour.BLUE, Colour(1), Level.LOW + level, isinstance(point, Point), point, Pair(1, 2)]
    parts += [Derived.make().apply(2), Derived(2).double, Derived.half(3)]
    parts += [loud(1), isinstance(loud, Base), loud.apply(1)]
    parts += [other_name(1), helper(2), rate(), decorated(1), cached(4), shown(1), shown(""), without_gradients(1)]
    parts += [add_five(1), square(3), [each(1) for each in pair], partial(), factorial(5), is_even(7)]
    parts += [with_defaults(1), count(), count(), calls, Changed().tell(), Changed().more(), conditional()]
    parts += [table.sum().item(), beside_the_export.doubled(4), threefold(2), Misleading().helper(), dist.get_rank()]
    parts += [each(1) for each in called]
    return parts
"""


def test_every_form_of_function_and_global_gives_the_same_as_the_launch(notebook, as_launched):
    notebook.run(FORMS)
    called = "[loud, loud.apply, Derived(2), Base(2).apply, partial.func, add_five, square, lambda x: helper(x) - 1]"
    call = f"main, Settings(0.5, ['a']), Point(1), Colour.BLUE, Level.LOW, called={called}"
    program = as_launched(call)
    for text in ("LIMITS = {", "class Base:", "class Derived(Base):", "@torch.no_grad()", "def without_gradients",
                 "def rate():", "import beside_the_export", "def main(settings"):  # fmt: skip
        assert text in program
    assert program.count("def rate():") == 1 and "the older" not in program


GROUP = """
def join_and_tell():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.destroy_process_group()
    return rank
"""
# Every form of function that a launch accepts: a cell, a call, and what the program says of it.
WORKERS = {
    "a lambda": ("add = lambda x: x + dist.get_rank()", "add, 1", ""),
    "a partial": (
        "def power(x, n):\n    return (x + dist.get_rank()) ** n",
        "functools.partial(power, n=2), 3",
        "def power(x, n):",
    ),
    "a bound method": (
        """
class Trainer:
    def __init__(self, rate):
        self.rate = rate
    def train(self, steps=2):
        return self.rate * steps + dist.get_rank()
""",
        "Trainer(0.5).train, 4",
        "class Trainer:",
    ),
    "a callable object": (
        """
class Stepper:
    def __init__(self, rate):
        self.rate = rate
    def __call__(self, steps=3):
        return self.rate * steps + dist.get_rank()
""",
        "Stepper(2)",
        "def __call__(self, steps=3):",
    ),
    "class and static methods": (
        """
class Maker:
    amount = 7
    @classmethod
    def make(cls, x):
        return cls.amount + Maker.half(x)
    @staticmethod
    def half(x):
        return x / 2 + dist.get_rank()
""",
        "Maker.make, 5",
        "    @staticmethod",
    ),
    "a static method": (
        "class Halves:\n    @staticmethod\n    def half(x):\n        return x / 2",
        "Halves.half, 5",
        "",
    ),
    "a closure": (
        """
def make(amount):
    def queue(x):
        return amount + x + dist.get_rank()
    return queue
""",
        "make(5), 1",
        "",
    ),
    "a decorated function": (
        "@torch.no_grad()\ndef without():\n    return torch.is_grad_enabled()",
        "without",
        "@torch.no_grad()\ndef without():",
    ),
    "a decorator that cannot travel": (
        """
class Registry:
    def __init__(self):
        self.lock = threading.Lock()
    def add(self, function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args)
        return wrapper
registry = Registry()
@registry.add
def registered(x):
    return x + dist.get_rank()
""",
        "registered, 1",
        "",
    ),
    "a cached function": ("@functools.cache\ndef twice(x):\n    return 2 * x", "twice, 4", ""),
    "a module's function": ("import beside_the_export", "beside_the_export.doubled, 2", ""),
    "another name": ("def helper():\n    return 5\nh = helper\ndef use():\n    return h()", "use", "def helper():"),
    "a builtin": ("", "max, 1, 2", ""),
    "one that makes the group itself": (GROUP, "join_and_tell", "def join_and_tell"),
    "the program's own name": ("def run_as_launched():\n    return 5", "run_as_launched", ""),
    "one that has to make the group": (GROUP, "join_and_tell, backend=None", "def join_and_tell"),
}


@pytest.mark.parametrize("form", WORKERS)
def test_a_worker_of_any_form_runs_without_the_notebook(notebook, as_launched, form):
    cell, call, text = WORKERS[form]
    notebook.run(cell)
    assert text in as_launched(call)


@pytest.mark.parametrize("call", ["tuned, 2, scale=3", "module.tuned, double(2)"])
def test_a_function_of_a_file_is_imported_in_plain_text(notebook, as_launched, call):
    (notebook.directory / "tuned.py").write_text("def tuned(x, scale=1):\n    return x * scale\n")
    notebook.run("import tuned as module\nfrom tuned import tuned\ndef double(x): return 2 * x")
    text = as_launched(call)  # the program is run_tuned.py
    assert "from tuned import tuned\n" in text and "returned = tuned(*given" in text
    assert "are not copied" in text and "a notebook" not in text
    notebook.run("def tuned(x): return -x")  # another one of that name
    program = notebook.run("str(launch(module.tuned, 5, world_size=2).export('another')[0])").value
    assert "returned = given[" in (notebook.directory / program).read_text()


def test_a_cell_that_was_changed_and_run_again_counts(notebook, tmp_path):
    for rate in (1, 2, 1):
        notebook.run(f"class Setting:\n    def rate(self):\n        return {rate}\n"
                     "def work():\n    return Setting().rate()")  # fmt: skip
    notebook.run(f"launch(work, world_size=2).export({str(tmp_path)!r})")
    assert "        return 1" in (tmp_path / "work.py").read_text()


def test_a_program_hides_no_module_and_overwrites_only_an_earlier_one(notebook, tmp_path):
    (tmp_path / "step.py").write_text("a student's")
    notebook.run("def queue():\n    pass\ndef step():\n    pass")
    for name in ("queue", "step", "step"):
        notebook.run(f"launch({name}, world_size=2).export({str(tmp_path)!r})")
    assert sorted(path.name for path in tmp_path.glob("*.py")) == ["run_queue.py", "run_step.py", "step.py"]
    assert (tmp_path / "step.py").read_text() == "a student's"


def test_shared_memory_is_copied_into_the_file(notebook, tmp_path):
    notebook.run("shared = torch.ones(3).share_memory_()\ndef total(x):\n    return x.sum().item()")
    notebook.run(f"launch(total, shared, world_size=2).export({str(tmp_path)!r})")
    assert b"/proc/" not in (tmp_path / "total.arguments").read_bytes()


def test_what_cannot_be_written_leaves_nothing(notebook, tmp_path):
    notebook.run("guard = 1\ndef work():\n    return str(guard)\nrun = launch(work, world_size=2)")
    outcome = notebook.fail(f"guard = threading.Lock()\nrun.export({str(tmp_path / 'job')!r})")
    assert outcome.error == "NotSendable" and "guard, which work uses, is a lock" in outcome.message
    assert "\n" not in outcome.message and not list(tmp_path.iterdir())
