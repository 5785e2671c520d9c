"""What the checks share: the exception that refuses an answer, and comparisons that say what differs."""


class Wrong(Exception):
    """The answer is wrong; the message says how it shows, and what to look at."""


def expect(condition, reason):
    """Raise Wrong(reason) unless `condition` holds."""
    if not condition:
        raise Wrong(reason)


def max_difference(a, b):
    """Return the largest absolute difference between two tensors, or two lists of tensors, as a float.

    Raises Wrong if shapes or lengths differ.
    """
    import torch

    if isinstance(a, torch.Tensor):
        a, b = [a], [b]
    expect(len(a) == len(b), f"{len(a)} tensors came back where {len(b)} were expected")
    largest = 0.0
    for ours, theirs in zip(a, b):
        expect(ours.shape == theirs.shape, f"a tensor has shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}")
        if ours.numel():
            largest = max(largest, (ours - theirs).abs().max().item())
    return largest
