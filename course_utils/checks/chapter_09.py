"""Checks of chapter 09: data parallelism by hand and with DistributedDataParallel."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..launch import launch
from .wrong import expect, max_difference

_EQUAL = 1e-9  # in float64; the shortest honest path from one sum to another differs by less


def _small_net():
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def _samples(num_samples, seed=90):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (num_samples,), generator=generator)


def _gradients(model):
    return [p.grad.clone() for p in model.parameters()]


# ---- 9.1 ----------------------------------------------------------------------------------------------------------

_UNEQUAL = (5, 3, 8)


def check_9_1(average_gradients):
    """`average_gradients(model, num_samples)` leaves the gradient of the mean over all ranks' samples in `p.grad`."""
    run = launch(_average_unequal, average_gradients, _UNEQUAL, world_size=3, timeout=30)
    own, got = zip(*run.results)
    model = _small_net()
    x, y = _samples(sum(_UNEQUAL))
    F.cross_entropy(model(x), y).backward()
    truth = _gradients(model)

    def combined(weights):
        return [sum(w * g for w, g in zip(weights, grads)) for grads in zip(*own)]

    for rank in range(3):
        if max_difference(got[rank], truth) < _EQUAL:
            continue
        far = f"max difference {max_difference(got[rank], truth):.2g}"
        expect(max_difference(got[rank], own[rank]) > _EQUAL, f"rank {rank} still holds its own gradient ({far})")
        for weights, reason in (
            ((1, 1, 1), "the gradients were added up, and not divided by anything"),
            ((1 / 3,) * 3, f"every rank counts alike, though the batches hold {_UNEQUAL} samples"),
            (_UNEQUAL, "samples are weighted, but the result is still a sum and no mean"),
            ([n / 3 for n in _UNEQUAL], "samples are weighted, but the sum is divided by the number of ranks"),
        ):
            expect(max_difference(got[rank], combined(weights)) > _EQUAL, f"rank {rank}: {reason} ({far})")
        expect(
            max_difference(got[rank], got[0]) < _EQUAL,
            f"ranks 0 and {rank} hold different gradients: their copies would drift apart ({far} on rank {rank})",
        )
        expect(False, f"rank {rank} does not hold the gradient of the mean over all {sum(_UNEQUAL)} samples ({far})")
    return f"batches of {_UNEQUAL} samples give the gradient of one batch of {sum(_UNEQUAL)}, on every rank."


def _average_unequal(average_gradients, batch_sizes):
    rank, model = dist.get_rank(), _small_net()
    x, y = _samples(sum(batch_sizes))
    begin = sum(batch_sizes[:rank])
    mine = slice(begin, begin + batch_sizes[rank])
    F.cross_entropy(model(x[mine]), y[mine]).backward()
    own = _gradients(model)
    average_gradients(model, batch_sizes[rank])
    return own, _gradients(model)


# ---- 9.2 ----------------------------------------------------------------------------------------------------------


def _nudge_last(parameters):
    parameters[-1].view(-1)[-1] += 1e-6


def _swap_two(parameters):
    flat = parameters[1].view(-1)
    flat[0], flat[1] = flat[1].clone(), flat[0].clone()


# (what is odd, the odd rank, how its parameters are changed)
_STARTS = (
    ("rank 2 has one bias changed by 0.000001", 2, _nudge_last),
    ("all ranks are alike", None, None),
    ("rank 0 is the odd one", 0, _nudge_last),
    ("rank 3 has two biases exchanged, so that their sum is right", 3, _swap_two),
)


def check_9_2(find_odd_rank):
    """`find_odd_rank(model)` returns, on every rank, the rank whose parameters differ, or None."""
    run = launch(_find_in_cases, find_odd_rank, world_size=4, timeout=30)
    for (what, odd, _), answers in zip(_STARTS, zip(*run.results)):
        for rank, answer in enumerate(answers):
            expect(
                answer is None or type(answer) is int,
                f"where {what}, rank {rank} returned {answer!r}, which is neither a whole number nor None",
            )
        expect(
            len(set(answers)) == 1,
            f"where {what}, the four ranks returned {answers}: they must agree, or some would go on and others stop",
        )
        expect(answers[0] == odd, f"where {what}, the answer was {answers[0]}")
    return f"the odd rank was named in {len(_STARTS)} cases, a change of 0.000001 and rank 0 itself among them."


def _find_in_cases(find_odd_rank):
    answers = []
    for _, odd, change in _STARTS:
        model = _small_net()
        if dist.get_rank() == odd:
            with torch.no_grad():
                change(list(model.parameters()))
        answers.append(find_odd_rank(model))
    return answers


# ---- 9.3 ----------------------------------------------------------------------------------------------------------


def check_9_3(make_buckets):
    """`make_buckets(num_bytes, cap_bytes)` returns lists of parameter indices, in the order of the backward pass."""
    generator = torch.Generator().manual_seed(93)
    cases = [([4, 4, 4, 4], 8), ([3, 3, 3], 8), ([100, 4, 4], 8), ([8], 8), ([], 8)]
    cases += [(torch.randint(1, 40, (12,), generator=generator).tolist(), 50) for _ in range(5)]
    for num_bytes, cap in cases:
        case = f"make_buckets({num_bytes}, {cap})"
        buckets = make_buckets(list(num_bytes), cap)
        expect(
            isinstance(buckets, list) and all(isinstance(bucket, (list, tuple)) for bucket in buckets),
            f"{case} returned {buckets!r}, not a list of lists of indices",
        )
        expect(all(buckets), f"{case} returned {buckets}: an empty bucket is a message without content")
        order = [index for bucket in buckets for index in bucket]
        missing = sorted(set(range(len(num_bytes))) - set(order))
        expect(not missing, f"{case} returned {buckets}: parameters {missing} are in no bucket, so would never be averaged")
        expect(len(order) == len(num_bytes), f"{case} returned {buckets}: a parameter is in more than one place")
        expect(
            order == list(reversed(range(len(num_bytes)))),
            f"{case} returned {buckets}: think of the order in which the backward pass finishes gradients",
        )
        for bucket in buckets:
            total = sum(num_bytes[index] for index in bucket)
            expect(len(bucket) == 1 or total <= cap, f"{case}: bucket {bucket} holds {total} bytes, more than {cap}")
        for first, second in zip(buckets, buckets[1:]):
            total = sum(num_bytes[index] for index in first) + num_bytes[second[0]]
            expect(total > cap, f"{case}: bucket {first} was closed though parameter {second[0]} still fitted")
    return f"{len(cases)} models, one with a parameter larger than a bucket, were packed in backward order."


# ---- 9.4 ----------------------------------------------------------------------------------------------------------


def check_9_4(shard):
    """`shard(num_samples, rank, world_size, epoch)` returns the indices of this rank's samples in this epoch."""
    for num_samples, world_size in ((10, 4), (12, 4), (7, 2), (1437, 8), (5, 1), (2, 3)):
        case = f"with {num_samples} samples on {world_size} ranks"
        epochs = []
        for epoch in (0, 1):
            torch.manual_seed(epoch + num_samples)
            shards = [[int(i) for i in shard(num_samples, rank, world_size, epoch)] for rank in range(world_size)]
            again = [int(i) for i in shard(num_samples, 0, world_size, epoch)]
            expect(again == shards[0], f"{case}, the same call gave two answers: the order must follow from the epoch alone")
            epochs.append(shards)
        for epoch, shards in enumerate(epochs):
            lengths = [len(indices) for indices in shards]
            expect(
                len(set(lengths)) == 1,
                f"{case}, the shards hold {lengths} samples: a rank with one more would wait for the others for ever",
            )
            seen = [index for indices in shards for index in indices]
            expect(
                all(0 <= index < num_samples for index in seen),
                f"{case}, there are indices outside 0…{num_samples - 1}",
            )
            missing = num_samples - len(set(seen))
            if missing:
                fresh = len(set(map(tuple, map(sorted, shards)))) > 1 and lengths[0] * world_size >= num_samples
                why = "do all ranks cut up the same order?" if fresh else "what about the last few?"
                expect(False, f"{case}, {missing} samples are on no rank in epoch {epoch}: {why}")
            least = -(-num_samples // world_size)
            expect(lengths[0] == least, f"{case}, each rank has {lengths[0]} samples, where {least} are enough")
        if num_samples > 5:
            expect(epochs[0] != epochs[1], f"{case}, epoch 1 repeats the order of epoch 0")
            expect(
                any(sorted(a) != sorted(b) for a, b in zip(*epochs)) or world_size == 1,
                f"{case}, every rank keeps its own samples for ever, in another order: shuffle before dividing",
            )
    return "all samples are visited, equally many on every rank, in a new order each epoch that all ranks agree on."


# ---- 9.5 ----------------------------------------------------------------------------------------------------------

_MICRO_BATCHES, _MICRO_BATCH_SIZE, _STEPS, _LR = 4, 3, 2, 0.3


def check_9_5(accumulate_step):
    """`accumulate_step(ddp_model, optimizer, micro_batches)` makes one step of the mean loss, with one synchronisation."""
    world_size = 2
    run = launch(_accumulate, accumulate_step, world_size=world_size, timeout=30)
    model = _small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR)
    for step in range(_STEPS):
        x, y = _samples(world_size * _MICRO_BATCHES * _MICRO_BATCH_SIZE, seed=step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        truth = [p.detach().clone() for p in model.parameters()]
        (first, messages), (second, _) = (run[rank][step] for rank in range(world_size))
        apart = max_difference(first, second)
        expect(
            apart < _EQUAL,
            f"after step {step} the two ranks' parameters differ by {apart:.2g}: were their gradients ever averaged?",
        )
        expect(
            messages > 0, f"step {step} sent no gradients at all, and yet the ranks agree: did the optimizer make a step?"
        )
        expect(
            messages == 1,
            f"step {step} averaged gradients {messages} times for {_MICRO_BATCHES} micro-batches: what must happen inside "
            "no_sync, the forward pass included?",
        )
        far = max_difference(first, truth)
        expect(
            far < _EQUAL,
            f"after step {step} the parameters differ by {far:.2g} from one step on the whole batch: "
            + ("is the loss of each micro-batch scaled?" if step == 0 else "what is left in p.grad from the step before?"),
        )
    return f"{_MICRO_BATCHES} micro-batches on {world_size} ranks equal one batch, and each step sent gradients once."


def _accumulate(accumulate_step):
    model = nn.parallel.DistributedDataParallel(_small_net())
    messages = []

    def count(state, bucket):
        messages.append(bucket.index())
        return _average(bucket)

    model.register_comm_hook(None, count)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR)
    rank, states = dist.get_rank(), []
    for step in range(_STEPS):
        x, y = (part.chunk(dist.get_world_size())[rank] for part in _samples(24, seed=step))
        messages.clear()
        accumulate_step(model, optimizer, list(zip(x.chunk(_MICRO_BATCHES), y.chunk(_MICRO_BATCHES))))
        states.append(([p.detach().clone() for p in model.parameters()], len(messages)))
    return states


def _average(bucket):
    future = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


# ---- 9.6 ----------------------------------------------------------------------------------------------------------

_BASE_LR, _EPOCHS = 0.01, 2


class _Recorded(torch.utils.data.Dataset):
    """48 samples that remember in which order they were asked for."""

    def __init__(self):
        generator = torch.Generator().manual_seed(96)
        self.x = torch.randn(48, 1, 16, 16, generator=generator)
        self.y = torch.randint(10, (48,), generator=generator)
        self.asked = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.asked.append(int(index))
        return self.x[index], self.y[index]


def check_9_6(train):
    """`train(dataset, base_lr, loss_fn, save, report)` has none of the five faults left."""
    world_size = 4
    seen = launch(_observe, train, world_size=world_size, timeout=60).results
    expect(all(each["steps"] for each in seen), "no optimizer made a step")
    start = [each["start"] for each in seen]
    for rank in range(1, world_size):
        apart = max_difference(start[rank], start[0])
        expect(apart == 0, f"when the first step was made, rank {rank}'s parameters differed from rank 0's by {apart:.2g}")
    end = [each["end"] for each in seen]
    apart = max(max_difference(each, end[0]) for each in end)
    expect(apart < 1e-5, f"in the end the ranks' parameters differ by {apart:.2g}: are all gradients averaged?")
    for rank, each in enumerate(seen):
        half = len(each["asked"]) // _EPOCHS
        expect(
            each["asked"][:half] != each["asked"][half : 2 * half],
            f"rank {rank} visited the same samples in the same order in both epochs",
        )
    asked = {index for each in seen for index in each["asked"]}
    expect(len(asked) == 48, f"only {len(asked)} of 48 samples were used")
    rates = sorted({rate for each in seen for rate in each["rates"]})
    expect(
        all(abs(rate - world_size * _BASE_LR) < 1e-12 for rate in rates),
        f"the rate was {', '.join(f'{rate:g}' for rate in rates)}; base_lr = {_BASE_LR} was found for the batch of one "
        f"rank, and a step now averages over {world_size} times as many samples",
    )
    savers = [rank for rank, each in enumerate(seen) for _ in range(each["saved"])]
    expect(savers, "nobody saved the model")
    expect(len(savers) == 1, f"the model was saved {len(savers)} times, by ranks {savers}: they write over one another")
    reports = [(rank, each["reported"]) for rank, each in enumerate(seen) if each["reported"]]
    expect(reports, "nobody reported a loss")
    for rank, values in reports:
        expect(len(values) == _EPOCHS, f"rank {rank} reported {len(values)} times in {_EPOCHS} epochs")
        for epoch, value in enumerate(values):
            at = seen[rank]["report_at"][epoch]
            mean = sum(each["losses"][at] for each in seen) / world_size
            expect(
                abs(value - mean) < 1e-4,
                f"in epoch {epoch} rank {rank} reported {value:.4f}, but over all ranks the last losses' mean was {mean:.4f}",
            )
    return "equal starts, a new order each epoch, a rate for the whole batch, one file, and the loss of all ranks."


def _observe(train):
    dataset = _Recorded()
    seen = {"steps": 0, "rates": [], "losses": [], "saved": 0, "reported": [], "report_at": []}

    def before_step(optimizer, args, kwargs):
        parameters = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
        seen.setdefault("start", parameters)
        seen["steps"] += 1
        seen["rates"].append(optimizer.param_groups[0]["lr"])
        seen["optimizer"] = optimizer

    def loss_fn(output, target):
        loss = F.cross_entropy(output, target)
        seen["losses"].append(loss.item())
        return loss

    def save(model):
        seen["saved"] += 1

    def report(loss):
        seen["reported"].append(float(loss))
        seen["report_at"].append(len(seen["losses"]) - 1)

    hook = torch.optim.optimizer.register_optimizer_step_pre_hook(before_step)
    train(dataset, _BASE_LR, loss_fn, save, report)
    hook.remove()
    groups = seen.pop("optimizer").param_groups if seen["steps"] else []
    seen["end"] = [p.detach() for group in groups for p in group["params"]]
    seen["asked"] = dataset.asked
    return seen
