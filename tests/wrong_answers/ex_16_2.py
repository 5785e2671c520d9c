# %% wrong (ddp gets the whole batch on each rank's own half of the step): from what one device trains
# (tensor.chunk(world_size)[rank] for tensor in (x, y)) → (tensor.chunk(world_size)[0] for tensor in (x, y))
# %% wrong (the sum of the losses): from what one device trains
# F.cross_entropy(model(xs), ys).backward() → F.cross_entropy(model(xs), ys, reduction="sum").backward()
# %% wrong (another rate): from what one device trains
# lr=0.01 → lr=0.001
# %% wrong (a step less): from what one device trains
# range(num_steps - 1) → range(num_steps - 2)
# %% wrong (keeps the wrappers names): without a wrapper
# get_model_state_dict(core, options=options) → model.state_dict()
# %% wrong (parts in place of whole tensors): is a DTensor, a part of the whole
# full_state_dict=method != "pipeline" → full_state_dict=False
# %% wrong (counts every step): Is it one step's, the last one's?
# -     for _ in range(num_steps - 1):
# -         step()
# -     with messages.Traffic() as traffic:
# -         step()
# +     with messages.Traffic() as traffic:
# +         for _ in range(num_steps):
# +             step()
# %% wrong (nothing moved): bytes moved in a step
# "moved": moved → "moved": 0
# %% wrong (steps per second): does it count all ranks' samples
# len(x) * num_steps / took_s → num_steps / took_s
# %% wrong (seconds): does it count all ranks' samples
# len(x) * num_steps / took_s → took_s / len(x)
# %% wrong (held before training): when are they counted?
# "held": alive.held_bytes(list(core.parameters()), optimizer) → "held": {"parameters": 1, "gradients": 1, "optimizer state": 1}
# %% wrong (nothing is sharded): should hold them once
# -         for unit in [*model, model]:
# -             fully_shard(unit)
# +         model = DistributedDataParallel(model)
# %% wrong (nothing is cut): are the pairs of layers divided?
# tp.parallelize_module(model, init_device_mesh("cpu", (world_size,)), halves) → halves
# %% wrong (no held): has no 'held'
# "held": → "bytes":
# %% wrong (returns nothing): not a dict
# -     return {
# +     row = {
# %% right (averages by hand in place of DDP)
# -         model = DistributedDataParallel(model)
# +         pass
# -             F.cross_entropy(model(xs), ys).backward()
# +             F.cross_entropy(model(xs), ys).backward()
# +             for p in model.parameters() if method == "ddp" else ():
# +                 dist.all_reduce(p.grad)
# +                 p.grad /= world_size
