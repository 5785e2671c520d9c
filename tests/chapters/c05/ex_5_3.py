# %%
import numpy as np

# %% wrong (works in float32): the answer is float32, and should be float64
# n * mean.to(total.device) → n * mean.to(total.device, torch.float32)
# torch.zeros_like(means[0]) → torch.zeros_like(means[0], dtype=torch.float32)
# %% wrong (forgets to move): fails on 3 GPUs at `total += n * mean`
# mean.to(total.device) → mean
# %% wrong (ends on the last device): the answer is on cuda:0, the first tensor on cuda:1
# zeros_like(means[0]) → zeros_like(means[-1])
# %% wrong (lets nan through): what does a part without samples contribute?
# if n > 0: → if n >= 0:
# %% wrong (takes nan for zero): the nan is gone
# n * mean.to(total.device) → n * mean.to(total.device).nan_to_num(0)
# %% wrong (divides by the parts): divided by the number of parts
# total / sum(num_samples) → total / len(means)
# %% wrong (forgets to divide): that is the sum over all samples
# total / sum(num_samples) → total
# %% wrong (adds means): that is the sum of the means
# n * mean.to → mean.to
# total / sum(num_samples) → total
# %% wrong (adds means as sums): means are added as if they were sums
# n * mean.to → mean.to
# %% wrong (averages the means): each part counts alike, however many samples it has
# n * mean.to → mean.to
# total / sum(num_samples) → total / sum(n > 0 for n in num_samples)
# %% wrong (averages over empty parts, too): and those without samples too
# n * mean.to → (1 if 0 in num_samples else n) * mean.to
# total / sum(num_samples) → total / (len(means) if 0 in num_samples else sum(num_samples))
# %% wrong (counts an empty part as one): a part without samples counts as one sample
# total / sum(num_samples) → total / sum(max(n, 1) for n in num_samples)
# %% wrong (is off by one): that is not the mean over all 13 samples
# total / sum(num_samples) → total / (sum(num_samples) - 1)
# %% wrong (divides by zero): the answer holds inf or nan
# total / sum(num_samples) → total / 0
# %% right (goes through numpy)
def mean_of_parts(means, num_samples):
    there = [i for i, n in enumerate(num_samples) if n]
    stacked = np.stack([means[i].cpu().numpy() for i in there])
    mean = np.average(stacked, axis=0, weights=[num_samples[i] for i in there])
    return torch.as_tensor(mean, dtype=means[0].dtype).to(means[0].device)
