"""What comes back: what works only in its ranks is refused where it is sent, the rest is as good as it was there."""

import pytest

BOUND = """
import threading
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
def sharded():
    model = nn.Linear(2, 2)
    fully_shard(model)
    return model
def with_group():
    model = nn.Linear(2, 2)
    model.group = dist.group.WORLD
    return model
class Trainer:
    def __init__(self): self.parts = {"a": [1, threading.Lock()]}
trainer = Trainer()
"""
# what a rank returns → what is said of it, and what to return instead
REFUSED = {
    "nn.parallel.DistributedDataParallel(nn.Linear(2, 2))": ("a DistributedDataParallel:", "pass its .module"),
    "{'models': [nn.parallel.DistributedDataParallel(nn.Linear(2, 2))]}": (
        "a dict whose ['models'][0] is a DistributedDataParallel:",
        "pass its .module",
    ),
    "sharded()": ("a FSDPLinear", "full_state_dict=True"),
    "sharded().state_dict()": ("an OrderedDict whose ['weight'] is a DTensor:", "pass its .full_tensor()"),
    "distribute_tensor(torch.ones(2), init_device_mesh('cpu', (2,)), [Replicate()])": ("a DTensor:", ".to_local()"),
    "init_device_mesh('cpu', (2,))": ("a DeviceMesh:", "its shape"),
    "with_group()": ("a Linear whose .group is a ProcessGroup:", "the ranks in it"),
    "dist.all_reduce(torch.ones(1), async_op=True)": ("a Work:", ".wait()"),
    "Trainer()": ("a Trainer whose .parts['a'][1] is a lock:", "cannot pickle '_thread.lock' object"),
}


@pytest.fixture
def warm(notebook):
    """The shared notebook, whose workers have at their beginning what each would otherwise import, as DTensor."""
    notebook.wait_until_warm()
    return notebook


def test_what_its_ranks_return_instead_comes_back(warm):
    warm.run(
        BOUND
        + """
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
def worker():
    model = sharded()
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return nn.parallel.DistributedDataParallel(nn.Linear(2, 2)).module, whole, model.weight.full_tensor()
model, whole, weight = launch(worker, world_size=2)[0]
"""
    )
    assert warm.run("model(torch.ones(1, 2)).shape, whole['weight'].shape, weight.shape").values == [
        "(torch.Size([1, 2]), torch.Size([2, 2]), torch.Size([2, 2]))"
    ]


def test_what_works_in_its_ranks_alone_is_refused_there(warm):
    warm.run(BOUND + "from course_utils import Ranks\nworkers = {}")
    for returned in REFUSED:
        warm.run(f"def worker(): return {returned}\nworkers[{returned!r}] = worker")
    is_refused_in_each(warm, "launch({}, world_size=2)")
    warm.run("ranks = Ranks(2)")
    try:
        is_refused_in_each(warm, "ranks.run({})")
    finally:
        warm.run("ranks.close()")


def is_refused_in_each(notebook, call):
    for returned, (described, instead) in REFUSED.items():
        message = notebook.fail(call.format(f"workers[{returned!r}]")).message
        assert f"while sending back its result, {described}" in message.replace(": return plain", ":"), message
        assert instead in message
        assert "Default process group has not been initialized" not in message


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("launch(print, trainer)", "argument 1 is a Trainer whose .parts['a'][1] is a lock, which cannot be sent"),
        ("launch(lambda: trainer)", "trainer, which <lambda> uses, is a Trainer whose .parts['a'][1] is a lock"),
        ("launch(print, sep={'y': [trainer]})", "argument sep is a dict whose ['y'][0].parts['a'][1] is a lock"),
        ("launch(print, lambda: trainer)", "argument 1 is a function whose trainer.parts['a'][1] is a lock"),
        ("launch(print, functools.partial(print, trainer))", "is a partial whose .args[0].parts['a'][1] is a lock"),
        ("launch(print, trainer.__init__)", "is a method whose .__self__.parts['a'][1] is a lock"),
    ],
)
def test_what_cannot_be_sent_is_named_by_its_path(notebook, call, said):
    notebook.run(BOUND)
    outcome = notebook.fail(call)
    assert said in outcome.message
    # The sentence and the student's line, and none of ours.
    *sentence, place = outcome.shown.splitlines()
    assert " ".join(sentence) == f"NotSendable: {outcome.message}"
    assert place.startswith("  at Cell In[") and place.endswith(call)


@pytest.mark.parametrize("call", ["launch(3)", "launch(print, world_size=0)", "Ranks(0)", "launch(lambda x: x)"])
def test_a_refusal_shows_the_students_line_and_none_of_ours(notebook, call):
    outcome = notebook.fail(f"from course_utils import Ranks\ndef nested(): {call}\nnested()")
    sentence, place = outcome.shown.splitlines()
    assert sentence == f"{outcome.error}: {outcome.message}"
    assert place.startswith("  at Cell In[") and place.endswith(f"line 2, in nested:  def nested(): {call}")


def test_a_result_is_freed_with_its_last_name_and_its_class_is_entered_once_into_its_registry(notebook):
    """A result is freed at once, not by the garbage collector, which goes by the number of objects, not their size.

    `__init_subclass__` runs when a class is made, and not again with each instance that comes back.
    """
    freed, *entered = notebook.run("""
import gc, weakref
from course_utils import Ranks
def make_tensor(): return torch.ones(5)
def are_freed(call):
    results = call()
    living = [weakref.ref(result) for result in results]
    before = [each() is not None for each in living]
    del results
    return before, [each() is not None for each in living]
class Base:
    kinds = []
    def __init_subclass__(cls): Base.kinds.append(cls)
class Part(Base): pass
def make(): return Part(), len(Base.kinds)
gc.collect(); gc.disable()
with Ranks(2) as ranks:
    freed = are_freed(lambda: launch(make_tensor, world_size=2).results), are_freed(lambda: ranks.run(make_tensor))
    gc.enable()
    returned = launch(make, world_size=2).results + ranks.run(make) + ranks.run(make)
(freed, [kind.__name__ for kind in Base.kinds], {number for _, number in returned},
 {type(part) is Part for part, _ in returned})
""").value
    assert freed == (([True, True], [False, False]),) * 2
    assert entered == [["Part"], {1}, {True}]


FIGURE = """
%matplotlib inline
def draw():
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots()
    axes.plot([dist.get_rank(), 2])
    return figure
"""


def test_a_returned_figure_is_not_shown_unasked(notebook):
    notebook.run(FIGURE)
    assert not [value for value in notebook.run("run = launch(draw, world_size=1)").values if "Figure" in value]
    assert notebook.run("run[0].axes[0].lines[0].get_ydata().tolist()").value == [0, 2]


def test_plt_show_in_a_worker_says_that_it_shows_nothing(notebook):
    notebook.run(FIGURE + "def show():\n    draw()\n    __import__('matplotlib.pyplot').pyplot.show()")
    assert "return the figure, or save it" in notebook.run("launch(show, world_size=1)").stdout


@pytest.mark.alone
def test_an_interrupt_ends_the_rebuilding_of_a_slow_result(notebook):
    notebook.run("""
from course_utils import Ranks
ranks = Ranks(2)
class Slow:
    def __reduce__(self): return rebuild, ()
def rebuild():
    if "COURSE_IN_WORKER" not in os.environ:
        print("rebuilding", flush=True)
        time.sleep(300)
def make(): return Slow()
launch(nothing, world_size=2)  # the ranks have taken the forkserver that was warm""")
    try:
        for call in ("launch(make, world_size=2)", "ranks.run(make)"):
            outcome = notebook.wait(
                notebook.start(call), on_output=lambda text: "rebuilding" in text and notebook.interrupt()
            )
            assert outcome.error == "Interrupted"
            assert outcome.seconds < 5
            assert notebook.run("ranks.run(lambda: 1)").value == [1, 1]
    finally:
        notebook.run("ranks.close()")


@pytest.mark.parametrize(
    "raising",
    [
        "try: raise ValueError('x' * 500_000)\n    except ValueError as long: raise RuntimeError('small') from long",
        "error = RuntimeError('small')\n    error.add_note('x' * 500_000)\n    raise error",
        "raise ExceptionGroup('small', [ValueError('x' * 500_000)])",
        "raise ExceptionGroup('small', [ValueError('x\\n' * 50_000)])",
    ],
)
def test_long_causes_notes_and_members_are_cut(notebook, raising):
    outcome = notebook.fail(f"def worker():\n    {raising}\nlaunch(worker, world_size=2)")
    assert "small" in outcome.message and "more " in outcome.message
    assert len(outcome.message) < 50_000


def test_a_compiled_function_travels_and_is_compiled_there(notebook):
    assert (
        notebook.run("""
from course_utils import Ranks
@torch.compile(backend="eager", fullgraph=True)
def double(x): return 2 * x
def worker(x): return double(x).tolist(), hasattr(double, "_torchdynamo_orig_callable")
launch(worker, torch.ones(1), world_size=2).results
""").value
        == [([2.0], True)] * 2
    )
    assert (
        "graph_break"
        in notebook.fail("""
@torch.compile(backend="eager", fullgraph=True)
def breaks(x):
    torch._dynamo.graph_break()
    return x
launch(breaks, torch.ones(1), world_size=2)""").message
    )
