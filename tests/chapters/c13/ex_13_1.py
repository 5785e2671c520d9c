# %% wrong (takes nodes for equal): as on equal nodes
# -     node, local_rank = 0, rank
# -     while local_rank >= gpus[node]:  # it lies beyond this node
# -         local_rank -= gpus[node]
# -         node += 1
# +     node, local_rank = divmod(rank, gpus[0])
# %% wrong (gives numbers): os.environ would not take
# {name: str(value) for name, value in found.items()} → found
# %% wrong (counts nodes): it counts nodes
# "WORLD_SIZE": sum(gpus)} → "WORLD_SIZE": len(gpus)}
# %% wrong (the rank for the local rank): it is not counted from this node's first rank
# "LOCAL_RANK": local_rank → "LOCAL_RANK": rank
# %% wrong (the rank for the node): that is a rank, and a node is asked
# "GROUP_RANK": node → "GROUP_RANK": rank
# %% wrong (the largest node): that is the largest node's
# {"LOCAL_WORLD_SIZE": gpus[node] → {"LOCAL_WORLD_SIZE": max(gpus)
# %% wrong (one node early): which rank is the first of its node?
# while local_rank >= gpus[node]:  # → while local_rank > gpus[node]:  #
# %% wrong (forgets one): LOCAL_WORLD_SIZE is missing
# {"LOCAL_WORLD_SIZE": gpus[node], "WORLD_SIZE" → {"WORLD_SIZE"
# %% wrong (adds the address): none of the five
# "RANK": rank} → "RANK": rank, "MASTER_ADDR": "node0"}
# %% wrong (gives the whole environment): more are in it, and none of the five
# {name: str(value) for name, value in found.items()} → {**os.environ, **{name: str(value) for name, value in found.items()}}
# %% wrong (returns nothing): None came back
# return {name: str(value) for name, value in found.items()} → found.update()

# %% right (takes the list apart)
def environment(rank, gpus):
    all_ranks = sum(gpus)
    if not 0 <= rank < all_ranks:
        raise ValueError(f"no rank {rank}")
    node = local = 0
    for _ in range(rank):
        local += 1
        if local == gpus[0]:
            gpus.pop(0)
            node, local = node + 1, 0
    found = dict(RANK=rank, LOCAL_RANK=local, GROUP_RANK=node, LOCAL_WORLD_SIZE=gpus[0], WORLD_SIZE=all_ranks)
    return {name: f"{value}" for name, value in found.items()}
# %% right (a list of all places)
def environment(rank, gpus):
    places = [(node, local) for node, count in enumerate(gpus) for local in range(count)]
    if rank not in range(len(places)):
        raise ValueError(f"rank {rank} is not one of {len(places)}")
    node, local = places[rank]
    values = node, local, rank, gpus[node], len(places)
    names = "GROUP_RANK", "LOCAL_RANK", "RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"
    return dict(zip(names, map(str, values)))
