# %%
from contextlib import nullcontext

# %% right (clears at the end)
def accumulate_step(ddp_model, optimizer, micro_batches):
    for i, (x, y) in enumerate(micro_batches, start=1):
        with nullcontext() if i == len(micro_batches) else ddp_model.no_sync():
            F.cross_entropy(ddp_model(x), y).div(len(micro_batches)).backward()
    optimizer.step()
    optimizer.zero_grad()

# %% wrong (never clears): what is different in a step that is not the first
# optimizer.zero_grad() → pass
# %% wrong (forgets the step): the optimizer made 0 steps
# optimizer.step() → pass
# %% wrong (never sends): are all their gradients averaged?
# nullcontext() if i == len(micro_batches) else ddp_model.no_sync() → ddp_model.no_sync()
# %% wrong (sends every time): gradients were averaged 4 times
# nullcontext() if i == len(micro_batches) else ddp_model.no_sync() → nullcontext()
# %% wrong (adds up means): the sum of means is no mean
# .div(len(micro_batches)) → .div(1)
# %% wrong (divides by ranks as well): and each alike?
# .div(len(micro_batches)) → .div(len(micro_batches) * dist.get_world_size())
# %% wrong (averages by hand): but DDP sent nothing
# nullcontext() if i == len(micro_batches) else ddp_model.no_sync() → ddp_model.no_sync()
# -     optimizer.step()
# +     for p in ddp_model.parameters():
# +         dist.all_reduce(p.grad)
# +         p.grad /= dist.get_world_size()
# +     optimizer.step()
# %% wrong (averages once more): beside what DDP sent, allreduce was called
# optimizer.step() → dist.all_reduce(next(ddp_model.parameters()).grad, op=dist.ReduceOp.MAX); optimizer.step()
# %% wrong (leaves DDP silent): sends nothing in the next backward pass
# optimizer.zero_grad() → optimizer.zero_grad(); ddp_model.require_backward_grad_sync = False
# i == len(micro_batches) else → setattr(ddp_model, "require_backward_grad_sync", True) or i == len(micro_batches) else
