# %% wrong (one ahead everywhere): held 2 micro-batches at most, and 1F1B more
# min(num_stages - 1 - rank, num_micro_batches) → min(num_stages - 1 - rank, num_micro_batches, 1)
# %% wrong (one at a time): held 1 micro-batch at most, and 1F1B more
# min(num_stages - 1 - rank, num_micro_batches) → 0
# %% wrong (goes all the way first): held 4 micro-batches at once, more than 1F1B does
# min(num_stages - 1 - rank, num_micro_batches) → num_micro_batches
# %% endless (only sends at once): in recv
# min(num_stages - 1 - rank, num_micro_batches) → min(rank, num_micro_batches)
# %% endless (only counts right): in send
# sent.append((dist.isend(tensor, dst), tensor))  # → dist.send(tensor, dst)  #
# %% endless (waits at once): in wait
# sent.append((dist.isend(tensor, dst), tensor))  # → dist.isend(tensor, dst).wait()  #
# %% endless (waits for more than comes): rank 0 had reached the end of your function
# -     for work, _ in sent:
# +     if is_last and num_stages > 1:
# +         dist.recv(torch.empty_like(like), src=rank - 1)
# +     for work, _ in sent:
# %% wrong (drops the handles): nobody waited for a message of isend or irecv
# sent.append((dist.isend(tensor, dst), tensor))  # → dist.isend(tensor, dst)  #
# %% wrong (reads before it waits): the gradients are not the sums
# dist.recv(gradient, src=rank + 1) → sent.append((dist.irecv(gradient.fill_(0.5), src=rank + 1), gradient))
# %% wrong (sends one buffer): while it was sent
# -     def send(tensor, dst):
# +     buffers = {}
# + 
# +     def send(tensor, dst):
# +         tensor = buffers.setdefault(dst, torch.empty_like(tensor)).copy_(tensor)  # the last one may still be on its way
# %% wrong (receives into one tensor): modified by an inplace operation
# h = inputs[m] if is_first else torch.empty_like(like) → h = inputs[m] if is_first else sent[0][1].detach()
# is_first, is_last, sent = rank == 0, rank == num_stages - 1, [] → is_first, is_last, sent = rank == 0, rank == num_stages - 1, []; rank and sent.append((dist.barrier, torch.empty_like(like)))
# for work, _ in sent: → for work, _ in sent[rank > 0 :]:
# %% wrong (uses what it was given): like was changed in place
# h = inputs[m] if is_first else torch.empty_like(like) → h = inputs[m] if is_first else like.detach()
# %% wrong (averages): they are the mean over micro-batches
# return total → [p.grad.div_(num_micro_batches) for p in stage.parameters()]; return total
# %% wrong (clears the gradients): the gradients are not the sums
# output.backward(gradient) → stage.zero_grad(); output.backward(gradient)
# %% wrong (leaves no gradients): a p.grad is None afterwards
# return total → stage.zero_grad(); return total
# %% wrong (computes without a graph): has no autograd graph to go back through
# output = stage(h.requires_grad_()) → output = torch.no_grad()(stage)(h)
# %% wrong (takes a step): stage.0.weight was changed in place
# return total → [p.data.sub_(p.grad) for p in stage.parameters()]; return total
# %% wrong (changes the batch): inputs[0] was changed in place
# return total → inputs and inputs[0].data.zero_(); return total
# %% wrong (returns nothing): what came back is None
# return total → total
# %% wrong (returns the mean): that is their mean
# return total → return total / num_micro_batches
# %% wrong (returns the last loss): that is the loss of one micro-batch alone
# total += held[m][1].item() → total = held[m][1].item()
# %% wrong (returns something everywhere): and there is no loss here: 0 is asked
# return total → return total or 1.0

# %% right (in three parts)
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    rank, is_last, held, sent, losses = dist.get_rank(), loss_of is not None, [], [], []
    warm_up = min(dist.get_world_size() - 1 - rank, num_micro_batches)

    def forward(m):
        h = inputs[m].clone() if inputs is not None else torch.zeros_like(like)
        if inputs is None:
            dist.recv(h, rank - 1)
        output = stage(h.requires_grad_())
        if is_last:
            output = loss_of(m, output)
            losses.append(output.item())
        else:
            tensor = output.detach().clone()
            sent.append((dist.isend(tensor, rank + 1), tensor))
        held.append((h, output))

    def backward():
        h, output = held.pop(0)
        gradient = None if is_last else torch.zeros_like(like)
        if not is_last:
            dist.recv(gradient, rank + 1)
        torch.autograd.backward(output, gradient)
        if inputs is None:
            sent.append((dist.isend(h.grad, rank - 1), h.grad))

    for m in range(warm_up):
        forward(m)
    for m in range(warm_up, num_micro_batches):
        forward(m)
        backward()
    for _ in range(warm_up):
        backward()
    for work, _ in sent:
        work.wait()
    return sum(losses)
