"""Chapter 10's damaged sharded checkpoints: every rank raises an error, and the previous checkpoint stays usable.

The functions are the notebook's own, run in real workers on real files; each test damages its own copy of a checkpoint.
"""

import re
import resource
import shutil
import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from course_utils import WorkerError, launch
from course_utils.data import load_images
from tools import notebooks

CHAPTER = notebooks.definitions(notebooks.notebook_paths(["10"])[0])


def train(steps, world_size=2, **settings):
    digits = load_images("digits", size=16)
    arguments = digits.images.flatten(1), digits.labels, steps
    return launch(CHAPTER["train_on"], *arguments, world_size=world_size, **settings)


def assert_same(ours, truth):
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A folder with the checkpoints of steps 2 and 4, saved on 4 ranks, and {step: the parameters after it}."""
    folder = tmp_path_factory.mktemp("checkpoints")
    digits, train_on = load_images("digits", size=16), CHAPTER["train_on"]
    given, two, four = (digits.images.flatten(1), digits.labels), str(folder / "step_02"), str(folder / "step_04")

    def save_twice():
        return {
            2: train_on(*given, range(2), save=two),
            4: train_on(*given, range(2, 4), load=two, save=four),
            6: train_on(*given, range(6)),
        }

    return folder, launch(save_twice, world_size=4)[0]


@pytest.fixture
def folder(checkpoints, tmp_path):
    return shutil.copytree(checkpoints[0], tmp_path / "copy")


# ---- damaged: every damage is met by the same two workers, one after the other, and none hangs


def a_file_is_missing(checkpoint):
    (checkpoint / "__3_0.distcp").unlink()


def a_file_is_cut_off(checkpoint):
    file = checkpoint / "__1_0.distcp"
    file.write_bytes(file.read_bytes()[:-100])


def a_file_is_empty(checkpoint):
    (checkpoint / "__0_0.distcp").write_bytes(b"")


def the_table_is_missing(checkpoint):
    (checkpoint / ".metadata").unlink()


def the_table_is_empty(checkpoint):
    (checkpoint / ".metadata").write_bytes(b"")


def the_table_is_cut_off(checkpoint):
    file = checkpoint / ".metadata"
    file.write_bytes(file.read_bytes()[:-100])


def the_table_is_a_text(checkpoint):
    (checkpoint / ".metadata").write_text("the metadata are elsewhere\n")


def the_folder_is_empty(checkpoint):
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def a_file_stands_in_its_place(checkpoint):
    shutil.rmtree(checkpoint)
    checkpoint.write_text("notes")


DAMAGES = [
    a_file_is_missing,
    a_file_is_cut_off,
    a_file_is_empty,
    the_table_is_missing,
    the_table_is_empty,
    the_table_is_cut_off,
    the_table_is_a_text,
    the_folder_is_empty,
    a_file_stands_in_its_place,
]


def load(folder):
    """The parameters from a checkpoint of the chapter's model; all ranks call it."""
    model = CHAPTER["make_sharded"]().double()
    CHAPTER["load_into"](model, torch.optim.Adam(model.parameters()), str(folder))
    return CHAPTER["whole"](model.parameters())


@pytest.fixture(scope="module")
def loaded(checkpoints, tmp_path_factory):
    """The result of each damage, {damage: (each rank's error, what rank 1 loaded from the previous checkpoint)}."""
    folders = []
    for damage in DAMAGES:
        folders.append(shutil.copytree(checkpoints[0], tmp_path_factory.mktemp(damage.__name__) / "copy"))
        damage(folders[-1] / "step_04")

    def load_from_each():
        heard = []
        for folder in folders:
            try:
                load(folder / "step_04")
                heard.append(("nothing", None))
            except CheckpointException as error:
                heard.append((type(error).__name__, load(folder / "step_02")))
        return heard

    run = launch(load_from_each, world_size=2)
    return {damage: ([zero[0], one[0]], one[1]) for damage, zero, one in zip(DAMAGES, run[0], run[1])}


def test_a_whole_checkpoint_is_loaded_and_training_goes_on(checkpoints):
    folder, parameters = checkpoints
    assert_same(train(range(4, 6), load=str(folder / "step_04"))[1], parameters[6])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_an_error_on_every_rank_and_the_one_before_is_loaded(checkpoints, loaded, damage):
    heard, parameters = loaded[damage]
    assert heard == ["CheckpointException"] * 2
    assert_same(parameters, checkpoints[1][2])


# ---- another model


def narrower():
    return CHAPTER["make_model"](width=32)


def deeper():
    return CHAPTER["make_model"](num_blocks=3)


def shallower():
    return CHAPTER["make_model"](num_blocks=1)


def with_a_layer_less_at_the_end():
    return CHAPTER["make_model"]()[:-1]  # every name of this model is in the checkpoint, which has one more


def with_a_layer_more_at_the_end():
    return CHAPTER["make_model"]().append(nn.Linear(10, 10))


def of_other_names():
    model = CHAPTER["make_model"]()
    return nn.Sequential(nn.Sequential(*model[:-1]), model[-1])


OTHERS = [narrower, deeper, shallower, with_a_layer_more_at_the_end, of_other_names]
UNSEEN = [with_a_layer_less_at_the_end]  # DCP says nothing of names that only the file has


def test_a_checkpoint_of_another_model_is_refused_and_stays(checkpoints, folder):
    shard_fully, load_into = CHAPTER["shard_fully"], CHAPTER["load_into"]
    makers = OTHERS + UNSEEN
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def load_into_each():
        reasons = []
        for make in makers:
            model = shard_fully(make().double())
            try:
                load_into(model, torch.optim.Adam(model.parameters()), str(folder / "step_04"))
                reasons.append("it was loaded")
            except (CheckpointException, RuntimeError) as error:
                reasons.append(type(error).__name__)
        return reasons

    for reasons in launch(load_into_each, world_size=2):
        assert "it was loaded" not in reasons[: len(OTHERS)]
        assert reasons[len(OTHERS) :] == ["it was loaded"] * len(UNSEEN)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- interrupted


@pytest.mark.parametrize("over", [False, True], ids=["into a new folder", "over an older save"])
def test_an_interrupted_save_leaves_the_checkpoint_before_usable(checkpoints, folder, over):
    make_sharded, load_into, save_to = (CHAPTER[name] for name in ("make_sharded", "load_into", "save_to"))
    if not over:
        shutil.rmtree(folder / "step_04")

    def save_until_killed():
        model = make_sharded().double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
        load_into(model, optimizer, str(folder / "step_02"))
        if dist.get_rank() == 1:  # the kernel kills the process in the middle of its shard file
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        save_to(model, optimizer, str(folder / "step_04"))

    with pytest.raises(WorkerError, match=r"^rank 1: ended by .*File size limit exceeded"):
        launch(save_until_killed, world_size=2)
    assert (folder / "step_04" / "__1_0.distcp").stat().st_size == 100_000
    with pytest.raises(WorkerError, match="CheckpointException"):
        train(range(4, 6), load=str(folder / "step_04"))
    assert_same(train(range(2, 6), load=str(folder / "step_02"))[1], checkpoints[1][6])


# ---- ranks that disagree


def test_debug_names_the_unequal_shapes_of_a_rank_with_another_model():
    make_model, shard_fully = CHAPTER["make_model"], CHAPTER["shard_fully"]

    def forward():
        model = shard_fully(make_model(width=32 if dist.get_rank() == 1 else 64))
        model(torch.rand(4, 256))

    with pytest.raises(WorkerError) as error:
        launch(forward, world_size=2, debug=True)
    first = str(error.value).partition("\n")[0]
    assert re.fullmatch(
        r"Collective 1 was (\w+) of \(8224,\) float32 on rank 0 and \1 of \(4112,\) float32 on rank 1\.", first
    )


def test_a_rank_that_skips_a_forward_pass_is_found_by_the_stacks():
    digits = load_images("digits", size=16)
    with pytest.raises(WorkerError) as error:
        launch(CHAPTER["train_skipping"], digits.images.flatten(1), digits.labels, world_size=4, timeout=4)
    lines = str(error.value).splitlines()
    assert any(line.startswith("ranks 0–2 were in all_gather") for line in lines), lines
    assert any(line.startswith("rank 3 was in barrier") for line in lines), lines
