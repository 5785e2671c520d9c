# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 7.1
def row_parallel(group, linear, xs, grad_ys):
    xs = leaves(xs)
    weights = leaves(group.scatter(linear.weight, dim=1, equal=True))
    summands = [F.linear(x_i, w) for x_i, w in zip(xs, weights)]
    ys = [summand.detach() for summand in summands]
    ys[0] += linear.bias.detach()  # on one device only, before the sum
    group.all_reduce(ys)
    for summand, grad in zip(summands, grad_ys):
        summand.backward(grad)
    bias_grad = grad_ys[0].sum(dim=0)
    return ys, [x_i.grad for x_i in xs], [w.grad for w in weights], bias_grad


# %%
# Exercise 7.2
def missing_sums(split, whole, x, grad_y):
    (leaf,) = leaves([x])
    y = whole(leaf)
    y.backward(grad_y)
    group = split.group
    ys = split.forward(group.broadcast(x))
    grad_xs = split.backward(group.broadcast(grad_y))
    truths = {"forward": (ys, y.detach()), "backward": (grad_xs, leaf.grad)}
    return [
        name
        for name, (copies, truth) in truths.items()
        if not all(is_close(each.to(truth.device), truth) for each in copies)
    ]


def is_close(a, b):  # rounding differs, in proportion to the numbers
    return (a - b).abs().max() <= 1e-9 * b.abs().max()


# %%
# Exercise 7.3
def split_qkv(group, qkv, num_heads, num_kv_heads):
    head_dim = qkv.out_features // (num_heads + 2 * num_kv_heads)
    lengths = [head_dim * n for n in (num_heads, num_kv_heads, num_kv_heads)]

    def split(whole):
        q, k, v = (group.scatter(piece, equal=True) for piece in whole.detach().split(lengths))
        return [torch.cat(own) for own in zip(q, k, v)]

    return split(qkv.weight), split(qkv.bias)


# %%
# Exercise 7.4
def conv_by_input_channels(group, conv, x, grad_y):
    xs = leaves(group.scatter(x, dim=1, equal=True))
    weights = leaves(group.scatter(conv.weight, dim=1, equal=True))  # (out, in/N, k, k)
    summands = [
        F.conv2d(x_i, w, stride=conv.stride, padding=conv.padding) for x_i, w in zip(xs, weights)
    ]
    y = conv.bias.detach().view(-1, 1, 1) + sum(group.send(s, i, 0) for i, s in enumerate(summands))
    for summand, grad in zip(summands, group.broadcast(grad_y)):
        summand.backward(grad)
    grad_x = group.gather([x_i.grad for x_i in xs], dim=1)
    return y, grad_x, [w.grad for w in weights], grad_y.sum(dim=(0, 2, 3))


# %%
# Exercise 7.5
import math


def bytes_moved(conv1, conv2, x_shape, num_devices):
    batch_size, _, *sides = x_shape
    for conv in (conv1, conv2):
        sides = [
            (side + 2 * padding - kernel) // stride + 1
            for side, padding, kernel, stride in zip(sides, conv.padding, conv.kernel_size, conv.stride)
        ]
    num_outputs = batch_size * conv2.out_channels * math.prod(sides)
    num_parameters = sum(p.numel() for conv in (conv1, conv2) for p in conv.parameters())
    all_reduce = 2 * (num_devices - 1) * 4  # bytes that all devices send for each number
    return all_reduce * (num_outputs + math.prod(x_shape)), all_reduce * num_parameters


# %%
# Exercise 7.6
def split_cross_entropy(group, logits, targets):
    num_words, B = logits[0].shape[1], len(targets[0])
    rows = group.gather([part.amax(dim=1, keepdim=True) for part in logits], dim=1)  # (B, N)
    maxima = group.broadcast(rows.amax(dim=1))
    exps, sums, picked, ones = [], [], [], []
    for i, (part, m, words) in enumerate(zip(logits, maxima, targets)):
        words = words - i * num_words
        is_mine = (words >= 0) & (words < num_words)
        ones.append(F.one_hot(words.where(is_mine, 0), num_words) * is_mine.unsqueeze(1))
        exps.append((part - m.unsqueeze(1)).exp())
        sums.append(exps[i].sum(dim=1))
        picked.append((part * ones[i]).sum(dim=1))
    group.all_reduce(sums)
    group.all_reduce(picked)
    losses = [(total.log() + m - z).mean() for total, m, z in zip(sums, maxima, picked)]
    return losses, [(e / total.unsqueeze(1) - one) / B for e, total, one in zip(exps, sums, ones)]
