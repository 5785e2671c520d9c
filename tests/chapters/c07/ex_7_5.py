# %% wrong (remembers sizes, and not the layers): on 8 devices, x (1, 6, 8, 8)
# return all_reduce → return bytes_moved.__dict__.setdefault(str((x_shape, num_devices)), (all_reduce
# all_reduce * num_parameters → all_reduce * num_parameters))
# %% wrong (exchanges the two): they are exchanged
# (num_outputs + math.prod(x_shape)), all_reduce * num_parameters → num_parameters, all_reduce * (num_outputs + math.prod(x_shape))
# %% wrong (in double precision): how many bytes has a float32
# (num_devices - 1) * 4 → (num_devices - 1) * 8
# %% wrong (counts numbers): is that the number of numbers
# (num_devices - 1) * 4 → (num_devices - 1)
# %% wrong (counts the tensors): an all-reduce moves more
# 2 * (num_devices - 1) * 4 → 4
# %% wrong (counts every device): how many devices have something to send
# (num_devices - 1) → num_devices
# %% wrong (counts one way): is each of the two counted
# 2 * (num_devices - 1) → (num_devices - 1)
# %% wrong (counts one device): one device's share
# -     return all_reduce * (num_outputs + math.prod(x_shape)), all_reduce * num_parameters
# +     return tuple(all_reduce * n // num_devices for n in (num_outputs + math.prod(x_shape), num_parameters))
# %% wrong (knows what one device sends): what does a device alone send?
# (num_devices - 1) → max(num_devices - 1, 1)
# %% wrong (returns one number): not a list or tuple of by_channels
# math.prod(x_shape)), all_reduce → math.prod(x_shape)) + all_reduce
# %% wrong (forgets the backward pass): what does the backward pass add up
# (num_outputs + math.prod(x_shape)) → num_outputs
# %% wrong (forgets the forward pass): what does the forward pass add up
# (num_outputs + math.prod(x_shape)) → math.prod(x_shape)
# %% wrong (all reduces the hidden maps): what lies between the two layers
# (num_outputs + math.prod(x_shape)) → (num_outputs + math.prod(x_shape) + conv1(torch.zeros(x_shape)).numel())
# %% wrong (counts one layer): how many parameters
# p.numel() for conv in (conv1, conv2) → p.numel() for conv in [conv2]
# %% wrong (forgets the biases): are the biases' gradients in it
# sum(p.numel() for conv in (conv1, conv2) for p in conv.parameters()) → conv1.weight.numel() + conv2.weight.numel()
# %% right (by counting, as a tensor)
def bytes_moved(conv1, conv2, x_shape, num_devices):
    group, x, counted = DeviceGroup(["cpu"] * num_devices), torch.zeros(x_shape), []
    for tensors in ([conv2(conv1(x)), x], [*conv1.parameters(), *conv2.parameters()]):
        group.reset()
        for tensor in tensors:
            group.all_reduce([torch.zeros_like(tensor) for _ in range(num_devices)])
        counted.append(group.total_bytes)
    return torch.tensor(counted)
