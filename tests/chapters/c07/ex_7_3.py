# %% wrong (cuts the stored matrix): it is a piece of the layer as it is stored
# (group.scatter(piece, equal=True) for piece in whole.detach().split(lengths)) → (group.scatter(whole.detach(), equal=True), [whole[:0].detach()] * len(group), [whole[:0].detach()] * len(group))
# %% wrong (takes all three for equally long): as if there were as many key heads as query heads
# whole.detach().split(lengths) → whole.detach().chunk(3)
# %% wrong (joins in another order): in another order than was asked for
# zip(q, k, v) → zip(k, q, v)
# %% wrong (hands out in reverse): it is device 1's part
# [torch.cat(own) for own in zip(q, k, v)] → [torch.cat(own) for own in zip(q[::-1], k[::-1], v[::-1])]
# %% wrong (pairs queries with other devices' keys): which rows of the layer are this device's?
# zip(q, k, v) → zip(q, k[::-1], v)
# %% wrong (cuts the weight by columns): and should have (18, 7)
# return split(qkv.weight), → return group.scatter(qkv.weight.detach(), dim=1),
# %% wrong (leaves the bias whole): biases[0]
# split(qkv.bias) → group.broadcast(qkv.bias)
# %% wrong (cuts the bias as stored): biases[0]
# split(qkv.bias) → group.scatter(qkv.bias.detach(), equal=True)
# %% wrong (returns pairs): came back
# return split(qkv.weight), split(qkv.bias) → return list(zip(split(qkv.weight), split(qkv.bias))) + [None]
# %% wrong (changes the layer): was changed
# return split(qkv.weight), → qkv.weight.data.mul_(1.5); return split(qkv.weight),
# %% right (as leaves, to train with)
# [torch.cat(own) for own in zip(q, k, v)] → leaves(torch.cat(own) for own in zip(q, k, v))
# %% wrong (sends the whole layer): and its shard has
def split_qkv(group, qkv, num_heads, num_kv_heads):
    n, size = len(group), qkv.out_features // (num_heads + 2 * num_kv_heads)
    lengths = [size * heads for heads in (num_heads, num_kv_heads, num_kv_heads)]
    split = lambda i, whole: torch.cat([piece.chunk(n)[i] for piece in whole.split(lengths)])
    return tuple([split(i, each) for i, each in enumerate(group.broadcast(p))] for p in (qkv.weight, qkv.bias))
# %% wrong (sends nothing): that is too little
def split_qkv(group, qkv, num_heads, num_kv_heads):
    n, size = len(group), qkv.out_features // (num_heads + 2 * num_kv_heads)
    lengths = [size * heads for heads in (num_heads, num_kv_heads, num_kv_heads)]
    split = lambda i, whole: torch.cat([piece.chunk(n)[i] for piece in whole.detach().split(lengths)])
    return tuple([split(i, p) for i in range(n)] for p in (qkv.weight, qkv.bias))
# %% right (joins first, and sends then)
def split_qkv(group, qkv, num_heads, num_kv_heads):
    n, size = len(group), qkv.out_features // (num_heads + 2 * num_kv_heads)
    lengths = [size * heads for heads in (num_heads, num_kv_heads, num_kv_heads)]
    own = lambda i, whole: torch.cat([piece.chunk(n)[i] for piece in whole.detach().split(lengths)])
    return [[group.send(own(i, p), 0, i) for i in range(n)] for p in (qkv.weight, qkv.bias)]
# %% right (orders the rows, and scatters once)
def split_qkv(group, qkv, num_heads, num_kv_heads):
    n, size = len(group), qkv.out_features // (num_heads + 2 * num_kv_heads)
    rows = torch.arange(qkv.out_features, device=qkv.weight.device)
    q, k, v = rows.split([size * heads for heads in (num_heads, num_kv_heads, num_kv_heads)])
    rows = torch.cat([torch.cat([each.chunk(n)[i] for each in (q, k, v)]) for i in range(n)])
    return group.scatter(qkv.weight.detach()[rows], equal=True), group.scatter(qkv.bias.detach()[rows], equal=True)
# %% right (counts by slices)
def split_qkv(group, qkv, num_heads, num_kv_heads):
    size = qkv.out_features // (num_heads + 2 * num_kv_heads)
    found = []
    for p in (qkv.weight.detach(), qkv.bias.detach()):
        begin, pieces = 0, []
        for heads in (num_heads, num_kv_heads, num_kv_heads):
            pieces.append(group.scatter(p[begin : begin + size * heads]))
            begin += size * heads
        found.append(tuple(torch.cat(own, dim=0) for own in zip(*pieces)))
    return tuple(found)
# %% right (head by head)
def split_qkv(group, qkv, num_heads, num_kv_heads):
    n, size, weights, biases = len(group), qkv.out_features // (num_heads + 2 * num_kv_heads), [], []
    for i in range(n):
        rows, first_head = [], 0
        for heads in (num_heads, num_kv_heads, num_kv_heads):
            for head in range(first_head + i * heads // n, first_head + (i + 1) * heads // n):
                rows += range(head * size, (head + 1) * size)
            first_head += heads
        weights.append(group.send(qkv.weight[rows], 0, i))
        biases.append(group.send(qkv.bias[rows], 0, i))
    return weights, biases
