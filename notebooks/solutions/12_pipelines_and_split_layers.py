# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 12.1
def autograd_pair():
    def summed(tensor):
        total = tensor.detach().clone()  # all_reduce works in place, and the tensor is not ours
        dist.all_reduce(total)
        return total

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return summed(gradient)

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return summed(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Copy.apply, Sum.apply


# %%
# Exercise 12.2
def run_any(tasks, stage, inputs, loss_of, receive, send):
    held, early, total = {}, {}, None  # early: what came before its task, by phase and micro-batch

    def take(phase, m):
        while (phase, m) not in early:
            number, tensor = receive(phase)
            early[phase, number] = tensor
        return early.pop((phase, m))

    for _, m, phase in tasks:
        if phase == "forward":
            h = (take(phase, m) if inputs is None else inputs[m]).requires_grad_()
            output = stage(h)
            if loss_of is None:
                send(phase, m, output)
            else:
                output = loss_of(m, output)
                total = output.item() + (total or 0.0)
            held[m] = h, output
        else:
            h, output = held.pop(m)
            output.backward(take(phase, m) if loss_of is None else None)
            if inputs is None:
                send(phase, m, h.grad)
    return total


# %%
# Exercise 12.3
def run_1f1b(stage, num_micro_batches, inputs, loss_of, like):
    rank, num_stages, held, total = dist.get_rank(), dist.get_world_size(), {}, 0.0
    is_first, is_last, sent = rank == 0, rank == num_stages - 1, []

    def send(tensor, dst):
        sent.append((dist.isend(tensor, dst), tensor))  # handle and tensor are kept until the end

    def forward(m):
        nonlocal total
        h = inputs[m] if is_first else torch.empty_like(like)
        if not is_first:
            dist.recv(h, src=rank - 1)
        output = stage(h.requires_grad_())
        held[m] = h, loss_of(m, output) if is_last else output
        if not is_last:
            send(output.detach(), rank + 1)
        else:
            total += held[m][1].item()

    ahead = min(num_stages - 1 - rank, num_micro_batches)  # the first stage runs ahead the furthest, not the last
    for m in range(num_micro_batches + ahead):
        if m < num_micro_batches:
            forward(m)
        if m >= ahead:
            h, output = held.pop(m - ahead)
            gradient = None if is_last else torch.empty_like(like)
            if not is_last:
                dist.recv(gradient, src=rank + 1)
            output.backward(gradient)
            if not is_first:
                send(h.grad, rank - 1)
    for work, _ in sent:
        work.wait()
    return total


# %%
# Exercise 12.4
def measure_bubble(tasks, wait_for, run, num_stages, num_micro_batches):
    predicted = (num_stages - 1) / (num_micro_batches + num_stages - 1)
    dist.barrier()
    start, busy_s = time.perf_counter(), 0.0
    for task in tasks:
        wait_for(task)
        begin = time.perf_counter()
        run(task)
        busy_s += time.perf_counter() - begin
    dist.barrier()
    times = torch.tensor([busy_s, time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(times)  # busy and whole time of all stages
    measured = 1 - (times[0] / times[1]).item()
    return predicted, measured


# %%
# Exercise 12.5
def fill_table():
    return {  # over pp, dp, tp: "sum", "mean" or ""
        "columns": ("", "mean", ""),
        "row bias": ("", "mean", ""),
        "LayerNorm": ("", "mean", ""),
        "LayerNorm, own tokens": ("", "mean", "sum"),
        "embedding": ("sum", "mean", ""),
        "loss": ("sum", "mean", ""),
        "norm, split": ("sum", "", "sum"),
        "norm, whole": ("sum", "", ""),
    }
