# %% wrong (ddp gets the whole batch on each rank's own half of the step): from what one device trains
# (tensor.chunk(world_size)[rank] for tensor in (x, y)) → (tensor.chunk(world_size)[0] for tensor in (x, y))
# %% wrong (the sum of the losses): from what one device trains
# F.cross_entropy(model(xs), ys).backward() → F.cross_entropy(model(xs), ys, reduction="sum").backward()
# %% wrong (another rate): from what one device trains
# lr=0.01 → lr=0.001
# %% wrong (keeps the wrappers names): without a wrapper
# get_model_state_dict(core, options=options) → model.state_dict()
# %% wrong (parts in place of whole tensors): is a DTensor, a part of the whole
# full_state_dict=method != "pipeline" → full_state_dict=False
# %% wrong (its own parts): and should be whole: shape
# get_model_state_dict(core, options=options) → {name: p.to_local() if hasattr(p, "to_local") else p for name, p in core.named_parameters()} if method == "fsdp" else get_model_state_dict(core, options=options)
# %% wrong (tensors without names): not a dict of tensors by name
# get_model_state_dict(core, options=options) → list(get_model_state_dict(core, options=options).values())
# %% wrong (counts every step): Is it one step's, the last one's?
# -     for _ in range(num_steps - 1):
# -         step()
# -     with messages.Traffic() as traffic:
# -         step()
# +     with messages.Traffic() as traffic:
# +         for _ in range(num_steps):
# +             step()
# %% wrong (says what it would send): and this method sends no messages
# "moved": moved → "moved": sum(p.nbytes for p in core.parameters())
# %% wrong (a rank's share of what is sharded): what is gathered forward, backward, and what is scattered?
# "moved": moved → "moved": moved // world_size if method == "fsdp" else moved
# %% wrong (counts collectives alone): of activations and their gradients
# [*traffic.sent, *traffic.received, *traffic.collectives] → traffic.collectives
# %% wrong (steps per second): does it count all ranks' samples
# len(x) * num_steps / took_s → num_steps / took_s
# %% wrong (adds the ranks' speeds): which samples were counted?
# len(x) * num_steps / took_s → world_size * len(x) * num_steps / took_s
# %% wrong (two micro-batches): and 4 are asked
# Schedule1F1B(stage, 4, → Schedule1F1B(stage, 2,
# %% wrong (every rank takes the whole batch): samples went through rank
# if method in ("ddp", "fsdp"): → if False:
# %% wrong (gathers the pipeline's parameters): each returns what its own stage holds
# -     return {
# +     if method == "pipeline":
# +         for i, layer in enumerate(model):
# +             for p in layer.parameters():
# +                 dist.broadcast(p.data, i * world_size // len(model))
# +     return {
# get_model_state_dict(core, options=options) → get_model_state_dict(model if method == "pipeline" else core, options=options)
# %% wrong (begins at the end): what was timed
# -     took_s = time.perf_counter() - begin
# +     begin = time.perf_counter()
# +     took_s = time.perf_counter() - begin
# %% wrong (held before training): when are they counted?
# "held": alive.held_bytes(list(core.parameters()), optimizer) → "held": {"parameters": 1, "gradients": 1, "optimizer state": 1}
# %% wrong (held in one number): not the dict of alive.held_bytes
# alive.held_bytes(list(core.parameters()), optimizer) → sum(alive.held_bytes(list(core.parameters()), optimizer).values())
# %% wrong (nothing is sharded): should hold them once
# -         for unit in [*model, model]:
# -             fully_shard(unit)
# +         model = DistributedDataParallel(model)
# %% wrong (a short last stage): are they divided?
# model[len(model) * rank // world_size : len(model) * (rank + 1) // world_size] → model[:-1] if rank == 0 else model[-1:]
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
