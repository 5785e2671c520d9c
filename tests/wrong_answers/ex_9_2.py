"""Exercise 9.2: answers that its check must refuse, each with words from the reason that it must give."""

import hashlib
import io

import torch
import torch.distributed as dist


def flatten(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gather(mine):
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return everyone


def odd_one(values):
    for rank, value in enumerate(values):
        if all(value != other for r, other in enumerate(values) if r != rank):
            return rank


def compares_sums(model):
    total = sum(p.detach().double().sum() for p in model.parameters())
    return odd_one([value.item() for value in gather(total)])


def compares_norms(model):
    return odd_one([value.item() for value in gather(flatten(model).norm())])


def compares_the_first_parameter(model):
    return odd_one([value.tolist() for value in gather(next(model.parameters()).detach())])


def compares_roughly(model):
    everyone = gather(flatten(model))
    for rank, one in enumerate(everyone):
        if sum(torch.allclose(one, other) for other in everyone) == 1:
            return rank


def compares_with_rank_0(model):
    everyone = gather(flatten(model))
    for rank, one in enumerate(everyone):
        if not torch.equal(one, everyone[0]):
            return rank


def compares_in_float32(model):
    return odd_one([value.tolist() for value in gather(flatten(model).float())])


def rounds_to_ten_digits(model):
    return odd_one([[round(number, 10) for number in value.tolist()] for value in gather(flatten(model))])


def only_rank_0_looks(model):
    everyone = gather(flatten(model))
    if dist.get_rank() == 0:
        return odd_one([value.tolist() for value in everyone])


def the_odd_one_names_itself(model):
    everyone = gather(flatten(model))
    agreeing = sum(torch.equal(one, everyone[dist.get_rank()]) for one in everyone)
    return dist.get_rank() if agreeing == 1 else None


def returns_minus_one_for_none(model):
    odd = odd_one([value.tolist() for value in gather(flatten(model))])
    return -1 if odd is None else odd


def returns_yes_or_no(model):
    return odd_one([value.tolist() for value in gather(flatten(model))]) is not None


def names_the_most_distant(model):
    everyone = gather(flatten(model))
    mean = sum(everyone) / len(everyone)
    return max(range(len(everyone)), key=lambda rank: (everyone[rank] - mean).abs().max())


def overwrites_with_rank_0(model):
    mine = flatten(model)
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    differs = [value.item() for value in gather((mine != flatten(model)).any())]
    if sum(differs) > 1:
        return 0
    return differs.index(True) if any(differs) else None


def gathers_on_rank_0_only(model):
    if dist.get_rank() == 0:
        return odd_one([value.tolist() for value in gather(flatten(model))])


def compares_tensors_as_truths(model):
    everyone = gather(flatten(model))
    return odd_one(everyone)


WRONG = [
    (compares_sums, "so that their sum is right"),
    (compares_norms, "so that their sum is right"),
    (compares_the_first_parameter, "are all parameters compared"),
    (compares_roughly, "and exactly?"),
    (compares_with_rank_0, "where rank 0 is the odd one, the answer was 1"),
    (compares_in_float32, "is anything rounded"),
    (rounds_to_ten_digits, "is anything rounded"),
    (only_rank_0_looks, "they must agree"),
    (the_odd_one_names_itself, "they must agree"),
    (returns_minus_one_for_none, "where all ranks are alike, the answer was -1"),
    (returns_yes_or_no, "neither a whole number nor None"),
    (names_the_most_distant, "where all ranks are alike"),
    (overwrites_with_rank_0, "looking must not change them"),
    (gathers_on_rank_0_only, "ranks 1–3 had returned while rank 0 was in all_gather"),
    (compares_tensors_as_truths, "if all(value != other for r, other in enumerate(values) if r != rank)"),
]


def hashes_bytes(model):
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    return next((rank for rank, one in enumerate(digests) if digests.count(one) == 1), None)


def saves_and_counts(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    files = [None] * dist.get_world_size()
    dist.all_gather_object(files, file.getvalue())
    counts = [files.count(one) for one in files]
    return None if set(counts) == {len(files)} else counts.index(1)


def asks_each_rank_in_turn(model):
    mine, rank, size = flatten(model), dist.get_rank(), dist.get_world_size()
    for source in range(size):
        theirs = mine.clone()
        dist.broadcast(theirs, src=source)
        apart = torch.tensor(int(not torch.equal(mine, theirs)))
        dist.all_reduce(apart)  # how many ranks differ from `source`
        if apart == size - 1:
            return source


RIGHT = [hashes_bytes, saves_and_counts, asks_each_rank_in_turn]


def receives_before_it_sends(model):
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = flatten(model)
    theirs = torch.empty_like(mine)
    dist.recv(theirs, src=(rank - 1) % size)
    dist.send(mine, dst=(rank + 1) % size)
    return None if torch.equal(mine, theirs) else rank


ENDLESS = [(receives_before_it_sends, "ranks 0–3 were in recv at")]
