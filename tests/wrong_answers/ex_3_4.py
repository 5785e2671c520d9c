"""Exercise 3.4: answers that its check must refuse, each with words from the reason that it must give."""

import sys

import torch
import torch.nn.functional as F


def adds_means(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        F.cross_entropy(model(a), b).backward()
    optimizer.step()


def adds_sums(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        F.cross_entropy(model(a), b, reduction="sum").backward()
    optimizer.step()


def counts_pieces_alike(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    pieces = list(zip(x.split(micro_batch_size), y.split(micro_batch_size)))
    for a, b in pieces:
        (F.cross_entropy(model(a), b) / len(pieces)).backward()
    optimizer.step()


def steps_every_time(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        (F.cross_entropy(model(a), b, reduction="sum") / len(x)).backward()
        optimizer.step()


def never_clears(model, optimizer, x, y, micro_batch_size):
    for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        (F.cross_entropy(model(a), b, reduction="sum") / len(x)).backward()
    optimizer.step()


def clears_each_time(model, optimizer, x, y, micro_batch_size):
    for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        optimizer.zero_grad()
        (F.cross_entropy(model(a), b, reduction="sum") / len(x)).backward()
    optimizer.step()


def takes_the_whole_batch(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def keeps_all_activations(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    logits = torch.cat([model(a) for a in x.split(micro_batch_size)])
    F.cross_entropy(logits, y).backward()
    optimizer.step()


def drops_the_last(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for i in range(max(1, len(x) // micro_batch_size)):
        part = slice(i * micro_batch_size, (i + 1) * micro_batch_size)
        (F.cross_entropy(model(x[part]), y[part], reduction="sum") / len(x)).backward()
    optimizer.step()


def forgets_to_step(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        (F.cross_entropy(model(a), b, reduction="sum") / len(x)).backward()


def divides_by_micro_batch_size(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        (F.cross_entropy(model(a), b, reduction="sum") / micro_batch_size).backward()
    optimizer.step()


def keeps_the_graphs(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    kept = []
    for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
        loss = F.cross_entropy(model(a), b, reduction="sum") / len(x)
        loss.backward(retain_graph=True)
        kept.append(loss)
    optimizer.step()


def steps_before_the_last(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for i, (a, b) in enumerate(zip(x.split(micro_batch_size), y.split(micro_batch_size))):
        (F.cross_entropy(model(a), b, reduction="sum") / len(x)).backward()
        if (i + 1) % max(1, len(x) // micro_batch_size) == 0:
            optimizer.step()
            optimizer.zero_grad()


def gives_each_piece_the_first_labels(model, optimizer, x, y, micro_batch_size):
    optimizer.zero_grad()
    for a in x.split(micro_batch_size):
        (F.cross_entropy(model(a), y[: len(a)], reduction="sum") / len(x)).backward()
    optimizer.step()


def ends_the_program(model, optimizer, x, y, micro_batch_size):
    sys.exit()


WRONG = [
    (keeps_the_graphs, "or kept after it"),
    (steps_before_the_last, "the optimizer stepped when 9 of 10 samples"),
    (gives_each_piece_the_first_labels, "with its own labels"),
    (ends_the_program, "ended the program before your function returned"),
    (adds_means, "a sum of 2 means"),
    (adds_sums, "a sum over samples"),
    (counts_pieces_alike, "weigh as much as the others"),
    (steps_every_time, "the optimizer made 2 steps"),
    (never_clears, "does something stay in p.grad"),
    (clears_each_time, "the only one left in it"),
    (takes_the_whole_batch, "16 samples went through the model at once"),
    (keeps_all_activations, "still waiting for backward()"),
    (drops_the_last, "only 9 of 10 samples"),
    (forgets_to_step, "the optimizer made no step"),
    (divides_by_micro_batch_size, "a sum of 2 means"),
]


def weighs_the_means(model, optimizer, x, y, micro_batch_size):
    for begin in range(0, len(x), micro_batch_size):
        a, b = x[begin : begin + micro_batch_size], y[begin : begin + micro_batch_size]
        loss = F.cross_entropy(model(a), b) * len(a) / len(x)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def steps_with_a_closure(model, optimizer, x, y, micro_batch_size):
    with torch.no_grad():
        before = F.cross_entropy(model(x[:1]), y[:1])

    def closure():
        optimizer.zero_grad()
        total = torch.zeros_like(before)
        for a, b in zip(x.split(micro_batch_size), y.split(micro_batch_size)):
            loss = F.cross_entropy(model(a), b, reduction="sum") / len(x)
            loss.backward()
            total += loss.detach()
        return total

    optimizer.step(closure)


RIGHT = [steps_with_a_closure, weighs_the_means]
