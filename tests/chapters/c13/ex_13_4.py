# %% wrong (makes its own groups only): new_group is called by all ranks
# -             group = dist.new_group(ranks)  # every rank makes every group, in the same order
# -             if rank in ranks:
# -                 own.append(group)
# +             if rank in ranks:
# +                 own.append(dist.new_group(ranks))
# %% wrong (its own first): new_group is called by all ranks
# reshape(-1, shape[axis]).tolist(): → reshape(-1, shape[axis]).roll(-rank, 0).tolist():
# %% wrong (rank 0 stops when it has its own): rank 0 came to the end of your function and rank 1 to new_group
# -                 own.append(group)
# +                 own.append(group)
# +             if rank == 0 and len(own) == len(shape):
# +                 return own
# %% wrong (keeps all groups): not 2 (a process group for each axis)
# -             if rank in ranks:
# -                 own.append(group)
# +             own.append(group)
# %% wrong (axes the other way round): those are the ranks of another axis
# return own → return own[::-1]
# %% wrong (the first axis fastest): does the first axis change fastest in your mesh?
# view(shape), [] → view(tuple(shape)[::-1]).permute(*range(len(shape))[::-1]), []
# %% wrong (everybody): those are all ranks
# group = dist.new_group(ranks)  # → group = dist.new_group(range(world_size))  #
# %% wrong (lines shifted by one): which ranks differ from this one on this axis only?
# reshape(-1, shape[axis]).tolist(): → roll(1).reshape(-1, shape[axis]).tolist():
# %% wrong (groups that send nothing): an all-reduce in the group did not add up
# group = dist.new_group(ranks)  # → from torch.testing._internal.distributed import fake_pg; group = dist.new_group(ranks, backend="fake")  #
# %% wrong (ranks, no groups): not a process group
# own.append(group) → own.append(ranks)
# %% wrong (a DeviceMesh): was called, and the task is to do without
# return own → return dist.init_device_mesh("cpu", tuple(shape)).get_all_groups()
# %% wrong (the others' groups): one that this rank is not in
# if rank in ranks: → if rank not in ranks and len(own) == axis or len(ranks) == world_size or len(ranks) == 1:

# %% right (coordinates, and only its members meet)
def make_groups(shape):
    rank, size, groups = dist.get_rank(), dist.get_world_size(), []
    stride = size
    for length in shape:
        stride //= length
        place = rank // stride % length
        ranks = [rank + (other - place) * stride for other in range(length)]
        groups.append(dist.new_group(ranks, use_local_synchronization=True))
    return groups
