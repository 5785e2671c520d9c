# %%
import numpy as np

# %% wrong (divides by all samples): divided by the number of samples, of which not all count
# (y != -100).sum() → len(y)
# %% wrong (takes class 0 for no label): by what is each micro-batch's loss weighted
# (y != -100).sum() → (y > 0).sum()
# %% wrong (adds means): it is a sum of 3 means
# , reduction="sum") / num_labels → )
# %% wrong (counts pieces alike): every micro-batch counts alike
# , reduction="sum") / num_labels → ) / num_micro_batches
# %% wrong (weighs by samples, the text's formula): every micro-batch counts alike, though they differ in how many
# , reduction="sum") / num_labels → ) * len(micro_y) / len(y)
# %% wrong (adds sums): it is a sum over samples
# reduction="sum") / num_labels → reduction="sum")
# %% wrong (keeps only the last): only the last micro-batch's is left
# logits = model(micro_x) → model.zero_grad(); logits = model(micro_x)
# %% wrong (takes the whole batch again): none should be larger than 4
# return whole → return F.cross_entropy(model(x), y).item()
# %% wrong (runs in evaluation mode): the model was given in training mode, and ran in the other
# -         logits = model(micro_x)
# +         mode = model.training
# +         logits = model.eval()(micro_x)
# +         model.train(mode)
# %% wrong (forgets backward): afterwards a p.grad is None
# loss.backward() → pass
# %% wrong (calls nothing): the model was never called
# logits = model(micro_x) → logits = torch.zeros(len(micro_x), 3, requires_grad=True).double()
# %% wrong (adds a dim): what went through the model (1, 4, 6)
# logits = model(micro_x) → logits = model(micro_x[None])[0]
# %% wrong (returns the last share): is that the last micro-batch's share?
# whole += loss.item() → whole = loss.item()
# %% wrong (returns a sum): is that a sum over samples?
# whole += loss.item() → whole += loss.item() * num_labels
# %% wrong (returns a mean over all): with and without label?
# whole += loss.item() → whole += loss.item() * num_labels / len(y)
# %% wrong (returns a mean of means): is that a mean of means?
# whole += loss.item() → whole += loss.item() * num_labels / max(1, (micro_y != -100).sum()) / num_micro_batches
# %% right (weighs means by labels)
# , reduction="sum") / num_labels → ) * (micro_y != -100).sum() / num_labels
# %% wrong (takes M for the size): there should be 3 of them
# x.chunk(num_micro_batches), y.chunk( → x.split(num_micro_batches), y.split(
# %% wrong (forgets the last one): never went through the model
# x.chunk(num_micro_batches) → x.chunk(num_micro_batches)[:-1]
# %% wrong (returns nothing): what came back is None, and not the loss
# return whole → return None
# %% right (cuts indices, in the other order)
def accumulate(model, x, y, num_micro_batches):
    num_labels, total = (y != -100).sum(), np.zeros(())
    for part in reversed(torch.arange(len(x)).tensor_split(num_micro_batches)):
        loss = F.cross_entropy(model.forward(x[part]), y[part], reduction="sum") / num_labels
        loss.backward()
        total += loss.detach().numpy()
    return total

# %% wrong (cuts once too often): none may be empty
# tensor_split(num_micro_batches) → tensor_split([len(x) // num_micro_batches * i for i in range(1, num_micro_batches + 1)])
# %% wrong (fills up with labelled samples): some samples went through it more than once
# torch.arange(len(x)) → (y != -100).nonzero().flatten()[torch.arange(len(x)) % (y != -100).sum()]

# %% right (goes back once, through each sample's layers)
def accumulate(model, x, y, num_micro_batches):
    losses = []
    for a, b in zip(x.tensor_split(num_micro_batches), y.tensor_split(num_micro_batches)):
        for layer in model:
            a = layer(a)
        losses.append(F.cross_entropy(a, b, reduction="sum") / (y != -100).sum())
    torch.stack(losses).sum().backward()
    return sum(losses)
