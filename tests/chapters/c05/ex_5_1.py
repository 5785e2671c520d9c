# %%
def lets_parts_be_empty(x, y, devices):
    parts = zip(x.tensor_split(len(devices)), y.tensor_split(len(devices)), devices)
    return [(a.to(d), b.to(d)) for a, b, d in parts]

# %% wrong (asserts instead): raised AssertionError
# -     if at_least == 0:
# -         raise ValueError(f"a batch of {len(x)} cannot give each of {len(devices)} devices a part")
# +     assert at_least, f"{len(x)} < {len(devices)}"
# %% wrong (shows the shape only): wants to know 13 too
# {len(x)} cannot give each of {len(devices)} devices a part → {tuple(x.shape)} is too small
# %% wrong (refuses one image each): 4 images for 4 devices
# if at_least == 0 → if len(x) <= len(devices)
# a batch of {len(x)} cannot give each of {len(devices)} devices a part → {len(x)} images for {len(devices)} devices
# %% wrong (in single precision): of the batch torch.float64
# [(x_part.to(device) → [(x_part.to(device).float()
# %% wrong (forgets the labels): the labels into [64, 64, 64, 64]
# y.split(sizes), devices) → [y] * len(devices), devices)
# %% wrong (squeezes): which of its dims may change?
# x_part.to(device) → x_part.squeeze().to(device)
# %% wrong (moves the images only): the labels of device 0 are on cuda:0
# y_part.to(device) → y_part
# %% wrong (returns tuples of three): holds 3 items, not 2
# y_part.to(device)) → y_part.to(device), device)
# %% wrong (returns lists of numbers): not a tensor
# y_part.to(device)) → y_part.tolist())
# %% wrong (returns two lists): two lists came back
# -     parts = zip(x.split(sizes), y.split(sizes), devices)
# -     return [(x_part.to(device), y_part.to(device)) for x_part, y_part, device in parts]
# +     return [a.to(d) for a, d in zip(x.split(sizes), devices)], [b.to(d) for b, d in zip(y.split(sizes), devices)]
# %% right (with tensor split)
def split_batch(x, y, devices):
    class TooFew(ValueError):
        pass

    if x.size(0) < len(devices):
        raise TooFew(x.size(0), len(devices))
    return tuple(map(list, lets_parts_be_empty(x, y, devices)))

# %% wrong (uses chunk): their sizes may differ by one at most
# tuple(map(list, lets_parts_be_empty(x, y, devices))) → [(a, b) for a, b in zip(*(t.chunk(len(devices)) for t in (x, y)))]
# %% wrong (larger parts last): the larger ones come first
# -     return tuple(map(list, lets_parts_be_empty(x, y, devices)))
# +     bounds = [i * len(x) // len(devices) for i in range(len(devices) + 1)]
# +     return [(x[a:b].to(d), y[a:b].to(d)) for a, b, d in zip(bounds, bounds[1:], devices)]
# %% wrong (deals like cards): the images are not the batch in its order
# return tuple(map(list, lets_parts_be_empty(x, y, devices))) → n = len(devices); return [(x[i::n], y[i::n]) for i in range(n)]
# %% wrong (cuts all but the last): a device with an empty part
# return tuple(map(list, lets_parts_be_empty(x, y, devices))) → return lets_parts_be_empty(x, y, devices[1:]) + [(x[:0], y[:0])]
# %% wrong (leaves one device out): not one for each device
# tuple(map(list, lets_parts_be_empty(x, y, devices))) → lets_parts_be_empty(x, y, devices[1:])
