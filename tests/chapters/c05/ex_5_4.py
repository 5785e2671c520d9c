# %% wrong (uses the layer itself): the layer itself was changed (running_mean
# whole = copy.deepcopy(layer) → whole = layer
# %% wrong (one replica for all parts): did all parts go through one replica?
# [copy.deepcopy(layer) for _ in sizes] → [copy.deepcopy(layer)] * len(sizes)
# %% wrong (splits into equal parts): is the batch cut as `sizes` says?
# x.split(sizes) → x.chunk(len(sizes))
# %% wrong (compares a replica with itself): whole and parts do not differ
# (replicas[0].running_mean - whole → (replicas[0].running_mean - replicas[0]
# %% wrong (evaluates the whole): normalised by its own mean and variance
# whole = copy.deepcopy(layer) → whole = copy.deepcopy(layer).eval()
# %% wrong (takes means): that is the mean difference
# of_outputs = (torch.cat(outputs) - whole(x)).abs().max() → of_outputs = (torch.cat(outputs) - whole(x)).abs().mean()
# %% wrong (looks at the first part): in the first part only
# torch.cat(outputs) - whole(x) → outputs[0] - whole(x)[: sizes[0]]
# %% wrong (compares the largest): between the two largest outputs
# (torch.cat(outputs) - whole(x)) → (torch.cat(outputs).max() - whole(x).max())
# %% wrong (forgets abs): the largest difference in one direction only
# (torch.cat(outputs) - whole(x)).abs() → (torch.cat(outputs) - whole(x))
# %% wrong (takes the least): a difference below zero is a difference too
# (torch.cat(outputs) - whole(x)).abs().max() → (torch.cat(outputs) - whole(x)).min()
# %% wrong (averages the running means): that is for the mean over all replicas
# replicas[0].running_mean → sum(replica.running_mean for replica in replicas) / len(replicas)
# %% wrong (takes the worst replica): that is the largest over all replicas
# -     of_means = (replicas[0].running_mean - whole.running_mean).abs().max()
# +     of_means = max((replica.running_mean - whole.running_mean).abs().max() for replica in replicas)
# %% wrong (looks at the last replica): that is the last replica's
# replicas[0].running_mean → replicas[-1].running_mean
# %% wrong (compares with the start): how far replica 0 moved
# whole.running_mean → layer.running_mean
# %% wrong (compares the images' means): how much of a batch's mean
# replicas[0].running_mean - whole.running_mean → x[: sizes[0]].mean((0, 2, 3)) - x.mean((0, 2, 3))
# %% wrong (compares the variances): which running_mean was compared
# replicas[0].running_mean - whole.running_mean → replicas[0].running_var - whole.running_var
# %% wrong (makes new layers): through copies of `layer`, or through a new one?
# whole = copy.deepcopy(layer) → layer = torch.nn.BatchNorm2d(layer.num_features).to(x.dtype); whole = copy.deepcopy(layer)
# %% wrong (returns tensors): and a float was asked for
# of_outputs.item(), of_means.item() → of_outputs, of_means
# %% right (puts the state back)
def batchnorm_gaps(layer, x, sizes):
    state, outputs, means = copy.deepcopy(layer.state_dict()), [], []
    for part in (x, *x.split(sizes)):
        outputs.append(layer(part))
        means.append(layer.running_mean.clone())
        layer.load_state_dict(state)
    gap = (torch.cat(outputs[1:]) - outputs[0]).abs().max().item()
    return gap, (means[1] - means[0]).abs().max().item()
