"""Memory per device under `nn.DataParallel`: counted anywhere, measured on two or more GPUs."""

import torch
import torch.nn.functional as F

from ...measure import memory

OWN, GATHERED, STATE = (
    "activations; own outputs' gradient",
    "other outputs' gradients; loss",
    "optimizer state",
)


def count(make_net, batch_size, num_devices, numbers_kept):
    """Return ({part: bytes} on device 0, {part: bytes} on each other device), held during the backward pass, added up.

    `make_net()` takes images (B, 3, 32, 32) and returns one column per class. The optimizer keeps `numbers_kept`
    numbers per parameter. Counted on the meta device, where nothing is computed. The outputs are gone by then: neither
    the last layer nor the loss keeps them. Left out, both on device 0: the whole batch of images, and replica 0's own
    gradients beside the sums while those are made.
    """
    with torch.device("meta"):
        net, x = make_net(), torch.empty(batch_size // num_devices, 3, 32, 32)
        outputs = torch.empty(batch_size, *net(x).shape[1:], requires_grad=True)
        with memory.Activations(net) as own:
            net(x)
        with memory.Activations(net) as loss:
            F.cross_entropy(outputs, torch.empty(batch_size, dtype=torch.long))
    weights = memory.weight_bytes(net)
    part = outputs.nbytes // num_devices
    every = {"weights": weights, "gradients": weights, OWN: own.num_bytes + part}  # its outputs' gradient
    # What the loss keeps, and the gradients of the other parts' outputs: the own part's is counted above.
    of_loss = {GATHERED: outputs.nbytes - part + loss.num_bytes}
    return every | of_loss | {STATE: numbers_kept * weights}, every


def remedies(name, make_net, batch_size, num_devices, numbers_kept=2):
    """Return {case: `count`'s result} as it is and with each of three remedies; the default counts Adam's state."""
    zero, other = count(make_net, batch_size, num_devices, numbers_kept)
    state = {STATE: zero[STATE]}
    kept = zero[GATHERED] // (2 * num_devices - 1)  # by a part's loss: as many numbers as the part has outputs
    inside = other | {OWN: other[OWN] + kept}
    return {
        name: (zero, other),
        "  half the batch": count(make_net, batch_size // 2, num_devices, numbers_kept),
        "  the loss inside forward": (inside | state, inside),
        "  an optimizer each, too": (inside | state, inside | state),
    }


def table(cases):
    """Return the table of {case: (parts of device 0, parts of each other device)} as text."""
    rows = [f"{'MB held by':28s}device 0  each other   device 0 alone: gradients and loss  optimizer state"]
    for name, (zero, other) in cases.items():
        more = zero.get(GATHERED, 0), zero[STATE] - other.get(STATE, 0)
        whole, others, outputs, state = (
            num_bytes / 1e6 for num_bytes in (sum(zero.values()), sum(other.values()), *more)
        )
        rows.append(f"{name:26s}{whole:10.1f}{others:12.1f}{outputs:37.1f}{state:17.1f}")
    return "\n".join(rows)


def by_device(zero, other, num_devices):
    """Return {device: {part: MB}}."""
    held = [zero] + [other] * (num_devices - 1)
    return {f"device {i}": {part: size / 1e6 for part, size in parts.items()} for i, parts in enumerate(held)}


def measured(make_step, make_net, batch_size, num_gpus, numbers_kept=2):
    """Return a line per GPU: the bytes `count` gives, and the peak a step of `make_step()` allocated.

    With fewer than two GPUs, return the reason why nothing is measured.
    """
    if num_gpus < 2:
        return "Fewer than two GPUs are in use here, so the count stands alone."
    before = [torch.cuda.memory_allocated(i) for i in range(num_gpus)]
    step = make_step()
    for _ in range(2):  # the first step creates the optimizer state
        for i in range(num_gpus):
            torch.cuda.reset_peak_memory_stats(i)
        step()
    most = [(torch.cuda.max_memory_allocated(i) - old) / 1e6 for i, old in enumerate(before)]
    held = by_device(*count(make_net, batch_size, num_gpus, numbers_kept), num_gpus)
    counted = [sum(parts.values()) for parts in held.values()]
    rows = zip(counted, most)
    return "\n".join(f"cuda:{i}: counted {a:.1f} MB, max_memory_allocated {b:.1f} MB" for i, (a, b) in enumerate(rows))
