"""Exercise 10.2: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.distributed as dist


def _scale(shards, norm, max_norm):
    if norm > max_norm:
        for shard in shards:
            shard.grad *= max_norm / norm


def forgets_to_clip(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    optimizer.step()
    return square.sqrt().item()


def clips_by_its_own_norm(optimizer, shards, max_norm):
    norm = torch.nn.utils.clip_grad_norm_(shards, max_norm).item()
    optimizer.step()
    return norm


def clips_each_shard(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    for shard in shards:
        torch.nn.utils.clip_grad_norm_([shard], max_norm)
    optimizer.step()
    return square.sqrt().item()


def adds_norms(optimizer, shards, max_norm):
    norm = sum((shard.grad**2).sum() for shard in shards).sqrt()
    dist.all_reduce(norm)
    _scale(shards, norm, max_norm)
    optimizer.step()
    return norm.item()


def adds_the_shards_norms(optimizer, shards, max_norm):
    norm = sum(shard.grad.norm() for shard in shards)
    dist.all_reduce(norm)
    _scale(shards, norm, max_norm)
    optimizer.step()
    return norm.item()


def always_scales(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    norm = square.sqrt()
    for shard in shards:
        shard.grad *= max_norm / (norm + 1e-6)
    optimizer.step()
    return norm.item()


def divides_by_zero(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    norm = square.sqrt()
    for shard in shards:
        shard.grad = shard.grad / norm * norm.clamp(max=max_norm)
    optimizer.step()
    return norm.item()


def forgets_the_root(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    _scale(shards, square, max_norm)
    optimizer.step()
    return square.item()


def averages_squares(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square, op=dist.ReduceOp.AVG)
    norm = square.sqrt()
    _scale(shards, norm, max_norm)
    optimizer.step()
    return norm.item()


def steps_first(optimizer, shards, max_norm):
    optimizer.step()
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    norm = square.sqrt().item()
    _scale(shards, norm, max_norm)
    return norm


def forgets_the_step(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    norm = square.sqrt().item()
    _scale(shards, norm, max_norm)
    return norm


def returns_the_norm_afterwards(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    norm = square.sqrt().item()
    _scale(shards, norm, max_norm)
    optimizer.step()
    return min(norm, max_norm)


def returns_nothing(optimizer, shards, max_norm):
    returns_the_norm_afterwards(optimizer, shards, max_norm)


def only_if_its_own_is_long(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    own = square.sqrt()
    dist.all_reduce(square)
    norm = square.sqrt().item()
    if own > max_norm:
        _scale(shards, norm, max_norm)
    optimizer.step()
    return norm


def _norm(shards):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.all_reduce(square)
    return square.sqrt().item()


def adds_a_hundredth(optimizer, shards, max_norm):
    norm = _norm(shards)
    _scale(shards, norm + 0.01, max_norm)
    optimizer.step()
    return norm


def the_longest_rank_decides(optimizer, shards, max_norm):
    norm = sum((shard.grad**2).sum() for shard in shards).sqrt()
    dist.all_reduce(norm, op=dist.ReduceOp.MAX)
    _scale(shards, norm.item(), max_norm)
    optimizer.step()
    return norm.item()


def one_rank_alone_hears_the_norm(optimizer, shards, max_norm):
    square = sum((shard.grad**2).sum() for shard in shards)
    dist.reduce(square, 0)
    _scale(shards, square.sqrt().item(), max_norm)
    optimizer.step()
    return square.sqrt().item()


def clips_each_number(optimizer, shards, max_norm):
    norm = _norm(shards)
    for shard in shards:
        shard.grad.clamp_(-max_norm, max_norm)
    optimizer.step()
    return norm


def returns_the_square(optimizer, shards, max_norm):
    norm = _norm(shards)
    _scale(shards, norm, max_norm)
    optimizer.step()
    return norm**2


WRONG = [
    (forgets_to_clip, "was it scaled before the step?"),
    (clips_by_its_own_norm, "by the norm of this rank's shards alone"),
    (clips_each_shard, "each shard was clipped by its own norm"),
    (adds_norms, "the ranks' norms were added up"),
    (adds_the_shards_norms, "norms were added up"),
    (always_scales, "has been stretched to the limit"),
    (divides_by_zero, "what divides what?"),
    (forgets_the_root, "the square of the norm"),
    (averages_squares, "averaged over ranks"),
    (steps_first, "was it scaled before the step?"),
    (forgets_the_step, "made 0 optimizer steps"),
    (returns_the_norm_afterwards, "and not the norm before scaling"),
    (returns_nothing, "returned None"),
    (only_if_its_own_is_long, "was it scaled before the step?"),
    (adds_a_hundredth, "what was rounded, or added to the norm?"),
    (the_longest_rank_decides, "is not that of the clipped gradient"),
    (one_rank_alone_hears_the_norm, "is not that of the clipped gradient"),
    (clips_each_number, "is not that of the clipped gradient"),
    (returns_the_square, "and not the norm before scaling"),
]


def as_torch_does(optimizer, shards, max_norm):
    norms = torch.stack([torch.linalg.vector_norm(shard.grad) for shard in shards])
    square = torch.linalg.vector_norm(norms) ** 2
    dist.all_reduce(square)
    norm = square**0.5
    for shard in shards:
        shard.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    optimizer.step()
    return float(norm)


def gathers_numbers(optimizer, shards, max_norm):
    squares = [None] * dist.get_world_size()
    dist.all_gather_object(squares, sum(shard.grad.pow(2).sum().item() for shard in shards))
    norm = sum(squares) ** 0.5
    factor = min(1.0, max_norm / norm) if norm else 1.0
    for shard in shards:
        shard.grad = shard.grad * factor
    optimizer.step()
    return norm


def gathers_norms(optimizer, shards, max_norm):
    own = torch.stack([shard.grad.norm() for shard in shards])
    norms = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, own)
    norm = torch.cat(norms).norm()
    for shard in shards:
        shard.grad = shard.grad * torch.clamp(max_norm / (norm + 1e-6), max=1)
    optimizer.step()
    return float(norm)


RIGHT = [as_torch_does, gathers_numbers, gathers_norms]
