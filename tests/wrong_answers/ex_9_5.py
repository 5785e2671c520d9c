"""Exercise 9.5: answers that its check must refuse, each with words from the reason that it must give."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F


def sends_every_time(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    for x, y in micro_batches:
        (F.cross_entropy(ddp_model(x), y) / len(micro_batches)).backward()
    optimizer.step()


def never_sends(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    with ddp_model.no_sync():
        for x, y in micro_batches:
            (F.cross_entropy(ddp_model(x), y) / len(micro_batches)).backward()
    optimizer.step()


def leaves_the_forward_pass_outside(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        loss = F.cross_entropy(ddp_model(x), y) / len(micro_batches)
        with ddp_model.no_sync() if i < len(micro_batches) - 1 else nullcontext():
            loss.backward()
    optimizer.step()


def adds_up_means(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        with ddp_model.no_sync() if i < len(micro_batches) - 1 else nullcontext():
            F.cross_entropy(ddp_model(x), y).backward()
    optimizer.step()


def never_clears(ddp_model, optimizer, micro_batches):
    for i, (x, y) in enumerate(micro_batches):
        with ddp_model.no_sync() if i < len(micro_batches) - 1 else nullcontext():
            (F.cross_entropy(ddp_model(x), y) / len(micro_batches)).backward()
    optimizer.step()


def clears_for_each_micro_batch(ddp_model, optimizer, micro_batches):
    for i, (x, y) in enumerate(micro_batches):
        optimizer.zero_grad()
        with ddp_model.no_sync() if i < len(micro_batches) - 1 else nullcontext():
            (F.cross_entropy(ddp_model(x), y) / len(micro_batches)).backward()
    optimizer.step()


def steps_for_each_micro_batch(ddp_model, optimizer, micro_batches):
    for i, (x, y) in enumerate(micro_batches):
        optimizer.zero_grad()
        with ddp_model.no_sync() if i < len(micro_batches) - 1 else nullcontext():
            (F.cross_entropy(ddp_model(x), y) / len(micro_batches)).backward()
        optimizer.step()


def forgets_the_step(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        with ddp_model.no_sync() if i < len(micro_batches) - 1 else nullcontext():
            (F.cross_entropy(ddp_model(x), y) / len(micro_batches)).backward()


def sends_the_first_instead_of_the_last(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        with ddp_model.no_sync() if i > 0 else nullcontext():
            (F.cross_entropy(ddp_model(x), y) / len(micro_batches)).backward()
    optimizer.step()


def scales_the_last_only(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    *silent, (x, y) = micro_batches
    with ddp_model.no_sync():
        for x_, y_ in silent:
            F.cross_entropy(ddp_model(x_), y_).backward()
    (F.cross_entropy(ddp_model(x), y) / len(micro_batches)).backward()
    optimizer.step()


def skips_the_silent_ones(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    x, y = micro_batches[-1]
    F.cross_entropy(ddp_model(x), y).backward()
    optimizer.step()


def divides_by_ranks_as_well(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        with ddp_model.no_sync() if i < len(micro_batches) - 1 else nullcontext():
            (F.cross_entropy(ddp_model(x), y) / len(micro_batches) / dist.get_world_size()).backward()
    optimizer.step()


def counts_on_four(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        with ddp_model.no_sync() if i < len(micro_batches) - 1 else nullcontext():
            (F.cross_entropy(ddp_model(x), y) / 4).backward()
    optimizer.step()


def averages_by_hand(ddp_model, optimizer, micro_batches):
    optimizer.zero_grad()
    with ddp_model.no_sync():
        for x, y in micro_batches:
            (F.cross_entropy(ddp_model(x), y) / len(micro_batches)).backward()
    for p in ddp_model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()


WRONG = [
    (sends_every_time, "averaged gradients 4 times for 4 micro-batches"),
    (never_sends, "are all their gradients averaged?"),
    (leaves_the_forward_pass_outside, "the forward pass included"),
    (adds_up_means, "step 0 is 4 times as long"),
    (never_clears, "after step 1 the parameters differ"),
    (clears_for_each_micro_batch, "does every micro-batch count"),
    (steps_for_each_micro_batch, "the optimizer made 4 steps"),
    (forgets_the_step, "the optimizer made 0 steps"),
    (sends_the_first_instead_of_the_last, "are all their gradients averaged?"),
    (scales_the_last_only, "and each alike?"),
    (skips_the_silent_ones, "does every micro-batch count"),
    (divides_by_ranks_as_well, "from one step on the whole batch"),
    (counts_on_four, "not the first, and has 3 micro-batches"),
    (averages_by_hand, "but DDP sent nothing"),
]


def clears_at_the_end(ddp_model, optimizer, micro_batches):
    for i, (x, y) in enumerate(micro_batches, start=1):
        with nullcontext() if i == len(micro_batches) else ddp_model.no_sync():
            F.cross_entropy(ddp_model(x), y).div(len(micro_batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def scales_the_gradients(ddp_model, optimizer, micro_batches):
    ddp_model.zero_grad(set_to_none=False)
    with ddp_model.no_sync():
        for x, y in micro_batches[:-1]:
            F.cross_entropy(ddp_model(x), y).backward()
    x, y = micro_batches[-1]
    F.cross_entropy(ddp_model(x), y).backward()
    with torch.no_grad():
        for p in ddp_model.parameters():
            p.grad /= len(micro_batches)
    optimizer.step()


def weights_by_samples(ddp_model, optimizer, micro_batches):
    num_samples = sum(len(y) for _, y in micro_batches)
    optimizer.zero_grad()
    for number, (x, y) in enumerate(micro_batches):
        ddp_model.require_backward_grad_sync = number + 1 == len(micro_batches)
        (F.cross_entropy(ddp_model(x), y, reduction="sum") / num_samples).backward()
    optimizer.step()


RIGHT = [clears_at_the_end, scales_the_gradients, weights_by_samples]
