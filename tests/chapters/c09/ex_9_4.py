# %%
import math
import random
import numpy as np

# %% wrong (deals out what there is): the shards hold [3, 3, 2, 2] samples
# while len(order) % world_size: → while False:
# %% wrong (shuffles by rank): cut from the same order
# manual_seed(epoch) → manual_seed(1000 * epoch + rank)
# %% wrong (forgets the epoch): two epochs have the same order
# manual_seed(epoch) → manual_seed(0)
# %% wrong (draws from the global generator): the same call gave two answers
# randperm(num_samples, generator=generator) → randperm(num_samples)
# %% wrong (gives everything to all): where 3 are enough
# [rank::world_size] → [:]
# %% wrong (cuts without rank): all ranks have the same
# [rank::world_size] → [: math.ceil(num_samples / world_size)]
# %% wrong (forgets to return): not a list of indices
# return order[rank::world_size] → order[rank::world_size]
# %% wrong (pads with what is not there): indices outside 0…9
# order[len(order) % num_samples] → len(order)
# %% wrong (drops the last few): what about the last few
# -     while len(order) % world_size:
# -         order.append(order[len(order) % num_samples])
# +     order = order[: num_samples - num_samples % world_size]
# %% wrong (divides before shuffling): which comes first
# torch.randperm(num_samples, generator=generator).tolist() → list(range(num_samples))
# return order[rank::world_size] → return random.Random(epoch).sample(order[rank::world_size], len(order) // world_size)
# %% wrong (takes the library's): torch.utils.data.distributed's DistributedSampler.__init__ was called
def shard(num_samples, rank, world_size, epoch):
    sampler = DistributedSampler(range(num_samples), world_size, rank)
    sampler.set_epoch(epoch)
    return list(sampler)

# %% right (cuts contiguous pieces)
def shard(num_samples, rank, world_size, epoch):
    each = math.ceil(num_samples / world_size)
    order = np.random.default_rng([9, epoch]).permutation(num_samples)
    return np.resize(order, each * world_size)[rank * each : (rank + 1) * each].tolist()
