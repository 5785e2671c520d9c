# %%
def run(stage, num_micro_batches, inputs, loss_of, like, ahead, send, reuse=False):
    rank, num_stages, held, total = dist.get_rank(), dist.get_world_size(), {}, 0.0
    is_first, is_last = rank == 0, rank == num_stages - 1
    for m in range(num_micro_batches + ahead):
        if m < num_micro_batches:
            h = inputs[m] if is_first else torch.empty_like(like)
            if not is_first:
                dist.recv(h, src=rank - 1)
            output = stage(h.requires_grad_())
            if is_last:
                output = loss_of(m, output)
                total += output.item()
            else:
                send(output.detach(), rank + 1)
            held[m] = h, output
        if m >= ahead:
            h, output = held.pop(m - ahead)
            gradient = None if is_last else torch.empty_like(like)
            if not is_last:
                dist.recv(gradient, src=rank + 1)
            output.backward(gradient)
            if not is_first:
                send(h.grad, rank - 1)
    return total


def ahead_of(num_micro_batches):
    return min(dist.get_world_size() - 1 - dist.get_rank(), num_micro_batches)


class Immediate:
    def __init__(self):
        self.sent = []

    def __call__(self, tensor, dst):
        self.sent.append((dist.isend(tensor, dst), tensor))

    def finish(self):
        for work, _ in self.sent:
            work.wait()


def right(stage, num_micro_batches, inputs, loss_of, like):
    send = Immediate()
    total = run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send)
    send.finish()
    return torch.tensor(total)

# %% right (right)
run_1f1b = right

# %% right (sends and receives together)
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    rank, num_stages, held, total = dist.get_rank(), dist.get_world_size(), {}, 0.0
    is_last, M, ahead = rank == num_stages - 1, num_micro_batches, ahead_of(num_micro_batches)
    pending = []
    for m in range(M + ahead):
        if m < M:
            h = inputs[m] if rank == 0 else torch.empty_like(like)
            if rank:
                dist.irecv(h, rank - 1).wait()
            output = stage(h.requires_grad_())
            if is_last:
                output = loss_of(m, output)
                total += output.item()
            held[m] = h, output
        operations = []
        if m < M and not is_last:
            sending = output.detach()
            operations.append(dist.P2POp(dist.isend, sending, rank + 1))
        gradient = torch.empty_like(like)
        if m >= ahead and not is_last:
            operations.append(dist.P2POp(dist.irecv, gradient, rank + 1))
        works = dist.batch_isend_irecv(operations) if operations else []
        if m >= ahead:
            for work in works:
                work.wait()
            h, output = held.pop(m - ahead)
            output.backward(None if is_last else gradient)
            if rank:
                pending.append((dist.isend(h.grad, rank - 1), h.grad))
        else:
            pending += [(work, sending) for work in works]
    for work, _ in pending:
        work.wait()
    return total

# %% right (in three parts)
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    rank, is_last, held, send, losses = dist.get_rank(), loss_of is not None, [], Immediate(), []
    warm_up = ahead_of(num_micro_batches)

    def forward(m):
        h = inputs[m].clone() if inputs is not None else torch.zeros_like(like)
        if inputs is None:
            dist.irecv(h, rank - 1).wait()
        output = stage(h.requires_grad_())
        if is_last:
            output = loss_of(m, output)
            losses.append(output.item())
        else:
            send(output.detach().clone(), rank + 1)
        held.append((h, output))

    def backward():
        h, output = held.pop(0)
        gradient = None if is_last else torch.zeros_like(like)
        if not is_last:
            dist.recv(gradient, rank + 1)
        torch.autograd.backward(output, gradient)
        if inputs is None:
            send(h.grad, rank - 1)

    for m in range(warm_up):
        forward(m)
    for m in range(warm_up, num_micro_batches):
        forward(m)
        backward()
    for _ in range(warm_up):
        backward()
    send.finish()
    return sum(losses)

# %% wrong (one ahead everywhere): what do the other stages do meanwhile?
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    send = Immediate()
    total = run(stage, num_micro_batches, inputs, loss_of, like, min(ahead_of(num_micro_batches), 1), send)
    send.finish()
    return total

# %% wrong (goes all the way first): with how many forwards does this stage begin?
# min(ahead_of(num_micro_batches), 1) → num_micro_batches
# %% wrong (runs one more ahead): with how many forwards does this stage begin?
# -     total = run(stage, num_micro_batches, inputs, loss_of, like, min(ahead_of(num_micro_batches), 1), send)
# +     ahead = min(dist.get_world_size() - dist.get_rank(), num_micro_batches)
# +     total = run(stage, num_micro_batches, inputs, loss_of, like, ahead, send)
# %% endless (only sends at once): in recv
# ahead_of(num_micro_batches), 1 → dist.get_rank(), num_micro_batches

# %% endless (only counts right): was in send
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    return run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), dist.send)

# %% wrong (one at a time): what do the other stages do meanwhile?
# ahead_of(num_micro_batches) → 0

# %% endless (waits at once): in send
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    def send(tensor, dst):
        dist.isend(tensor, dst).wait()

    return run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send)

# %% endless (drops the handles): in recv
# dist.isend(tensor, dst).wait() → dist.isend(tensor, dst)
# -     return run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send)
# +     total = run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send)
# +     dist.barrier()
# +     return total

# %% wrong (receives with irecv and forgets to wait): did each backward get the gradient of its own micro-batch, and was eve
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    rank, send = dist.get_rank(), Immediate()
    handles, total, held = [], 0.0, {}

    def receive(src):
        tensor = torch.zeros_like(like)
        handles.append((dist.irecv(tensor, src), tensor))
        return tensor

    ahead = ahead_of(num_micro_batches)
    for m in range(num_micro_batches + ahead):
        if m < num_micro_batches:
            h = (inputs[m] if inputs is not None else receive(rank - 1)).requires_grad_()
            output = stage(h)
            if loss_of is not None:
                output = loss_of(m, output)
                total += output.item()
            else:
                send(output.detach(), rank + 1)
            held[m] = h, output
        if m >= ahead:
            h, output = held.pop(m - ahead)
            output.backward(None if loss_of is not None else receive(rank + 1))
            if rank:
                send(h.grad, rank - 1)
    send.finish()
    for handle, _ in handles:
        handle.wait()
    return total

# %% wrong (returns nothing): is it returned, or only printed?
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    send = Immediate()
    run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send)
    send.finish()

# %% wrong (sends one buffer): what is then on its way?
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    buffers, send = {}, Immediate()

    def send_buffer(tensor, dst):
        buffer = buffers.setdefault(dst, torch.empty_like(tensor))
        buffer.copy_(tensor)  # the last message may still be on its way
        send(buffer, dst)

    total = run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send_buffer)
    send.finish()
    return total

# %% wrong (receives into one tensor): what was given belongs to the caller
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    rank, send, total, held = dist.get_rank(), Immediate(), 0.0, {}
    ahead = ahead_of(num_micro_batches)
    for m in range(num_micro_batches + ahead):
        if m < num_micro_batches:
            h = inputs[m] if inputs is not None else like.detach()  # the micro-batches that are held share it
            if inputs is None:
                dist.recv(h, rank - 1)
            output = stage(h.requires_grad_())
            if loss_of is not None:
                output = loss_of(m, output)
                total += output.item()
            else:
                send(output.detach(), rank + 1)
            held[m] = h, output
        if m >= ahead:
            h, output = held.pop(m - ahead)
            gradient = torch.empty_like(like) if loss_of is None else None
            if loss_of is None:
                dist.recv(gradient, rank + 1)
            output.backward(gradient)
            if rank:
                send(h.grad, rank - 1)
    send.finish()
    return total

# %% wrong (tells everyone the loss): came back, and there is no loss here:
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    total = torch.tensor(right(stage, num_micro_batches, inputs, loss_of, like))
    dist.broadcast(total, src=dist.get_world_size() - 1)
    return total.item()

# %% wrong (averages): gradient
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    total = right(stage, num_micro_batches, inputs, loss_of, like)
    for p in stage.parameters():
        p.grad /= num_micro_batches
    return total

# %% wrong (returns the mean): that is their mean
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    return right(stage, num_micro_batches, inputs, loss_of, like) / num_micro_batches

# %% wrong (trains without messages): what was given belongs to the caller
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    for m in range(num_micro_batches):
        stage(like.fill_(0.5)).sum().backward()
    return 0.0
