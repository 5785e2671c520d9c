"""A training run to be killed: `python -m torch.distributed.run … -m tools.bench.elastic FOLDER`.

It saves after every step. Rank 0 writes its steps to FOLDER/steps, one line per attempt. The run ends once
FOLDER/enough exists and all steps are done; rank 0 then writes a digest of the parameters to FOLDER/digest. The batch
of a step depends on its number alone.
"""

import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from course_utils import checkpoint
from course_utils.models import DigitsNet
from course_utils.train import places
from course_utils.train.options import read

NUM_STEPS, STEP_S = 600, 0.05  # slow steps, so that kills hit during training


def main(folder):
    place = places.find_place()
    options, _ = read(["--timeout", "30"], place, "")
    places.join(options, place, needs_group=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(DigitsNet().double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    file, step = folder / "last.pt", 0
    if file.exists():
        step = checkpoint.load(file, model=model.module, optimizer=optimizer)["step"]
    if place.rank == 0:
        with open(folder / "steps", "a") as steps:
            steps.write("\n")
    while step < NUM_STEPS or not (folder / "enough").exists():
        if step < NUM_STEPS:
            batch = torch.Generator().manual_seed(1000 * step + place.rank)
            x, y = torch.rand(8, 1, 16, 16, generator=batch).double(), torch.randint(10, (8,), generator=batch)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            time.sleep(STEP_S)
            step += 1
            if place.rank == 0:
                checkpoint.save(file, model=model.module, optimizer=optimizer, step=step)
        dist.barrier()
        if place.rank == 0:
            with open(folder / "steps", "a") as steps:
                steps.write(f"{step} ")
    if place.rank == 0:
        values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        (folder / "digest").write_text(hashlib.sha256(values).hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
