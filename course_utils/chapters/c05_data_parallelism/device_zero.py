"""Memory per device under `nn.DataParallel`: counted anywhere, measured on two or more GPUs."""

import torch
import torch.nn.functional as F

from ...measure import memory


def count(make_net, batch_size, num_devices, numbers_kept):
    """Return ({part: bytes} on device 0, {part: bytes} on each other device), held during the backward pass.

    `make_net()` takes images (B, 3, 32, 32) and returns one column per class. The optimizer keeps `numbers_kept`
    numbers per parameter. Counted on the meta device, where nothing is computed. Left out, both on device 0: the whole
    batch of images, and replica 0's own gradients beside the sums while those are made.
    """
    with torch.device("meta"):
        net, x = make_net(), torch.empty(batch_size // num_devices, 3, 32, 32)
        outputs = torch.empty(batch_size, *net(x).shape[1:], requires_grad=True)
        with memory.Activations(net) as own:
            net(x)
        with memory.Activations(net) as loss:
            F.cross_entropy(outputs, torch.empty(batch_size, dtype=torch.long))
    weights = memory.weight_bytes(net)
    own_outputs = outputs.nbytes // num_devices  # later replaced by their gradient
    every = {"weights": weights, "gradients": weights, "activations": own.num_bytes, "outputs, loss": own_outputs}
    gathered = {"outputs, loss": own_outputs + 2 * outputs.nbytes + loss.num_bytes}
    return every | gathered | {"optimizer state": numbers_kept * weights}, every


def remedies(name, make_net, batch_size, num_devices, numbers_kept=2):
    """Return {case: `count`'s result} as it is and with each of three remedies; the default counts Adam's state."""
    zero, other = count(make_net, batch_size, num_devices, numbers_kept)
    of_part = other["outputs, loss"]  # a part's outputs, whose place their gradient takes, beside what its loss keeps
    own = {"outputs, loss": (zero["outputs, loss"] - of_part) // num_devices - of_part}
    return {
        name: (zero, other),
        "  half the batch": count(make_net, batch_size // 2, num_devices, numbers_kept),
        "  the loss inside forward": (zero | own, other | own),
        "  an optimizer each, too": (zero | own, zero | own),
    }


def table(cases):
    """Return the table of {case: (parts of device 0, parts of each other device)} as text."""
    rows = [f"{'MB held by':28s}device 0  each other   device 0, for outputs and loss  for optimizer state"]
    for name, (zero, other) in cases.items():
        held = sum(zero.values()), sum(other.values()), zero["outputs, loss"], zero["optimizer state"]
        whole, others, outputs, state = (num_bytes / 1e6 for num_bytes in held)
        rows.append(f"{name:26s}{whole:10.1f}{others:12.1f}{outputs:33.1f}{state:21.1f}")
    return "\n".join(rows)


def by_device(zero, other, num_devices):
    """Return {device: {part: MB}}, with the activations, which may be too few to be seen, among the outputs."""
    held = [zero] + [other] * (num_devices - 1)
    return {f"device {i}": _merged(parts) for i, parts in enumerate(held)}


def _merged(parts):
    merged = {part: num_bytes / 1e6 for part, num_bytes in parts.items()}
    outputs = merged.pop("activations") + merged.pop("outputs, loss")
    state = {"optimizer state": merged.pop("optimizer state")} if "optimizer state" in merged else {}
    return merged | {"activations, outputs, loss": outputs} | state


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
