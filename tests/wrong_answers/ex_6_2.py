"""Exercise 6.2: answers that its check must refuse, each with words from the reason that it must give."""

import math

import numpy as np
import torch
import torch.nn.functional as F


def pieces(x, y, num_micro_batches):
    return list(zip(x.tensor_split(num_micro_batches), y.tensor_split(num_micro_batches)))


def adds_means(model, x, y, num_micro_batches):
    for a, b in pieces(x, y, num_micro_batches):
        F.cross_entropy(model(a), b).backward()


def counts_pieces_alike(model, x, y, num_micro_batches):
    for a, b in pieces(x, y, num_micro_batches):
        (F.cross_entropy(model(a), b) / num_micro_batches).backward()


def weighs_by_samples(model, x, y, num_micro_batches):
    for a, b in pieces(x, y, num_micro_batches):
        if (b >= 0).any():
            (F.cross_entropy(model(a), b) * len(b) / len(y)).backward()
        else:
            (model(a).sum() * 0).backward()


def weighs_an_empty_mean(model, x, y, num_micro_batches):
    num_labels, total = (y != -100).sum(), 0.0
    for a, b in pieces(x, y, num_micro_batches):
        loss = F.cross_entropy(model(a), b) * (b != -100).sum() / num_labels
        loss.backward()  # the gradient of a mean over nothing is 0, but the mean itself is no number
        total += loss.item()
    return total


def returns_the_last_loss(model, x, y, num_micro_batches):
    num_labels = (y != -100).sum()
    for a, b in pieces(x, y, num_micro_batches):
        loss = F.cross_entropy(model(a), b, reduction="sum") / num_labels
        loss.backward()
    return loss


def returns_all_losses(model, x, y, num_micro_batches):
    num_labels = (y != -100).sum()
    losses = [F.cross_entropy(model(a), b, reduction="sum") / num_labels for a, b in pieces(x, y, num_micro_batches)]
    for loss in losses:
        loss.backward()
    return losses


def returns_nothing(model, x, y, num_micro_batches):
    returns_all_losses(model, x, y, num_micro_batches)


def adds_sums(model, x, y, num_micro_batches):
    for a, b in pieces(x, y, num_micro_batches):
        F.cross_entropy(model(a), b, reduction="sum").backward()


def divides_by_all_samples(model, x, y, num_micro_batches):
    for a, b in pieces(x, y, num_micro_batches):
        (F.cross_entropy(model(a), b, reduction="sum") / len(y)).backward()


def keeps_only_the_last(model, x, y, num_micro_batches):
    num_labels = (y != -100).sum()
    for a, b in pieces(x, y, num_micro_batches):
        model.zero_grad()
        (F.cross_entropy(model(a), b, reduction="sum") / num_labels).backward()


def cuts_with_chunk(model, x, y, num_micro_batches):
    num_labels = (y != -100).sum()
    for a, b in zip(x.chunk(num_micro_batches), y.chunk(num_micro_batches)):
        (F.cross_entropy(model(a), b, reduction="sum") / num_labels).backward()


def gives_the_rest_to_the_last(model, x, y, num_micro_batches):
    size, num_labels = len(x) // num_micro_batches, (y != -100).sum()
    for i in range(num_micro_batches):
        part = slice(i * size, (i + 1) * size if i < num_micro_batches - 1 else None)
        (F.cross_entropy(model(x[part]), y[part], reduction="sum") / num_labels).backward()


def drops_the_rest(model, x, y, num_micro_batches):
    size, num_labels = len(x) // num_micro_batches, (y != -100).sum()
    for i in range(num_micro_batches):
        part = slice(i * size, (i + 1) * size)
        (F.cross_entropy(model(x[part]), y[part], reduction="sum") / num_labels).backward()


def has_empty_pieces(model, x, y, num_micro_batches):
    size, num_labels = math.ceil(len(x) / num_micro_batches), (y != -100).sum()
    for i in range(num_micro_batches):
        part = slice(i * size, (i + 1) * size)
        (F.cross_entropy(model(x[part]), y[part], reduction="sum") / num_labels).backward()


def takes_the_whole_batch(model, x, y, num_micro_batches):
    F.cross_entropy(model(x), y).backward()


def throws_the_unlabelled_away(model, x, y, num_micro_batches):
    x, y = x[y != -100], y[y != -100]
    for a, b in pieces(x, y, num_micro_batches):
        (F.cross_entropy(model(a), b, reduction="sum") / len(y)).backward()


def takes_a_step(model, x, y, num_micro_batches):
    num_labels = (y != -100).sum()
    for a, b in pieces(x, y, num_micro_batches):
        (F.cross_entropy(model(a), b, reduction="sum") / num_labels).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def relabels(model, x, y, num_micro_batches):
    y[y == -100] = 0
    for a, b in pieces(x, y, num_micro_batches):
        (F.cross_entropy(model(a), b, reduction="sum") / len(y)).backward()


def in_single_precision(model, x, y, num_micro_batches):
    model.float()
    return weighs_an_empty_mean(model, x.float(), y, num_micro_batches)


def divides_at_the_end_by_all(model, x, y, num_micro_batches):
    for a, b in pieces(x, y, num_micro_batches):
        F.cross_entropy(model(a), b, reduction="sum").backward()
    for p in model.parameters():
        p.grad /= len(y)


def takes_class_0_for_no_label(model, x, y, num_micro_batches):
    num_labels, total = (y > 0).sum(), 0.0
    for a, b in pieces(x, y, num_micro_batches):
        loss = F.cross_entropy(model(a), b, reduction="sum") / num_labels
        loss.backward()
        total += loss.item()
    return total


def goes_back_through_all_so_far(model, x, y, num_micro_batches):
    num_labels, total = (y != -100).sum(), 0.0
    for a, b in pieces(x, y, num_micro_batches):
        total = total + F.cross_entropy(model(a), b, reduction="sum") / num_labels
        total.backward(retain_graph=True)
    return total


def overwrites_the_gradients(model, x, y, num_micro_batches):
    num_labels, parameters = (y != -100).sum(), list(model.parameters())
    for a, b in pieces(x, y, num_micro_batches):
        loss = F.cross_entropy(model(a), b, reduction="sum") / num_labels
        for p, grad in zip(parameters, torch.autograd.grad(loss, parameters)):
            p.grad = grad


def asks_the_whole_batch_for_its_loss(model, x, y, num_micro_batches):
    weighs_an_empty_mean(model, x, y, num_micro_batches)
    with torch.no_grad():
        return F.cross_entropy(model(x), y)


def yields_its_losses(model, x, y, num_micro_batches):
    num_labels = (y != -100).sum()
    for a, b in pieces(x, y, num_micro_batches):
        loss = F.cross_entropy(model(a), b, reduction="sum") / num_labels
        loss.backward()
        yield loss.item()


def hands_over_the_pieces_at_once(model, x, y, num_micro_batches):
    return F.cross_entropy(model(x.tensor_split(num_micro_batches)), y)


def forgets_backward(model, x, y, num_micro_batches):
    num_labels = (y != -100).sum()
    return sum(F.cross_entropy(model(a), b, reduction="sum") / num_labels for a, b in pieces(x, y, num_micro_batches))


WRONG = [
    (adds_means, "it is a sum of 3 means"),
    (counts_pieces_alike, "every micro-batch counts alike"),
    (weighs_by_samples, "weighted by samples, of which not all count"),
    (weighs_an_empty_mean, "the loss that came back is nan"),
    (returns_the_last_loss, "and the whole batch's is"),
    (returns_all_losses, "and not the loss"),
    (returns_nothing, "what came back is None"),
    (adds_sums, "it is a sum over samples"),
    (divides_by_all_samples, "divided by the number of samples, of which not all count"),
    (keeps_only_the_last, "only the last micro-batch's is left"),
    (cuts_with_chunk, "there should be 6 of them"),
    (gives_the_rest_to_the_last, "none should be larger than 3"),
    (drops_the_rest, "never went through the model"),
    (has_empty_pieces, "none may be empty"),
    (takes_the_whole_batch, "none should be larger than 4"),
    (throws_the_unlabelled_away, "none may be empty"),
    (takes_a_step, "the parameters have changed"),
    (relabels, "x or y was changed"),
    (forgets_backward, "a p.grad is None"),
    (in_single_precision, "float32 went through the model"),
    (divides_at_the_end_by_all, "divided by the number of samples, of which not all count"),
    (takes_class_0_for_no_label, "by what is each micro-batch's loss weighted"),
    (goes_back_through_all_so_far, "by what is each micro-batch's loss weighted"),
    (overwrites_the_gradients, "only the last micro-batch's is left"),
    (asks_the_whole_batch_for_its_loss, "none should be larger than 4"),
    (yields_its_losses, "what came back is <generator"),
    (hands_over_the_pieces_at_once, "your code failed in a worker"),
]


def weighs_the_means(model, x, y, num_micro_batches):
    n, total, mean = len(x), int((y >= 0).sum()), 0.0
    for i in range(num_micro_batches):
        begin, end = i * n // num_micro_batches, (i + 1) * n // num_micro_batches
        share = int((y[begin:end] >= 0).sum()) / total
        logits = model(x[begin:end])
        if share:  # a mean over nothing is no number
            loss = share * F.cross_entropy(logits, y[begin:end])
            loss.backward()
            mean += loss.item()
    return mean


def leaves_the_unlabelled_piece_out(model, x, y, num_micro_batches):
    num_labels, total = (y != -100).sum(), torch.zeros(())
    for a, b in reversed(pieces(x, y, num_micro_batches)):
        if (b != -100).any():
            loss = F.cross_entropy(model(a), b, reduction="none").sum()
            loss.backward(1 / num_labels.double())
            total = total + loss.detach()
    return total / num_labels


def takes_every_nth_sample(model, x, y, num_micro_batches):
    num_labels, total = (y != -100).sum(), np.zeros(())
    for i in range(num_micro_batches):
        loss = F.cross_entropy(model.forward(x[i::num_micro_batches]), y[i::num_micro_batches], reduction="sum") / num_labels
        loss.backward()
        total += loss.detach().numpy()
    return total


def sends_the_labelled_only(model, x, y, num_micro_batches):
    num_labels, total = (y != -100).sum(), torch.zeros(1)
    for indices in torch.randperm(len(x)).tensor_split(num_micro_batches):
        if len(indices := indices[y[indices] != -100]):
            total += (loss := F.cross_entropy(model(x[indices]), y[indices]) * len(indices)).detach()
            loss.backward()
    for p in model.parameters():
        p.grad /= num_labels
    return total / num_labels


def goes_back_once(model, x, y, num_micro_batches):
    num_labels, losses = (y != -100).sum(), []
    for a, b in pieces(x, y, num_micro_batches):
        h = a
        for layer in model:
            h = layer(h)
        losses.append(F.cross_entropy(h, b, reduction="sum") / num_labels)
    torch.stack(losses).sum().backward()
    return sum(losses)


RIGHT = [weighs_the_means, leaves_the_unlabelled_piece_out, takes_every_nth_sample, sends_the_labelled_only, goes_back_once]
