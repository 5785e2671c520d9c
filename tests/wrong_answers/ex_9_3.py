"""Exercise 9.3: answers that its check must refuse, each with words from the reason that it must give."""


def fill(order, num_bytes, cap_bytes):
    buckets, total = [[]], 0
    for index in order:
        if buckets[-1] and total + num_bytes[index] > cap_bytes:
            buckets.append([])
            total = 0
        buckets[-1].append(index)
        total += num_bytes[index]
    return [bucket for bucket in buckets if bucket]


def goes_forward(num_bytes, cap_bytes):
    return fill(range(len(num_bytes)), num_bytes, cap_bytes)


def turns_the_buckets_only(num_bytes, cap_bytes):
    return fill(range(len(num_bytes)), num_bytes, cap_bytes)[::-1]


def packs_forward_and_turns_all(num_bytes, cap_bytes):
    return [bucket[::-1] for bucket in fill(range(len(num_bytes)), num_bytes, cap_bytes)[::-1]]


def sorts_by_size(num_bytes, cap_bytes):
    return fill(sorted(range(len(num_bytes)), key=lambda i: -num_bytes[i]), num_bytes, cap_bytes)


def looks_at_the_size_too_late(num_bytes, cap_bytes):
    buckets, bucket, total = [], [], 0
    for index in reversed(range(len(num_bytes))):
        bucket.append(index)
        total += num_bytes[index]
        if total >= cap_bytes:
            buckets.append(bucket)
            bucket, total = [], 0
    return buckets + [bucket] if bucket else buckets


def leaves_room_for_equality(num_bytes, cap_bytes):
    return fill(reversed(range(len(num_bytes))), num_bytes, cap_bytes - 1)


def forgets_the_last_bucket(num_bytes, cap_bytes):
    buckets, bucket, total = [], [], 0
    for index in reversed(range(len(num_bytes))):
        if bucket and total + num_bytes[index] > cap_bytes:
            buckets.append(bucket)
            bucket, total = [], 0
        bucket.append(index)
        total += num_bytes[index]
    return buckets


def begins_with_an_empty_bucket(num_bytes, cap_bytes):
    buckets, total = [[]], 0
    for index in reversed(range(len(num_bytes))):
        if total + num_bytes[index] > cap_bytes:
            buckets.append([])
            total = 0
        buckets[-1].append(index)
        total += num_bytes[index]
    return buckets


def leaves_out_what_is_too_large(num_bytes, cap_bytes):
    order = [index for index in reversed(range(len(num_bytes))) if num_bytes[index] <= cap_bytes]
    return fill(order, num_bytes, cap_bytes)


def forgets_to_count_anew(num_bytes, cap_bytes):
    buckets, total = [], 0
    for index in reversed(range(len(num_bytes))):
        total += num_bytes[index]
        if not buckets or total > cap_bytes:
            buckets.append([])
        buckets[-1].append(index)
    return buckets


def keeps_what_made_it_too_large(num_bytes, cap_bytes):
    buckets, bucket = [], []
    for index in reversed(range(len(num_bytes))):
        bucket.append(index)
        if sum(num_bytes[i] for i in bucket) > cap_bytes:
            buckets.append(bucket)
            bucket = [index]
    return buckets + [bucket] if bucket else buckets


def one_bucket_each(num_bytes, cap_bytes):
    return [[index] for index in reversed(range(len(num_bytes)))]


def returns_sizes(num_bytes, cap_bytes):
    return [[num_bytes[index] for index in bucket] for bucket in RIGHT[0](num_bytes, cap_bytes)]


def counts_from_one(num_bytes, cap_bytes):
    return [[index + 1 for index in bucket] for bucket in RIGHT[0](num_bytes, cap_bytes)]


def returns_one_list(num_bytes, cap_bytes):
    return [index for bucket in RIGHT[0](num_bytes, cap_bytes) for index in bucket]


def forgets_to_return(num_bytes, cap_bytes):
    RIGHT[0](num_bytes, cap_bytes)


WRONG = [
    (goes_forward, "think of the order"),
    (turns_the_buckets_only, "think of the order"),
    (packs_forward_and_turns_all, "was closed though parameter"),
    (sorts_by_size, "think of the order"),
    (looks_at_the_size_too_late, "bytes, more than 8"),
    (leaves_room_for_equality, "was closed though parameter 2 still fitted"),
    (forgets_the_last_bucket, "are in no bucket"),
    (begins_with_an_empty_bucket, "an empty bucket"),
    (leaves_out_what_is_too_large, "parameters [0] are in no bucket"),
    (forgets_to_count_anew, "was closed though parameter"),
    (keeps_what_made_it_too_large, "a parameter is in more than one place"),
    (one_bucket_each, "was closed though parameter 2 still fitted"),
    (returns_sizes, "no parameter has the index"),
    (counts_from_one, "they count from 0"),
    (returns_one_list, "not a list of lists"),
    (forgets_to_return, "returned None"),
]


def cuts_from_the_end(num_bytes, cap_bytes):
    buckets, end = [], len(num_bytes)
    while end:
        begin = end - 1
        while begin and sum(num_bytes[begin - 1 : end]) <= cap_bytes:
            begin -= 1
        buckets.append(list(range(begin, end))[::-1])
        end = begin
    return buckets


RIGHT = [cuts_from_the_end]


def opens_buckets_until_it_fits(num_bytes, cap_bytes):
    buckets, room = [], 0
    for index in reversed(range(len(num_bytes))):
        while num_bytes[index] > room:
            buckets.append([])
            room = cap_bytes
        buckets[-1].append(index)
        room -= num_bytes[index]
    return buckets


ENDLESS = [(opens_buckets_until_it_fits, "in opens_buckets_until_it_fits")]
