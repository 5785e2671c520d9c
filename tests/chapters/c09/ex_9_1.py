# %% wrong (forgets to divide): added up, and not divided by anything
# p.grad *= num_samples / total  # from → pass  # from
# %% wrong (averages over ranks): every rank counts alike
# p.grad *= num_samples / total → p.grad /= dist.get_world_size()
# %% wrong (weights and forgets to divide): still a sum and no mean
# num_samples / total → num_samples
# %% wrong (weights and divides by ranks): divided by the number of ranks
# num_samples / total → num_samples / dist.get_world_size()
# %% wrong (takes its own number for everybody's): as if all held as many samples as it does
# p.grad *= num_samples / total → p.grad *= num_samples
# dist.all_reduce(p.grad) → dist.all_reduce(p.grad); p.grad /= num_samples * dist.get_world_size()
# %% wrong (adds means and divides by samples): is a mean already
# num_samples / total → 1 / total
# %% wrong (knows the text's sixteen): not that of the mean over all 8 samples
# num_samples / total → num_samples / 16
# %% wrong (works on a copy): it still holds its own gradient
# p.grad *= num_samples / total → grad = p.grad * num_samples / total
# dist.all_reduce(p.grad) → dist.all_reduce(grad)
# %% wrong (sends to rank 0 only): hold different gradients
# dist.all_reduce(p.grad) → dist.reduce(p.grad, dst=0)
# %% wrong (counts again for every parameter): 1 of 4 gradients are right
# -     dist.all_reduce(total)
# -     for p in model.parameters():
# +     for p in model.parameters():
# +         dist.all_reduce(total)
# %% wrong (forgets to put its number in): is no finite number
# total = torch.tensor(num_samples) → total = torch.zeros(1)
# %% wrong (clears the gradients): p.grad is None
# -         dist.all_reduce(p.grad)
# +         dist.all_reduce(p.grad)
# +     model.zero_grad()
# %% right (sends one bucket)
def average_gradients_unequal(model, num_samples):
    parameters = list(model.parameters())
    number = parameters[0].grad.new_tensor([1.0])  # travels with the gradients, so that one message is enough
    flat = torch.cat([number, *(p.grad.flatten() for p in parameters)]) * num_samples
    dist.all_reduce(flat)
    pieces = (flat[1:] / flat[0]).split([p.numel() for p in parameters])
    for p, piece in zip(parameters, pieces):
        p.grad.copy_(piece.view_as(p))
