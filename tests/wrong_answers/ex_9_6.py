"""Exercise 9.6: answers that its check must refuse, each with words from the reason that it must give."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from course_utils.models import DigitsNet


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def mean_over_ranks(loss):
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def report_mean(loss, report):
    mean = mean_over_ranks(loss)
    if dist.get_rank() == 0:
        report(mean)


def save_once(model, save):
    if dist.get_rank() == 0:
        save(model)


def program(
    dataset, base_lr, loss_fn, save, report,
    seed=lambda rank: 0, scale=lambda world_size: world_size, set_epoch=DistributedSampler.set_epoch,
    reporting=report_mean, saving=save_once, average=average_gradients, sampler_seed=lambda rank: 0,
    step=lambda optimizer: optimizer.step(),
):  # fmt: skip
    """The exercise's program with its five places open; as it stands, repaired."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed(rank))
    model = DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=base_lr * scale(world_size))
    sampler = DistributedSampler(dataset, shuffle=True, seed=sampler_seed(rank))
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    for epoch in range(2):
        set_epoch(sampler, epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            average(model)
            step(optimizer)
        reporting(loss, report)
    saving(model, save)


# The five faults as they stand in the exercise.
starts_unequal = dict(seed=lambda rank: rank)
keeps_the_rate = dict(scale=lambda world_size: 1)
keeps_the_order = dict(set_epoch=lambda sampler, epoch: None)
all_save = dict(saving=lambda model, save: save(model))


def report_own(loss, report):
    report(loss.item())


reports_its_own_loss = dict(reporting=report_own)


# Repairs that miss.
def report_own_on_rank_0(loss, report):
    if dist.get_rank() == 0:
        report(loss.item())


def report_sum(loss, report):
    total = loss.detach().clone()
    dist.all_reduce(total)
    report(total.item())


def report_share(loss, report):
    report(loss.item() / dist.get_world_size())


def reduce_on_rank_0_alone(loss, report):
    if dist.get_rank() == 0:
        report(mean_over_ranks(loss))


def forget_to_report(loss, report):
    mean_over_ranks(loss)


def step_on_rank_0_alone(optimizer):
    if dist.get_rank() == 0:
        optimizer.step()


def save_behind_a_barrier_of_rank_0(model, save):
    if dist.get_rank() == 0:
        save(model)
        dist.barrier()


def broadcasts_after_the_first_step(dataset, base_lr, loss_fn, save, report):
    def average(model):
        average_gradients(model)
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: dist.broadcast(p.data, src=0))

    program(dataset, base_lr, loss_fn, save, report, seed=lambda rank: rank, average=average)


def saves_before_training(dataset, base_lr, loss_fn, save, report):
    save_once(DigitsNet(), save)
    program(dataset, base_lr, loss_fn, save, report, saving=lambda model, save: None)


def saves_every_epoch(dataset, base_lr, loss_fn, save, report):
    def report_and_save(loss, report):
        report_mean(loss, report)
        save_once(None, save)

    program(dataset, base_lr, loss_fn, save, report, reporting=report_and_save, saving=lambda model, save: None)


def reports_every_step(dataset, base_lr, loss_fn, save, report):
    def loss_and_report(output, target):
        loss = loss_fn(output, target)
        report_mean(loss, report)
        return loss

    program(dataset, base_lr, loss_and_report, save, report, reporting=lambda loss, report: None)


def takes_a_loss_of_its_own(dataset, base_lr, loss_fn, save, report):
    program(dataset, base_lr, F.cross_entropy, save, report)


def shuffles_without_sampler(dataset, base_lr, loss_fn, save, report):
    """Every rank visits everything: the program is right, and no quicker than one process."""
    torch.manual_seed(0)
    model = DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=base_lr * dist.get_world_size())
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            average_gradients(model)
            optimizer.step()
        report_mean(loss, report)
    save_once(model, save)


WRONG = [
    (partial(program, **starts_unequal), "rank 1's parameters differed from rank 0's"),
    (partial(program, **keeps_the_rate), "the rate was 0.01"),
    (partial(program, **keeps_the_order), "the same order in both epochs"),
    (partial(program, **all_save), "saved by ranks [0, 1, 2, 3]"),
    (partial(program, **reports_its_own_loss), "rank 0 reported"),
    (partial(program, **starts_unequal, **keeps_the_rate, **keeps_the_order), "rank 1's parameters differed"),
    (partial(program, **keeps_the_rate, **keeps_the_order, **all_save), "the same order in both epochs"),
    (partial(program, **keeps_the_rate, **all_save, **reports_its_own_loss), "the rate was 0.01"),
    (partial(program, **all_save, **reports_its_own_loss), "saved by ranks"),
    (broadcasts_after_the_first_step, "rank 1's parameters differed"),
    (partial(program, average=lambda model: None), "are all gradients averaged"),
    (partial(program, set_epoch=lambda sampler, epoch: sampler.set_epoch(0)), "the same order in both epochs"),
    (partial(program, sampler_seed=lambda rank: rank), "of 48 samples were used"),
    (partial(program, step=lambda optimizer: None), "no optimizer made a step"),
    (partial(program, step=step_on_rank_0_alone), "ranks 0 to 3 made [4, 0, 0, 0] steps"),
    (takes_a_loss_of_its_own, "without a loss from loss_fn"),
    (shuffles_without_sampler, "the ranks visited 192 samples together"),
    (partial(program, scale=lambda world_size: 1 / world_size), "the rate was 0.0025"),
    (partial(program, scale=lambda world_size: world_size**0.5), "the rate was 0.02"),
    (partial(program, saving=lambda model, save: None), "nobody saved"),
    (saves_before_training, "after 0 of 4 steps"),
    (saves_every_epoch, "saved 2 times, by rank 0"),
    (partial(program, saving=save_behind_a_barrier_of_rank_0), "ranks 1–3 had returned while rank 0 was in barrier"),
    (partial(program, reporting=report_own_on_rank_0), "which is its own last loss"),
    (partial(program, reporting=report_sum), "the last losses' mean was"),
    (partial(program, reporting=report_share), "the last losses' mean was"),
    (reports_every_step, "rank 0 reported 4 times in 2 epochs"),
    (partial(program, reporting=forget_to_report), "nobody reported a loss"),
    (partial(program, reporting=reduce_on_rank_0_alone), "The ranks must agree: on the collectives they call"),
]


def uses_ddp(dataset, base_lr, loss_fn, save, report):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = DistributedDataParallel(DigitsNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=base_lr * world_size, momentum=0.9)
    sampler = DistributedSampler(dataset, seed=5)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        sampler.set_epoch(epoch + 1)
        dist.reduce(loss.detach(), dst=0)
        if rank == 0:
            report(loss.item() / world_size)
    if rank == 0:
        save(model.module.state_dict())
    dist.barrier()


def broadcasts_and_reports_everywhere(dataset, base_lr, loss_fn, save, report):
    model = DigitsNet()
    for p in model.parameters():
        dist.broadcast(p.data, src=2)
    rate = base_lr * dist.get_world_size()

    def report_all(loss, report):
        losses = [None] * dist.get_world_size()
        dist.all_gather_object(losses, loss.item())
        report(torch.tensor(sum(losses) / len(losses)))

    def save_last(model, save):
        if dist.get_rank() == dist.get_world_size() - 1:
            save(model)

    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    sampler = DistributedSampler(dataset)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(dataset, 8, sampler=sampler):
            model.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            average_gradients(model)
            optimizer.step()
        report_all(loss, report)
    save_last(model, save)


def keeps_the_whole_batch_as_it_was(dataset, base_lr, loss_fn, save, report):
    """The rate fits 8 samples a step, so 2 on each of 4 ranks need no other."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=base_lr)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8 // world_size, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            average_gradients(model)
            optimizer.step()
        report_mean(loss, report)
    save_once(model, save)


RIGHT = [program, uses_ddp, broadcasts_and_reports_everywhere, keeps_the_whole_batch_as_it_was]
