# %% wrong (forgets the momentum): is the optimizer's state loaded?
# begin = checkpoint.load(path, model=model, optimizer=optimizer)["done"] → begin = checkpoint.load(path, model=model, optimizer=None)["done"]
# %% wrong (does not save it): the optimizer is not in the checkpoint
# checkpoint.save(path, model=model, optimizer=optimizer, done=step + 1) → checkpoint.save(path, model=model, done=step + 1)
# checkpoint.load(path, model=model, optimizer=optimizer) → checkpoint.load(path, model=model)
# %% wrong (saves the optimizer alone): the model is not in the checkpoint
# checkpoint.save(path, model=model, optimizer=optimizer, done=step + 1) → checkpoint.save(path, optimizer=optimizer, done=step + 1)
# checkpoint.load(path, model=model, optimizer=optimizer) → checkpoint.load(path, optimizer=optimizer)
# %% wrong (makes a step twice): was the last saved step made again?
# done=step + 1 → done=step
# %% wrong (leaves a step out): was a step left out?
# done=step + 1 → done=step + 2
# %% wrong (makes three steps at most): were steps left out?
# range(begin, num_steps): → range(begin, min(begin + 3, num_steps)):
# %% wrong (begins again): is the checkpoint loaded at all?
# if os.path.exists(path): → if False:
# %% wrong (first images again): did an attempt begin with the first images again?
# [rank::world_size]  # 5 → [rank::world_size] - 12 * begin  # 5
# %% wrong (rank 0 alone loads): the parameters
# if os.path.exists(path): → if rank == 0 and os.path.exists(path):
# %% wrong (mean of means): although some ranks have fewer images?
# , reduction="sum") → )
# (loss / 12).backward() → (loss / world_size).backward()
# %% wrong (sum of means): is the gradient the sum of the ranks' means?
# , reduction="sum") → )
# (loss / 12).backward() → loss.backward()
# %% wrong (no mean at all): is it a sum over images, and no mean?
# (loss / 12).backward() → loss.backward()
# %% wrong (adds copies up): is it one rank's own gradient?
# dist.all_reduce(p.grad) → dist.all_reduce(p.grad.clone())
# %% wrong (drops what cannot be shared): were images left out
# [rank::world_size]  # 5 → [: 12 // world_size * world_size][rank::world_size]  # 5
# %% wrong (saves at the end only): and no file was there
# -         if rank == 0:
# -             checkpoint.save(path, model=model, optimizer=optimizer, done=step + 1)
# +     if rank == 0:
# +         checkpoint.save(path, model=model, optimizer=optimizer, done=num_steps)
# %% wrong (every rank computes all): the ranks share the 12 of a step
# [rank::world_size]  # 5 ranks: 3, 3, 2, 2, 2 → 
# (loss / 12).backward() → (loss / 12 / world_size).backward()
# %% wrong (all ranks save): one rank saves
# if rank == 0: → if True:
# %% wrong (counts all steps): were left to do
# return list(range(begin, num_steps)) → return list(range(num_steps))
# %% wrong (makes the last step again): and none was left to do
# ["done"] → ["done"]; begin = min(begin, num_steps - 1)
# %% wrong (counts the steps): not a list or tuple of the steps of this call
# return list(range(begin, num_steps)) → return num_steps - begin
# %% wrong (adds parameters up at the end): the parameters are not those of one process
# return list → [dist.all_reduce(p.data) for p in model.parameters()]; return list
# %% wrong (keeps it its own way): none of checkpoint.save's
# -             checkpoint.save(path, model=model, optimizer=optimizer, done=step + 1)
# +             torch.save({"model": model.state_dict(), "done": step + 1}, path)
# %% right (weights the mean, and cuts in pieces)
def train_elastic(model, optimizer, images, labels, num_steps, path):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    begin, made = 0, []
    if os.path.exists(path):
        begin = checkpoint.load(path, model=model, optimizer=optimizer)["step"]
    for step in range(begin, num_steps):
        x, y = (t[12 * step : 12 * step + 12].tensor_split(world_size)[rank] for t in (images, labels))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad *= len(y) / 12
            dist.all_reduce(p.grad)
        optimizer.step()
        made.append(step)
        if rank == world_size - 1:
            checkpoint.save(path, model=model, optimizer=optimizer, step=step + 1)
    return made
