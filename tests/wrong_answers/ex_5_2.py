"""Exercise 5.2: answers that its check must refuse, each with words from the reason that it must give."""

import itertools

import torch


def gives_names_to_new_tensors(tensors):
    total = sum(tensor.to(tensors[0].device) for tensor in tensors)
    for tensor in tensors:
        tensor = total.to(tensor.device)


def replaces_the_list(tensors):
    total = sum(tensor.to(tensors[0].device) for tensor in tensors)
    for i, tensor in enumerate(tensors):
        tensors[i] = total.to(tensor.device, copy=True)


def returns_the_sum(tensors):
    return sum(tensor.to(tensors[0].device) for tensor in tensors)


def averages(tensors):
    total = sum(tensor.to(tensors[0].device) for tensor in tensors)
    for tensor in tensors:
        tensor.copy_(total / len(tensors))


def sums_on_the_first_only(tensors):
    for tensor in tensors[1:]:
        tensors[0] += tensor.to(tensors[0].device)


def knows_two_only(tensors):
    if len(tensors) > 1:
        first, second, *_ = tensors
        first += second.to(first.device)
        second.copy_(first)


def sends_before_it_is_complete(tensors):
    for tensor in tensors[1:]:
        tensors[0] += tensor.to(tensors[0].device)
        tensor.copy_(tensors[0])


def adds_to_everyone_in_turn(tensors):
    for tensor in tensors:
        for other in tensors:
            if other is not tensor:
                tensor += other.to(tensor.device)


def shares_memory(tensors):
    total = sum(tensor.to(tensors[0].device) for tensor in tensors)
    for tensor in tensors:
        tensor.data = total.to(tensor.device)


def counts_the_first_twice(tensors):
    total = tensors[0]
    for tensor in tensors:
        total += tensor.to(total.device)
    for tensor in tensors:
        tensor.copy_(total)


def forgets_to_move(tensors):
    total = torch.stack(tensors).sum(0)
    for tensor in tensors:
        tensor.copy_(total)


def leaves_out_the_last(tensors):
    for tensor in tensors[1:-1]:
        tensors[0] += tensor.to(tensors[0].device)
    for tensor in tensors[1:]:
        tensor.copy_(tensors[0])


def does_nothing(tensors):
    pass


def gives_each_new_memory(tensors):
    total = sum(tensor.to(tensors[0].device) for tensor in tensors)
    for tensor in tensors:
        tensor.set_(total.to(tensor.device, copy=True))


def adds_up_in_float32(tensors):
    total = torch.zeros(tensors[0].shape, device=tensors[0].device)
    for tensor in tensors:
        total += tensor.to(total.device)
    for tensor in tensors:
        tensor.copy_(total)


def writes_into_flat_copies(tensors):
    flat = [tensor.reshape(-1) for tensor in tensors]
    total = sum(tensor.to(flat[0].device) for tensor in flat)
    for tensor in flat:
        tensor.copy_(total)


def reduces_neighbours(tensors):
    for a, b in itertools.pairwise(tensors):
        a += b.to(a.device)
        b.copy_(a)


def takes_the_first_out(tensors):
    first = tensors.pop(0)
    for tensor in tensors:
        first += tensor.to(first.device)
    for tensor in tensors:
        tensor.copy_(first)


def goes_through_numpy_on_any_device(tensors):
    total = sum(tensor.numpy() for tensor in tensors)
    for tensor in tensors:
        tensor.copy_(torch.as_tensor(total))


WRONG = [
    (gives_names_to_new_tensors, "all tensors are as they were"),
    (replaces_the_list, "the list has other tensors in it now"),
    (returns_the_sum, "all tensors are as they were"),
    (averages, "that is the mean"),
    (sums_on_the_first_only, "only the first holds the sum"),
    (knows_two_only, "3 tensors of shape (4, 3)"),
    (sends_before_it_is_complete, "number 1 is not the sum"),
    (adds_to_everyone_in_turn, "was one changed before another had read it"),
    (shares_memory, "lies elsewhere in memory now"),
    (counts_the_first_twice, "is not the sum of what all held at first"),
    (forgets_to_move, "fails on 3 GPUs"),
    (leaves_out_the_last, "number 0 is as it was"),
    (does_nothing, "all tensors are as they were"),
    (gives_each_new_memory, "lies elsewhere in memory now"),
    (adds_up_in_float32, "with which dtype was it added"),
    (writes_into_flat_copies, "3 tensors of shape (4, 3): all tensors are as they were"),
    (reduces_neighbours, "the last is right, the first is not"),
    (takes_the_first_out, "the list has other tensors in it now"),
    (goes_through_numpy_on_any_device, "has no numpy()"),
]


def adds_up_a_copy(tensors):
    total = torch.zeros_like(tensors[-1])
    for tensor in tensors:
        total = total + tensor.to(total.device)
    for tensor in tensors:
        tensor[...] = total.to(tensor.device)
    return tensors


def goes_round_a_ring(tensors):
    for i in range(len(tensors) - 1):
        tensors[i + 1].add_(tensors[i].to(tensors[i + 1].device))
    for tensor in tensors[:-1]:
        tensor.copy_(tensors[-1])


def climbs_a_tree(tensors):
    step = 1
    while step < len(tensors):
        for i in range(0, len(tensors) - step, 2 * step):
            tensors[i] += tensors[i + step].to(tensors[i].device)
        step *= 2
    for tensor in tensors[1:]:
        tensor.copy_(tensors[0])


def everyone_asks_everyone(tensors):
    old = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.zero_()
        for other in old:
            tensor += other.to(tensor.device)


def goes_through_numpy_on_the_cpu(tensors):
    total = sum(tensor.cpu().numpy() for tensor in tensors)
    for tensor in tensors:
        tensor.copy_(torch.as_tensor(total))


RIGHT = [adds_up_a_copy, goes_round_a_ring, climbs_a_tree, everyone_asks_everyone, goes_through_numpy_on_the_cpu]
