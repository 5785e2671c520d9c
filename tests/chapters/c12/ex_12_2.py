# %% wrong (sends all from one buffer): was overwritten after it was sent
# send(phase, m, h.grad) → send(phase, m, held.setdefault("buffer", torch.empty_like(h.grad)).copy_(h.grad))
# %% wrong (sorts the tasks): the schedule asks for the backward of micro-batch 0
# for _, m, phase in tasks: → for _, m, phase in sorted(tasks, key=lambda task: task.phase == "backward"):
# %% wrong (goes back twice): and the backward of micro-batch 0 was done
# -             output.backward(take(phase, m) if loss_of is None else None)
# +             gradient = take(phase, m) if loss_of is None else None
# +             output.backward(gradient, retain_graph=True)
# +             output.backward(gradient)
# %% wrong (stops early): 11 of 12 tasks were done
# in tasks: → in tasks[:-1]:
# %% wrong (drops what is early): would wait for ever here
# early[phase, number] = tensor → early.clear() or early.update({(phase, number): tensor})
# %% wrong (forgets the last message): was not sent on
# send(phase, m, h.grad) → (m, phase) != tasks[-1][1:] and send(phase, m, h.grad)
# %% wrong (sends from the ends too): there is no neighbour on that side
# if inputs is None: → if True:
# %% wrong (counts on): there is no micro-batch 6
# send(phase, m, output) → send(phase, m + 6, output)
# %% wrong (names another phase): the phase of a message is "forward" or "backward"
# send(phase, m, output) → send("activations", m, output)
# %% wrong (sends another number's): it is that of micro-batch
# send(phase, m, output) → send(phase, len(tasks) // 2 - 1 - m, output)
# %% wrong (sends its input): is it the stage's output
# send(phase, m, output) → send(phase, m, h)
# %% wrong (sends the gradient on unchanged): is it the gradient of the stage's input
# output.backward(take(phase, m) if loss_of is None else None) → gradient = take(phase, m) if loss_of is None else torch.ones(2, 5).double(); output.backward(gradient if loss_of is None else None)
# send(phase, m, h.grad) → send(phase, m, gradient)
# %% wrong (does not ask for gradients): send("backward", 0, …) was given None, not a tensor
# .requires_grad_() →  +0
# %% wrong (computes again backward): has no autograd graph to go back through
# -             output = stage(h)
# +             with torch.no_grad():
# +                 output = stage(h)
# %% wrong (doubles what it got): the stage was given something that is not the input of any micro-batch
# output = stage(h) → output = stage(h + h)
# %% wrong (clears the gradients): they are those of one micro-batch alone
# output = stage(h) → stage.zero_grad(); output = stage(h)
# %% wrong (averages): they are the mean over micro-batches
# return total → [p.grad.div_(len(tasks) // 2) for p in stage.parameters()]; return total
# %% wrong (leaves no gradients): a p.grad is None afterwards
# return total → stage.zero_grad(); return total
# %% wrong (doubles the gradients): did each backward get the gradient of its own
# return total → [p.grad.mul_(2) for p in stage.parameters()]; return total
# %% wrong (returns zero without a loss): None is asked
# return total → return total or 0.0
# %% wrong (returns the last loss): that is the loss of one micro-batch alone
# output.item() + (total or 0.0) → output.item()
# %% wrong (takes the mean of the losses): that is their mean
# return total → return total and 2 * total / len(tasks)
# %% wrong (keeps everything): the outputs of 6 micro-batches were kept at once
# held.pop(m) → held[m]
# %% wrong (leaves letters in the box): received tensors were still there
# early.pop((phase, m)) → early[phase, m]
# %% right (adds gradients itself, files by number alone)
def run_any(tasks, stage, inputs, loss_of, receive, send):
    early, held, losses, parameters = {}, {}, [], list(stage.parameters())

    def take(phase, m):
        while m not in early:  # when the gradient of a micro-batch comes, its activations have been taken out
            early.update([receive(phase)])
        return early.pop(m)

    for _, m, phase in tasks:
        if phase == "forward":
            h = (take(phase, m) if inputs is None else inputs[m].clone()).requires_grad_()
            output = stage(h)
            if loss_of is None:
                send(phase, m, output.detach())
            else:
                output = loss_of(m, output)
                losses.append(output.detach())
            held[m] = h, output
        else:
            h, output = held.pop(m)
            grad_h, *grads = torch.autograd.grad(output, [h, *parameters], take(phase, m) if loss_of is None else None)
            for p, grad in zip(parameters, grads):
                p.grad = grad if p.grad is None else p.grad + grad
            if inputs is None:
                send(phase, m, grad_h)
    return torch.stack(losses).sum() if losses else None
