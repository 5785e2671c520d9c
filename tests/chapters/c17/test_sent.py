"""The bytes that leave a rank: with and without counts, both ways, of torch's and the course's all-to-all."""

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single

from course_utils import launch
from course_utils.chapters.c17_experts.sent import Sent
from course_utils.parallel.experts import all_to_all

COUNTS = [[1, 0, 4], [2, 3, 0], [0, 0, 0]]  # rows from rank to rank; rank 2 has none


def count():
    rank = dist.get_rank()
    send, receive = COUNTS[rank], [row[rank] for row in COUNTS]
    found = []
    for way in (
        lambda x: all_to_all(x, send, receive),
        lambda x: all_to_all_single(x, receive, send, dist.group.WORLD),
    ):
        x = torch.ones(sum(send), 5, dtype=torch.float64, requires_grad=True)
        with Sent() as sent:
            way(x).sum().backward()
        found.append((sent.all_to_alls, sent.all_reduces))
    with Sent() as sent:
        dist.all_to_all_single(torch.empty(6, 2), torch.ones(6, 2))  # equal pieces
        dist.all_reduce(torch.ones(9))
        dist.barrier()
    return found, (sent.all_to_alls, sent.all_reduces, sent.num_bytes)


def test_rows_for_oneself_do_not_count_and_gradients_travel_back():
    row = 5 * 8  # bytes
    for rank, (found, equal) in enumerate(launch(count, world_size=3, backend="gloo")):
        out = sum(COUNTS[rank]) - COUNTS[rank][rank]
        back = sum(each[rank] for each in COUNTS) - COUNTS[rank][rank]
        assert found == [([out * row, back * row], [])] * 2, rank
        assert equal == ([4 * 2 * 4], [2 * 2 * 36 // 3], 32 + 48)
