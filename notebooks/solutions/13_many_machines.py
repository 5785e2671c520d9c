# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 13.1
def environment(rank, gpus):
    if not 0 <= rank < sum(gpus):
        raise ValueError(f"there is no rank {rank}: {sum(gpus)} GPUs have the ranks 0 to {sum(gpus) - 1}")
    node, local_rank = 0, rank
    while local_rank >= gpus[node]:  # it lies beyond this node
        local_rank -= gpus[node]
        node += 1
    found = {"GROUP_RANK": node, "LOCAL_RANK": local_rank, "RANK": rank}
    found |= {"LOCAL_WORLD_SIZE": gpus[node], "WORLD_SIZE": sum(gpus)}
    return {name: str(value) for name, value in found.items()}


# %%
# Exercise 13.2
def train_elastic(model, optimizer, images, labels, num_steps, path):
    rank, world_size, begin = dist.get_rank(), dist.get_world_size(), 0
    if os.path.exists(path):
        begin = checkpoint.load(path, model=model, optimizer=optimizer)["done"]
    for step in range(begin, num_steps):
        mine = torch.arange(12 * step, 12 * (step + 1))[rank::world_size]  # 5 ranks: 3, 3, 2, 2, 2
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine], reduction="sum")
        (loss / 12).backward()  # this rank's share of the mean
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        if rank == 0:
            checkpoint.save(path, model=model, optimizer=optimizer, done=step + 1)
    return list(range(begin, num_steps))


# %%
# Exercise 13.3
import shlex


def batch_file(nodes, workers_per_node, minutes, program):
    own = f"export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec {program}"
    return f"""#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={workers_per_node}
#SBATCH --gpus-per-node={workers_per_node}
#SBATCH --time={minutes}

export WORLD_SIZE={nodes * workers_per_node} LOCAL_WORLD_SIZE={workers_per_node}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
srun bash -c {shlex.quote(own)}
"""


# %%
# Exercise 13.4
def make_groups(shape):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh, own = torch.arange(world_size).view(shape), []
    for axis in range(len(shape)):
        for ranks in mesh.movedim(axis, -1).reshape(-1, shape[axis]).tolist():
            group = dist.new_group(ranks)  # every rank makes every group, in the same order
            if rank in ranks:
                own.append(group)
    return own
