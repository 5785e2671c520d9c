"""What can be launched, what can be given to it, and what comes back."""

import pytest

CELL = """
factor = 10
class Point:
    scale = 2
    def __init__(self, x): self.x = x
    def scaled(self, by=1): return self.x * self.scale * by
@dataclasses.dataclass
class Row:
    rank: int
    colour: Colour
def helper(x): return x + factor
def use_helper(x): return helper(x) + dist.get_rank()
def outer(n):
    def inner(x): return x * n + dist.get_rank()
    return inner
def returns_instances(point): return Point(point.scaled() + dist.get_rank())
def returns_row(): return Row(dist.get_rank(), Colour.RED)
def default(x=[1, 2], *args, key=None, **more): return x, args, key, more
def recursive(n): return n and 1 + recursive(n - 1)
"""


def test_a_module_that_is_an_object_of_a_class_of_its_own(notebook):
    """As torch.backends.cudnn is, whose `benchmark = True` stands in many a worker."""
    notebook.run(
        "def worker(): torch.backends.cudnn.benchmark = True; return torch.backends.cuda.matmul.fp32_precision"
    )
    assert notebook.run("launch(worker, world_size=2)[1]").value == "ieee"


MADE_BY_FUNCTOOLS = """
import collections, dataclasses, typing
@functools.cache
def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
@functools.lru_cache(maxsize=2, typed=True)
def plus_one(n): return n + 1
@functools.singledispatch
def describe(x): return "other"
@describe.register
def _(x: int): return f"int {x}"
@describe.register(list)
def _(x): return [describe(each) for each in x]
def twice(f):
    @functools.wraps(f)
    def inner(*args): return [f(*args), f(*args)]
    return inner
@twice
def third(x): return x / 3
Pair = collections.namedtuple("Pair", "a b")
class Named(typing.NamedTuple):
    a: int
    b: int = 3
@dataclasses.dataclass
class Row:
    rank: int
    seen: list = dataclasses.field(default_factory=list)
class Counter:
    def __init__(self): self.n = 0
    def __call__(self, by):
        self.n += by
        return self.n
    @functools.cached_property
    def limit(self): return 7
    @functools.lru_cache
    def times(self, x): return x * 2
    @functools.singledispatchmethod
    def kind(self, x): return "other"
    @kind.register
    def _(self, x: int): return "int"
    @staticmethod
    @functools.cache
    def half(x): return x // 2
def look():
    defaults = [field.default is dataclasses.MISSING for field in dataclasses.fields(Row)]
    counter = Counter()
    return (fibonacci(20), fibonacci.cache_info().hits > 0, plus_one(1), plus_one.cache_parameters()["maxsize"],
            describe([1, "a", [2]]), third(3), third.__wrapped__(6), Pair(1, 2)._replace(a=5) == (5, 2),
            Named(1)._asdict(), dataclasses.replace(Row(1), rank=3) == Row(3), defaults,
            counter.limit, counter.times(4), counter.kind(3), Counter.half(9))
"""


def test_what_functools_and_dataclasses_make_of_a_cells_own_travels(notebook):
    notebook.run(MADE_BY_FUNCTOOLS.strip())
    assert notebook.run("launch(look, world_size=1)[0]").value == (
        6765, True, 2, 2, ["int 1", "other", ["int 2"]], [1, 1], 2, True, {"a": 1, "b": 3}, True, [True, True],
        7, 8, "int", 4,
    )  # fmt: skip
    for call, value in (
        ("fibonacci, 10", 55),
        ("describe, [3]", ["int 3"]),
        ("functools.partial(fibonacci, 10)", 55),
        ("Counter(), 2", 2),
        ("Counter().times, 3", 6),
        ("twice(plus_one), 1", [2, 2]),
        ("third, 3", [1, 1]),
    ):
        assert notebook.run(f"launch({call}, world_size=1)[0]").value == value
    value = notebook.run(
        "launch(lambda: (plus_one, Pair(1, 2), Row(4)), world_size=1)[0]\n(_[0](3), _[1] == Pair(1, 2), _[2] == "
        "Row(4))".replace("launch", "_ = launch", 1)
    ).value
    assert value == (4, True, True), "and back"


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_kind_of_function(notebook, world_size):
    # The class of an enumeration travels by value too, and its members stay the same objects.
    notebook.run("import dataclasses, enum\nColour = enum.Enum('Colour', 'RED BLUE')")
    notebook.run(CELL.strip())

    def results(call):
        values = notebook.run(f"launch({call}, world_size={world_size}).results").value
        assert len(values) == world_size
        return values

    ranks = range(world_size)
    assert results("lambda x: x * factor + dist.get_rank(), 3") == [30 + rank for rank in ranks]
    assert results("outer(5), 2") == [10 + rank for rank in ranks]
    assert results("use_helper, 1") == [11 + rank for rank in ranks]
    assert results("functools.partial(use_helper, 1)") == [11 + rank for rank in ranks]
    assert results("Point(3).scaled, by=2") == [12] * world_size
    assert results("recursive, 20") == [20] * world_size
    assert results("default, key=1, other=2") == [([1, 2], (), 1, {"other": 2})] * world_size
    assert results("sum, [1, 2]") == [3] * world_size
    notebook.run(
        f"""
instances = launch(returns_instances, Point(4), world_size={world_size}).results
assert [type(each) is Point and each.x for each in instances] == [8 + rank for rank in range({world_size})]
rows = launch(returns_row, world_size={world_size}).results
assert rows == [Row(rank, Colour.RED) for rank in range({world_size})]
assert launch(Point, 7, world_size={world_size})[1].x == 7
factor = 20
assert launch(use_helper, 1, world_size=2)[0] == 21, "the function sees the notebook's variables as they are now"
del instances, rows
""".strip()
    )


def test_workers_that_do_not_talk(notebook):
    """One that returns at once is not missed by those that still connect to it."""
    notebook.run("for _ in range(15): launch(nothing, world_size=4)")
    notebook.run("def one_only():\n    if dist.get_rank() == 3: time.sleep(0.3)\nlaunch(one_only, world_size=4)")


def test_modules_beside_the_notebook(notebook):
    (notebook.directory / "helpers.py").write_text(
        "import torch.distributed as dist\ndef where(): return dist.get_rank()\n"
    )
    notebook.run("import helpers")
    assert notebook.run("launch(helpers.where, world_size=2).results").value == [0, 1]
    notebook.run("def fails():\n    import helpers\n    return helpers.missing")
    outcome = notebook.fail("launch(fails, world_size=2)")
    assert "AttributeError: module 'helpers' has no attribute 'missing'" in outcome.shown


def test_results_of_every_kind(notebook):
    notebook.run(
        """
def worker(given):
    rank = dist.get_rank()
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    base = torch.arange(6.0)
    return {
        "given": given, "model": model, "base": base, "view": base[2:4], "bf16": torch.ones(3, dtype=torch.bfloat16),
        "numpy": np.arange(5), "parameter": torch.nn.Parameter(torch.ones(2)), "rank": rank,
        "generator": torch.Generator().get_state(),
        "state": torch.optim.Adam(model.parameters()).state_dict(), "inference": torch.inference_mode()(torch.ones)(2),
    }
given = {"tensor": torch.randn(5, 5), "list": [1, "two", None], "set": {1, 2}}
run = launch(worker, given, world_size=2)
for rank, result in enumerate(run):
    assert result["rank"] == rank
    assert torch.equal(result["given"]["tensor"], given["tensor"]) and result["given"]["list"] == [1, "two", None]
    assert result["model"][0].weight is result["model"][1].weight
    result["base"][2] = 100
    assert result["view"][0] == 100
    assert result["bf16"].dtype == torch.bfloat16 and result["numpy"].tolist() == [0, 1, 2, 3, 4]
    assert isinstance(result["parameter"], torch.nn.Parameter) and result["parameter"].requires_grad
assert (len(run), run[1]["rank"], [r["rank"] for r in run]) == (2, 1, [0, 1])
assert "worker: 2 ranks" in repr(run)
del run, result
""".strip()
    )


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_huge_nested_dict_of_tensors_arrives_equal(notebook, world_size):
    notebook.run(
        f"""
def nested(seed):
    generator = torch.Generator().manual_seed(seed)
    def weights(): return [torch.randn(50, 50, generator=generator) for _ in range(5)]
    return {{f"layer{{i}}": {{"weights": weights(), "step": i}} for i in range(400)}}
def worker(): return nested(dist.get_rank())
def same(a, b):
    if isinstance(a, torch.Tensor): return torch.equal(a, b)
    if isinstance(a, dict): return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list): return len(a) == len(b) and all(map(same, a, b))
    return a == b
assert all(same(value, nested(rank)) for rank, value in enumerate(launch(worker, world_size={world_size})))
""".strip()
    )


def test_a_tensor_of_256_mib_arrives_whole(notebook):
    notebook.run(
        """
def worker():
    if dist.get_rank() == 1: return torch.arange(2**25)
result = launch(worker, world_size=2)[1]
assert result.numel() * result.element_size() == 2**28
assert torch.equal(result[:: 2**10], torch.arange(0, 2**25, 2**10)) and result[-1] == 2**25 - 1
del result
""".strip()
    )


@pytest.mark.alone
def test_fifty_megabytes_cost_less_than_a_second(notebook):
    notebook.run("def nothing(): pass\ndef worker(): return torch.ones(50, 2**18)")
    nothing = min(notebook.run("_ = launch(nothing, world_size=2)").seconds for _ in range(3))
    assert notebook.run("_ = launch(worker, world_size=2)").seconds - nothing < 1


def test_large_arguments_are_shared_by_the_workers(notebook):
    values = notebook.run(
        """
def worker(data):
    total = float(data.sum())
    dist.barrier()  # a page counts as private as long as only one has read it
    with open("/proc/self/smaps_rollup") as file:
        private = next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))
    data[:10] = dist.get_rank() + 5.0  # its own copy of one page
    dist.barrier()
    return total, private * 1024, float(data[0])
data = torch.ones(50_000_000)  # 200 MB
results = launch(worker, data, world_size=4).results
print(float(data[0]))
del data
results
""".strip()
    )
    assert values.stdout.splitlines()[-1] == "1.0"
    for rank, (total, private, first) in enumerate(values.value):
        assert total == 50_000_000
        assert private < 40e6
        assert first == rank + 5


def test_keeping_results_keeps_no_descriptors_open(notebook):
    """A sweep of hundreds of launches may keep all its runs."""
    notebook.run("def worker(): return torch.ones(1000)\nruns = [launch(worker, world_size=2) for _ in range(5)]")
    with notebook.leaving_nothing():
        notebook.run("runs += [launch(worker, world_size=2) for _ in range(5)]")
    notebook.run("del runs")
