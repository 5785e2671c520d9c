"""What workers reach together: images per second as a multiple of one process's, and what each step grows by."""

# Seconds of a step with DDP, 32 images a GPU, by the number of V100s; without DDP it takes 0.097 s. Published:
# PyTorch 1.4, benchmarks/distributed/ddp/README.md. A gap after each point, so that no line joins them.
_V100_S, _V100_ALONE_S = {1: 0.100, 2: 0.103, 4: 0.103, 8: 0.104}, 0.097
V100S = {
    "ResNet-50 on V100s, published": (
        [n for n in _V100_S for _ in range(2)],
        [value for n, seconds in _V100_S.items() for value in (n * _V100_ALONE_S / seconds, float("nan"))],
    )
}


def curves(timings, base_s, num_images, block):
    """Print what {(kind, workers): Timing of `block` steps} reached, and return the curves {kind: (x, y, spread)}.

    `num_images` is the batch that the workers share, or that of each worker if the kind is "weak"; `base_s` is a step
    of one process without DDP. y is a multiple of that process's images/s, and the spread is the middle half.
    """

    def reached(kind, n, seconds):
        return (n if kind == "weak" else 1) * base_s * block / seconds

    found = {}
    for kind in ("strong", "weak", "DataParallel"):
        sizes = sorted(n for name, n in timings if name == kind)
        if not sizes:
            continue
        typical = [reached(kind, n, timings[kind, n].median_s) for n in sizes]
        halves = [timings[kind, n].middle_half_s for n in sizes]
        spread = [[reached(kind, n, half[i]) for n, half in zip(sizes, halves, strict=True)] for i in (1, 0)]
        found[kind] = sizes, typical, spread
    print(f"{'no DDP':12s} 1 worker:  {num_images / base_s:6.0f} images/s")
    for kind, (sizes, typical, _) in found.items():
        for n, times in zip(sizes, typical, strict=True):
            workers = f"{n} worker{'s' * (n > 1)}:"
            print(
                f"{kind:12s} {workers:10s} {num_images * times / base_s:6.0f} images/s, "
                f"{times:.2f} times as many, {times / n:.0%} of ideal"
            )
    return found


def take_apart(steps_s, ideal_s):
    """Print how a step grows from `ideal_s` over {case: seconds of a step}, of which each changes one thing."""
    print(f"{'half of one process’s step':40s} {1e3 * ideal_s:6.2f} ms")
    added, before = {}, ideal_s
    for case, seconds in steps_s.items():
        added[case] = seconds - before
        print(f"{case:40s} {1e3 * seconds:6.2f} ms  {1e3 * added[case]:+.2f}")
        before = seconds
    print(f"In all {1e3 * (before - ideal_s):+.2f} ms; the row that adds most: {max(added, key=added.get)}")
