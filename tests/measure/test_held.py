"""What autograd holds for the backward pass, over time."""

import torch
from torch import nn

from course_utils.measure.held import Held


def test_held_bytes_rise_with_each_forward_and_fall_with_each_backward():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    xs, outputs, after = torch.randn(3, 4, 8).unbind(), [], []
    with Held(net) as held:
        for x in xs:
            outputs.append(net(x.requires_grad_()))
            after.append(held.curve[-1][1])
        while outputs:
            outputs.pop().backward(torch.ones(4, 8))
            after.append(held.curve[-1][1])
    one = 3 * 4 * 8 * 4  # the input and two outputs of ReLU, each kept once
    assert after == [one, 2 * one, 3 * one, 2 * one, one, 0]
    assert [seconds for seconds, _ in held.curve] == sorted(seconds for seconds, _ in held.curve)
