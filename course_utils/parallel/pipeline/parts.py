"""The parts of a pipeline: stages of layers, and micro-batches of samples."""

from torch import nn


def split_layers(layers, sizes):
    """Cut a sequence of modules into stages: a list of `nn.Sequential`, stage i with the next `sizes[i]` layers.

    The stages hold the layers themselves, not copies. Raises ValueError for more stages than layers, an empty stage,
    and sizes that do not add up to the number of layers.
    """
    layers = list(layers)
    if len(sizes) > len(layers):
        raise ValueError(
            f"{len(layers)} layers cannot be cut into {len(sizes)} stages: a stage needs a layer at least, so take "
            f"at most {len(layers)} stages"
        )
    if any(size < 1 for size in sizes):
        raise ValueError(
            f"sizes is {list(sizes)}, but every stage needs a layer at least: merge the empty stage with a neighbour"
        )
    if sum(sizes) != len(layers):
        raise ValueError(
            f"sizes {list(sizes)} add up to {sum(sizes)}, but there are {len(layers)} layers: every layer belongs to "
            "one stage"
        )
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [nn.Sequential(*layers[end - size : end]) for size, end in zip(sizes, ends)]


def split_batch(batch, num_micro_batches):
    """Cut a tensor along dim 0 into a list of `num_micro_batches` equal micro-batches, views in order.

    A schedule's slots have equal length, so micro-batches must too; raises ValueError if they cannot.
    """
    if num_micro_batches < 1 or len(batch) == 0 or len(batch) % num_micro_batches:
        some = [str(m) for m in range(1, len(batch) + 1) if len(batch) % m == 0]
        which = ", ".join(some) if len(some) <= 8 else f"{', '.join(some[:7])} … {some[-1]}"
        cure = f"choose one of {which}" if some else "a batch needs a sample at least"
        raise ValueError(
            f"a batch of {len(batch)} samples cannot be cut into {num_micro_batches} equal micro-batches: {cure}"
        )
    return list(batch.split(len(batch) // num_micro_batches))
