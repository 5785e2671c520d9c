# %% endless (all receive first): ranks 0 and 1 were in recv at
# messages.exchange(outgoing, next_rank, incoming, prev_rank) → dist.recv(incoming, prev_rank); dist.send(outgoing, next_rank)
# %% wrong (stops early): x is as it was: what arrives belongs into x itself
# range(world_size - 1) → range(world_size - 2)
# %% wrong (stops after two steps): has it come itself by then, and are there enough steps?
# range(world_size - 1) → range(min(world_size - 1, 2))
# %% wrong (goes once too often): the result is right, but 96 bytes were sent
# range(world_size - 1) → range(world_size)
# %% wrong (adds what arrives): was what arrived added to what was there?
# -         messages.exchange(outgoing, next_rank, incoming, prev_rank)
# +         arrived = torch.empty_like(incoming)
# +         messages.exchange(outgoing, next_rank, arrived, prev_rank)
# +         incoming += arrived
# %% wrong (sends float32): they are rounded, so what is cast?
# -         messages.exchange(outgoing, next_rank, incoming, prev_rank)
# +         arrived = torch.empty_like(incoming, dtype=torch.float32)
# +         messages.exchange(outgoing.float(), next_rank, arrived, prev_rank)
# +         incoming.copy_(arrived)
# %% wrong (begins with the chunk before): where is what arrives written to?
# (rank - step) % world_size], chunks[(rank - step - 1) → (rank - step - 1) % world_size], chunks[(rank - step - 2)
# %% wrong (receives into its own): a tensor was changed, or filled by a message, while it was sent
# incoming, prev_rank → chunks[rank], prev_rank
# %% wrong (calls broadcasts): called a collective (broadcast)
# -     for step in range(world_size - 1):
# +     for other in range(world_size):
# +         dist.broadcast(chunks[other], src=other)
# +     for step in ():
# %% wrong (sends to everyone): it sent to rank 2: in the ring it sends to rank 1 only
# -     for step in range(world_size - 1):
# +     for distance in range(1, world_size):
# +         source = (rank - distance) % world_size
# +         messages.exchange(chunks[rank], (rank + distance) % world_size, chunks[source], source)
# +     for step in ():
# %% wrong (needs equal chunks): shape '[2, -1]' is invalid for input of size 11
# x.tensor_split(world_size) → x.view(world_size, -1)
# %% wrong (waits for nothing): nobody waited for a message of isend or irecv
# messages.exchange(outgoing, next_rank, incoming, prev_rank) → dist.isend(outgoing, next_rank); dist.irecv(incoming, prev_rank)
# %% right (with offsets)
def ring_all_gather(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    base, extra = divmod(len(x), world_size)
    begins = [k * base + min(k, extra) for k in range(world_size + 1)]
    for step in range(world_size - 1):
        out, into = (rank - step) % world_size, (rank - step - 1) % world_size
        receive = dist.irecv(x[begins[into] : begins[into + 1]], (rank - 1) % world_size)
        dist.send(x[begins[out] : begins[out + 1]], (rank + 1) % world_size)
        receive.wait()
