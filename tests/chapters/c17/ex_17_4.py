# %% wrong (averages experts over all ranks): mixed with gradients of other experts
# group = mesh.get_group("copies") if ".experts." in name else None → group = None
# %% wrong (averages everything over the copies): who else has this parameter
# if ".experts." in name else None → if True else None
# %% wrong (divides by the copies): the tokens of how many ranks are in their sum
# -         gradient /= mesh.size()  # the sum of an expert holds the tokens of all ranks
# +         gradient /= dist.get_world_size(group)
# %% wrong (the other axis): who shares, and who has the same
# "copies" → "experts"
# %% wrong (a shared expert is none of them): who else has this parameter
# ".experts." in name → "expert" in name
# %% wrong (does not divide): it is the sum, and a mean over ranks is asked for
# gradient /= mesh.size() → pass
# %% wrong (does not divide the experts): it is the sum over its copies, not divided
# gradient /= mesh.size() → gradient /= 1 if group else mesh.size()
# %% wrong (divides experts by those that share them): divided by another number than it should be
# gradient /= mesh.size() → gradient /= mesh.size() * (2 if group and mesh["copies"].size() > 1 else 1)
# %% wrong (divides by the ranks that share): divided by another number than theirs
# gradient /= mesh.size() → gradient /= mesh["experts"].size()
# %% wrong (leaves the experts alone): its copy on another rank has seen other tokens
# -         dist.all_reduce(gradient, group=group)
# +         if group is None:
# +             dist.all_reduce(gradient)
# %% wrong (leaves the rest alone): it is as it was, and other ranks have had other tokens
# -         dist.all_reduce(gradient, group=group)
# -         gradient /= mesh.size()  # the sum of an expert holds the tokens of all ranks
# +         if group is not None:
# +             dist.all_reduce(gradient, group=group)
# +             gradient /= mesh.size()
# %% wrong (sums the rest over those that share): over the ranks that share the experts; who else
# else None → else mesh.get_group("experts")
# %% wrong (puts in new tensors): an optimizer keeps the old ones
# -         dist.all_reduce(gradient, group=group)
# -         gradient /= mesh.size()  # the sum of an expert holds the tokens of all ranks
# +         total = gradient.clone()
# +         dist.all_reduce(total, group=group)
# +         gradients[name] = total / mesh.size()
# %% wrong (adds the rank): which ranks have this parameter
# gradient /= mesh.size() → gradient.div_(mesh.size()).add_(1)
# %% wrong (adds to the experts): over which ranks is it a sum
# gradient /= mesh.size() → gradient.div_(mesh.size()).add_(1 if group else 0)
# %% wrong (does not wait): nobody waited for a collective
# group=group) → group=group, async_op=True)
# %% right (one message for each group)
def average_gradients(gradients, mesh):
    import re

    def one(tensors, group):
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat, group=group)
        flat /= mesh.size()
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
            t.copy_(part.view_as(t))

    is_expert = {name: bool(re.search(r"\bexperts\.\d+\.", name)) for name in gradients}
    one([g for name, g in gradients.items() if is_expert[name]], mesh.get_group("copies"))
    one([g for name, g in gradients.items() if not is_expert[name]], dist.group.WORLD)
# %% right (divides first, and axis by axis)
def average_gradients(gradients, mesh):
    for name in gradients:
        gradients[name].mul_(1 / mesh.size())
        dist.all_reduce(gradients[name], group=mesh.get_group(0))
        if "experts" not in name.split("."):
            dist.all_reduce(gradients[name], group=mesh.get_group(1))
# %% right (asynchronous, waits at the end)
def average_gradients(gradients, mesh):
    works = []
    for name, gradient in gradients.items():
        group = mesh.get_group(mesh_dim="copies") if "mlp.experts" in name else None
        works.append(dist.all_reduce(gradient, group=group, async_op=True))
    for work in works:
        work.wait()
    for gradient in gradients.values():
        gradient.div_(mesh.shape[0] * mesh.shape[1])
# %% right (a mean over the copies, then over those that share)
def average_gradients(gradients, mesh):
    num_copies, sharing = mesh.shape
    for name, g in gradients.items():
        dist.all_reduce(g, group=mesh.get_group("copies"))
        g /= num_copies
        if ".experts." not in name:
            dist.all_reduce(g, group=mesh.get_group("experts"))
        g /= sharing
