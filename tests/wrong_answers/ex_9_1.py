"""Exercise 9.1: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.distributed as dist


def forgets_to_divide(model, num_samples):
    for p in model.parameters():
        dist.all_reduce(p.grad)


def averages_over_ranks(model, num_samples):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def weights_and_forgets_to_divide(model, num_samples):
    for p in model.parameters():
        p.grad *= num_samples
        dist.all_reduce(p.grad)


def weights_and_divides_by_ranks(model, num_samples):
    for p in model.parameters():
        p.grad *= num_samples
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def adds_means_and_divides_by_samples(model, num_samples):
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= total


def weights_after_adding(model, num_samples):
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad *= num_samples / total


def divides_by_its_own_number(model, num_samples):
    for p in model.parameters():
        p.grad *= num_samples
        dist.all_reduce(p.grad)
        p.grad /= num_samples


def guesses_the_total(model, num_samples):
    total = num_samples * dist.get_world_size()
    for p in model.parameters():
        p.grad *= num_samples / total
        dist.all_reduce(p.grad)


def works_on_a_copy(model, num_samples):
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for p in model.parameters():
        grad = p.grad * num_samples / total
        dist.all_reduce(grad)


def sends_to_rank_0_only(model, num_samples):
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for p in model.parameters():
        p.grad *= num_samples / total
        dist.reduce(p.grad, dst=0)


def counts_again_for_every_parameter(model, num_samples):
    total = torch.tensor(num_samples)
    for p in model.parameters():
        dist.all_reduce(total)
        p.grad *= num_samples / total
        dist.all_reduce(p.grad)


def returns_inside_the_loop(model, num_samples):
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for p in model.parameters():
        p.grad *= num_samples / total
        dist.all_reduce(p.grad)
        return


def changes_the_parameters_instead(model, num_samples):
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for p in model.parameters():
        p.data *= num_samples / total
        dist.all_reduce(p.data)


def divides_by_the_largest_batch(model, num_samples):
    largest = torch.tensor(num_samples)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    for p in model.parameters():
        p.grad *= num_samples / largest
        dist.all_reduce(p.grad)


def forgets_to_put_its_number_in(model, num_samples):
    total = torch.zeros(1)
    dist.all_reduce(total)
    for p in model.parameters():
        p.grad *= num_samples / total
        dist.all_reduce(p.grad)


def clears_the_gradients(model, num_samples):
    for p in model.parameters():
        dist.all_reduce(p.grad)
    model.zero_grad()


def sends_a_plain_number(model, num_samples):
    dist.all_reduce(num_samples)


WRONG = [
    (forgets_to_divide, "added up, and not divided by anything"),
    (averages_over_ranks, "every rank counts alike"),
    (weights_and_forgets_to_divide, "still a sum and no mean"),
    (weights_and_divides_by_ranks, "divided by the number of ranks"),
    (adds_means_and_divides_by_samples, "is a mean already"),
    (weights_after_adding, "ranks 0 and 1 hold different gradients"),
    (divides_by_its_own_number, "ranks 0 and 1 hold different gradients"),
    (guesses_the_total, "every rank counts alike"),
    (works_on_a_copy, "rank 0 still holds its own gradient"),
    (sends_to_rank_0_only, "ranks 0 and 1 hold different gradients"),
    (counts_again_for_every_parameter, "1 of 4 gradients are right"),
    (returns_inside_the_loop, "1 of 4 gradients are right"),
    (changes_the_parameters_instead, "rank 0 still holds its own gradient"),
    (divides_by_the_largest_batch, "does not hold the gradient of the mean over all 16 samples"),
    (forgets_to_put_its_number_in, "is no finite number"),
    (clears_the_gradients, "p.grad is None"),
    (sends_a_plain_number, "dist.all_reduce(num_samples)"),
]


def gathers_and_adds(model, num_samples):
    numbers = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, num_samples)
    for p in model.parameters():
        everyone = [torch.empty_like(p) for _ in numbers]
        dist.all_gather(everyone, p.grad)
        p.grad = sum(n * grad for n, grad in zip(numbers, everyone)) / sum(numbers)


def sends_one_bucket(model, num_samples):
    parameters = list(model.parameters())
    number = parameters[0].grad.new_tensor([1.0])  # travels with the gradients, so that one message is enough
    flat = torch.cat([number, *(p.grad.flatten() for p in parameters)]) * num_samples
    dist.all_reduce(flat)
    pieces = (flat[1:] / flat[0]).split([p.numel() for p in parameters])
    for p, piece in zip(parameters, pieces):
        p.grad.copy_(piece.view_as(p))


RIGHT = [gathers_and_adds, sends_one_bucket]
