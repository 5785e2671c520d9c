# %% wrong (averages the parts' means): each part counts alike
# scale * F.cross_entropy(*part, reduction="sum") → F.cross_entropy(*part)
# %% wrong (forgets the average): DDP returns their average
# len(outputs) / num_counted → 1 / num_counted
# %% wrong (counts all labels): the divisor counts labels that do not count
# (part != -100).sum().item() → len(part)
# %% wrong (does not divide): the losses are sums, and a mean was asked for
# len(outputs) / num_counted → len(outputs)
# %% wrong (sums only): DDP divides them by the number of devices only
# scale * F → F
# %% wrong (weighs by all labels): is weighted by all of its labels
# num_counted = sum((part != -100).sum().item() for part in labels) → num_counted = sum(map(len, labels))
# scale * F.cross_entropy(*part, reduction="sum") → scale * len(part[1]) * F.cross_entropy(*part)
# %% wrong (weighs a mean over nothing): what is the mean over no labels?
# scale * F.cross_entropy(*part, reduction="sum") → scale * (part[1] != -100).sum() * F.cross_entropy(*part)
# %% wrong (is off by one): which weight does each label have
# len(outputs) / num_counted → len(outputs) / (num_counted + 1)
# %% wrong (returns numbers): not a tensor
# reduction="sum") for → reduction="sum").item() for
# %% wrong (detaches): what cut it off from the outputs?
# reduction="sum") for → reduction="sum").detach() for
# %% wrong (keeps a loss for each label): and one number was asked for
# reduction="sum" → reduction="none"
# %% wrong (returns the sum): not a list or tuple of losses
# return [scale * F.cross_entropy(*part, reduction="sum") for part in zip(outputs, labels)] → return sum(scale * F.cross_entropy(*part, reduction="sum") for part in zip(outputs, labels))
# %% wrong (changes the labels): labels[0] was changed in place
# num_counted = sum((part != -100).sum().item() for part in labels) → labels[0][0] = 1; num_counted = sum((part != -100).sum() for part in labels)
# %% wrong (changes the outputs): they were given to be read
# num_counted = sum((part != -100).sum().item() for part in labels) → outputs[0].data *= 2; num_counted = sum((part != -100).sum() for part in labels)
# %% wrong (gathers the outputs): which a process of its own does not have
# -     return [scale * F.cross_entropy(*part, reduction="sum") for part in zip(outputs, labels)]
# +     return [F.cross_entropy(torch.cat(outputs), torch.cat(labels))] * len(outputs)
# %% wrong (counts where the labels are): fails on 3 GPUs
# sum((part != -100).sum().item() for part in labels) → sum((part != -100).sum() for part in labels)

# %% right (counts on one device)
def part_losses(outputs, labels):
    counts = [(part != -100).sum() for part in labels]
    total = sum(count.to(counts[0].device) for count in counts)
    sums = [F.cross_entropy(a, b, reduction="sum") for a, b in zip(outputs, labels)]
    return [len(sums) * each / total.to(each.device) for each in sums]

# %% wrong (sends all losses to one device): the loss of device 1 is on
# return [len(sums) * each / total.to(each.device) for each in sums] → return [len(sums) * each.to(total.device) / total for each in sums]

# %% right (takes means, and none of nothing)
def part_losses(outputs, labels):
    counts = [int((part >= 0).sum()) for part in labels]
    losses = []
    for a, b, n in zip(outputs, labels, counts):
        losses.append(len(counts) * n / sum(counts) * F.cross_entropy(a, b) if n else 0 * a.sum())
    return tuple(losses)

# %% right (label by label)
def part_losses(outputs, labels):
    num_counted = sum(int(label) >= 0 for part in labels for label in part)
    losses = []
    for a, b in zip(outputs, labels):
        chosen = a.log_softmax(1).gather(1, b.clamp(min=0)[:, None])[:, 0]
        losses.append(-(chosen * (b >= 0)).sum() * len(labels) / num_counted)
    return losses

# %% right (with a mean over all labels of the part)
def part_losses(outputs, labels):
    num_counted = sum(map(len, [part[part != -100] for part in labels]))
    each = [F.cross_entropy(a, b, reduction="none") for a, b in zip(outputs, labels)]
    return [loss.mean() * len(loss) * len(each) / num_counted for loss in each]
