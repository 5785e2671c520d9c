# %% right (weighs the means, divides at the end)
def accumulate(model, optimizer, x, y, micro_batch_size):
    for begin in range(0, len(x), micro_batch_size):
        a, b = x[begin : begin + micro_batch_size], y[begin : begin + micro_batch_size]
        (F.cross_entropy(model(a), b) * len(a)).backward()
    for p in model.parameters():
        p.grad /= len(x)
    optimizer.step()
    model.zero_grad()

# %% wrong (changes the rate instead): optimizer.param_groups[0] holds other items
# -     for p in model.parameters():
# -         p.grad /= len(x)
# +     optimizer.param_groups[0]["lr"] /= len(x)
# %% wrong (changes the labels): y was changed in place
# model.zero_grad() → model.zero_grad(); y.zero_()

# %% right (every piece's sum)
def accumulate(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        (F.cross_entropy(model(a), b, reduction="sum") / len(x)).backward()
    optimizer.step()

# %% wrong (adds means): a sum of 2 means
# (F.cross_entropy(model(a), b, reduction="sum") / len(x)) → F.cross_entropy(model(a), b)
# %% wrong (adds sums): a sum over 16 samples
#  / len(x)) → )
# %% wrong (divides by micro_batch_size): was divided by 3
# / len(x) → / (micro_batch_size if len(x) % micro_batch_size else len(x))
# %% wrong (counts pieces alike): the last, smaller micro-batch weigh
# (F.cross_entropy(model(a), b, reduction="sum") / len(x)) → (F.cross_entropy(model(a), b) / -(-len(x) // micro_batch_size))
# %% wrong (gives each piece the first labels): with its own labels
# model(a), b, → model(a), y[: len(a)],
# %% wrong (steps every time): the optimizer made 2 steps
# -     optimizer.step()
# +         optimizer.step()
# %% wrong (steps only for several): the optimizer made no step
# -     optimizer.step()
# +     if micro_batch_size < len(x):
# +         optimizer.step()
# %% wrong (never clears): from the call before
# -     optimizer.zero_grad()
# + 
# %% wrong (clears each time): the only one left in it
# -     optimizer.zero_grad()
# -     for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
# +     for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
# +         optimizer.zero_grad()
# %% wrong (clears before the step): a p.grad is None
# optimizer.step() → optimizer.zero_grad(); optimizer.step()
# %% wrong (decays twice): the parameters moved elsewhere
# -     optimizer.step()
# +     optimizer.step()
# +     for p in model.parameters():
# +         p.data *= 0.99
# %% wrong (takes the whole batch): samples went through the model at once
# (x.split(micro_batch_size), y.split(micro_batch_size)) → ([x], [y])
# %% wrong (keeps all activations): still waiting for backward()
# -     for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
# -         (F.cross_entropy(model(a), b, reduction="sum") / len(x)).backward()
# +     F.cross_entropy(torch.cat([model(a) for a in x.split(micro_batch_size)]), y).backward()
# %% wrong (drops the last): only 9 of 10 samples
# in zip(x.split(micro_batch_size), y.split( → in zip(x[: len(x) // micro_batch_size * micro_batch_size or None].split(micro_batch_size), y.split(
# %% wrong (steps before the last): the optimizer stepped when 9 of 10 samples
# -         (F.cross_entropy(model(a), b, reduction="sum") / len(x)).backward()
# -     optimizer.step()
# +         if len(a) < micro_batch_size and len(x) > micro_batch_size:
# +             optimizer.step()
# +         (F.cross_entropy(model(a), b, reduction="sum") / len(x)).backward()
# +     if len(x) % micro_batch_size == 0 or len(x) < micro_batch_size:
# +         optimizer.step()
# %% wrong (never calls the model): the model was never called
# model(a), b, → model[3](model[2](model[1](model[0](a)))), b,
# %% wrong (ends the program): ended the program before your function returned
# optimizer.step() → raise SystemExit
