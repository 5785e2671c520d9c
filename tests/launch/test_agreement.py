"""What ranks that hang or fail had called: in fields and in a sentence, for each way in which they can disagree.

Two pairs of ranks hang in one launch where they can, each pair in a group of its own.
"""

import ctypes
import dataclasses
import os
import signal
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import all_reduce as imported_earlier

from course_utils import WorkerError, cells, launch, log
from course_utils.launch import patiently
from course_utils.launch.forkserver.server import _WARM_UP
from course_utils.launch.watch import agreement
from course_utils.launch.watch.agreement import Behind, Differ, Unmatched, Way
from course_utils.launch.watch.outcome import Outcome
from course_utils.launch.worker import recorder
from course_utils.launch.worker.calls import Calls, Collective, Group, Message

FOREVER_S = 1000


def fail(worker, *args, world_size=4, timeout=2, **settings):
    with patiently(), pytest.raises(WorkerError) as caught:
        launch(worker, *args, world_size=world_size, timeout=timeout, backend="gloo", **settings)
    return caught.value


def in_pairs(first, second):
    """Call `first` in ranks 0 and 1, `second` in ranks 2 and 3, with the rank, the other one, and the pair's group."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.all_reduce(torch.ones(2))
    (first if rank < 2 else second)(rank, rank ^ 1, pairs[rank // 2])


# ---- ranks that wait for ever


def swap(rank, other, pair):
    x = torch.ones(3)
    if rank % 2:
        dist.broadcast(x, other, group=pair)
        dist.all_reduce(x, group=pair)
    else:
        dist.all_reduce(x, group=pair)
        dist.broadcast(x, rank, group=pair)


def scatter_or_gather(rank, other, pair):
    if rank % 2:
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(4), group=pair)
    else:
        dist.all_gather_into_tensor(torch.ones(8), torch.ones(4), group=pair)


def test_another_collective():
    error = fail(in_pairs, swap, scatter_or_gather)
    assert error.timed_out
    order, kind = error.findings
    assert isinstance(order, Differ) and (order.number, order.group.ranks, set(order.calls)) == (1, (0, 1), {0, 1})
    assert [order.calls[i].kind for i in (0, 1)] == ["all_reduce", "broadcast"] and order.calls[1].root == 0
    assert isinstance(kind, Differ) and [kind.calls[i].kind for i in (2, 3)] == [
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
    ]
    assert (
        "Collective 1 of the group of ranks 0 and 1 was all_reduce of (3,) float32 on rank 0 and broadcast of (3,) "
        "float32 from rank 0 on rank 1. Collective 1 of the group of ranks 2 and 3 was all_gather_into_tensor of (4,) "
        "float32 on rank 2 and reduce_scatter_tensor of (4,) float32 on rank 3."
    ) in str(error)
    assert [outcome.collective.is_done for outcome in error.ranks] == [False] * 4


def send_to_none(rank, other, pair):
    if rank % 2 == 0:
        for _ in range(2):
            dist.send(torch.ones(3), other, group=pair, tag=5)
    else:
        dist.recv(torch.ones(3), other, group=pair, tag=5)
        dist.barrier(pair)


def receive_from_none(rank, other, pair):
    if rank % 2 == 0:
        dist.irecv(torch.ones(3, dtype=torch.int64), other).wait()
    dist.barrier(pair)


def test_messages_that_nobody_receives_or_sends():
    error = fail(in_pairs, send_to_none, receive_from_none)
    sent, received = error.findings
    assert isinstance(sent, Unmatched) and (sent.rank, sent.message.peer, sent.count) == (0, 1, 1)
    assert (sent.message.kind, sent.message.number, sent.message.tag) == ("send", 2, 5)
    assert isinstance(received, Unmatched) and (received.rank, received.message.peer, received.count) == (2, 3, 0)
    assert (received.message.kind, received.message.shape, received.message.dtype) == ("recv", (3,), "int64")
    assert (
        "Rank 0 had called send to rank 1 (message 2 with tag 5 in the group of ranks 0 and 1, of (3,) float32), and "
        "rank 1 had called only 1 matching recv. Rank 2 had called recv from rank 3 (message 1, of (3,) int64), and "
        "rank 3 had called no matching send."
    ) in str(error)
    assert error.ranks[1].collective.kind == "barrier" and error.ranks[1].collective.shape is None


def broadcast_each(rank, other, pair):
    dist.broadcast(torch.ones(2, 3), rank, group=pair)


def miss_a_barrier(rank, other, pair):
    if rank % 2:
        time.sleep(FOREVER_S)  # as one that still computes
    dist.barrier(pair)


def test_another_source_and_a_rank_that_is_late():
    error = fail(in_pairs, broadcast_each, miss_a_barrier)
    source, late = error.findings
    assert isinstance(source, Differ) and [source.calls[i].root for i in (0, 1)] == [0, 1]
    assert isinstance(late, Behind) and (late.ranks, late.count, late.way) == ((3,), 0, Way.RUNS)
    assert {rank: (each.kind, each.number) for rank, each in late.ahead.items()} == {2: ("barrier", 1)}
    assert (late.last.kind, late.last.number, late.last.shape, late.last.is_done) == ("all_reduce", 1, (2,), True)
    assert (
        "Collective 1 of the group of ranks 0 and 1 was broadcast of (2, 3) float32 from rank 0 on rank 0 and "
        "broadcast of (2, 3) float32 from rank 1 on rank 1. Rank 2 was in collective 1 of the group of ranks 2 and 3, "
        "barrier, and rank 3 was behind: it had called none of that group, most recently collective 1, all_reduce of "
        "(2,) float32."
    ) in str(error)


def use_another_group():
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(3), group=pair if dist.get_rank() == 1 else None)


def test_another_group():
    error = fail(use_another_group, world_size=3)
    default, pair = error.findings
    assert isinstance(default, Behind) and (default.ranks, default.way, set(default.ahead)) == ((1,), Way.WAITS, {0, 2})
    assert isinstance(pair, Behind) and (pair.ranks, pair.way, set(pair.ahead)) == ((0,), Way.WAITS, {1})
    assert default.group.is_default and pair.group.ranks == (0, 1)
    assert (
        "Ranks 0 and 2 were in collective 1, all_reduce of (3,) float32, which rank 1 had not called: it was in "
        "collective 1 of the group of ranks 0 and 1, all_reduce of (3,) float32."
    ) in str(error)


def skip_backward():
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    loss = model(torch.ones(1, 3)).sum()
    if dist.get_rank() != 1:
        loss.backward()
    dist.barrier()


def test_a_backward_that_one_rank_skips():
    while not launch(lambda: set(_WARM_UP) <= sys.modules.keys(), world_size=1)[0]:
        time.sleep(0.3)  # until workers need not import what DDP imports while their time counts
    error = fail(skip_backward, world_size=3)
    (found,) = error.findings
    assert isinstance(found, Differ) and [found.calls[i].kind for i in range(3)] == [
        "all_reduce",
        "barrier",
        "all_reduce",
    ]
    assert (found.calls[0].shape, found.calls[0].dtype) == ((12,), "float32")
    assert "was all_reduce of (12,) float32 on ranks 0 and 2 and barrier on rank 1." in str(error)


def test_an_interrupt(notebook):
    notebook.run("""
def disagree():
    x = torch.ones(3)
    work = dist.broadcast(x, 0, async_op=True) if dist.get_rank() == 1 else dist.all_reduce(x, async_op=True)
    print("begun")
    work.wait()
""")
    begun = []

    def interrupt_when_begun(text):
        begun.extend(["begun"] * text.count("] begun"))
        if len(begun) == 3:
            begun.append("interrupted")
            notebook.interrupt()

    outcome = notebook.wait(notebook.start("launch(disagree, world_size=3)"), on_output=interrupt_when_begun)
    assert outcome.error == "Interrupted"
    told = "Collective 1 was all_reduce of (3,) float32 on ranks 0 and 2 and broadcast of (3,) float32 on rank 1."
    assert told in outcome.message, outcome.shown
    source = "[type(each).__name__ for each in sys.last_value.findings], sys.last_value.ranks[1].collective.kind"
    assert notebook.run(source).value == (["Differ"], "broadcast")


# ---- ranks that fail, or that others leave alone


def differ_in_shape(shape, dtype):
    dist.all_reduce(torch.ones(shape, dtype=dtype) if dist.get_rank() == 1 else torch.ones(3))
    dist.barrier()


@pytest.mark.parametrize(
    ("shape", "dtype", "words"), [((5,), None, "(5,) float32"), ((3,), torch.float64, "(3,) float64")]
)
def test_another_shape_or_dtype(shape, dtype, words):
    """Gloo aborts one of the ranks, or garbage is what they get: the error begins with what they disagree on."""
    error = fail(differ_in_shape, shape, dtype)
    found = error.findings[0]
    assert isinstance(found, Differ) and found.number == 1
    assert f"all_reduce of {words} on rank 1" in str(error) and "all_reduce of (3,) float32 on rank" in str(error)
    assert "debug=True" not in str(error)  # it would say no more


def differ_by(more):
    dist.all_reduce(torch.ones(64 + more if dist.get_rank() == 1 else 64))


@pytest.mark.parametrize("more", [1, -1])
@pytest.mark.parametrize("debug", [False, True])
def test_one_element_more_or_less_is_told_first_whoever_ends(more, debug):
    """Gloo aborts rank 1 or innocent ones, which says where each was; with debug, torch raises in all of them."""
    error = fail(differ_by, more, debug=debug)
    head, _, rest = str(error).partition("\n\n")
    assert head == (
        "Collective 1 was all_reduce of (64,) float32 on ranks 0, 2 and 3 and "
        f"all_reduce of ({64 + more},) float32 on rank 1."
    )
    (found,) = error.findings
    assert found.group.is_default and found.calls[1].shape == (64 + more,)
    assert error.ranks[1].collective == found.calls[1]
    assert rest.startswith(f"rank {error.rank}: " + ("RuntimeError: Detected" if debug else "ended by its own abort"))
    for rank in range(4):
        assert any("dist.all_reduce" in cells.own_line([each]) for each in error.ranks[rank].frames), rank
    assert "The last that" not in rest


def differ_in_a_pair():
    ranks = [1, 2]
    pair = dist.new_group(ranks)
    if dist.get_rank() == 1:
        dist.broadcast(torch.ones(2), 1, group=pair)
    elif dist.get_rank() == 2:
        dist.barrier(pair)


def test_debug_names_the_group_and_what_has_no_tensor():
    error = fail(differ_in_a_pair, world_size=3, debug=True)
    (found,) = error.findings
    assert (found.number, found.group.ranks, found.group.is_default, set(found.calls)) == (1, (1, 2), False, {1, 2})
    assert [found.calls[rank].kind for rank in (1, 2)] == ["broadcast", "barrier"] and found.calls[1].root == 1
    assert str(error).startswith("Collective 1 of the group of ranks 1 and 2 was broadcast of (2,) float32 from rank 1")


def give_up(abort):
    """C++ gives up in a thread of its own, while this rank computes and others wait for it; or its abort is plain."""
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        give_up = ctypes.CDLL(None).abort if abort else ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev
        threading.Thread(target=give_up).start()
        time.sleep(FOREVER_S)
    dist.barrier()


@pytest.mark.parametrize("abort", [False, True])
def test_a_rank_in_which_cpp_gives_up_says_where_it_was(abort):
    error = fail(give_up, abort)
    assert (error.rank, error.exitcode) == (1, -signal.SIGABRT)
    if not abort:
        assert error.ranks[1].collective.shape == (3,)
        assert ", in give_up:  " in cells.own_line(error.frames) and cells.own_line(error.frames) in str(error)


def leave_early(deed):
    x = torch.ones(2, 2)
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        if deed == "raise":
            raise ValueError("no")
        if deed == "leave":
            sys.exit()
        return
    dist.all_reduce(x)


WAYS = [("return", Way.RETURNED), ("leave", Way.LEFT), ("raise", Way.FAILED)]


@pytest.mark.parametrize(("deed", "way"), WAYS)
def test_a_rank_that_is_not_there_any_more(deed, way):
    error = fail(leave_early, deed, world_size=3)
    (found,) = error.findings
    assert isinstance(found, Behind) and (found.ranks, found.count, found.way) == ((1,), 1, way)
    assert set(found.ahead) <= {0, 2} and {each.number for each in found.ahead.values()} == {2}
    told = "in collective 2, all_reduce of (2, 2) float32, which rank 1 had not called: "
    told += f"it {'left by sys.exit()' if deed == 'leave' else 'returned'} after 1 collective."
    assert (told in str(error)) == (deed != "raise")  # of one that failed, the lines above say it
    if deed == "leave":
        assert "rank 1 had left by sys.exit() at " in str(error) and "in leave_early:  sys.exit()" in str(error)
        assert "returned" not in str(error)
    if deed == "raise":
        assert "which rank 1" not in str(error) and " were in all_reduce at " in str(error)
        assert str(error).startswith("rank 1: ValueError: no")
        assert error.ranks[1].collective.number == 1


def killed():
    dist.all_reduce(torch.ones(7))
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def test_of_ranks_that_cannot_be_compared_the_last_calls_are_told():
    error = fail(killed, world_size=3)
    assert error.findings == () and error.ranks[1].collective is None
    assert "called was collective 2, barrier" in str(error)


# ---- who called it does not matter


def call_in_other_ways(way):
    if way == "own group":
        dist.init_process_group("gloo")
    x = torch.ones(3)
    if way == "imported":
        imported_earlier(x)
    elif way == "functional":
        functional.all_reduce(x, "sum", dist.group.WORLD) + 1
    elif way == "object":
        dist.all_gather_object([None, None], "text")
    else:
        dist.all_reduce(x)
    if way == "anew":
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        dist.barrier()
    if way == "destroyed" or way == "own group":
        dist.destroy_process_group()
    raise ValueError(way)


WAYS = {name: ("all_reduce", 1) for name in ("imported", "functional", "own group", "destroyed")}
WAYS |= {"object": ("all_gather", 2), "anew": ("barrier", 1)}


@pytest.mark.parametrize("way", WAYS)
def test_collectives_are_seen_whoever_calls_them(way):
    with pytest.raises(WorkerError) as caught:
        launch(call_in_other_ways, way, world_size=2, backend=None if way == "own group" else "gloo")
    assert caught.value.message == way and caught.value.findings == ()
    for outcome in caught.value.ranks:
        assert (outcome.collective.kind, outcome.collective.number) == WAYS[way]
        assert outcome.collective.group.is_default


def hang_in_an_object():
    if dist.get_rank():
        dist.all_gather_object([None] * 3, "text")
    else:
        time.sleep(FOREVER_S)


def test_a_function_that_calls_others_has_its_own_name():
    error = fail(hang_in_an_object, world_size=3)
    assert [outcome.collective and outcome.collective.kind for outcome in error.ranks] == [None] + [
        "all_gather_object"
    ] * 2
    (found,) = error.findings
    assert (found.ranks, found.count, found.last) == ((0,), 0, None)


# ---- what costs nothing


def call_often(num_calls):
    x = torch.ones(1)
    for _ in range(num_calls):
        dist.all_reduce(x)
    return 1


def test_a_launch_in_which_none_fails_says_and_asks_nothing(capfd):
    runs = [launch(call_often, num_calls, world_size=2, backend="gloo") for num_calls in (3, recorder._MOST_AT_END + 1)]
    assert [run.results for run in runs] == [[1, 1]] * 2
    few, many = ([outcome.calls for outcome in run._supervisor.outcomes] for run in runs)
    assert many == [None, None]  # reading so many would take a while
    assert [[each.number for each in calls.collectives] for calls in few] == [[1, 2, 3]] * 2
    assert "ollective" not in capfd.readouterr().out


def exchange_and_count():
    """Return the messages not done after one exchange, and whether a note keeps a tensor alive."""
    import gc
    import weakref

    other = 1 - dist.get_rank()
    x = torch.ones(4)
    works = [dist.isend(x, other), dist.irecv(torch.ones(4), other)]
    before = len(recorder.now().messages)
    for work in works:
        work.wait()
    after, kept = recorder.now(), weakref.ref(x)
    del x, works, work
    gc.collect()
    return before, len(after.messages), dict(after.counts), kept() is None


def add_mixed():
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if dist.get_rank() else torch.float32))


def test_a_collective_that_gave_nonsense_without_an_error_is_told(capfd):
    launch(add_mixed, world_size=2, backend="gloo")
    said = " ".join(capfd.readouterr().out.split())
    told = (
        "Collective 1 was all_reduce of (4,) float32 on rank 0 and all_reduce of (4,) int32 on rank 1. No rank noticed"
    )
    assert told in said


def call_every_kind():
    """What ranks may do differently in collectives that are right."""
    rank, size, x = dist.get_rank(), dist.get_world_size(), torch.ones(3)
    many = [torch.ones(3) for _ in range(size)]
    dist.broadcast(x, 1)
    dist.reduce(x, 2)
    dist.gather(x, many if rank == 0 else None, 0)
    dist.scatter(x, many if rank == 1 else None, 1)
    dist.all_gather(many, x)
    dist.reduce_scatter(x, many)
    dist.all_to_all_single(torch.ones(10), torch.ones(4 * (rank + 1)), [1, 2, 3, 4], [rank + 1] * 4)
    dist.all_gather_object([None] * size, "x" * rank)
    dist.gather_object("x" * 100 * rank, [None] * size if rank == 0 else None, 0)
    dist.scatter_object_list([None], ["x" * i for i in range(size)] if rank == 0 else None, 0)
    dist.all_reduce(torch.ones(2, 3) if rank else torch.ones(6))
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.all_reduce(torch.ones(1 + rank // 2), group=pairs[rank // 2])
    dist.all_reduce(torch.sparse_coo_tensor([[rank]], [1.0], (8,)))
    dist.barrier()


def test_nothing_is_told_of_collectives_that_may_differ(capfd):
    launch(call_every_kind, world_size=4, backend="gloo")
    assert "Collective" not in capfd.readouterr().out


def test_messages_are_counted_and_let_go():
    for rank, told in enumerate(launch(exchange_and_count, world_size=2, backend="gloo")):
        counts = {(kind, 1 - rank, "0", 0): 1 for kind in ("send", "recv")}
        assert told == (2, 0, counts, True)


def log_seconds():
    for step in range(5):
        slow = dist.get_rank() == 1 and step > 1
        log(compute_s=0.2 if slow else 0.1, noise_s=9.0 if step == 2 and dist.get_rank() == 0 else 0.1)


def test_stragglers_are_those_whose_usual_step_is_slow():
    run = launch(log_seconds, world_size=3, backend="gloo")
    assert run.stragglers("compute_s") == [1] and run.stragglers("noise_s") == []
    assert run.stragglers("compute_s", factor=2.5) == []
    with pytest.raises(KeyError):
        run.stragglers("step_s")


# ---- what is certain

WORLD = Group("0", "gloo", (0, 1, 2), is_default=True)


def called(number, ran="all_reduce", shape=(3,), is_done=False, began=100.0, group=WORLD, **more):
    return Collective(ran, group, number, (shape,), "float32", is_done, began, ran, **more)


def outcomes(*calls, returned=(), at=102.0, members=WORLD.ranks, **more):
    return [
        Outcome(
            rank, returned=rank in returned, told=Calls(at, ("29500", 1), tuple(each), {"0": members}, True, **more)
        )
        for rank, each in enumerate(calls)
    ]


def test_a_rank_that_may_have_called_it_meanwhile_is_not_behind():
    ahead = [called(1)], [called(1)], []
    assert [type(each) for each in agreement.findings(outcomes(*ahead))] == [Behind]
    assert not agreement.findings(outcomes(*ahead, at=100.3))
    (found,) = agreement.findings(outcomes(*ahead, at=100.3, returned=[2]))  # it calls nothing any more
    assert found.way is Way.RETURNED


def test_a_rank_of_which_too_little_is_known_is_not_behind():
    known = outcomes([called(1)], [called(1)], [])
    known[2].told = dataclasses.replace(known[2].calls, is_whole=False)
    assert not agreement.findings(known)
    known[2].told = None
    assert not agreement.findings(known)


def test_ranks_that_name_different_groups_alike_are_not_compared():
    known = outcomes([called(1)], [called(1, "broadcast")], [])
    known[1].told = dataclasses.replace(known[1].calls, members={"0": (1, 2)})
    assert not agreement.findings(known)


def test_ranks_of_which_one_has_joined_another_default_group_are_not_compared():
    known = outcomes([called(1)], [called(1)], [])
    known[2].told = dataclasses.replace(known[2].calls, epoch=("29500", 2))
    assert not agreement.findings(known)


def test_what_may_differ_is_no_difference():
    assert not agreement.findings(outcomes(*([called(1, "all_to_all", (n,))] for n in (1, 2, 3))))
    assert not agreement.findings(
        outcomes([called(1, shape=(6,))], [called(1, shape=(2, 3))], [called(1, shape=(6, 1))])
    )
    assert agreement.findings(outcomes(*([called(1, "all_gather", (n,))] for n in (1, 2, 2))))
    nccl = dataclasses.replace(WORLD, backend="nccl")
    assert not agreement.findings(outcomes(*([called(1, "all_gather", (n,), group=nccl)] for n in (1, 2, 2))))


def test_a_rank_that_has_returned_is_in_no_collective():
    """Gloo notes that one has finished a moment after it has."""
    assert not agreement.findings(outcomes([called(1)], [], [called(1)], returned=[0, 1, 2]))


def test_only_the_first_collective_that_some_have_not_called_is_told():
    ranks = [called(1, is_done=True), called(2)], [called(1, is_done=True), called(2), called(3)], []
    (found,) = agreement.findings(outcomes(*ranks))
    assert (found.ranks, {each.number for each in found.ahead.values()}) == ((2,), {2})


def test_a_message_may_go_to_a_rank_that_receives_from_any():
    message = Message("send", 1, WORLD, 0, 1, (3,), "float32", began=100.0)
    known = outcomes([], [], [])
    known[0].told = dataclasses.replace(known[0].calls, messages=(message,))
    assert [type(each) for each in agreement.findings(known)] == [Unmatched]
    for key in (("recv", None, "0", 0), ("recv", 0, "0", 0)):
        known[1].told = dataclasses.replace(known[1].calls, counts={key: 1})
        assert not agreement.findings(known)
    known[1].told = dataclasses.replace(known[1].calls, counts={("recv", 0, "0", 1): 1})  # another tag
    assert agreement.findings(known)
