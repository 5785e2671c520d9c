"""The time of a step whose visits are divided unevenly over the experts of two ranks."""

import torch

from ...hardware import rank_device
from ...measure import throughput
from ...models import MLP
from ...parallel import experts


def time_shares(shares, rounds):
    """Time steps on two ranks, each with one expert and as many tokens; return ({share: Timing}, {rows: Timing}).

    A step is dispatch, an MLP and combine, forward and backward. Of each rank's tokens, `share` visit rank 0's expert,
    the others rank 1's. At every share the number of visits is the same, and so are the bytes that a rank sends in a
    step; the busiest rank's visits and the larger message of each all-to-all grow with the share. The second times are
    of the MLP alone, forward and backward, on as many rows as the busiest rank has at the first and at the last share.
    """
    device = rank_device()
    num_tokens, width = (512, 256) if device.type == "cpu" else (16384, 1024)  # a GPU needs more work
    torch.manual_seed(0)
    mine = MLP(width, 4 * width).to(device)

    def make_step(share):
        routing = routing_of(share, num_tokens, device)
        x = torch.randn(num_tokens, width, device=device, requires_grad=True)

        def step():
            rows, journey = experts.dispatch(x, routing)
            experts.combine(mine(rows), routing, journey).sum().backward()

        return step

    def make_alone(num_rows):
        x = torch.randn(num_rows, width, device=device, requires_grad=True)
        return lambda: mine(x).sum().backward()

    rows = [round(2 * share * num_tokens) for share in (shares[0], shares[-1])]
    steps = {share: make_step(share) for share in shares} | {each: make_alone(each) for each in rows}
    timed = throughput.in_turn(steps, rounds)
    return {share: timed[share] for share in shares}, {each: timed[each] for each in rows}


def routing_of(share, num_tokens, device="cpu"):
    """Return a Routing of `num_tokens` tokens, the first `share` of them to expert 0, the others to expert 1."""
    chosen = (torch.arange(num_tokens, device=device) >= share * num_tokens).long()[:, None]
    ones = torch.ones(num_tokens, 1, device=device)
    return experts.Routing(chosen, ones, ones.bool(), ones.expand(-1, 2))
