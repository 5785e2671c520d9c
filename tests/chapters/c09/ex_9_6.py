# %% wrong (starts unequal): rank 1's parameters differed from rank 0's
# torch.manual_seed(0) → torch.manual_seed(rank)
# %% wrong (keeps the rate): the rate was 0.01
# lr=base_lr * world_size → lr=base_lr
# %% wrong (keeps the order): the same order in both epochs
# sampler.set_epoch(epoch) → sampler.set_epoch(0)
# %% wrong (shuffles by rank): of 48 samples were used
# shuffle=True, seed=0 → shuffle=True, seed=rank
# %% wrong (shuffles without sampler): the ranks visited 96 samples together
# batch_size=8, sampler=sampler → batch_size=8, shuffle=True
# %% wrong (forgets to average): are all gradients averaged
# average_gradients(model) → pass
# %% wrong (does not step): no optimizer made a step
# optimizer.step() → pass
# %% wrong (steps on rank 0 alone): the ranks made [6, 0] steps
# optimizer.step() → optimizer.step() if rank == 0 else None
# %% wrong (takes a loss of its own): without a loss from loss_fn
# loss_fn(model(x), y) → F.cross_entropy(model(x), y)
# %% wrong (all save): saved by ranks [0, 1]
# -     if rank == 0:
# -         save(model)
# +     save(model)
# %% wrong (nobody saves): nobody saved
# save(model) → pass
# %% wrong (saves before training): after 0 of 6 steps
# save(model) → pass
# model = DigitsNet() → model = DigitsNet(); save(model) if rank == 0 else None
# %% wrong (saves every epoch): saved 2 times, by rank 0
# save(model) → pass
# mean = loss.detach().clone() → mean = loss.detach().clone(); save(model) if rank == 0 else None
# %% wrong (reports the sum): which is a sum over ranks
# report(mean.item() / world_size) → report(mean.item())
# %% wrong (reports a share): the last losses' mean was
# report(mean.item() / world_size) → report(loss.item() / world_size)
# %% wrong (reports nothing): nobody reported a loss
# report(mean.item() / world_size) → pass
# %% wrong (reports every step): rank 0 reported 8 times in 2 epochs
# report(mean.item() / world_size) → [report(mean.item() / world_size) for _ in range(4)]
# %% right (uses ddp)
def train_repaired(dataset, base_lr, loss_fn, save, report):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = DistributedDataParallel(DigitsNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=base_lr * world_size, momentum=0.9)
    sampler = DistributedSampler(dataset, seed=5)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        sampler.set_epoch(epoch + 1)
        dist.reduce(loss.detach(), dst=0)
        if rank == 0:
            report(loss.item() / world_size)
    if rank == 0:
        save(model.module.state_dict())
    dist.barrier()

