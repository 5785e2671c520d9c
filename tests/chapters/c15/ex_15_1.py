# %% wrong (broadcasts no parameters): each rank went on from its own parameters
# -     hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# +
# %% wrong (broadcasts no state): each rank's optimizer went on from its own state
# -     hvd.broadcast_optimizer_state(optimizer, root_rank=0)
# +
# %% wrong (broadcasts nothing): from its own parameters, and its optimizer from its own state
# -     hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# -     hvd.broadcast_optimizer_state(optimizer, root_rank=0)
# +
# %% wrong (the wrapped optimizer knows no momentum): what does the optimizer that DistributedOptimizer returns know of it?
# -     averaging.load_state_dict(optimizer.state_dict())  # it was made with an empty state
# +
# %% wrong (the whole batch on every rank): what do the ranks share?
# .chunk(hvd.size())[hvd.rank()] → [:]
# %% wrong (all have the first part): used the same images: what tells their shares apart?
# [hvd.rank()] → [0]
# %% wrong (counts on its node): each has the same number on its own
# [hvd.rank()] → [hvd.local_rank()]
# %% wrong (a node has it all): and its equal share is 64
# .chunk(hvd.size())[hvd.rank()] → .chunk(hvd.local_size())[hvd.local_rank()]
# %% wrong (begins with the second batch): which is none of this step's
# slice(64 * step, 64 * (step + 1)) → slice(64 * (step + 1), 64 * (step + 2))
# %% wrong (runs out of images): the model was given a batch of no images
# slice(64 * step, 64 * (step + 1)) → slice(128 * step, 128 * step + 64)
# %% wrong (as many steps as there are images): holds 5 items, not 4
# range(num_steps) → range(len(images) // 64)
# %% wrong (adds noise): put images through its model that it was not given
# model(x) → model(x + 0.1 * torch.randn_like(x))
# %% wrong (half of its share, twice): used an image twice
# .chunk(hvd.size())[hvd.rank()] → .chunk(hvd.size())[hvd.rank()].repeat_interleave(2, 0)[: 64 // hvd.size()]
# %% wrong (silent replicas): each rank made its steps with its own gradient
# averaging = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()) → averaging = optimizer
# %% wrong (silent replicas from many places): with its own gradient, and from its own parameters
# -     hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# -     hvd.broadcast_optimizer_state(optimizer, root_rank=0)
# -     averaging = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
# -     averaging.load_state_dict(optimizer.state_dict())  # it was made with an empty state
# +     averaging = optimizer
# %% wrong (wraps and goes on without): step() of the optimizer that DistributedOptimizer returned
# -     averaging = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
# -     averaging.load_state_dict(optimizer.state_dict())  # it was made with an empty state
# +     hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
# +     averaging = optimizer
# %% wrong (adds gradients up): the gradients were added up over the ranks
# named_parameters=model.named_parameters()) → named_parameters=model.named_parameters(), op=hvd.Sum)
# %% wrong (a larger rate): the learning rate has grown with the number of ranks
# -     losses = []
# +     losses = []
# +     for group in averaging.param_groups:
# +         group["lr"] *= hvd.size()
# %% wrong (a mean of parts of the mean): divided by the number of ranks once too often
# F.cross_entropy(model(x), y) → F.cross_entropy(model(x), y, reduction="sum") / 64
# %% wrong (broadcasts at the end): the ranks end alike, and did not begin so
# -     hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# +
# -     return losses
# +     hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# +     return losses
# %% wrong (broadcasts all at the end): neither they nor their optimizers began so
# -     hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# -     hvd.broadcast_optimizer_state(optimizer, root_rank=0)
# +
# -     return losses
# +     hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# +     hvd.broadcast_optimizer_state(averaging, root_rank=0)
# +     return losses
# %% wrong (the last rank's parameters): began with another rank's parameters
# model.state_dict(), root_rank=0 → model.state_dict(), root_rank=hvd.size() - 1
# %% wrong (what the last rank has): began with what another rank than rank 0 had
# model.state_dict(), root_rank=0 → model.state_dict(), root_rank=hvd.size() - 1
# broadcast_optimizer_state(optimizer, root_rank=0) → broadcast_optimizer_state(optimizer, root_rank=hvd.size() - 1)
# %% wrong (smooths the labels): is each step's gradient that of the mean over its 64 images?
# F.cross_entropy(model(x), y) → F.cross_entropy(model(x), y, label_smoothing=0.1)
# %% wrong (adds to the gradients): are gradients of earlier steps still in it?
# -         averaging.zero_grad()
# +
# %% wrong (clears what it computed): zero_grad() was called after backward()
# -         averaging.zero_grad()
# +
# -         loss.backward()
# +         loss.backward()
# +         averaging.zero_grad()
# %% wrong (no init): Horovod has not been initialized
# -     hvd.init()
# +
# %% wrong (broadcasts a generator): takes a dict or a list
# model.state_dict(), root_rank=0 → model.named_parameters(), root_rank=0
# %% wrong (names no parameters): pairs of a name and a parameter
# named_parameters=model.named_parameters() → named_parameters=model.parameters()
# %% wrong (rank 0 broadcasts alone): each would wait for the other
# -     hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# +     if hvd.rank() == 0:
# +         hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# %% wrong (rank 0 averages the loss alone): each would wait for the other
# -         losses.append(hvd.allreduce(loss.detach()).item())
# +         losses.append(hvd.allreduce(loss.detach()).item() if hvd.rank() == 0 else 0.0)
# %% wrong (its own losses): each rank has the mean over its own images
# hvd.allreduce(loss.detach()).item() → loss.item()
# %% wrong (rank 0 alone has them): and other ranks have not
# losses.append(hvd.allreduce(loss.detach()).item()) → losses.append((hvd.allreduce(loss.detach()) if hvd.rank() == 0 else (hvd.allreduce(loss.detach()), loss)[1]).item())
# %% wrong (adds the losses up): they are added up over the ranks
# loss.detach()) → loss.detach(), op=hvd.Sum)
# %% wrong (divides the losses twice): divided by the number of ranks once too often
# .item()) → .item() / hvd.size())
# %% wrong (losses after the steps): they are those after the steps
# -         losses.append(hvd.allreduce(loss.detach()).item())
# +         with torch.no_grad():
# +             losses.append(hvd.allreduce(F.cross_entropy(model(x), y)).item())
# %% wrong (rounds the losses): of which images is each the mean?
# .item()) → .item().__round__(2))
# %% wrong (losses as texts): the loss of step 0 is '
# losses.append(hvd.allreduce(loss.detach()).item()) → losses.append(f"{hvd.allreduce(loss.detach()).item():.2f}")
# %% right (wraps first, then loads objects; a loss that others have a part in)
def train_horovod(model, optimizer, images, labels, num_steps):
    import horovod.torch as hvd

    hvd.init()
    share, losses = 64 // hvd.size(), []
    wrapped = hvd.DistributedOptimizer(optimizer)
    states = hvd.broadcast_object((model.state_dict(), optimizer.state_dict()), root_rank=0)
    model.load_state_dict(states[0])
    wrapped.load_state_dict(states[1])
    for step in range(num_steps):
        begin = 64 * step + share * hvd.rank()
        x, y = images[begin : begin + share], labels[begin : begin + share]
        loss = hvd.allreduce(F.cross_entropy(model(x), y, reduction="sum") / 64, op=hvd.Sum)
        wrapped.zero_grad()
        loss.backward()
        wrapped.step()
        losses.append(loss.detach())
    hvd.shutdown()
    return losses
# %% right (many messages under way, losses at the end)
def train_horovod(model, optimizer, images, labels, num_steps):
    import horovod.torch as hvd

    hvd.init()
    losses = []
    for p in model.parameters():
        hvd.broadcast_(p.data, root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(num_steps):
        mine = torch.arange(64 * step, 64 * (step + 1)).chunk(hvd.size())[hvd.rank()]
        loss = F.cross_entropy(model(images[mine]), labels[mine])
        model.zero_grad()
        loss.backward()
        for handle in [hvd.allreduce_async_(p.grad) for p in model.parameters()]:
            hvd.synchronize(handle)
        optimizer.step()
        losses.append(loss.detach().reshape(1))
    return hvd.allgather(torch.stack(losses, 1)).mean(0).tolist()
