# %% wrong (only rank 0 broadcasts): while rank 0 was in broadcast at
# dist.broadcast(mean, src=0) → rank or dist.broadcast(mean, src=0)
# %% wrong (does not wait for what it sends): nobody waited for a message of isend or irecv
# sending.wait() → del sending
# %% wrong (drops the broadcast): rank 0 has the right one; from whom, and by which call
# dist.broadcast(mean, src=0) → pass
# %% wrong (each broadcasts its own): rank 0: the mean that came back is
# dist.broadcast(mean, src=0) → dist.broadcast(mean, src=world_size - 1)
# %% wrong (forgets to divide): that is the sum, so what divides it?
# total / (world_size * len(values)) → total
# %% wrong (divides by the ranks): that is the mean of the ranks' sums
# total / (world_size * len(values)) → total / world_size
# %% wrong (divides by the values): that is the sum of the ranks' means
# total / (world_size * len(values)) → total / len(values)
# %% wrong (forgets the sum): that is the mean of its own values
# mean = total / (world_size * len(values)) → mean = values.mean()
# %% wrong (takes what broadcast returns): a collective fills the tensor that it is given
# dist.broadcast(mean, src=0) → mean = dist.broadcast(mean, src=0)
# %% wrong (returns a dictionary): not a list or tuple of theirs, mean and largest
# return theirs, mean, largest → return {"theirs": theirs, "mean": mean, "largest": largest}
# %% wrong (drops the swap): those are its own
# return theirs → return values
# %% wrong (swaps with the next): those are the next rank's
# isend(values, (rank + 1) % world_size) → isend(values, (rank - 1) % world_size)
# dist.recv(theirs, (rank - 1) % world_size) → dist.recv(theirs, (rank + 1) % world_size)
# %% wrong (reads before it has come): has the message come when they are read?
# -     dist.recv(theirs, (rank - 1) % world_size)
# -     sending.wait()
# +     receiving = dist.irecv(theirs.zero_(), (rank - 1) % world_size)
# +     early = theirs.clone()
# +     receiving.wait(), sending.wait()
# return theirs → return early
# %% wrong (collects the sums): those are the ranks' sums
# values.max()) → values.sum())
# %% wrong (begins with its own): in another order than the ranks'
# return theirs, mean, largest → return theirs, mean, largest[rank:] + largest[:rank]
# %% wrong (marks absence with zeros): no number is below zero in it, and values may be
# -     dist.all_gather(largest, values.max())
# +     largest = torch.zeros(world_size)
# +     largest[rank] = values.max()
# +     dist.all_reduce(largest, op=dist.ReduceOp.MAX)
# %% right (by one collective)
def share_results(values):
    everyone = torch.empty(dist.get_world_size() * len(values))
    dist.all_gather_into_tensor(everyone, values)
    everyone = everyone.view(-1, len(values))
    return everyone[dist.get_rank() - 1], everyone.mean(), everyone.amax(dim=1)
