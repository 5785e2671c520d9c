"""The programs beside the chapters run as a reader would run them and mark every line that one device would not need.

`launch` makes torchrun's environment for them; torchrun itself starts ddp.py and elastic.py in chapters 09 and 13.
"""

import difflib
import re
import signal

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from course_utils import WorkerError, launch
from course_utils.launch import unannounced
from tests.helpers.run_program import run_program
from tools import notebooks

PROGRAMS = notebooks.NOTEBOOKS / "programs"
MARKS = {  # of what one device's program would not need
    "ddp.py": "# DDP",
    "elastic.py": "# DDP",
    "fsdp2.py": "# FSDP",
    "pipeline.py": "# PIPE",
    "tensor_parallel.py": "# TP",
    "horovod_digits.py": "# HVD",
}
# Of one device's program nothing speaks of these.
OF_SEVERAL = re.compile(
    r"\b(dist|rank|local_rank|world_size|num_local|env|sampler|os|device_ids|mesh|fully_shard)\b"
    r"|\b(stage|schedule|tp|plan|parts)\b"
    r"|\bhvd\b|Distributed(Data|Sampler)|Pipeline|1F1B|DTensor"
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What ddp.py prints and saves on two processes."""
    file = tmp_path_factory.mktemp("ddp") / "both.pt"
    return run_forked(str(PROGRAMS / "ddp.py"), str(file), world_size=2), file


def test_every_program_is_tried():
    elsewhere = ["going_on.py", "long_run.py"]  # tests/chapters/c18 and test_long_run.py beside this file
    assert sorted([*MARKS, *elsewhere]) == sorted(path.name for path in PROGRAMS.glob("*.py"))


def run_forked(program, *arguments, world_size):
    """What a program prints in workers, which need not import torch first: (epoch, loss)s."""
    with unannounced():
        done = launch(run_program, program, arguments, world_size == 1, world_size=world_size, backend=None)
    return re.findall(r"^epoch (\d+): loss (\S+)$", "".join(done.logs), flags=re.MULTILINE)


def final_weights(name, file):
    """The weights that a program has left in `file`, which is fsdp2.py's folder."""
    return read_shards(f"{file}/epoch_2")["model"] if name == "fsdp2.py" else torch.load(file)


def read_shards(folder):
    """A sharded checkpoint, made whole."""
    dcp_to_torch_save(folder, f"{folder}.pt")
    return torch.load(f"{folder}.pt")


@pytest.mark.parametrize("name", [name for name in MARKS if name != "horovod_digits.py"])  # chapter 15 runs that one
def test_alone_and_together_a_program_ends_at_the_same_loss(name, tmp_path, undisturbed):
    program, files = str(PROGRAMS / name), [str(tmp_path / file) for file in ("alone.pt", "both.pt")]
    first = [[f"{file}.run"] if name == "elastic.py" else [] for file in files]  # its checkpoint
    alone = run_forked(program, *first[0], files[0], world_size=1)
    if name == "ddp.py":
        both, files[1] = undisturbed
    else:
        both = run_forked(program, *first[1], files[1], world_size=2)
    assert [epoch for epoch, _ in alone] == [epoch for epoch, _ in both] == ["0", "1", "2"]  # rank 0 alone reports
    losses = [[float(loss) for _, loss in printed] for printed in (alone, both)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6, rel=0)
    assert losses[0][-1] < losses[0][0] / 2
    one, two = (final_weights(name, file) for file in files)
    assert one.keys() == two.keys()  # without DDP's wrapper
    assert all(type(tensor) is torch.Tensor for tensor in two.values())  # no shard, no DTensor
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name, mark", MARKS.items())
def test_every_line_that_one_device_would_not_need_is_marked(name, mark):
    text = (PROGRAMS / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= {"elastic.py": 80, "fsdp2.py": 100}.get(name, 60)
    assert max(map(len, text.splitlines())) <= 100
    code = text.split('"""')[2]
    unmarked = [line for line in code.splitlines() if OF_SEVERAL.search(line.split("  #")[0]) and mark not in line]
    assert not unmarked, "\n".join(unmarked)


def test_the_sharded_program_saves_shards_and_goes_on_with_them_on_another_number_of_processes(tmp_path):
    program, parted, undivided = str(PROGRAMS / "fsdp2.py"), str(tmp_path / "parted"), str(tmp_path / "undivided")
    whole = run_forked(program, undivided, world_size=1)
    before = run_forked(program, parted, "2", world_size=2)
    table = FileSystemReader(f"{parted}/epoch_1").read_metadata().state_dict_metadata
    matrices = {name: each for name, each in table.items() if len(getattr(each, "size", ())) == 2}
    assert any("exp_avg_sq" in name for name in matrices)
    for name, each in matrices.items():  # a rank has saved half of each, and of Adam's averages
        assert [chunk.sizes[0] * 2 for chunk in each.chunks] == [each.size[0]] * 2, name
    (tmp_path / "parted" / "epoch_2").mkdir()  # a save that was interrupted: no table
    after = run_forked(program, parted, world_size=1)
    assert [epoch for epoch, _ in before + after] == ["0", "1", "2"]
    assert [float(loss) for _, loss in before + after] == pytest.approx([float(loss) for _, loss in whole], abs=1e-6)
    ours, truth = read_shards(f"{parted}/epoch_2"), read_shards(f"{undivided}/epoch_2")
    torch.testing.assert_close(ours["model"], truth["model"], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(ours["optimizer"]["state"], truth["optimizer"]["state"], rtol=1e-6, atol=1e-9)


# What a program without checkpoints has no word for.
OF_RESTARTS = re.compile(r"\b(checkpoint|path|done|state|subtotal)\b")


def test_every_line_of_the_elastic_program_that_a_restart_needs_is_marked():
    code = (PROGRAMS / "elastic.py").read_text(encoding="utf-8").split('"""')[2]
    lines = [line for line in code.splitlines() if OF_RESTARTS.search(line.split("  #")[0])]
    assert len(lines) >= 5 and not [line for line in lines if "ELASTIC" not in line]


@pytest.mark.parametrize("world_size", [2, 1])  # after the kill
def test_after_a_kill_it_goes_on_and_ends_as_the_program_without_checkpoints(world_size, tmp_path, undisturbed):
    """The restart by hand; that torchrun makes it by itself is seen in chapter 13."""
    program, files = str(PROGRAMS / "elastic.py"), [str(tmp_path / name) for name in ("run.ckpt", "weights")]
    with unannounced(), pytest.raises(WorkerError) as killed:
        launch(run_program, program, files, False, dies_after=12, world_size=2, backend=None)
    assert killed.value.ranks[1].died == -signal.SIGKILL
    with unannounced():
        again = launch(run_program, program, files, world_size == 1, world_size=world_size, backend=None)
    before, after = ([int(n) for n in re.findall(r"^step (\d+)$", "".join(run.logs), flags=re.MULTILINE)]
                     for run in (killed.value.run, again))  # fmt: skip
    assert before == [5, 10] and after[0] == 15 and after[-1] == 64  # it does not begin anew
    printed = re.findall(r"^epoch (\d+): loss (\S+)$", "".join(again.logs), flags=re.MULTILINE)
    assert [epoch for epoch, _ in printed] == ["0", "1", "2"]
    losses = [[float(loss) for _, loss in each] for each in (printed, undisturbed[0])]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6, rel=0)  # with what both ranks saw before the kill
    plain, resumed = torch.load(undisturbed[1]), torch.load(files[1])
    torch.testing.assert_close(resumed, plain, rtol=1e-6, atol=1e-9)
    assert world_size == 1 or all(torch.equal(tensor, resumed[name]) for name, tensor in plain.items())


def test_the_elastic_program_is_the_other_one_with_checkpoints():
    texts = [(PROGRAMS / name).read_text(encoding="utf-8").split('"""')[2] for name in ("ddp.py", "elastic.py")]
    plain, elastic = map(str.splitlines, texts)
    new = [line[2:] for line in difflib.ndiff(plain, elastic) if line.startswith("+ ")]
    assert [line for line in new if "ELASTIC" not in line and "sys.argv" not in line] == []
