# %% wrong (leaves a default device behind): the default device is meta afterwards
# image = 3 * S * S * 4 → torch.set_default_device("meta"); image = 3 * S * S * 4
# %% right (layer by layer)
def predict_activations(C, S):
    image, maps, logs, label = 3 * S * S * 4, C * S * S * 4, 40, 8
    a = image + 2 * maps + logs + label
    c = 8 * C + 4
    return a, c

# %% wrong (has no constant): not a list or tuple
# return a, c → return a
# %% wrong (returns floats): not a whole number
# return a, c → return a / 1, c
# %% wrong (counts numbers): is a number of numbers meant as bytes
# return a, c → return a // 4, c
# %% wrong (counts relu twice): counts twice
# 2 * maps → 3 * maps
# %% wrong (forgets batch norm's input): are two tensors
# 2 * maps → maps
# %% wrong (forgets the image): is the image itself in it
# image + 2 * → 2 *
# %% wrong (forgets the label): what is kept of the labels
# logs + label → logs
# %% wrong (keeps a label in 32 bits): a label has 8 bytes
# logs + label → logs + label // 2
# %% wrong (forgets the log-probabilities): what does the loss keep
# logs + label → label
# %% wrong (forgets the loss): of its input and of the labels
# logs + label → 0
# %% wrong (shrinks the maps): go through the layers one by one
# C * S * S * 4 → C * (S - 2) ** 2 * 4
# %% wrong (statistics per image): once per batch, not once per image
# logs + label → logs + label + 8 * C
# %% wrong (forgets the statistics): what does BatchNorm keep for each channel
# c = 8 * C + 4 → c = 4
# %% wrong (keeps the mean only): two numbers for each channel
# c = 8 * C + 4 → c = 4 * C + 4
# %% wrong (forgets the loss's own): keeps something of its own
# c = 8 * C + 4 → c = 8 * C
# %% wrong (has no constant part): and what does BatchNorm
# c = 8 * C + 4 → c = 0
# %% wrong (counts parameters): are parameters, and counted as such
# c = 8 * C + 4 → c = 16 * C + 4
# %% wrong (counts too much): what is kept once per batch
# c = 8 * C + 4 → c = 8 * C + 44
