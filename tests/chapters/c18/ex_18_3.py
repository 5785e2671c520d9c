# %% wrong (one too many): how many samples are in the mean
# return count → return count + 1
# %% wrong (nan times zero): what is nan times zero
# flat, num_samples = torch.zeros_like(flat), 0  # zeros, since 0 times nan is nan → num_samples = 0
# %% wrong (looks for nan alone): they hold nan or inf
# not flat.isfinite().all() → flat.isnan().any()
# %% wrong (divides by zero): what is nothing divided by nothing
# total[:-1] / max(count, 1) → total[:-1] / count
# %% wrong (all ranks count alike): all ranks count alike
# -     total = torch.cat([num_samples * flat, flat.new_tensor([num_samples])])
# -     dist.all_reduce(total)  # every rank takes part, also without anything to add
# -     count = int(total[-1])
# -     mean = total[:-1] / max(count, 1)
# +     total = torch.cat([flat, flat.new_tensor([float(num_samples > 0), num_samples])])
# +     dist.all_reduce(total)
# +     count = int(total[-1])
# +     mean = total[:-2] / total[-2].clamp(min=1)
# %% wrong (divides by the number of ranks): the sum is divided by the number of ranks
# mean = total[:-1] / max(count, 1) → mean = total[:-1] / dist.get_world_size()
# %% wrong (does not divide): the sum is not divided
# mean = total[:-1] / max(count, 1) → mean = total[:-1]
# %% wrong (those left out still count): a rank without a usable gradient takes part in the divisor
# flat, num_samples = torch.zeros_like(flat), 0  # zeros, since 0 times nan is nan → flat = torch.zeros_like(flat)
# %% wrong (a rank left out keeps its own): they hold nan or inf
# -     for each, part in zip(gradients, mean.split([each.numel() for each in gradients])):
# +     if num_samples == 0:
# +         return count
# +     for each, part in zip(gradients, mean.split([each.numel() for each in gradients])):
# %% wrong (only the numbers): only the numbers that are not finite were left out
# -     if num_samples == 0 or not flat.isfinite().all():
# -         flat, num_samples = torch.zeros_like(flat), 0  # zeros, since 0 times nan is nan
# +     flat = torch.where(flat.isfinite(), flat, 0.0)
# %% wrong (tensor by tensor): is it the mean over the samples of the ranks that can be used
def average_usable(gradients, num_samples):
    for each in gradients:
        n = num_samples if each.isfinite().all() else 0
        total = n * each if n else torch.zeros_like(each)
        count = torch.tensor([float(n)])
        dist.all_reduce(total)
        dist.all_reduce(count)
        each.copy_(total / count.clamp(min=1)[0])
    return int(count)
# %% wrong (does nothing): they are this rank's own
def average_usable(gradients, num_samples):
    return num_samples
# %% wrong (its own number): those are this rank's own
def average_usable(gradients, num_samples):
    good = num_samples > 0 and all(bool(each.isfinite().all()) for each in gradients)
    count = torch.tensor(num_samples if good else 0)
    dist.all_reduce(count)
    for each in gradients:
        each.copy_(num_samples * each if good else torch.zeros_like(each))
        dist.all_reduce(each)
        each.div_(count.clamp(min=1))
    return num_samples if good else 0
# %% wrong (counts all samples): samples of a rank that was left out are counted
# -     return num_samples if good else 0
# +     everyone = torch.tensor(num_samples)
# +     dist.all_reduce(everyone)
# +     return int(everyone)
# %% wrong (counts ranks): that is a number of ranks
# -     return num_samples if good else 0
# +     ranks = torch.tensor(int(good))
# +     dist.all_reduce(ranks)
# +     return int(ranks)
# %% wrong (nothing returned): is None
# return num_samples if good else 0 → return None
# %% wrong (another list): the list holds other tensors
# -     for each in gradients:
# +     for i, each in enumerate(gradients):
# -         each.div_(count.clamp(min=1))
# +         gradients[i] = each / count.clamp(min=1)
# %% wrong (a rank that is left out does not call): all_reduce
def average_usable(gradients, num_samples):
    if num_samples == 0 or not all(each.isfinite().all() for each in gradients):
        return 0
    count = torch.tensor(num_samples)
    dist.all_reduce(count)
    for each in gradients:
        each.mul_(num_samples)
        dist.all_reduce(each)
        each.div_(count)
    return int(count)
# %% right (an all-reduce for each tensor)
def average_usable(gradients, num_samples):
    good = num_samples > 0 and all(bool(each.isfinite().all()) for each in gradients)
    count = torch.tensor(num_samples if good else 0)
    dist.all_reduce(count)
    for each in gradients:
        if good:
            each.mul_(num_samples)
        else:
            each.zero_()
        dist.all_reduce(each)
        if count > 0:
            each.div_(count)
    return count
# %% right (all ranks say first how much they have)
def average_usable(gradients, num_samples):
    usable = num_samples if all(torch.isfinite(each).all() for each in gradients) else 0
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, usable)
    total = sum(everyone)
    for each in gradients:
        each.copy_(each * (usable / total) if usable else torch.zeros_like(each))
        dist.all_reduce(each)
    return total
# %% right (clears nan by nan_to_num)
def average_usable(gradients, num_samples):
    ok = all(each.isfinite().all() for each in gradients)
    weight = float(num_samples) * ok
    n = torch.tensor(weight, dtype=torch.float64)
    dist.all_reduce(n)
    works = []
    for each in gradients:
        torch.nan_to_num_(each, 0.0, 0.0, 0.0).mul_(weight / max(n.item(), 1.0))
        works.append(dist.all_reduce(each, async_op=True))
    [work.wait() for work in works]
    return int(n.item())
