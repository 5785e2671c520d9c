"""The course's training program: one network, six ways to divide the work, the same parameters at the end.

    python -m course_utils.train                                              one device
    python -m course_utils.train --strategy dp                                one process, all GPUs of the node
    torchrun --standalone --nproc-per-node 2 -m course_utils.train --strategy ddp      a process for each of two devices

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1                               each attempt then has a store of its own
    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint NODE:29400 \\
        --max-restarts 3 -m course_utils.train --strategy ddp --checkpoint DIR --resume auto
                                                                              on each of two nodes; NODE is one of them

    srun --ntasks-per-node 1 torchrun …                                       under Slurm: a torchrun on each node,
    srun --ntasks-per-node 4 python -m course_utils.train --strategy ddp      or a task for each device

In a notebook, after `from course_utils import launch, train`: launch(train.main, ["--strategy", "ddp"], world_size=2).

Lines that a program for one device would not need are marked at their end: "NEW" if several strategies need them,
"DP", "DDP", "FSDP", "PIPE" or "TP" if one does.
"""

import contextlib
import io
import json
import math
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist  # NEW
import torch.nn.functional as F
from tqdm import tqdm

from .. import hardware
from ..data import load_images
from ..launch import log
from ..processes import ending
from . import state
from .options import MODELS, read
from .places import Place, Refused, agreement, choose_device, find_place, join, require_same
from .sharded import Writer
from .stopping import Stop, Stopped
from .strategies import MAKERS, STRATEGIES, EndToEnd, Staged

# ---- Training


class Run:
    """One training run: the model, this rank's share of each batch, and the progress.

    `share` is (this rank's part, number of parts) of each batch; `num_alike` ranks compute the same numbers.
    """

    def __init__(self, options, place, device, images, test):
        self.options, self.place, self.device, self.test_images = options, place, device, test
        self.dtype = torch.float64 if options.precision == "fp64" else torch.float32
        self.images, self.labels = images.images.to(self.dtype), images.labels
        self.data = images.name
        self.num_steps = len(self.labels) // options.batch_size  # per epoch; an incomplete batch is dropped
        low = torch.float16 if device.type == "cuda" else torch.bfloat16  # float16 is slow on CPUs
        self.sixteen = {"bf16": torch.bfloat16, "amp": low}.get(options.precision)  # 16-bit dtype, or None
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.sixteen is torch.float16)
        cuts_batch = options.strategy in ("ddp", "fsdp")  # NEW
        self.share = (place.rank, place.world_size) if cuts_batch else (0, 1)  # NEW
        self.num_alike = (
            place.world_size if options.strategy == "tensor" else 1
        )  # TP: each has every image and the loss
        torch.manual_seed(options.seed)  # the same start everywhere
        model = MAKERS[options.model]().to(device, self.dtype)
        self.num_parameters = sum(p.numel() for p in model.parameters())
        model = STRATEGIES[options.strategy](model, self)  # NEW
        self.core = getattr(model, "module", model)  # NEW: without the wrapper, so that parameters keep their names
        self.trained = Staged(model, self) if options.strategy == "pipeline" else EndToEnd(model, self)  # NEW: PIPE
        # Made after the model is cut, since momentum is cut like the parameters.
        # TP: on GPUs, SGD would update all parameters at once by default, and refuse DTensors among tensors.
        at_once = {"foreach": False} if options.strategy == "tensor" else {}
        self.optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum, **at_once)
        self.epoch = self.step = 0  # completed: epochs, and steps of the current one
        self.loss_sum, self.figures = 0.0, None  # of those steps' images; of the last completed epoch
        self.writer = None
        if options.sharded:
            bytes_per_s = options.save_mb_per_s and 1e6 * options.save_mb_per_s
            self.writer = Writer(options.checkpoint, options.keep or 2, bytes_per_s)
        self.stop = Stop(bool(options.checkpoint))

    def autocast(self):
        return torch.autocast(self.device.type, self.sixteen) if self.sixteen else contextlib.nullcontext()

    def rate_at(self, step):
        """Return the learning rate of update `step` of the run, from 0: chapter 11's linear rule and warm-up."""
        base, warmup = self.options.lr, round(self.options.warmup * self.num_steps)
        if self.options.fixed_lr:
            return base
        peak = base * self.options.batch_size / self.options.base_batch
        if step < warmup and peak > base:  # in a straight line from base to peak
            return base + (peak - base) * (step + 1) / warmup
        return peak

    def train_epoch(self):
        """Train to the end of the epoch; return its mean loss, and images/s over all ranks."""
        options, batch_size = self.options, self.options.batch_size
        order = self.order()
        total = torch.zeros((), dtype=self.dtype, device=self.device)
        begin, begin_s = self.step, time.perf_counter()
        is_hidden = None if self.place.rank == 0 else True  # NEW: one bar for all; None: in a terminal alone
        steps = range(begin, self.num_steps)
        for step in tqdm(steps, f"epoch {self.epoch}", disable=is_hidden, leave=False, mininterval=0.2):
            chosen = self.chosen(order, step)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate_at(self.epoch * self.num_steps + step)
            self.optimizer.zero_grad()
            total += self.trained.learn(self.images[chosen].to(self.device), self.labels[chosen].to(self.device))
            self.scaler.step(self.optimizer)
            self.scaler.update()
            is_due = options.save_every and (step + 1) % options.save_every == 0 and step + 1 < self.num_steps
            is_last = options.checkpoint and self.stop.agreed()
            if is_due or is_last:
                self.step = step + 1
                self._add_loss(total)
                state.save(self)
            if is_last:
                state.finish(self)
                raise Stopped(
                    f"SIGTERM: stopped after step {step + 1} of epoch {self.epoch}, which {options.checkpoint} holds; "
                    "the same command with `--resume auto` goes on"
                )
        self._add_loss(total)  # on a GPU this waits for the last step, before the clock is read
        (took_s,) = self.over_ranks([time.perf_counter() - begin_s], "max")
        num_images = batch_size * self.num_steps
        return self.loss_sum / num_images, batch_size * (self.num_steps - begin) / took_s

    def order(self):
        """Return the order of the images in this epoch, as torch's DistributedSampler draws it.

        All ranks draw the same numbers, so no message is needed, and it does not depend on how many ranks there are.
        """
        return torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(self.options.seed + self.epoch))

    def chosen(self, order, step):
        """Return this rank's share of batch `step`. The place in the data is that number, however many ranks share.

        torchdata's StatefulDataLoader (0.11) counts for each rank: loaded on half as many ranks, it repeats half of
        what was seen; on twice as many, it leaves out as many as were seen.
        """
        part, num_parts = self.share
        batch = order[step * self.options.batch_size : (step + 1) * self.options.batch_size]
        return batch[part::num_parts]  # NEW

    def _add_loss(self, total):
        """Move the losses of steps from `total` to the sum over images, which checkpoints save."""
        per_rank = self.options.batch_size // self.share[1]
        self.loss_sum += self.over_ranks([total.item() * per_rank])[0] / self.num_alike  # NEW: over ranks
        total.zero_()

    @torch.no_grad()
    def test(self):
        """Return the accuracy on the test images, from 0 to 1."""
        (part, num_parts), num_images = self.share, len(self.test_images)
        num_right = torch.zeros((), device=self.device)
        for chosen in torch.arange(num_images).split(self.options.batch_size):
            # Padded with image 0, which is not counted, so that all ranks make the same calls with equal batches.
            chosen = F.pad(chosen, (0, self.options.batch_size - len(chosen)), value=-1)
            chosen = chosen[part::num_parts]  # NEW
            x, y = self.test_images.images[chosen.clamp(min=0)], self.test_images.labels[chosen.clamp(min=0)]
            found, y = self.trained.predict(x.to(self.device, self.dtype)), y.to(self.device)
            num_right += ((found == y) & (chosen >= 0).to(self.device)).sum()
        return self.over_ranks([num_right.item()])[0] / self.num_alike / num_images  # NEW: over ranks

    def over_ranks(self, values, operation="sum"):
        """Return the sum ("sum") or maximum ("max") over all ranks of each of this rank's numbers."""
        if dist.is_initialized():  # NEW
            values = torch.tensor(values, dtype=torch.float64, device=self.device)  # NEW
            dist.all_reduce(values, getattr(dist.ReduceOp, operation.upper()))  # NEW
            values = values.tolist()  # NEW
        return values


# ---- Figures


def peak_bytes(device):
    """Return this process's peak memory in bytes: on its GPUs since the last reset, or on the CPU since its start."""
    if device.type == "cuda":
        return max(torch.cuda.max_memory_allocated(gpu) for gpu in hardware.gpus_in_use())
    with contextlib.suppress(OSError):  # Linux: getrusage would include the parent's peak
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def report(run):
    """Print the figures of the last epoch on rank 0, pass them to `log`, and append them to --json as one line."""
    if run.place.rank != 0:  # NEW: one report for all
        return
    figures, options = run.figures, run.options
    speed = f"{figures['images_per_s']:,.0f} images/s ({figures['images_per_s_per_rank']:,.0f} a rank)"
    print(
        f"epoch {figures['epoch']}: loss {figures['loss']:.4f}, accuracy {figures['accuracy']:.1%}, {speed}, peak "
        f"{figures['peak_bytes'] / 1e6:,.0f} MB a rank".replace("%", " %"),
        flush=True,
    )
    log(**figures)
    if options.json:
        names = ("strategy", "model", "batch_size", "precision", "seed")
        about = {name: getattr(options, name) for name in names} | {
            "data": run.data,
            "world_size": run.place.world_size,
        }
        # A learning rate that is too high leads to NaN or infinity, which JSON does not have: null stands for them.
        valid = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        with open(options.json, "a", encoding="utf-8") as file:
            file.write(json.dumps(about | valid, allow_nan=False) + "\n")


def train(run):
    """Train to the last epoch, and return its figures."""
    if run.epoch >= run.options.epochs and run.place.rank == 0:
        print(
            f"nothing is left to do: the checkpoint has {run.epoch} epochs, --epochs is {run.options.epochs}",
            flush=True,
        )
    while run.epoch < run.options.epochs:
        for gpu in hardware.gpus_in_use():
            torch.cuda.reset_peak_memory_stats(gpu)
        loss, images_per_s = run.train_epoch()
        accuracy = run.test()
        (peak,) = run.over_ranks([peak_bytes(run.device)], "max")
        run.figures = {
            "epoch": run.epoch,
            "loss": loss,
            "accuracy": accuracy,
            "images_per_s": images_per_s,
            "images_per_s_per_rank": images_per_s / run.place.world_size,
            "peak_bytes": int(peak),
            "learning_rate": run.optimizer.param_groups[0]["lr"],
        }
        run.epoch, run.step, run.loss_sum = run.epoch + 1, 0, 0.0
        report(run)  # before the checkpoint: a kill in between repeats a line, and loses none
        if run.options.checkpoint:
            state.save(run)
    state.finish(run)
    return run.figures


# ---- Beginning and end


def load_data(options, place):
    """Return the training and test images, in the model's size. Raises Refused on all ranks."""
    size, channels = MODELS[options.model]
    for turn in (True, False):  # NEW: one process of a node may have to download them; then the others find them
        with agreement(), contextlib.redirect_stdout(sys.stdout if place.rank == 0 else io.StringIO()):
            if (place.local_rank == 0) == turn:
                try:
                    images = load_images(options.data, True, size, channels)
                    test = load_images(images.name, False, size, channels)
                except (ValueError, RuntimeError) as error:  # another name; a damaged file
                    raise Refused(f"--data {options.data}: {error}") from error
                if test.name != images.name:
                    raise Refused(
                        f"--data {options.data}: its test images are missing: copy them beside those to train on"
                    )
    with agreement():
        require_same("the data set", f"{images.name} with {len(images)} images")  # NEW
        if options.batch_size > len(images):
            raise Refused(f"--batch-size {options.batch_size} is more than the {len(images)} images of {images.name}")
    return images, test


def backend_of(device):
    """Return the name of the backend that carries tensors of this device: a group with NCCL has gloo for the CPU."""
    has_nccl = "nccl" in dist.get_backend_config()
    return ("nccl" if device.type == "cuda" else "gloo") if has_nccl else dist.get_backend()


def start(options, place):
    """Choose the device, load the data, make the Run and load its checkpoint; rank 0 prints what is trained."""
    device = choose_device(options, place)
    if device.type == "cuda" and options.precision == "fp32":
        hardware.full_precision()  # convolutions would round to TF32
    run = Run(options, place, device, *load_data(options, place))
    if place.rank == 0:
        ranks = f"{place.world_size} ranks" if place.world_size > 1 else "one process"
        means = f", {backend_of(device)}" if dist.is_initialized() else ""
        print(
            f"{options.strategy}: {ranks} on {device.type}{means}; {options.model}, {run.num_parameters:,} parameters; "
            f"{run.data}, {len(run.labels):,} images, {options.batch_size} a step",
            flush=True,
        )
        if options.precision == "amp" and device.type == "cpu":
            print("--precision amp: on CPUs bfloat16, for which the loss need not be scaled", flush=True)
        if options.strategy == "dp" and device.type == "cpu":
            print("--strategy dp: without a GPU, DataParallel runs the model as it is", flush=True)
    if options.checkpoint:
        state.resume(run)
    with agreement():
        if options.json and place.rank == 0:
            open(options.json, "a").close()  # fail now, not after an epoch
    return run


def main(argv=None, tell=False):
    """Train as `argv` says (None: the command line), and return the figures of the last epoch, on every rank.

    An existing process group is used and left open; one that is made here is closed. Raises Refused, on all ranks, if
    the options, the data or the checkpoint do not allow it, and Stopped, if a rank was told to stop by SIGTERM and the
    state is saved; with `tell`, rank 0 first prints the reason on stderr.
    """
    is_made, place = False, Place()
    try:
        place = find_place()
        options, fault = read(argv, place, __doc__)
        # Also for a run that will be refused, so that no rank ends before one of them has printed why.
        is_made = join(
            options, place, place.world_size > 1 or options.strategy in ("ddp", "fsdp", "pipeline", "tensor")
        )
        with agreement():
            if fault:
                raise Refused(fault)
        run = start(options, place)
        with run.stop:
            figures = train(run)
    except (Refused, Stopped) as refusal:
        if tell and (place.rank == 0 or not dist.is_initialized()):
            print(f"train: {refusal}", file=sys.stderr, flush=True)
        if dist.is_initialized():
            dist.barrier()  # torchrun ends all ranks once one has failed: first print the line above
        if is_made:
            dist.destroy_process_group()
        raise
    if is_made:
        dist.destroy_process_group()
    return figures


def program():
    """Run the command line, and exit with 0 after training, 2 if it was refused, or 143 if SIGTERM stopped it.

    143 is what a shell reports of a process that SIGTERM ended.
    """
    try:
        main(tell=True)
    except Refused:
        ending.leave(2)
    except Stopped:
        ending.leave(128 + signal.SIGTERM)
    ending.leave()
