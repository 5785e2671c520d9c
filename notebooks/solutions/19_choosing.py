# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 19.1
def choose(parameters, num_gpus, memory, kept, recomputed, largest):
    share, copies = parameters / num_gpus, 4 * 2 * largest
    needs = {
        "replicas": 16 * parameters + kept,
        "shard optimizer": 4 * parameters + 12 * share + kept,
        "shard all": 16 * share + copies + kept,
        "shard all, recompute": 16 * share + copies + recomputed,
    }
    for method, num_bytes in needs.items():
        if num_bytes <= memory:
            return method, num_bytes
    return None, num_bytes


# %%
# Exercise 19.2
def train_with(method, model, x, y, num_steps):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    core, xs, ys = model, x, y
    if method == "dp":
        model = nn.DataParallel(model)
    elif method == "ddp":
        model = DistributedDataParallel(model)
    elif method == "fsdp":
        for unit in [*model, model]:
            fully_shard(unit)
    elif method == "tensor":
        halves = {"[1-4].0": tp.ColwiseParallel(), "[1-4].2": tp.RowwiseParallel()}
        tp.parallelize_module(model, init_device_mesh("cpu", (world_size,)), halves)
    elif method == "pipeline":
        core = model[len(model) * rank // world_size : len(model) * (rank + 1) // world_size]
        stage = PipelineStage(core, rank, world_size, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 4, loss_fn=F.cross_entropy)
    if method in ("ddp", "fsdp"):  # equal parts: the mean of the ranks' means is the mean
        xs, ys = (tensor.chunk(world_size)[rank] for tensor in (x, y))
    optimizer = torch.optim.Adam(core.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        if method == "pipeline":
            schedule.step(*[x] * (rank == 0), **({"target": y} if rank == world_size - 1 else {}))
        else:
            F.cross_entropy(model(xs), ys).backward()
        optimizer.step()

    begin = time.perf_counter()
    for _ in range(num_steps - 1):
        step()
    with messages.Traffic() as traffic:
        step()
    took_s = time.perf_counter() - begin
    options = StateDictOptions(full_state_dict=method != "pipeline")
    moved = sum(size for _, size in [*traffic.sent, *traffic.received, *traffic.collectives])
    return {
        "parameters": get_model_state_dict(core, options=options),
        "held": alive.held_bytes(list(core.parameters()), optimizer),
        "moved": moved,
        "samples_per_s": len(x) * num_steps / took_s,
    }


# %%
# Exercise 19.3
import math


def wrong_term(job, lines):
    forward = job["flops"] / (job["peak"] * job["matrix"])
    micro_batch = sum(lines[name] for name in ("forward products", "backward products", "products again", "the rest"))
    n = job["ranks"]
    right = {
        "forward products": forward,
        "backward products": 2 * forward,
        "products again": forward if job["recomputed"] else 0.0,
        "the rest": job["bytes"] / (job["bandwidth"] * job["memory"]),
        "bubble": (job["stages"] - 1) * micro_batch,
        "messages": 2 * (n - 1) / n * job["gradient_bytes"] / job["bus"],
    }
    for name, seconds in right.items():
        if not math.isclose(lines[name], seconds, rel_tol=1e-6):
            return name, seconds
