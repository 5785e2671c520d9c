"""Chapter 10: how many bytes arrive, which gather runs beside which layer, and what costs.py counts and compares."""

from collections import Counter

import matplotlib
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from course_utils import launch
from course_utils.chapters.c10_fully_sharded import costs, figures, gathers
from course_utils.chapters.c10_fully_sharded.arrived import Arrived
from course_utils.measure.throughput import Timing
from course_utils.parallel import messages

matplotlib.use("agg")
N = 3


def calls():
    """{name: a collective or message}; a part has 6 numbers of 4 bytes, a whole 18."""
    rank, part, whole = dist.get_rank(), torch.zeros(6), torch.zeros(18)

    def parts(root):
        return [torch.zeros(6) for _ in range(N)] if rank == root else None

    def send_to_the_next():
        works = [dist.isend(part, (rank + 1) % N), dist.irecv(torch.zeros(6), (rank - 1) % N)]
        for work in works:
            work.wait()

    mesh = init_device_mesh("cpu", (N,))
    cut = distribute_tensor(torch.zeros(6, 6), mesh, [Shard(0)])
    return {
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part),
        "all-gather of a list": lambda: dist.all_gather(list(whole.chunk(N)), part),
        "all-gather of a DTensor": cut.full_tensor,
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all-reduce": lambda: dist.all_reduce(whole),
        "gather": lambda: dist.gather(part, parts(1), dst=1),
        "scatter": lambda: dist.scatter(part, parts(1), src=1),
        "broadcast": lambda: dist.broadcast(part, 2),
        "reduce": lambda: dist.reduce(part, 2),
        "all-to-all": lambda: dist.all_to_all_single(torch.zeros(18), whole),
        "uneven all-to-all": lambda: dist.all_to_all_single(
            torch.zeros(3 * (rank + 1)), part, [rank + 1] * N, [1, 2, 3]
        ),
        "messages": send_to_the_next,
    }


def count_and_watch():
    counted = {}
    for name, call in calls().items():
        with Arrived() as arrived:
            call()
        counted[name] = arrived.num_bytes
    orders, big = [], torch.zeros(250_000)
    for is_explicit in (False, True):
        model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 4))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        for layer, following in zip(model[:-1], model[1:]) if is_explicit else ():
            layer.set_modules_to_forward_prefetch([following])
        orders.append(gathers.watch_gathers(model, torch.rand(2, 5)))
    timed = costs.time_collectives({"all-reduce": lambda: dist.all_reduce(big), "nothing": lambda: None}, 2)
    counts = {name: (num_bytes, len(timing.seconds)) for name, (num_bytes, timing) in timed.items()}
    return counted, orders, counts, beside(), [reduced(op) for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)]


def beside():
    """What `costs.time_beside` times, how often, and {bytes: how many messages} of two units of 32 numbers, padded."""
    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 4))  # 64 numbers
    with messages.Traffic() as traffic:
        timed = costs.time_beside(model, torch.rand(2, 5), rounds=1, num_units=2)
    sizes = Counter(size for name, size in traffic.collectives if name != "barrier")
    return {name: len(timing.seconds) for name, timing in timed.items()}, dict(sizes)


def reduced(op):
    """The two shards of a reduce-scatter, the library's and one of `costs.ReduceScatter`."""

    def send(shard, whole):
        total = whole.clone()
        dist.all_reduce(total)
        shard.copy_(total.chunk(N)[dist.get_rank()])

    whole, theirs = torch.arange(6.0) * (1 + dist.get_rank()), torch.empty(2)
    scatter = costs.ReduceScatter(send)
    ours = scatter.allocate((2,), dtype=whole.dtype, device=whole.device)
    scatter(ours, whole, dist.group.WORLD, op)
    dist.reduce_scatter_tensor(theirs, whole, op=op)
    return ours, theirs


@pytest.fixture(scope="module")
def seen():
    return launch(count_and_watch, world_size=N)


def test_what_arrives_is_counted_to_the_byte(seen):
    assert [each[0] for each in seen] == [
        {
            "all-gather": 48,
            "all-gather of a list": 48,
            "all-gather of a DTensor": 96,
            "reduce-scatter": 48,
            "all-reduce": 96,
            "gather": 48 * (rank == 1),
            "scatter": 24 * (rank != 1),
            "broadcast": 24 * (rank != 2),
            "reduce": 48 * (rank == 2),
            "all-to-all": 48,
            "uneven all-to-all": 8 * (rank + 1),
            "messages": 24,
        }
        for rank in range(N)
    ]


def test_backward_passes_run_beside_the_next_layers_gather_and_forward_passes_if_told(seen):
    default, explicit = seen[0][1]
    assert gathers.beside(default, "forward") == []
    assert gathers.beside(explicit, "forward") == [(0, 1), (1, 2)]
    for events in (default, explicit):
        assert gathers.beside(events, "backward") == [(2, 1), (1, 0)]
        assert [unit for event, unit in events if event == "gather"] == [0, 1, 2, 2, 1, 0]
        sent, computing = gathers.spans(events)
        begins = {(unit, which): begin for begin, _, unit, which in computing}
        arrivals = [arrived for _, arrived, _ in sent]
        assert all(arrived <= begins[u, "forward"] for arrived, u in zip(arrivals, (0, 1, 2)))
        assert all(arrived <= begins[u, "backward"] for arrived, u in zip(arrivals[3:], (2, 1, 0)))
        assert len(sent) == 6 and len(computing) == 6


def test_the_figure_names_each_unit_in_both_rows(seen, monkeypatch):
    shown = []
    monkeypatch.setattr(figures, "show", lambda figure, alt: shown.append(figure))
    figures.gathers_beside_layers(dict(zip(("default", "explicit"), seen[0][1])), "Two orders.")
    assert [axes.get_title(loc="left") for axes in shown[0].axes] == ["default", "explicit"]
    for axes in shown[0].axes:
        assert [text.get_text() for text in axes.texts] == [*"012210"] * 2
    matplotlib.pyplot.close(shown[0])


def test_what_travels_is_counted_for_all_ranks_together(seen):
    for _, _, counts, *_ in seen:
        (num_bytes, rounds), (idle, _) = counts["all-reduce"], counts["nothing"]
        assert rounds == 2
        assert num_bytes == pytest.approx(2 * (N - 1) * 1_000_000, rel=0.05)  # 2(N - 1)/N from each of N ranks
        assert idle < 20_000  # barriers


def test_messages_beside_computation_are_a_steps_and_the_same_in_every_way(seen):
    """Each unit is gathered and reduced once, in a warm-up and a round, in the three ways that send."""
    for *_, (rounds, sizes), _ in seen:
        assert rounds == dict.fromkeys(
            ("messages alone", "computation alone", "one after the other", "both at once"), 1
        )
        assert sizes == {4 * 33: 3 * 2 * 2, 4 * 11: 3 * 2 * 2}


def test_a_reduce_scatter_of_our_own_sums_and_averages_as_the_librarys(seen):
    for *_, pairs in seen:
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs)


def test_a_change_is_the_median_of_differences_and_an_uncertain_sign_is_said(capsys):
    timings = {
        "a": Timing((0.010, 0.020, 0.030)),
        "b": Timing((0.011, 0.022, 0.033)),
        "c": Timing((0.009, 0.021, 0.030)),
    }
    costs.print_changes(timings, {"sure": ("a", "b"), "unsure": ("a", "c")})
    sure, unsure = capsys.readouterr().out.splitlines()
    assert "+2.0 ms (half of the rounds: +1.5 to +2.5)" in sure
    assert "+0.0 ms" in unsure and unsure.endswith("so the sign is uncertain)")


def test_a_balance_states_what_its_parts_leave_over(capsys):
    timings = {
        "a": Timing((0.010, 0.020, 0.030)),
        "b": Timing((0.011, 0.022, 0.039)),
        "c": Timing((0.012, 0.028, 0.040)),
    }
    costs.print_balance(timings, ["one", "two"])
    one, two, parts, total, rest = capsys.readouterr().out.splitlines()
    assert [float(line.partition(" ms")[0].split()[-1]) for line in (one, two, parts, total, rest)] == [2, 1, 3, 8, 5]
    assert total.startswith("c, against a") and rest.startswith("not explained")
