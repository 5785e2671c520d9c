# %% [markdown]
# Solutions to the exercises of chapter 8. Each is one way among several; the checks accept every right one.

# %%
# Exercise 8.1
def broadcast_tree(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place = (rank - root) % world_size  # so the root has place 0
    have = 1  # places below this one have x
    while have < world_size:
        if place < have and place + have < world_size:
            messages.send(x, (rank + have) % world_size)
        elif have <= place < 2 * have:
            messages.recv(x, (rank - have) % world_size)
        have *= 2


# %%
# Exercise 8.2
def ring_reduce_scatter(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    next_rank, prev_rank = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = x.tensor_split(world_size)
    buffer = torch.empty_like(chunks[0])  # no chunk is longer than the first
    for step in range(1, world_size):
        outgoing = chunks[(rank - step) % world_size]
        incoming = chunks[(rank - step - 1) % world_size]  # what the previous rank sends in this step
        arrived = buffer[: len(incoming)]
        messages.exchange(outgoing, next_rank, arrived, prev_rank)
        incoming += arrived


# %%
# Exercise 8.3
def ring_all_gather(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    next_rank, prev_rank = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = x.tensor_split(world_size)
    for step in range(world_size - 1):
        outgoing, incoming = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        messages.exchange(outgoing, next_rank, incoming, prev_rank)


# %%
# Exercise 8.4
def ring_bytes(length, itemsize, rank, world_size):
    lengths = [len(chunk) for chunk in torch.empty(length).tensor_split(world_size)]
    # Reduce-scatter sends every chunk but this rank's own, all-gather every chunk but the next rank's.
    elements = 2 * length - lengths[rank] - lengths[(rank + 1) % world_size]
    return elements * itemsize


# %%
# Exercise 8.5
def share_results(values):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    theirs = torch.empty_like(values)
    sending = dist.isend(values, (rank + 1) % world_size)  # does not wait for the next rank to receive
    dist.recv(theirs, (rank - 1) % world_size)
    sending.wait()
    total, largest = values.sum(), [torch.empty(()) for _ in range(world_size)]
    dist.reduce(total, dst=0)  # one order, the same on every rank
    dist.all_gather(largest, values.max())
    mean = total / (world_size * len(values))
    dist.broadcast(mean, src=0)  # called by those who receive as well
    return theirs, mean, largest
