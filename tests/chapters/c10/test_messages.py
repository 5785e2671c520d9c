"""Chapter 10: how many bytes arrive, which gather runs beside which layer, and what the loops of costs.py send."""

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
from course_utils.parallel.messages import Traffic

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
    orders = []
    for is_explicit in (False, True):
        model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 4))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        for layer, following in zip(model[:-1], model[1:]) if is_explicit else ():
            layer.set_modules_to_forward_prefetch([following])
        orders.append(gathers.watch_gathers(model, torch.rand(2, 5)))
    with Traffic() as traffic:
        costs.messages(torch.zeros(100), 8, 2)()
        for work in costs.messages(torch.zeros(100), 1, 1)(async_op=True):
            work.wait()
    timed = costs.time_beside(nn.Linear(5, 6), torch.rand(2, 5), rounds=2)
    return counted, orders, traffic.collectives, {name: len(timing.seconds) for name, timing in timed.items()}


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


def test_the_loops_send_all_of_the_parameters_in_each_gather_and_reduction(seen):
    for _, _, collectives, _ in seen:
        assert len(collectives) == 8 * 3 + 2
        gathered = sum(num_bytes for name, num_bytes in collectives[:24] if "gather" in name)
        assert gathered == 2 * 8 * (100 // 8 // N * N) * 4  # two gathers of 8 pieces
        assert [num_bytes for _, num_bytes in collectives[24:]] == [99 * 4, 33 * 4]


def test_both_are_timed_apart_and_at_the_same_time(seen):
    names = "{} messages", "{} messages, then computation", "{} messages beside it"
    assert set(seen[0][3]) == {"computation", *(name.format(n) for name in names for n in (2, 16))}
    assert set(seen[0][3].values()) == {2}


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


def test_curves_are_over_the_number_of_messages_in_ms():
    timings = {(n, g): Timing((0.001 * n * g,)) for n in costs.PIECES for g in costs.GATHERS}
    timings["all-reduce"] = Timing((0.5,))
    x, y, (low, high) = costs.curves(timings)["3 Ψ"]
    assert x == [3, 24, 192] and y == pytest.approx([2, 16, 128])
    assert low == y == high
