# %% right (cuts from the end)
def make_buckets(num_bytes, cap_bytes):
    buckets, end = [], len(num_bytes)
    while end:
        begin = end - 1
        while begin and sum(num_bytes[begin - 1 : end]) <= cap_bytes:
            begin -= 1
        buckets.append(list(range(begin, end))[::-1])
        end = begin
    return buckets

# %% wrong (leaves room for equality): was closed though parameter
# <= cap_bytes → < cap_bytes
# %% wrong (goes forward inside): think of the order
# list(range(begin, end))[::-1] → list(range(begin, end))
# %% wrong (counts from one): they count from 0
# list(range(begin, end))[::-1] → list(range(begin + 1, end + 1))[::-1]
# %% wrong (returns one list): not a list of lists
# return buckets → return sum(buckets, [])
# %% right (counts what a bucket holds)
def make_buckets(num_bytes, cap_bytes):
    buckets, total = [], 0
    for index in reversed(range(len(num_bytes))):
        if not buckets or total + num_bytes[index] > cap_bytes:
            buckets.append([])
            total = 0
        buckets[-1].append(index)
        total += num_bytes[index]
    return buckets

# %% wrong (begins with an empty bucket): an empty bucket
# buckets, total = [], 0 → buckets, total = [[]], 0
# if not buckets or total → if total
# %% wrong (looks at the size too late): more than 8
# not buckets or total + num_bytes[index] > cap_bytes → not buckets or total > cap_bytes
# %% wrong (leaves out what is too large): are in no bucket
# reversed(range(len(num_bytes))) → reversed([i for i, n in enumerate(num_bytes) if n <= cap_bytes])
# %% wrong (keeps what made it too large): a parameter is in more than one place
# buckets.append([]) → buckets.append([index])
