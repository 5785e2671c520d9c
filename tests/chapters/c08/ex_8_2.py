# %% wrong (begins with its own chunk): with which chunk must a rank begin so that its own comes to it last?
# for step in range(1, world_size): → for step in range(world_size - 1):
# %% wrong (stops early): and are there enough steps?
# range(1, world_size) → range(1, world_size - 1)
# %% wrong (overwrites): is what arrives added to what is there
# incoming += arrived → incoming.copy_(arrived)
# %% wrong (adds twice): in it more than once: which chunk does a rank send in its next step?
# incoming += arrived → incoming += 2 * arrived
# %% wrong (adds in float32): is anything rounded, or cast?
# incoming += arrived → incoming.copy_(incoming.float() + arrived.float())
# %% wrong (takes the mean): is the mean over ranks, and the sum is asked
# incoming += arrived → incoming += arrived; incoming.copy_(incoming / (world_size if step == world_size - 1 else 1))
# %% wrong (subtracts): which is no sum of what ranks had
# incoming += arrived → incoming -= arrived
# %% wrong (goes all the way round): the result is right, but 96 bytes were sent
# chunks = → ring.all_reduce(x); world_size = 1; chunks =
# %% wrong (sends chunks in halves): but it went in messages of [24, 24] bytes
# -         messages.exchange(outgoing, next_rank, arrived, prev_rank)
# +         for out, into in zip(outgoing.tensor_split(2), arrived.tensor_split(2)):
# +             messages.exchange(out, next_rank, into, prev_rank)
# %% wrong (goes the other way): it sent to rank 2: in the ring it sends to rank 1 only
# next_rank, prev_rank = → prev_rank, next_rank =
# (rank - step) % world_size → (rank + step) % world_size
# (rank - step - 1) % world_size → (rank + step + 1) % world_size
# %% wrong (leaves out the rest): with 2 ranks, 11 numbers, rank 0: only 5 of its chunk
# x.tensor_split → x[: len(x) // world_size * world_size].tensor_split
# %% wrong (receives into float64): the ranks send int64 and receive into float64: what becomes of the bytes?
# torch.empty_like(chunks[0]) → torch.empty(len(chunks[0]), dtype=torch.float64)
# incoming += arrived → incoming += arrived.to(x.dtype)
# %% right (breaks the ring at rank 0)
# -         messages.exchange(outgoing, next_rank, arrived, prev_rank)
# +         calls = [lambda: dist.recv(arrived, prev_rank), lambda: dist.send(outgoing, next_rank)]  # empty ones too
# +         [call() for call in calls[:: -1 if rank == 0 else 1]]
