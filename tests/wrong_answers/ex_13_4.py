# %% wrong (makes its own groups only): new_group is called by all ranks
# -             group = dist.new_group(ranks)  # every rank makes every group, in the same order
# -             if rank in ranks:
# -                 own.append(group)
# +             if rank in ranks:
# +                 own.append(dist.new_group(ranks))
# %% wrong (its own first): new_group is called by all ranks
# reshape(-1, shape[axis]).tolist(): → reshape(-1, shape[axis]).roll(-rank, 0).tolist():
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
# %% wrong (does not move the axis): the group has the ranks
# mesh.movedim(axis, -1).reshape → mesh.reshape
# %% wrong (ranks, no groups): not a process group
# own.append(group) → own.append(ranks)
# %% wrong (a DeviceMesh): was called, and the task is to do without
# return own → return dist.init_device_mesh("cpu", tuple(shape)).get_all_groups()
# %% wrong (returns nothing): is None: is it returned
# return own → own
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
