# %% wrong (forgets the copies): no copy of the largest unit is in it
# copies = parameters / num_gpus, 4 * 2 * largest → copies = parameters / num_gpus, 0
# %% wrong (one copy): one copy of the largest unit is in it
# 4 * 2 * largest → 2 * largest
# %% wrong (two copies): two copies of the largest unit are in it
# 4 * 2 * largest → 2 * 2 * largest
# %% wrong (copies in fp32): the copies of the largest unit have 16 bits
# 4 * 2 * largest → 4 * 4 * largest
# %% wrong (divides the copies): the largest unit's copies are not divided
# 4 * 2 * largest → 4 * 2 * largest / num_gpus
# %% wrong (divides all of a sharded optimizer): what does a sharded optimizer leave whole?
# 4 * parameters + 12 * share + kept → 16 * share + kept
# %% wrong (the bytes of replicas): nothing is divided in it by the number of GPUs
# return method, num_bytes → return method, needs["replicas"]
# %% wrong (forgets gradients): gradients are missing in it, or weights
# "replicas": 16 * parameters → "replicas": 14 * parameters
# %% wrong (Adam without the fp32 copy): the optimizer keeps 12 bytes for each parameter
# "replicas": 16 * → "replicas": 12 *
# %% wrong (forgets activations): the activations are missing in it
# "replicas": 16 * parameters + kept → "replicas": 16 * parameters
# %% wrong (keeps what is recomputed): are enough for one of the methods
# copies + recomputed → copies + kept
# %% wrong (keeps it where nothing fits): which activations are there with recomputation?
# return None, num_bytes → return None, num_bytes - recomputed + kept
# %% wrong (in gigabytes): that is in gigabytes
# return method, num_bytes → return method, num_bytes / 1e9
# %% wrong (a tenth in reserve): add up: states, buffers, activations
# return method, num_bytes → return method, 1.1 * num_bytes
# %% wrong (below the limit only): needs exactly as much
# num_bytes <= memory → num_bytes < memory
# %% wrong (never none): and no method fits
# return None, num_bytes → return method, num_bytes
# %% wrong (returns the name): not a list or tuple of the method's name
# return method, num_bytes → return method
# %% wrong (another name): and none of replicas
# "replicas" → "ddp"
# %% wrong (always replicas): which does not fit
# if num_bytes <= memory: → if True:

# %% right (with tensors and a list)
def choose(parameters, num_gpus, memory, kept, recomputed, largest):
    p, each = torch.tensor(parameters, dtype=torch.float64), 8.0 * largest
    names = ["replicas", "shard optimizer", "shard all", "shard all, recompute"]
    states = [16 * p, 4 * p + 12 * p / num_gpus, 16 * p / num_gpus + each, 16 * p / num_gpus + each]
    needs = [state + held for state, held in zip(states, [kept, kept, kept, recomputed])]
    found = [i for i in range(4) if needs[i] <= memory]
    return [names[found[0]], needs[found[0]]] if found else [None, needs[-1]]
