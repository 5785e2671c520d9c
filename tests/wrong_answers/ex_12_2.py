"""Exercise 12.2: answers that its check must refuse, each with words from the reason that it must give."""

import collections

import torch


def run(tasks, stage, inputs, loss_of, receive, send, take, keep=False):
    """The frame that most answers share; `take(phase, m)` finds the message."""
    held, total = {}, None
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
            h, output = held[m] if keep else held.pop(m)
            output.backward(take(phase, m) if loss_of is None else None)
            if inputs is None:
                send(phase, m, h.grad)
    return total


def mailbox(receive):
    early = {}

    def take(phase, m):
        while (phase, m) not in early:
            number, tensor = receive(phase)
            early[phase, number] = tensor
        return early.pop((phase, m))

    return take


def trusts_the_order(tasks, stage, inputs, loss_of, receive, send):
    return run(tasks, stage, inputs, loss_of, receive, send, lambda phase, m: receive(phase)[1])


def drops_what_is_early(tasks, stage, inputs, loss_of, receive, send):
    def take(phase, m):
        number, tensor = receive(phase)
        while number != m:
            number, tensor = receive(phase)
        return tensor

    return run(tasks, stage, inputs, loss_of, receive, send, take)


def has_one_box_for_both(tasks, stage, inputs, loss_of, receive, send):
    early = {}

    def take(phase, m):
        while m not in early:
            number, tensor = receive(phase)
            early[number] = tensor
        return early.pop(m)

    def fill_from_both(phase, m):  # gradients of early micro-batches overwrite activations
        if phase == "backward" and inputs is None:
            for _ in range(2):
                number, tensor = receive("forward")
                early.setdefault(number, tensor)
        return take(phase, m)

    return run(tasks, stage, inputs, loss_of, receive, send, fill_from_both)


def keeps_everything(tasks, stage, inputs, loss_of, receive, send):
    return run(tasks, stage, inputs, loss_of, receive, send, mailbox(receive), keep=True)


def sorts_the_tasks(tasks, stage, inputs, loss_of, receive, send):
    tasks = sorted(tasks, key=lambda task: task.phase == "backward")
    return run(tasks, stage, inputs, loss_of, receive, send, mailbox(receive))


def does_not_ask_for_gradients(tasks, stage, inputs, loss_of, receive, send):
    take, held, total = mailbox(receive), {}, None
    for _, m, phase in tasks:
        if phase == "forward":
            h = take(phase, m) if inputs is None else inputs[m]
            output = stage(h) if loss_of is None else loss_of(m, stage(h))
            held[m] = h, output
            if loss_of is None:
                send(phase, m, output)
            else:
                total = output.item() + (total or 0.0)
        else:
            h, output = held.pop(m)
            output.backward(take(phase, m) if loss_of is None else None)
            if inputs is None:
                send(phase, m, h.grad)
    return total


def clears_the_gradients(tasks, stage, inputs, loss_of, receive, send):
    take = mailbox(receive)

    def fresh(phase, m):
        stage.zero_grad()
        return take(phase, m)

    return run(tasks, stage, inputs, loss_of, receive, send, fresh)


def returns_nothing(tasks, stage, inputs, loss_of, receive, send):
    run(tasks, stage, inputs, loss_of, receive, send, mailbox(receive))


def returns_the_last_loss(tasks, stage, inputs, loss_of, receive, send):
    last = []

    def noted(m, output):
        last.append(loss_of(m, output))
        return last[-1]

    run(tasks, stage, inputs, loss_of and noted, receive, send, mailbox(receive))
    return last[-1].detach() if last else None


def returns_zero_without_a_loss(tasks, stage, inputs, loss_of, receive, send):
    return run(tasks, stage, inputs, loss_of, receive, send, mailbox(receive)) or 0.0


def forgets_to_send_back(tasks, stage, inputs, loss_of, receive, send):
    def forward_only(phase, m, tensor):
        if phase == "forward":
            send(phase, m, tensor)

    return run(tasks, stage, inputs, loss_of, receive, forward_only, mailbox(receive))


def sends_under_a_wrong_number(tasks, stage, inputs, loss_of, receive, send):
    count = collections.Counter()

    def counted(phase, m, tensor):
        send(phase, count[phase], tensor)
        count[phase] += 1

    return run(tasks, stage, inputs, loss_of, receive, counted, mailbox(receive))


def goes_back_without_the_gradient(tasks, stage, inputs, loss_of, receive, send):
    take = mailbox(receive)
    return run(tasks, stage, inputs, loss_of, receive, send, lambda phase, m: take(phase, m) if phase == "forward" else None)


def weighs_by_itself(tasks, stage, inputs, loss_of, receive, send):
    M = len(tasks) / 2
    return run(tasks, stage, inputs, loss_of and (lambda m, output: loss_of(m, output) / M), receive, send, mailbox(receive))


def receives_all_first(tasks, stage, inputs, loss_of, receive, send):
    if inputs is None:
        xs = dict(receive("forward") for task in tasks if task.phase == "forward")
        inputs_here = [xs[m] for m in sorted(xs)]
        return run(tasks, stage, inputs_here, loss_of, receive, send, mailbox(receive))
    return run(tasks, stage, inputs, loss_of, receive, send, mailbox(receive))


def leaves_letters_in_the_box(tasks, stage, inputs, loss_of, receive, send):
    early = {}

    def take(phase, m):
        while (phase, m) not in early:
            number, tensor = receive(phase)
            early[phase, number] = tensor
        return early[phase, m]

    return run(tasks, stage, inputs, loss_of, receive, send, take)


def takes_a_step(tasks, stage, inputs, loss_of, receive, send):
    loss = run(tasks, stage, inputs, loss_of, receive, send, mailbox(receive))
    with torch.no_grad():
        for p in stage.parameters():
            p -= 0.1 * p.grad
    return loss


def computes_again_backward(tasks, stage, inputs, loss_of, receive, send):
    take, held, total = mailbox(receive), {}, None
    for _, m, phase in tasks:
        if phase == "forward":
            held[m] = (take(phase, m) if inputs is None else inputs[m]).requires_grad_()
            with torch.no_grad():
                output = stage(held[m])
            if loss_of is None:
                send(phase, m, output)
            else:
                total = loss_of(m, output).item() + (total or 0.0)
        else:
            h = held.pop(m)
            output = stage(h) if loss_of is None else loss_of(m, stage(h))
            output.backward(take(phase, m) if loss_of is None else None)
            if inputs is None:
                send(phase, m, h.grad)
    return total


def sends_the_gradient_on_unchanged(tasks, stage, inputs, loss_of, receive, send):
    take, latest = mailbox(receive), {}

    def noted(phase, m):
        latest[phase] = take(phase, m)
        return latest[phase]

    def unchanged(phase, m, tensor):
        send(phase, m, latest.get(phase, tensor) if phase == "backward" else tensor)

    return run(tasks, stage, inputs, loss_of, receive, unchanged, noted)


def takes_the_mean_of_the_losses(tasks, stage, inputs, loss_of, receive, send):
    total = run(tasks, stage, inputs, loss_of, receive, send, mailbox(receive))
    return None if total is None else 2 * total / len(tasks)


def sends_from_the_ends_too(tasks, stage, inputs, loss_of, receive, send):
    def and_back(phase, m, tensor):
        send(phase, m, tensor)
        if phase == "forward" and inputs is not None:
            send("backward", m, tensor)

    return run(tasks, stage, inputs, loss_of, receive, and_back, mailbox(receive))


def empties_the_list(tasks, stage, inputs, loss_of, receive, send):
    total = run(list(tasks), stage, inputs, loss_of, receive, send, mailbox(receive))
    tasks.clear()
    return total


WRONG = [
    (trusts_the_order, "the schedule asks for"),
    (drops_what_is_early, "has it been received before"),
    (has_one_box_for_both, "nothing came"),
    (keeps_everything, "let go of what is done"),
    (sorts_the_tasks, "the schedule asks for"),
    (does_not_ask_for_gradients, "was given None, not a tensor"),
    (clears_the_gradients, "were all added up?"),
    (returns_nothing, "not the sum of the losses"),
    (returns_the_last_loss, "the losses add up to"),
    (returns_zero_without_a_loss, "None is asked"),
    (forgets_to_send_back, "did the other stage send it"),
    (sends_under_a_wrong_number, "and 6 were sent"),
    (goes_back_without_the_gradient, "grad can be implicitly created only for scalar outputs"),
    (weighs_by_itself, "the gradients are off by"),
    (receives_all_first, "nothing came"),
    (leaves_letters_in_the_box, "received tensors were still there after their micro-batches' backward"),
    (takes_a_step, "the parameters have changed"),
    (computes_again_backward, "has no autograd graph to go back through"),
    (sends_the_gradient_on_unchanged, "the gradients are off by"),
    (takes_the_mean_of_the_losses, "the losses add up to"),
    (sends_from_the_ends_too, "there is no neighbour on that side"),
    (empties_the_list, "the list of tasks was changed"),
]


def fills_queues(tasks, stage, inputs, loss_of, receive, send):
    boxes = {"forward": {}, "backward": {}}
    held, losses = {}, []

    def find(phase, m):
        while boxes[phase].get(m) is None:
            boxes[phase].update([receive(phase)])
        return boxes[phase].pop(m)

    for task in tasks:
        m = task.micro_batch
        if task.phase == "backward":
            h, output = held.pop(m)
            output.backward(*([find("backward", m)] if loss_of is None else []))
            inputs is None and send("backward", m, h.grad.clone())
            continue
        h = inputs[m].detach() if inputs is not None else find("forward", m)
        h.requires_grad = True
        output = stage(h)
        if loss_of is not None:
            output = loss_of(m, output)
            losses.append(output.detach())
        else:
            send("forward", m, output.detach())
        held[m] = (h, output)
    return sum(losses) if losses else None


def files_by_number_alone(tasks, stage, inputs, loss_of, receive, send):
    early = {}  # when the gradient of a micro-batch comes, its activations have been taken out

    def take(phase, m):
        while m not in early:
            early.update([receive(phase)])
        return early.pop(m)

    return run(tasks, stage, inputs, loss_of, receive, send, take)


def adds_gradients_itself(tasks, stage, inputs, loss_of, receive, send):
    take, held, losses, parameters = mailbox(receive), {}, [], list(stage.parameters())
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


RIGHT = [fills_queues, files_by_number_alone, adds_gradients_itself]
