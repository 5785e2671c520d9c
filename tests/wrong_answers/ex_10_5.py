"""Exercise 10.5: answers that its check must refuse, each with words from the reason that it must give."""


def _shards(numels, world_size):
    return [-(-n // world_size) for n in numels]


def between_steps(numels, world_size, reshard):
    return 16 * sum(_shards(numels, world_size))


def forward_only(numels, world_size, reshard):
    shards = _shards(numels, world_size)
    return 12 * sum(shards) + 4 * world_size * max(shards)


def ignores_reshard(numels, world_size, reshard):
    return right(numels, world_size, True)


def turns_reshard_round(numels, world_size, reshard):
    return right(numels, world_size, not reshard)


def forgets_what_is_always_there(numels, world_size, reshard):
    return right(numels, world_size, reshard) - 12 * sum(_shards(numels, world_size))


def does_not_pad(numels, world_size, reshard):
    peaks = []
    for k, n in enumerate(numels):
        gathered = n if reshard else sum(numels[: k + 1])
        peaks.append(4 * (gathered + n + sum(numels[k:]) / world_size))
    return round(12 * sum(numels) / world_size + max(peaks))


def all_gradient_shards_at_once(numels, world_size, reshard):
    shards = _shards(numels, world_size)
    peaks = []
    for k in range(len(shards)):
        gathered = shards[k] if reshard else sum(shards[: k + 1])
        peaks.append(4 * (world_size * (gathered + shards[k]) + sum(shards)))
    return 12 * sum(shards) + max(peaks)


def the_largest_unit_decides(numels, world_size, reshard):
    shards = _shards(numels, world_size)
    k = shards.index(max(shards))
    gathered = shards[k] if reshard else sum(shards[: k + 1])
    return 12 * sum(shards) + 4 * (world_size * (gathered + shards[k]) + sum(shards[k:]))


def forgets_the_whole_gradient(numels, world_size, reshard):
    shards = _shards(numels, world_size)
    gathered = [shards[k] if reshard else sum(shards[: k + 1]) for k in range(len(shards))]
    return 12 * sum(shards) + max(4 * (world_size * g + sum(shards[k:])) for k, g in enumerate(gathered))


def begins_at_the_front(numels, world_size, reshard):
    return right(numels[::-1], world_size, reshard)


def frees_the_gradient_first(numels, world_size, reshard):
    shards = _shards(numels, world_size)
    peaks = []
    for k in range(len(shards)):
        gathered = shards[k] if reshard else sum(shards[: k + 1])
        peaks.append(4 * (world_size * (gathered + shards[k]) + sum(shards[k + 1 :])))
    return 12 * sum(shards) + max(peaks)


def in_numbers(numels, world_size, reshard):
    return right(numels, world_size, reshard) // 4


def returns_nothing(numels, world_size, reshard):
    right(numels, world_size, reshard)


def right(numels, world_size, reshard):
    always = 12 * sum(_shards(numels, world_size))
    most, gradient_shards, padded = 0, 0, [world_size * s for s in _shards(numels, world_size)]
    kept = sum(padded)
    for whole in reversed(padded):
        gradient_shards += whole // world_size
        most = max(most, (whole if reshard else kept) + whole + gradient_shards)
        kept -= whole
    return always + 4 * most


def one_after_the_other(numels, world_size, reshard):
    padded = [n if n % world_size == 0 else n + world_size - n % world_size for n in numels]
    held = 12.0 * sum(padded) / world_size
    moments = []
    for whole in padded:
        held += 4 * whole
        moments.append(held)
        held -= 4 * whole * reshard
    for whole in padded[::-1]:
        held += 4 * whole * reshard + 4 * whole + 4 * whole / world_size
        moments.append(held)
        held -= 8 * whole
    return max(moments)


def lets_nothing_go(numels, world_size, reshard):
    shards, peaks = _shards(numels, world_size), []
    for k in range(len(shards)):
        gathered = shards[k] if reshard else sum(shards)
        peaks.append(world_size * (gathered + shards[k]) + sum(shards[k:]))
    return 12 * sum(shards) + 4 * max(peaks)


def prefetches(numels, world_size, reshard):
    shards, peaks = _shards(numels, world_size), []
    for k in range(len(shards)):
        gathered = sum(shards[max(k - 1, 0) : k + 1]) if reshard else sum(shards[: k + 1])
        peaks.append(world_size * (gathered + shards[k]) + sum(shards[k:]))
    return 12 * sum(shards) + 4 * max(peaks)


def counts_bits(numels, world_size, reshard):
    return 8 * right(numels, world_size, reshard)


def returns_words(numels, world_size, reshard):
    return f"{right(numels, world_size, reshard)} bytes"


WRONG = [
    (between_steps, "which is what is held between steps"),
    (forward_only, "which is the peak of the forward pass"),
    (ignores_reshard, "the other value of reshard"),
    (turns_reshard_round, "the other value of reshard"),
    (forgets_what_is_always_there, "Adam's numbers are missing"),
    (does_not_pad, "have its padding?"),
    (all_gradient_shards_at_once, "not made yet"),
    (the_largest_unit_decides, "go through the moments"),
    (forgets_the_whole_gradient, "bytes too few"),
    (begins_at_the_front, "go through the moments"),
    (frees_the_gradient_first, "bytes too few"),
    (in_numbers, "bytes too few"),
    (returns_nothing, "returned None"),
    (lets_nothing_go, "units stay gathered when their backward pass is over"),
    (prefetches, "bytes too many"),
    (counts_bits, "bytes too many"),
    (returns_words, "not a whole number of bytes"),
]
RIGHT = [right, one_after_the_other]
