"""Train sharded for days: killed or told to stop, it goes on where it was. "LONG" marks that.

    torchrun --standalone --nproc-per-node 4 long_run.py FOLDER      begins, or goes on; 2 may, too
    python -m course_utils.slurm fsdp --program long_run.py --resumes -- FOLDER    its batch file
    python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER/step_000056 FILE

On SIGTERM all ranks save and exit with 143. All nodes must see FOLDER. FILE gets whole tensors.
"""

import os
import shutil  # LONG
import signal  # LONG
import sys
from pathlib import Path  # LONG

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp  # LONG
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # LONG
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # LONG
from torch.distributed.fsdp import fully_shard

from course_utils.data import load_images

EPOCHS, BATCH = 4, 96  # the batch of all ranks together: their number must divide it
EVERY, KEEP = 5, 2  # LONG: steps between checkpoints; how many stay
DROPOUT = 0.0  # above 0, only an equal number of ranks draws the same numbers

env = (int(os.environ[name]) for name in "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE".split())
rank, world_size, local_rank, num_local = env
BATCH % world_size and sys.exit(f"{BATCH} samples cannot be shared by {world_size} ranks")
on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= num_local  # one for each
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
on_gpu and torch.cuda.set_device(device)
dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
torch.set_default_dtype(torch.float64)  # so that any number of ranks prints the same digits
torch.manual_seed(0)  # the same start everywhere
block = nn.Linear(64, 128), nn.ReLU(), nn.Dropout(DROPOUT)
model = nn.Sequential(nn.Flatten(), *block, nn.Linear(128, 10)).to(device)
mesh = dist.init_device_mesh(device.type, (world_size,))
for unit in [model[1], model]:  # the first layer is a unit; the rest is one more
    fully_shard(unit, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
torch.manual_seed(rank)  # from here on each rank draws numbers of its own
images, labels = (digits := load_images("digits")).images.double(), digits.labels
per_epoch = len(labels) // BATCH * BATCH
folder, samples, pending = Path(sys.argv[1]), 0, None  # LONG: samples consumed; save under way
writers = dist.new_group(backend="gloo")  # LONG: for the saving thread, whose messages must not mix
told, own_random = [], f"random_{device.type}_{rank}"  # LONG
signal.signal(signal.SIGTERM, lambda *_: told.append(True))  # LONG: noted; the step goes on


def state():  # LONG: what a checkpoint holds; of sharded tensors, this rank's shards
    weights, averages = get_state_dict(model, optimizer)
    random = (torch.cuda if on_gpu else torch).get_rng_state()
    return {"model": weights, "optimizer": averages, "samples": samples, own_random: random}


def complete():  # LONG: DCP renames its table to .metadata when all shards are on the disk
    return sorted(path.parent for path in folder.glob("step_*/.metadata"))


def save():  # LONG: returns when the state is copied; a thread writes the copy
    pending and pending.result()  # one at a time; what went wrong in the thread is raised here
    for old in complete()[:-KEEP] if rank == 0 else []:
        (old / ".metadata").unlink()  # first: the rest must not look complete
        shutil.rmtree(old)
    path = folder / f"step_{samples // BATCH:06d}"
    copier = DefaultStager(StagingOptions(*4 * [False]))  # copies here and now, in this thread
    return dcp.async_save(state(), checkpoint_id=path, process_group=writers, async_stager=copier)


def resume():  # LONG: return the samples consumed, from the newest complete checkpoint
    for path in folder.glob("step_*") if rank == 0 else []:  # what was interrupted goes
        (path / ".metadata").exists() or shutil.rmtree(path)
    dist.barrier()  # before anybody makes a folder of that name
    if not complete():
        return 0
    path, saved = complete()[-1], state()  # tensors of the right shapes, to be overwritten
    if own_random not in dcp.FileSystemReader(path).read_metadata().state_dict_metadata:
        del saved[own_random]  # there were fewer ranks, or other devices
    dcp.load(saved, checkpoint_id=path)  # what its shards need; unpickled: load what you trust
    states = {"model_state_dict": saved["model"], "optim_state_dict": saved["optimizer"]}
    set_state_dict(model, optimizer, **states)
    random = saved.get(own_random)
    random is None or (torch.cuda if on_gpu else torch).set_rng_state(random)
    return saved["samples"]


samples, stop = resume(), 0  # LONG
while samples < EPOCHS * per_epoch and not stop:
    epoch, begin = divmod(samples, per_epoch)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    mine = order[begin : begin + BATCH].chunk(world_size)[rank]  # LONG: for any number of ranks
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[mine].to(device)), labels[mine].to(device))
    loss.backward()
    optimizer.step()
    samples += BATCH
    dist.all_reduce(stop := torch.tensor(len(told)))  # LONG: one rank may hear it before the others
    if samples // BATCH % EVERY == 0 or samples == EPOCHS * per_epoch or stop:  # LONG
        pending = save()  # LONG
    if samples % per_epoch == 0:
        dist.all_reduce(loss := loss.detach())
        rank or print(f"epoch {epoch}: last loss {loss / world_size:.9f}", flush=True)
pending and pending.result()  # LONG
dist.destroy_process_group()
sys.exit(128 + signal.SIGTERM if stop else 0)  # LONG: as a shell says that SIGTERM ended it
