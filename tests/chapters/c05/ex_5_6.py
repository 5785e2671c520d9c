# %% wrong (sends nothing): nothing is sent there
# num_images / num_devices + sent_ms → num_images / num_devices
# %% wrong (sends one way): and nothing comes back
# num_messages * latency_ms + 1e3 * num_bytes / bytes_per_s → (num_messages * latency_ms + 1e3 * num_bytes / bytes_per_s) / 2
# %% wrong (lets all send): also the one that makes the sums
# -     num_messages = 2 * (num_devices - 1) * len(numels)
# -     num_bytes = 2 * (num_devices - 1) * 4 * sum(numels)
# +     num_messages = 2 * num_devices * len(numels)
# +     num_bytes = 2 * num_devices * 4 * sum(numels)
# %% wrong (counts numbers): how many bytes does a gradient in float32 have?
# * 4 * sum(numels) → * sum(numels)
# %% wrong (adds seconds): seconds are added to milliseconds
# 1e3 * num_bytes → num_bytes
# %% wrong (forgets the latency): the messages have no latency
# num_messages * latency_ms + 1e3 → 1e3
# %% wrong (packs all tensors): what is in one message?
# (num_devices - 1) * len(numels) → (num_devices - 1)
# %% wrong (adds one latency): it belongs to each message
# num_messages * latency_ms → latency_ms
# %% wrong (adds a latency for each tensor): in how many directions
# num_messages * latency_ms → len(numels) * latency_ms
# %% wrong (divides all): the fixed cost is divided, too
# a_ms + b_ms * num_images / num_devices → (a_ms + b_ms * num_images) / num_devices
# %% wrong (has no fixed cost): the fixed cost is missing
# return a_ms + b_ms → return b_ms
# %% wrong (gives all images to each): each device has all images there
# num_images / num_devices + → num_images +
# %% wrong (takes the latency for seconds): what does one device compute, and what is sent?
# num_messages * latency_ms → 1e3 * num_messages * latency_ms
# %% wrong (returns both): not a number
# return a_ms → return sent_ms, a_ms
# %% wrong (prints instead): the forecast is None
# return a_ms + b_ms * num_images / num_devices + sent_ms → print(a_ms)
# %% wrong (changes the list): numels
# num_messages = → numels.append(0); num_messages =

# %% right (message by message)
def forecast_ms(a_ms, b_ms, num_images, num_devices, numels, bytes_per_s, latency_ms):
    sent_ms = 0
    for numel in numels:
        for _ in range(num_devices - 1):
            sent_ms += 2 * (latency_ms + 1000 * 4 * numel / bytes_per_s)
    return a_ms + b_ms * (num_images / num_devices) + sent_ms

# %% right (in seconds)
def forecast_ms(a_ms, b_ms, num_images, num_devices, numels, bytes_per_s, latency_ms):
    compute_s = (a_ms + b_ms * num_images / num_devices) / 1e3
    there = back = (num_devices - 1) * (sum(numels) * 4 / bytes_per_s + len(numels) * latency_ms / 1e3)
    return 1e3 * (compute_s + there + back)

# %% right (with whole images)
def forecast_ms(a_ms, b_ms, num_images, num_devices, numels, bytes_per_s, latency_ms):
    per_device = -(-num_images // num_devices)
    per_tensor = [latency_ms + 4e3 * numel / bytes_per_s for numel in numels]
    return a_ms + b_ms * per_device + (2 * num_devices - 2) * sum(per_tensor)

# %% right (with a tensor)
def forecast_ms(a_ms, b_ms, num_images, num_devices, numels, bytes_per_s, latency_ms):
    all_ms = torch.tensor(numels, dtype=torch.float64) * 4e3 / bytes_per_s + latency_ms
    return (a_ms + b_ms * num_images / num_devices) + 2 * (num_devices - 1) * all_ms.sum().item()
