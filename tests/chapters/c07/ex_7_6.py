# %% wrong (returns one loss): not a list or tuple of one tensor from each device
# return losses, → return losses[0],
# %% wrong (works in place): logits[0] was changed in place
# exps.append((part - m.unsqueeze(1)).exp()) → exps.append(part.sub_(m.unsqueeze(1)).exp_())
# %% wrong (forgets the maximum): exp of a large logit overflows
# m.unsqueeze(1)).exp() → 0).exp()
# total.log() + m - z → total.log() - z
# %% wrong (takes each device's own maximum): belong to different maxima
# maxima = group.broadcast(rows.amax(dim=1)) → maxima = [part.amax(dim=1) for part in logits]
# %% wrong (takes a device's own sum alone): the sum of exponentials is over device 0's own words
# group.all_reduce(sums) → pass
# %% wrong (sums over the tokens): it is the sum over the tokens
# (total.log() + m - z).mean() → (total.log() + m - z).sum()
# %% wrong (forgets the target): the target's logit is missing
# (total.log() + m - z).mean() → (total.log() + m).mean()
# %% wrong (forgets the mask): every device has put in a logit of its own
# words.where(is_mine, 0), num_words) * is_mine.unsqueeze(1) → words % num_words, num_words)
# %% wrong (does not add up the target's logit): only targets among device 0's own words
# group.all_reduce(picked) → pass
# %% wrong (does not add the maximum again): subtracted and not added again
# (total.log() + m - z).mean() → (total.log() - z).mean()
# %% wrong (subtracts the maximum twice): which sum of exponentials, which maximum
# (total.log() + m - z).mean() → (total.log() - m - z).mean()
# %% wrong (gradient of the sum): it is of the tokens' sum
# total.unsqueeze(1) - one) / B → total.unsqueeze(1) - one)
# %% wrong (gradient without the target): what does the target change?
# / total.unsqueeze(1) - one) / B → / total.unsqueeze(1)) / B
# %% wrong (takes 1 off on every device): 1 is taken off on every device
# (1) - one) / B for e, total, one in zip(exps, sums, ones)] → (1) - F.one_hot(words % num_words, num_words)) / B for e, total, words in zip(exps, sums, targets)]
# %% wrong (softmax of its own words): the softmax is over device 0's own words
# (e / total.unsqueeze(1) → (e / e.sum(dim=1, keepdim=True)
# %% wrong (wrong sign): its sign is the other one
# (e / total.unsqueeze(1) - one) / B → (one - e / total.unsqueeze(1)) / B
# %% wrong (parts in reverse): it is device 2's part
# in zip(exps, sums, ones)] → in list(zip(exps, sums, ones))[::-1]]
# %% wrong (divides by the words): is it the softmax over all words, minus 1 at the target, of a mean?
# total.unsqueeze(1) - one) / B → total.unsqueeze(1) - one) / num_words
# %% wrong (gathers the logits): numbers, and a device has 150 logits
def split_cross_entropy(group, logits, targets):
    (whole,) = leaves([group.gather(logits, dim=1)])
    loss = F.cross_entropy(whole, targets[0])
    loss.backward()
    return group.broadcast(loss), group.scatter(whole.grad, dim=1)
# %% wrong (sends everything to everybody): 960 bytes, and 480 are allowed
def split_cross_entropy(group, logits, targets):
    n, B, grads = len(group), len(targets[0]), []
    starts = [i * logits[0].shape[1] for i in range(n)]
    tops = group.all_gather([part.amax(dim=1, keepdim=True) for part in logits], dim=1)
    exps = [(part - top.amax(dim=1, keepdim=True)).exp() for part, top in zip(logits, tops)]
    sums = group.all_gather([e.sum(dim=1, keepdim=True) for e in exps], dim=1)
    masks = [torch.arange(s, s + p.shape[1]) == t[:, None] for s, p, t in zip(starts, logits, targets)]
    picked = group.all_gather([(p * mask).sum(dim=1, keepdim=True) for p, mask in zip(logits, masks)], dim=1)
    losses = [(s.sum(1).log() + top.amax(1) - z.sum(1)).mean() for s, top, z in zip(sums, tops, picked)]
    return losses, [(e / s.sum(1, keepdim=True) - mask.to(e)) / B for e, s, mask in zip(exps, sums, masks)]
# %% wrong (reads the other devices' logits): through the group
def split_cross_entropy(group, logits, targets):
    whole, = leaves([torch.cat(logits, dim=1)])
    loss = F.cross_entropy(whole, targets[0])
    loss.backward()
    return [loss.detach() for _ in logits], list(whole.grad.chunk(len(group), 1))
# %% right (logsumexp of logsumexps, and a scalar for the targets)
def split_cross_entropy(group, logits, targets):
    n, num_words = len(group), logits[0].shape[1]
    parts = leaves(logits)
    own = [part.logsumexp(dim=1) for part in parts]
    (tops,) = leaves([torch.stack([group.send(each, i, 0) for i, each in enumerate(own)])])  # (N, B)
    total = tops.logsumexp(dim=0)
    total.mean().backward()
    sums = [total.detach().mean().clone(), *(torch.zeros((), dtype=total.dtype) for _ in range(n - 1))]
    for i, (part, each, words) in enumerate(zip(parts, own, targets)):
        each.backward(group.send(tops.grad[i].clone(), 0, i))
        mine = (words // num_words == i).nonzero().flatten()
        there = words[mine] - i * num_words
        sums[i] -= part.detach()[mine, there].sum() / len(words)
        part.grad[mine, there] -= 1 / len(words)
    group.all_reduce(sums)
    return tuple(sums), tuple(part.grad for part in parts)
# %% right (stacks its two sums, and lets autograd find the gradient)
def split_cross_entropy(group, logits, targets):
    n, B = len(group), len(targets[0])
    width = logits[0].shape[1]
    parts = leaves(logits)
    tops = [group.send(part.detach().max(dim=1).values, i, n - 1) for i, part in enumerate(parts)]
    m = torch.stack(tops).max(dim=0).values
    maxima = [group.send(m, n - 1, i) for i in range(n)]
    rows, both = [], []
    for i in range(n):
        shifted = parts[i] - maxima[i][:, None]
        local = (targets[i] - i * width).clamp(0, width - 1)
        mine = targets[i] // width == i
        z = shifted.gather(1, local[:, None])[:, 0] * mine
        rows.append(torch.stack([shifted.exp().sum(dim=1), z]))
        both.append(rows[i].detach().clone())
    group.all_reduce(both)
    for row, (total, _) in zip(rows, both):
        (row[0] / total / B - row[1] / B).sum().backward()
    return [(total.log() - z).mean() for total, z in both], [part.grad for part in parts]
