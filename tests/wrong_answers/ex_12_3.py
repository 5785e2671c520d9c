"""Exercise 12.3: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.distributed as dist


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


def only_counts_right(stage, num_micro_batches, inputs, loss_of, like):
    return run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), dist.send)


def only_sends_at_once(stage, num_micro_batches, inputs, loss_of, like):
    send = Immediate()
    total = run(stage, num_micro_batches, inputs, loss_of, like, min(dist.get_rank(), num_micro_batches), send)
    send.finish()
    return total


def drops_the_handles(stage, num_micro_batches, inputs, loss_of, like):
    def send(tensor, dst):
        dist.isend(tensor, dst)

    total = run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send)
    dist.barrier()
    return total


def waits_at_once(stage, num_micro_batches, inputs, loss_of, like):
    def send(tensor, dst):
        dist.isend(tensor, dst).wait()

    return run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send)


def receives_with_irecv_and_forgets_to_wait(stage, num_micro_batches, inputs, loss_of, like):
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


def goes_all_the_way_first(stage, num_micro_batches, inputs, loss_of, like):
    send = Immediate()
    total = run(stage, num_micro_batches, inputs, loss_of, like, num_micro_batches, send)
    send.finish()
    return total


def sends_one_buffer(stage, num_micro_batches, inputs, loss_of, like):
    buffers, send = {}, Immediate()

    def send_buffer(tensor, dst):
        buffer = buffers.setdefault(dst, torch.empty_like(tensor))
        buffer.copy_(tensor)  # the last message may still be on its way
        send(buffer, dst)

    total = run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send_buffer)
    send.finish()
    return total


def runs_one_more_ahead(stage, num_micro_batches, inputs, loss_of, like):
    send = Immediate()
    ahead = min(dist.get_world_size() - dist.get_rank(), num_micro_batches)
    total = run(stage, num_micro_batches, inputs, loss_of, like, ahead, send)
    send.finish()
    return total


def returns_nothing(stage, num_micro_batches, inputs, loss_of, like):
    send = Immediate()
    run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send)
    send.finish()


def trains_without_messages(stage, num_micro_batches, inputs, loss_of, like):
    for m in range(num_micro_batches):
        stage(like.fill_(0.5)).sum().backward()
    return 0.0


WRONG = [
    (goes_all_the_way_first, "micro-batches at once, and 1F1B holds"),
    (runs_one_more_ahead, "micro-batches at once, and 1F1B holds"),
    (receives_with_irecv_and_forgets_to_wait, "the gradients are off by"),
    (returns_nothing, "not the sum of the losses"),
    (trains_without_messages, "the gradients are off by"),
]
ENDLESS = [
    (only_counts_right, "was in send"),
    (only_sends_at_once, "in recv"),
    (drops_the_handles, "in recv"),
    (waits_at_once, "in send"),
]


def right(stage, num_micro_batches, inputs, loss_of, like):
    send = Immediate()
    total = run(stage, num_micro_batches, inputs, loss_of, like, ahead_of(num_micro_batches), send)
    send.finish()
    return torch.tensor(total)


def sends_and_receives_together(stage, num_micro_batches, inputs, loss_of, like):
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


RIGHT = [right, sends_and_receives_together]
