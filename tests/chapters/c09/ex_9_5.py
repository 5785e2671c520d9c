# %%
from contextlib import nullcontext

# %% right (clears at the end)
def accumulate_step(ddp_model, optimizer, micro_batches):
    for i, (x, y) in enumerate(micro_batches, start=1):
        with nullcontext() if i == len(micro_batches) else ddp_model.no_sync():
            F.cross_entropy(ddp_model(x), y).div(len(micro_batches)).backward()
    optimizer.step()
    optimizer.zero_grad()

# %% wrong (never clears): the gradient of the step before is still in it
# optimizer.zero_grad() → pass
# %% wrong (forgets the step): the optimizer made 0 steps
# optimizer.step() → pass
# %% wrong (never sends): are all their gradients averaged?
# nullcontext() if i == len(micro_batches) else ddp_model.no_sync() → ddp_model.no_sync()
# %% wrong (sends every time): gradients were averaged 4 times
# nullcontext() if i == len(micro_batches) else ddp_model.no_sync() → nullcontext()
# %% wrong (adds up means): the sum of means is no mean
# .div(len(micro_batches)) → .div(1)
# %% wrong (divides by ranks as well): the sum of 4 micro-batches' losses was divided by 8
# .div(len(micro_batches)) → .div(len(micro_batches) * dist.get_world_size())
# %% wrong (always divides by 4): in step 1, of 3 micro-batches: 
# .div(len(micro_batches)) → .div(4)
# %% wrong (one counts for nothing): in step 0, of 4 micro-batches: the parameters are not where the step puts them (max
# .div(len(micro_batches)) → .div(len(micro_batches)).mul(i != 1)
# %% wrong (only the last counts): only the last micro-batch counts
# -         with nullcontext() if i == len(micro_batches) else ddp_model.no_sync():
# +         optimizer.zero_grad()
# +         with nullcontext() if i == len(micro_batches) else ddp_model.no_sync():
# .div(len(micro_batches)) → .div(1)
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
