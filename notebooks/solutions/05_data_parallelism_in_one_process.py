# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 5.1
def split_batch(x, y, devices):
    at_least, more = divmod(len(x), len(devices))
    if at_least == 0:
        raise ValueError(f"a batch of {len(x)} cannot give each of {len(devices)} devices a part")
    sizes = [at_least + (i < more) for i in range(len(devices))]
    parts = zip(x.split(sizes), y.split(sizes), devices)
    return [(x_part.to(device), y_part.to(device)) for x_part, y_part, device in parts]


# %%
# Exercise 5.2
def all_reduce(tensors):
    first, *others = tensors
    for tensor in others:
        first += tensor.to(first.device)
    for tensor in others:
        tensor.copy_(first)


# %%
# Exercise 5.3
def part_losses(outputs, labels):
    num_counted = sum((part != -100).sum().item() for part in labels)
    scale = len(outputs) / num_counted  # the average over the devices takes len(outputs) away again
    return [scale * F.cross_entropy(*part, reduction="sum") for part in zip(outputs, labels)]


# %%
# Exercise 5.4
def batchnorm_gaps(layer, x, sizes):
    whole = copy.deepcopy(layer)
    replicas = [copy.deepcopy(layer) for _ in sizes]
    outputs = [replica(part) for replica, part in zip(replicas, x.split(sizes))]
    of_outputs = (torch.cat(outputs) - whole(x)).abs().max()
    of_means = (replicas[0].running_mean - whole.running_mean).abs().max()
    return of_outputs.item(), of_means.item()


# %%
# Exercise 5.5
def when_done(ready_ms, sum_ms):
    free_ms = 0.0
    for ready, duration in sorted(zip(ready_ms, sum_ms)):
        free_ms = max(free_ms, ready) + duration
    return free_ms, max(ready_ms) + sum(sum_ms)


# %%
# Exercise 5.6
def forecast_ms(a_ms, b_ms, num_images, num_devices, numels, bytes_per_s, latency_ms):
    num_messages = 2 * (num_devices - 1) * len(numels)
    num_bytes = 2 * (num_devices - 1) * 4 * sum(numels)
    sent_ms = num_messages * latency_ms + 1e3 * num_bytes / bytes_per_s
    return a_ms + b_ms * num_images / num_devices + sent_ms
