"""Exercise 4.4: answers that its check must refuse, each with words from the reason that it must give."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from course_utils.measure import memory


def apply_with(blocks, x, num_recomputed, **choices):
    for i, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False, **choices) if i < num_recomputed else block(x)
    return x


def held_by(blocks, x, num_recomputed):
    with memory.Activations(nn.Sequential(*blocks)) as held:
        y = apply_with(blocks, x, num_recomputed)
    return y, held.num_bytes


def recomputes_everything(blocks, x, budget_bytes):
    y, held = held_by(blocks, x, len(blocks))
    if held > budget_bytes:
        raise ValueError(held)
    return y


def recomputes_nothing(blocks, x, budget_bytes):
    return apply_with(blocks, x, 0)


def stops_one_too_early(blocks, x, budget_bytes):
    for k in range(len(blocks) + 1):
        _, held = held_by(blocks, x, k + 1)
        if held <= budget_bytes or k == len(blocks):
            return apply_with(blocks, x, k)


def never_gives_up(blocks, x, budget_bytes):
    for k in range(len(blocks) + 1):
        y, held = held_by(blocks, x, k)
        if held <= budget_bytes:
            break
    return y


def goes_in_one_piece(blocks, x, budget_bytes):
    for k in range(len(blocks) + 1):
        y, held = held_by(blocks, x, k)
        if held <= budget_bytes:
            if k == len(blocks):
                return checkpoint(nn.Sequential(*blocks), x, use_reentrant=False)
            return y
    raise ValueError(held)


def halves_always(blocks, x, budget_bytes):
    return checkpoint_sequential(blocks, 2, x, use_reentrant=False)


def cuts_the_graph(blocks, x, budget_bytes):
    with torch.no_grad():
        return apply_with(blocks, x, 0)


def cuts_between_blocks(blocks, x, budget_bytes):
    for block in blocks:
        x = block(x.detach())
    return x


def uses_the_reentrant_kind(blocks, x, budget_bytes):
    for k in range(len(blocks) + 1):
        y, held = held_by(blocks, x, k)
        if held <= budget_bytes:
            for i, block in enumerate(blocks):
                x = checkpoint(block, x, use_reentrant=True) if i < k else block(x)
            return x
    raise ValueError(held)


def forgets_to_return(blocks, x, budget_bytes):
    apply_with(blocks, x, len(blocks))


WRONG = [
    (recomputes_everything, "0 are enough"),
    (recomputes_nothing, "bytes were held when the forward pass was over"),
    (stops_one_too_early, "bytes were held when the forward pass was over"),
    (never_gives_up, "no ValueError said so"),
    (goes_in_one_piece, "how much is recomputed in one go?"),
    (halves_always, "0 are enough"),
    (cuts_the_graph, "cut off from the graph"),
    (cuts_between_blocks, "got no gradient"),
    (uses_the_reentrant_kind, "got no gradient"),
    (forgets_to_return, "the output of the last block is wanted"),
]


def the_last_ones(blocks, x, budget_bytes):
    for k in range(len(blocks) + 1):
        with memory.Activations(nn.ModuleList(blocks)) as held:
            y = x
            for i, block in enumerate(blocks):
                y = block(y) if i < len(blocks) - k else checkpoint(block, y, use_reentrant=False)
        if held.num_bytes <= budget_bytes:
            return y
    raise ValueError("there is no way to hold so little")


def from_two_measurements(blocks, x, budget_bytes):
    none, every = (held_by(blocks, x, k)[1] for k in (0, len(blocks)))
    if every > budget_bytes:
        raise ValueError(f"at least {every} bytes are held")
    saved = (none - every) / len(blocks)  # by each block
    too_much = max(0, none - budget_bytes)
    return apply_with(blocks, x, -int(-too_much // saved))


RIGHT = [the_last_ones, from_two_measurements]
