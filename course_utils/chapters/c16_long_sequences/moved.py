"""The bytes that a rank sends, from the messages and collectives that `parallel.messages.Traffic` recorded."""

# What each of N ranks sends for a byte that the collective fills on it, if a collective is made of the fewest bytes: a
# ring for the first three (chapter 08), and an all-to-all that leaves a rank's own part where it is.
_SENT = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: n - 1,
    "alltoall": lambda n: (n - 1) / n,
}


def sent_bytes(traffic, world_size):
    """Bytes that this rank sent while `traffic` watched: those of its messages, and its share of each collective.

    Raises ValueError for a collective that is none of all-reduce, all-gather, reduce-scatter and all-to-all.
    """
    total = traffic.sent_bytes
    for name, num_bytes in traffic.collectives:
        share = _SENT.get(name.removesuffix("_base"))
        if share is None:
            raise ValueError(f"how many bytes a rank sends in {name} is not known here")
        total += num_bytes * share(world_size)
    return round(total)
