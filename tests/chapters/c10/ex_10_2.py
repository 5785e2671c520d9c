# %% wrong (forgets to clip): was it scaled before the step?
# if norm > max_norm: → if False:
# %% wrong (clips by its own norm): the norm of this rank's shards alone
# dist.all_reduce(square) → pass
# %% wrong (clips each shard): each shard was clipped by its own norm
# -     if norm > max_norm:
# -         for shard in shards:
# -             shard.grad *= max_norm / norm
# +     for shard in shards:
# +         torch.nn.utils.clip_grad_norm_([shard], max_norm)
# %% wrong (clips each number): each number was clipped by itself
# shard.grad *= max_norm / norm → shard.grad.clamp_(-max_norm, max_norm)
# %% wrong (forgets the root): the factor comes from the square of the norm
# square.sqrt().item() → square.item()
# %% wrong (adds norms): the ranks' norms were added up
# sum((shard.grad**2).sum() for shard in shards) → sum((shard.grad**2).sum() for shard in shards).sqrt()
# square.sqrt().item() → square.item()
# %% wrong (adds the shards' norms): the shards' norms were added up
# sum((shard.grad**2).sum() for shard in shards) → sum(shard.grad.norm() for shard in shards)
# square.sqrt().item() → square.item()
# %% wrong (the longest rank decides): the longest rank's norm decided
# dist.all_reduce(square) → dist.all_reduce(square, op=dist.ReduceOp.MAX)
# %% wrong (averages squares): the squares were averaged over ranks
# dist.all_reduce(square) → dist.all_reduce(square, op=dist.ReduceOp.AVG)
# %% wrong (one rank alone hears the norm): leads to the limit
# dist.all_reduce(square) → dist.reduce(square, 0)
# %% wrong (does not wait): nobody waited for a collective
# dist.all_reduce(square) → dist.all_reduce(square, async_op=True)
# %% wrong (sums up if it is long): the ranks do not do the same
# dist.all_reduce(square) → square > 0.1 and dist.all_reduce(square)
# %% wrong (adds a hundredth): what was rounded, or added to the norm?
# max_norm / norm → max_norm / (norm + 0.01)
# %% wrong (clips by the parameters' norm): it was clipped by the norm of the parameters
# sum((shard.grad**2).sum() for shard in shards) → sum((shard.detach()**2).sum() for shard in shards)
# %% wrong (returns the parameters' norm): that is the norm of the parameters
# -     optimizer.step()
# -     return norm
# +     told = sum((shard.detach()**2).sum() for shard in shards)
# +     dist.all_reduce(told)
# +     optimizer.step()
# +     return told.sqrt().item()
# %% wrong (clips to half): it was multiplied by
# max_norm / norm → max_norm / norm / 2
# %% wrong (turns it round): it is not this rank's gradient times any number
# shard.grad *= max_norm / norm → shard.grad = shard.grad.flip(0) * max_norm / norm
# %% wrong (always scales): has been stretched to the limit
# if norm > max_norm: → if norm:
# %% wrong (divides by zero): what divides what?
# -     if norm > max_norm:
# -         for shard in shards:
# -             shard.grad *= max_norm / norm
# +     for shard in shards:
# +         shard.grad = shard.grad / square.sqrt() * min(norm, max_norm)
# %% wrong (forgets the step): 0 optimizer steps were made
# optimizer.step() → pass
# %% wrong (leaves a hook): a hook was left on the optimizer
# optimizer.step() → optimizer.register_step_pre_hook(lambda *_: None); optimizer.step()
# %% wrong (scales the parameters, too): what else has changed?
# shard.grad *= max_norm / norm → shard.grad *= max_norm / norm; shard.data *= max_norm / norm
# %% wrong (returns its own norm): the norm of its own shards
# return norm → return sum((shard.grad**2).sum() for shard in shards).sqrt().item() / min(1, max_norm / (norm or 1))
# %% wrong (returns the norm afterwards): the norm after scaling
# return norm → return min(norm, max_norm)
# %% wrong (returns the square): the square of the norm
# return norm → return norm**2
# %% wrong (returns the sum of norms): does the norm of a whole come from sums of norms?
# dist.all_reduce(square) → told = square.sqrt(); dist.all_reduce(told); dist.all_reduce(square)
# return norm → return told.item()
# %% wrong (returns twice as much): came back as the norm
# return norm → return 2 * norm
# %% wrong (returns a tensor): a float is asked
# return norm → return torch.tensor(norm)
# %% wrong (returns nothing): is None: is the norm returned
# return norm → norm

# %% right (gathers norms, and returns NumPy's number)
def clipped_step(optimizer, shards, max_norm):
    own = torch.stack([shard.grad.norm() for shard in shards])
    norms = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, own, async_op=True).wait()
    norm = torch.cat(norms).norm().numpy()[()]
    for shard in shards:
        shard.grad /= max(1.0, norm / max_norm)
    optimizer.step()
    return norm
