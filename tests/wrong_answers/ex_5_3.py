"""Exercise 5.3: answers that its check must refuse, each with words from the reason that it must give."""

import numpy as np
import torch


def averages_the_means(means, num_samples):
    return torch.stack([mean.to(means[0].device) for mean in means]).mean(0)


def averages_what_is_there(means, num_samples):
    there = [mean.to(means[0].device) for mean, n in zip(means, num_samples) if n]
    return torch.stack(there).mean(0)


def lets_nan_through(means, num_samples):
    total = sum(n * mean.to(means[0].device) for mean, n in zip(means, num_samples))
    return total / sum(num_samples)


def forgets_to_divide(means, num_samples):
    return sum(n * mean.to(means[0].device) for mean, n in zip(means, num_samples) if n)


def divides_by_the_parts(means, num_samples):
    return forgets_to_divide(means, num_samples) / len(means)


def adds_means_as_sums(means, num_samples):
    return sum(mean.to(means[0].device) for mean, n in zip(means, num_samples) if n) / sum(num_samples)


def adds_means(means, num_samples):
    return sum(mean.to(means[0].device) for mean, n in zip(means, num_samples) if n)


def works_in_place(means, num_samples):
    total = 0
    for mean, n in zip(means, num_samples):
        if n:
            mean *= n
            total = total + mean.to(means[0].device)
    return total / sum(num_samples)


def takes_nan_for_zero_in_place(means, num_samples):
    for mean in means:
        mean.nan_to_num_(0)
    return lets_nan_through(means, num_samples)


def returns_a_number(means, num_samples):
    return (forgets_to_divide(means, num_samples) / sum(num_samples)).sum().item()


def forgets_to_move(means, num_samples):
    return sum(n * mean for mean, n in zip(means, num_samples) if n) / sum(num_samples)


def ends_on_the_last_device(means, num_samples):
    return (forgets_to_divide(means, num_samples) / sum(num_samples)).to(means[-1].device)


def drops_empty_parts_from_the_list(means, num_samples):
    while 0 in num_samples:
        i = num_samples.index(0)
        del means[i], num_samples[i]
    return lets_nan_through(means, num_samples)


def ends_where_the_first_samples_are(means, num_samples):
    there = [(mean, n) for mean, n in zip(means, num_samples) if n]
    device = there[0][0].device
    return sum(n * mean.to(device) for mean, n in there) / sum(num_samples)


def stops_at_an_empty_part(means, num_samples):
    total, count = 0, 0
    for mean, n in zip(means, num_samples):
        if n == 0:
            break
        total, count = total + n * mean.to(means[0].device), count + n
    return total / max(count, 1)


def counts_an_empty_part_as_one(means, num_samples):
    counts = [max(n, 1) for n in num_samples]
    return sum(n * mean.to(means[0].device).nan_to_num(0) for mean, n in zip(means, counts)) / sum(counts)


def begins_with_the_first_whatever_it_has(means, num_samples):
    total = num_samples[0] * means[0]
    for mean, n in zip(means[1:], num_samples[1:]):
        if n:
            total = total + n * mean.to(total.device)
    return total / sum(num_samples)


def works_in_float32(means, num_samples):
    return forgets_to_divide([mean.float() for mean in means], num_samples) / sum(num_samples)


WRONG = [
    (averages_the_means, "each part counts alike"),
    (averages_what_is_there, "each part counts alike"),
    (lets_nan_through, "nan came back"),
    (forgets_to_divide, "that is the sum over all samples"),
    (divides_by_the_parts, "divided by the number of parts"),
    (adds_means_as_sums, "means are added as if they were sums"),
    (adds_means, "that is the sum of the means"),
    (works_in_place, "change a tensor in place"),
    (takes_nan_for_zero_in_place, "change a tensor in place"),
    (returns_a_number, "not a tensor"),
    (forgets_to_move, "fails on 3 GPUs"),
    (ends_on_the_last_device, "should be on the first tensor's device"),
    (drops_empty_parts_from_the_list, "one of the lists was changed"),
    (ends_where_the_first_samples_are, "[0, 3, 2] samples: the answer is on cuda:1"),
    (stops_at_an_empty_part, "over 1, 0, 6 samples"),
    (counts_an_empty_part_as_one, "that is not the mean over all 7 samples"),
    (begins_with_the_first_whatever_it_has, "nan came back"),
    (works_in_float32, "the answer is torch.float32"),
]


def weighs_with_shares(means, num_samples):
    shares = [n / sum(num_samples) for n in num_samples]
    there = [share * mean.to(means[0].device) for mean, share in zip(means, shares) if share]
    return torch.stack(there).sum(dim=0)


def clears_copies_of_nan(means, num_samples):
    total = sum(n * torch.nan_to_num(mean.to(means[0].device)) for mean, n in zip(means, num_samples))
    return total / sum(num_samples)


def keeps_a_running_mean(means, num_samples):
    mean, count = torch.zeros_like(means[0]), 0
    for other, n in zip(means, num_samples):
        if n:
            count += n
            mean = mean + (other.to(mean.device) - mean) * n / count
    return mean


def counts_with_a_tensor(means, num_samples):
    total = means[0].new_zeros(means[0].shape)
    for mean, n in zip(means, num_samples):
        if n > 0:
            total.add_(mean.to(total.device), alpha=n)
    return total / torch.tensor(num_samples).sum().item()


def looks_for_nan(means, num_samples):
    there = [n * mean.to(means[0].device) for mean, n in zip(means, num_samples) if not mean.isnan().any()]
    return sum(there) / sum(num_samples)


def goes_through_numpy(means, num_samples):
    there = [i for i, n in enumerate(num_samples) if n]
    stacked = np.stack([means[i].cpu().numpy() for i in there])
    mean = np.average(stacked, axis=0, weights=[num_samples[i] for i in there])
    return torch.as_tensor(mean, dtype=means[0].dtype).to(means[0].device)


RIGHT = [
    weighs_with_shares, clears_copies_of_nan, keeps_a_running_mean, counts_with_a_tensor, looks_for_nan, goes_through_numpy,
]  # fmt: skip
