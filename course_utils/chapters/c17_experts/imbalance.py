"""The time of a step whose visits are divided unevenly over the experts of two ranks."""

import torch
import torch.distributed as dist

from ...hardware import rank_device
from ...measure import throughput
from ...models import MLP
from ...parallel import experts


def time_shares(shares, rounds):
    """Time steps on two ranks, each with one expert and as many tokens; return ({share: Timing}, {share: Timing}).

    A step is dispatch, an MLP and combine, forward and backward. Of each rank's tokens, `share` visit rank 0's expert,
    the others rank 1's. At every share the number of visits is the same, and so are the bytes that a rank sends in a
    step; the busiest rank's visits and the larger message of each all-to-all grow with the share. The second times, for
    the first and the last share, are of the MLP alone, on each rank's rows of that step, without messages.
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

    def make_alone(share):
        visits = round(2 * share * num_tokens)
        num_rows = visits if dist.get_rank() == 0 else 2 * num_tokens - visits
        x = torch.randn(num_rows, width, device=device, requires_grad=True)
        return lambda: mine(x).sum().backward()

    ends = shares[0], shares[-1]
    steps = {(share, "step"): make_step(share) for share in shares} | {
        (share, "MLP"): make_alone(share) for share in ends
    }
    timed = throughput.in_turn(steps, rounds)
    return {share: timed[share, "step"] for share in shares}, {share: timed[share, "MLP"] for share in ends}


def routing_of(share, num_tokens, device="cpu"):
    """Return a Routing of `num_tokens` tokens, the first `share` of them to expert 0, the others to expert 1."""
    chosen = (torch.arange(num_tokens, device=device) >= share * num_tokens).long()[:, None]
    ones = torch.ones(num_tokens, 1, device=device)
    return experts.Routing(chosen, ones, ones.bool(), ones.expand(-1, 2))
