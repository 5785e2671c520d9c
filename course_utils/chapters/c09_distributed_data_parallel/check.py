"""Checks of chapter 09: data parallelism by hand and with DistributedDataParallel."""

import operator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...checks.expect import case, expect, explain, max_difference, not_a, same, short, unchanged
from ...checks.judge import run
from ...checks.watch.calls import forbid
from ...parallel.messages import Traffic


def _small_net(*, buffers=False):
    torch.manual_seed(9)
    exact = {"dtype": torch.float64}  # float64 from the start, not float32 converted
    net = nn.Sequential(nn.Linear(6, 5, **exact), nn.Tanh(), nn.Linear(5, 3, **exact))
    if buffers:
        net.append(nn.BatchNorm1d(3, **exact)).append(nn.Linear(2, 2, **exact).requires_grad_(False))
    return net


def _samples(num_samples, seed=90):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (num_samples,), generator=generator)


def _gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


# ---- 9.1 ----------------------------------------------------------------------------------------------------------

# Numbers of samples per rank, in two calls. Dividing integer tensors gives float32, in which these shares are exact.
_BATCHES = ((1, 7), (10, 6)), ((5, 3, 8), (490, 13, 9)), ((2, 7, 1, 6), (1, 1, 1, 5))


def check_9_1(average_gradients):
    """`average_gradients(model, num_samples)` leaves the gradient of the mean over all ranks' samples in `p.grad`."""
    for calls in _BATCHES:
        for sizes, seen in zip(calls, zip(*run(_average_unequal, average_gradients, calls, world_size=len(calls[0])))):
            with case(f"with batches of {', '.join(map(str, sizes))} samples"):
                _judge_average(seen, sizes)
    return "on 2, 3 and 4 ranks, unequal batches give the gradient of one large batch."


def _average_unequal(average_gradients, calls):
    rank, seen = dist.get_rank(), []
    for sizes in calls:
        model = _small_net()
        x, y = (part.split(sizes)[rank] for part in _samples(sum(sizes)))
        F.cross_entropy(model(x), y).backward()
        own = _gradients(model)
        with unchanged(model=model, allow=("grad",)):
            average_gradients(model, sizes[rank])
        seen.append((own, _gradients(model)))
    return seen


def _judge_average(seen, sizes):
    own, got = zip(*seen)
    N, B, model = len(sizes), sum(sizes), _small_net()
    x, y = _samples(B)
    F.cross_entropy(model(x), y).backward()
    truth = _gradients(model)

    def combined(*weights):
        return [sum(w * g for w, g in zip(weights, grads)) for grads in zip(*own)]

    mistakes = {  # weights of the ranks' gradients, on a rank that holds n samples
        "the gradients were added up, and not divided by anything": lambda n: [1] * N,
        "every rank counts alike, though they hold different numbers of samples": lambda n: [1 / N] * N,
        "samples are weighted, but the result is still a sum and no mean": lambda n: sizes,
        "samples are weighted, but the sum is divided by the number of ranks": lambda n: [size / N for size in sizes],
        "each rank's gradient is a mean already, and counts as one sample where the sum is divided": lambda n: (
            [1 / B] * N
        ),
        "each rank divides as if all held as many samples as it does": lambda n: [size / (n * N) for size in sizes],
    }
    # On one rank several may come to the same, so a mistake must explain what all ranks hold.
    mistakes = {
        name: weights
        for name, weights in mistakes.items()
        if all(same(got[rank], combined(*weights(sizes[rank]))) for rank in range(N))
    }
    for rank in range(N):
        with case(f"rank {rank}"):
            expect(all(g is not None for g in got[rank]), "a p.grad is None afterwards")
            expect(all(g.isfinite().all() for g in got[rank]), "a gradient is no finite number: what divides it?")
            right = sum(same(g, t) for g, t in zip(got[rank], truth))
            if right == len(truth):
                continue
            far = f"max difference {max_difference(got[rank], truth):.2g}"
            expect(not same(got[rank], own[rank]), f"it still holds its own gradient ({far})")
            expect(not right, f"{right} of {len(truth)} gradients are right: is each of them treated alike? ({far})")
            other = next((other for other in range(N) if not same(got[rank], got[other])), rank)
            drift = f"ranks {rank} and {other} hold different gradients: their copies would drift apart"
            explain(
                got[rank],
                truth,
                {name: combined(*weights(sizes[rank])) for name, weights in mistakes.items()},
                said=f"not the mean's gradient ({far})",
                otherwise=drift if other != rank else f"it is not that of the mean over all {B} samples",
            )


# ---- 9.2 ----------------------------------------------------------------------------------------------------------


def _nudge_last(model):
    list(model.parameters())[-1].view(-1)[-1] += 1e-6


def _next_number(model):
    last = next(model.parameters()).view(-1)[-1]
    last.copy_(torch.nextafter(last, last + 1))


def _swap_two(model):
    bias = model[0].bias
    bias[0], bias[1] = bias[1].clone(), bias[0].clone()


def _move_the_mean(model):
    model[3].running_mean += 1


def _lose_a_number(model):
    model[0].weight[0, 0] = float("nan")


_ALL = -1
_STARTS = (  # ranks, what differs, changed rank, expected answer, change, hint
    (4, "rank 2 has one bias, a frozen one, changed by 0.000001", 2, 2, _nudge_last, "are all parameters compared?"),
    (4, "all ranks are alike", None, None, None, "there is nobody to name"),
    (4, "rank 0 is the odd one", 0, 0, _nudge_last, "with whom is each rank compared?"),
    (4, "rank 3 has two biases exchanged, so that their sum is right", 3, 3, _swap_two, "is every number compared?"),
    (4, "rank 1 has one weight changed in its last digit", 1, 1, _next_number, "is anything rounded on the way?"),
    (
        4,
        "all parameters are alike, and rank 1's running mean is not",
        1,
        None,
        _move_the_mean,
        "which tensors are parameters?",
    ),
    (3, "all ranks are alike", None, None, None, "there is nobody to name"),
    (3, "rank 2 is the odd one", 2, 2, _next_number, "does it work on 3 ranks?"),
    # The mean of 7 equal numbers may be rounded to another number.
    (7, "all ranks are alike", None, None, None, "there is nobody to name"),
    (7, "rank 4 is the odd one", 4, 4, _nudge_last, "does it work on 7 ranks?"),
    (7, "the same weight is NaN on all ranks", _ALL, None, _lose_a_number, "are NaNs of the same bits alike to it?"),
)


def check_9_2(find_odd_rank):
    """`find_odd_rank(model)` returns, on every rank, the rank whose parameters differ, or None."""
    for world_size in (4, 3, 7):
        starts = [start[1:] for start in _STARTS if start[0] == world_size]
        for (what, _, odd, _, question), answers in zip(
            starts, zip(*run(_find_in_cases, find_odd_rank, world_size=world_size))
        ):
            with case(f"where {what}"):
                for rank, answer in enumerate(answers):
                    is_rank = answer is None or isinstance(answer, int) and not isinstance(answer, bool)
                    expect(is_rank, f"rank {rank} returned {short(answer)}, which is neither a whole number nor None")
                expect(
                    len(set(answers)) == 1,
                    f"the ranks returned {list(answers)}: they must agree, or some would go on and others stop",
                )
                expect(answers[0] == odd, f"the answer was {answers[0]}: {question}")
    return f"the odd rank was named in {len(_STARTS)} cases, a change in the last digit and rank 0 itself among them."


def _find_in_cases(find_odd_rank):
    answers = []
    for world_size, _, rank, _, change, _ in _STARTS:
        if world_size != dist.get_world_size():
            continue
        model = _small_net(buffers=True)
        with torch.no_grad():
            if change is _swap_two:
                # Round, so that sums are exact in any order and equal after the swap.
                model[0].bias.copy_((model[0].bias * 1024).round() / 1024)
            if rank in (dist.get_rank(), _ALL):
                change(model)
        with unchanged(model=model):
            answers.append(find_odd_rank(model))
    # NumPy integers and tensors become ints.
    return [operator.index(answer) if hasattr(answer, "dtype") else answer for answer in answers]


# ---- 9.3 ----------------------------------------------------------------------------------------------------------


def check_9_3(make_buckets):
    """`make_buckets(num_bytes, cap_bytes)` returns lists of parameter indices, in the order of the backward pass."""
    run(_judge_buckets, make_buckets)
    return f"{len(_bucket_cases())} models, one with a parameter larger than a bucket, were packed in backward order."


def _bucket_cases():
    generator = torch.Generator().manual_seed(93)
    cases = [([4, 4, 4, 4], 8), ([3, 3, 3], 8), ([100, 4, 4], 8), ([4, 100, 4], 8), ([4, 4, 100], 8)]
    cases += [([8], 8), ([9], 8), ([8, 8], 8), ([], 8)]
    return cases + [(torch.randint(1, 40, (12,), generator=generator).tolist(), 50) for _ in range(5)]


def _judge_buckets(make_buckets):
    for num_bytes, cap in _bucket_cases():
        with case(f"make_buckets({num_bytes}, {cap})"):
            with unchanged(num_bytes=num_bytes):
                answer = make_buckets(num_bytes, cap)
            buckets = [_indices(bucket) for bucket in answer] if isinstance(answer, (list, tuple)) else [None]
            expect(None not in buckets, f"{short(answer)} came back, not a list of lists of indices")
            with case(f"{buckets} came back"):
                _judge_packing(buckets, num_bytes, cap)


def _indices(answer):
    """Return `answer` as a list of ints, or None if it is something else."""
    try:
        return [operator.index(i) for i in answer]
    except TypeError:
        return None


def _judge_packing(buckets, num_bytes, cap):
    expect(all(buckets), "an empty bucket is a message without content")
    order, all_of_them = [index for bucket in buckets for index in bucket], range(len(num_bytes))
    strange = sorted(set(order) - set(all_of_them))
    expect(not strange, f"no parameter has the index {strange[:1]}, they count from 0")
    missing = sorted(set(all_of_them) - set(order))
    expect(not missing, f"parameters {missing} are in no bucket, so would never be averaged")
    expect(len(order) == len(num_bytes), "a parameter is in more than one place")
    expect(order == list(reversed(all_of_them)), "think of the order in which the backward pass finishes gradients")
    for bucket in buckets:
        total = sum(num_bytes[index] for index in bucket)
        expect(len(bucket) == 1 or total <= cap, f"bucket {bucket} holds {total} bytes, more than {cap}")
    for first, second in zip(buckets, buckets[1:]):
        total = sum(num_bytes[index] for index in first) + num_bytes[second[0]]
        expect(total > cap, f"bucket {first} was closed though parameter {second[0]} still fitted")


# ---- 9.4 ----------------------------------------------------------------------------------------------------------

_SHARES = ((10, 4), (12, 4), (7, 2), (1437, 8), (5, 1), (2, 3), (2, 5), (1, 4), (16, 16))  # samples, ranks


def check_9_4(shard):
    """`shard(num_samples, rank, world_size, epoch)` returns the indices of this rank's samples in this epoch."""
    run(_judge_shards, shard)
    return "all samples are visited, equally many on every rank, in a new order each epoch that all ranks agree on."


def _judge_shards(shard):
    dist.destroy_process_group()  # `shard` must use its arguments, not the rank of a group
    with forbid("torch.utils.data.distributed", instead="write the order and its division without it"):
        for num_samples, world_size in _SHARES:
            with case(f"{num_samples} samples on {world_size} rank{'s' * (world_size > 1)}"):
                epochs = [_shards(shard, num_samples, world_size, epoch) for epoch in (0, 1, 2)]
                for epoch, shards in enumerate(epochs):
                    with case(f"epoch {epoch}"):
                        _judge_division(shards, num_samples, world_size)
                if num_samples > 5:
                    _judge_order(epochs, world_size)


def _shards(shard, num_samples, world_size, epoch):
    torch.manual_seed(epoch + num_samples)
    answers = [shard(num_samples, rank, world_size, epoch) for rank in range(world_size)]
    shards = [_indices(answer) for answer in answers]
    for rank, answer in enumerate(answers):
        is_list = isinstance(answer, (list, tuple)) and shards[rank] is not None
        expect(is_list, f"rank {rank} was given {not_a(answer, 'a list of indices')}")
    torch.manual_seed(3)  # earlier random draws of the program must not matter
    again = [_indices(shard(num_samples, rank, world_size, epoch)) for rank in range(world_size)]
    expect(again == shards, "the same call gave two answers: the order must follow from the epoch alone")
    return shards


def _judge_division(shards, num_samples, world_size):
    lengths = [len(indices) for indices in shards]
    expect(
        len(set(lengths)) == 1,
        f"the shards hold {lengths} samples: a rank with one more would wait for the others for ever",
    )
    seen = [index for indices in shards for index in indices]
    expect(all(0 <= index < num_samples for index in seen), f"there are indices outside 0…{num_samples - 1}")
    missing = num_samples - len(set(seen))
    why = "are they all cut from the same order?"
    if len(set(seen)) == len(seen):  # no duplicates, so the missing samples were cut off
        why = "what about the last few?"
    elif all(sorted(indices) == sorted(shards[0]) for indices in shards):
        why = "all ranks have the same"
    expect(not missing, f"{missing} samples are on no rank: {why}")
    least = -(-num_samples // world_size)
    expect(lengths[0] == least, f"each rank has {lengths[0]} samples, where {least} are enough")


def _judge_order(epochs, world_size):
    first, second, third = epochs
    moved = world_size == 1 or any(sorted(a) != sorted(b) for other in (second, third) for a, b in zip(first, other))
    expect(
        moved or first == second == third,
        "every rank keeps its own samples for ever, in another order: which comes first, shuffling or dividing?",
    )
    expect(first != second != third != first, "two epochs have the same order")


# ---- 9.5 ----------------------------------------------------------------------------------------------------------

# (number of different micro-batches, how often each is in the list) for each step
_STEPS = ((4, 1), (3, 1), (1, 1), (2, 1), (2, 2))
_SAMPLES, _LR = 24, 0.3


def check_9_5(accumulate_step):
    """`accumulate_step(ddp_model, optimizer, micro_batches)` makes one step of the mean loss, synchronising once."""
    seen = run(_accumulate, accumulate_step, world_size=2)
    model = _small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR, momentum=0.5)
    earlier = [torch.zeros_like(p) for p in model.parameters()]  # the gradient of the step before
    for step, (different, times) in enumerate(_STEPS):
        num_micro_batches = different * times
        last = [part.chunk(2) for part in _samples(_SAMPLES, seed=step)]  # of each rank, its last micro-batch
        last = [torch.cat([half.chunk(different)[-1] for half in part]) for part in last]
        of_last = _gradient(model, *last)
        gradient = _gradient(model, *_samples(_SAMPLES, seed=step))
        optimizer.step()
        with case(f"in step {step}, of {num_micro_batches} micro-batch{'es' * (num_micro_batches > 1)}"):
            _judge_step(*[each[step] for each in seen], model, gradient, earlier, of_last, num_micro_batches)
        earlier = gradient
    return (
        f"{len(_STEPS)} steps of 1 to 4 micro-batches on 2 ranks equal steps on the whole batch, and sent gradients "
        "once each."
    )


def _gradient(model, x, y):
    """Return the gradient of the mean loss, which is in `p.grad`, too."""
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return _gradients(model)


def _judge_step(one, other, model, gradient, earlier, of_last, num_micro_batches):
    expect(one["steps"] == 1, f"the optimizer made {one['steps']} steps, and should make one")
    apart = max_difference(one["parameters"], other["parameters"])
    expect(
        apart < 1e-9, f"afterwards the two ranks' parameters differ by {apart:.2g}: are all their gradients averaged?"
    )
    expect(
        one["messages"] <= 1,
        f"gradients were averaged {one['messages']} times: what must happen inside no_sync, the forward pass included?",
    )
    truth, M = _parameters(model), num_micro_batches

    def stepped(*other_gradient):
        """Return the parameters after a step with this gradient in the place of the right one."""
        return [t - _LR * (o - g) for t, o, g in zip(truth, other_gradient, gradient)]

    divided = {
        f"the sum of {M} micro-batches' losses was divided by {k}": stepped(*[g * M / k for g in gradient])
        for k in range(2, 17)
    }
    explain(
        one["parameters"],
        truth,
        {
            "it is too long a step: the sum of means is no mean": stepped(*[M * g for g in gradient]),
            "the gradient of the step before is still in it": stepped(*map(sum, zip(gradient, earlier))),
            "only the last micro-batch counts": stepped(*of_last),
            **divided,
        },
        said=f"the parameters are not where the step puts them (max difference "
        f"{max_difference(one['parameters'], truth):.2g})",
    )
    expect(
        one["messages"] == 1, "the step is right, but DDP sent nothing: let it do the averaging in its backward pass"
    )
    expect(not one["others"], f"the step is right, but beside what DDP sent, {' and '.join(one['others'])} was called")
    expect(
        one["is_synchronising"],
        "the step is right, but DDP was left so that it sends nothing in the next backward pass",
    )


def _parameters(model):
    return [p.detach().clone() for p in model.parameters()]


def _accumulate(accumulate_step):
    model, messages, steps, states = nn.parallel.DistributedDataParallel(_small_net()), [], [], []

    def count(state, bucket):
        messages.append(bucket.index())
        average = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
        return average.then(lambda done: done.value()[0])

    model.register_comm_hook(None, count)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR, momentum=0.5)
    optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    rank = dist.get_rank()
    for step, (different, times) in enumerate(_STEPS):
        x, y = (part.chunk(dist.get_world_size())[rank] for part in _samples(_SAMPLES, seed=step))
        messages.clear(), steps.clear()
        micro_batches = list(zip(x.chunk(different), y.chunk(different))) * times
        with unchanged(micro_batches=micro_batches, model=model, allow=("values", "grad")), Traffic() as traffic:
            accumulate_step(model, optimizer, micro_batches)
        # The first ones are DDP's own all-reduces. DDP also broadcasts when it rebuilds its buckets.
        others = [name for name, _ in traffic.collectives if name != "broadcast"][len(messages) :]
        states.append(
            {
                "parameters": _parameters(model),
                "messages": len(messages),
                "steps": len(steps),
                "others": others,
                "is_synchronising": model.require_backward_grad_sync,
            }
        )
    return states


# ---- 9.6 ----------------------------------------------------------------------------------------------------------

_BASE_LR, _EPOCHS, _BATCH_SIZE, _NUM_IMAGES = 0.01, 2, 8, 48


class _Recorded(torch.utils.data.Dataset):
    """A dataset that records the order in which its samples are read."""

    def __init__(self):
        generator = torch.Generator().manual_seed(96)
        self.x = torch.randn(_NUM_IMAGES, 1, 16, 16, generator=generator)
        self.y = torch.randint(10, (_NUM_IMAGES,), generator=generator)
        self.asked = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.asked.append(int(index))
        return self.x[index], self.y[index]


def check_9_6(train):
    """`train(dataset, base_lr, loss_fn, save, report)` is free of the five faults."""
    for world_size in (2, 4):
        with case(f"on {world_size} ranks"):
            seen = run(_observe, train, world_size=world_size)
            _judge_replicas(seen)
            _judge_epochs(seen)
            _judge_rates(seen, world_size)
            _judge_saving(seen)
            _judge_reports(seen, world_size)
    return "equal starts, a new order each epoch, a rate for the whole batch, one file, and the loss of all ranks."


def _judge_replicas(seen):
    steps = [each["steps"] for each in seen]
    expect(any(steps), "no optimizer made a step")
    expect(len(set(steps)) == 1, f"the ranks made {steps} steps, and should make equally many")
    expect(all(None not in each["losses"] for each in seen), "a step was made without a loss from loss_fn")
    for rank, each in enumerate(seen):
        apart = max_difference(each["start"], seen[0]["start"])
        expect(
            apart == 0, f"when the first step was made, rank {rank}'s parameters differed from rank 0's by {apart:.2g}"
        )
    apart = max(max_difference(each["end"], seen[0]["end"]) for each in seen)
    expect(apart < 1e-5, f"in the end the ranks' parameters differ by {apart:.2g}: are all gradients averaged?")


def _judge_epochs(seen):
    halves = [
        (each["asked"][: len(each["asked"]) // _EPOCHS], each["asked"][len(each["asked"]) // _EPOCHS :])
        for each in seen
    ]
    for rank, (first, second) in enumerate(halves):
        expect(first != second, f"rank {rank} visited the same samples in the same order in both epochs")
    for epoch, asked in enumerate(zip(*halves)):
        num_asked, num_used = sum(map(len, asked)), len({index for indices in asked for index in indices})
        expect(num_used == _NUM_IMAGES, f"only {num_used} of {_NUM_IMAGES} samples were used in epoch {epoch}")
        expect(
            num_asked == _NUM_IMAGES,
            f"in epoch {epoch} the ranks visited {num_asked} samples together, and there are {_NUM_IMAGES}",
        )


def _judge_rates(seen, world_size):
    times = world_size * seen[0]["batch_size"] / _BATCH_SIZE
    for rate in sorted({rate for each in seen for rate in each["rates"]}):
        expect(
            abs(rate - times * _BASE_LR) < 1e-12,
            f"the rate was {rate:g}; base_lr = {_BASE_LR} was found for {_BATCH_SIZE} samples "
            f"a step, and a step now averages over {times:g} times as many",
        )


def _judge_saving(seen):
    saved = [(rank, after) for rank, each in enumerate(seen) for after in each["saved_after"]]
    savers, steps = sorted({rank for rank, _ in saved}), seen[0]["steps"]
    expect(saved, "nobody saved the model")
    expect(len(savers) == 1, f"the model was saved by ranks {savers}: they write over one another")
    expect(len(saved) == 1, f"the model was saved {len(saved)} times, by rank {savers[0]}: once in all is asked")
    expect(saved[0][1] == steps, f"the model was saved after {saved[0][1]} of {steps} steps")


def _judge_reports(seen, world_size):
    reports = [(rank, each["reported"]) for rank, each in enumerate(seen) if each["reported"]]
    expect(reports, "nobody reported a loss")
    for rank, values in reports:
        expect(len(values) == _EPOCHS, f"rank {rank} reported {len(values)} times in {_EPOCHS} epochs")
        for epoch, (value, after) in enumerate(values):
            losses = [each["losses"][after - 1] for each in seen]
            with case(f"in epoch {epoch}"):
                explain(
                    value,
                    sum(losses) / world_size,
                    {"which is its own last loss": losses[rank], "which is a sum over ranks": sum(losses)},
                    said=f"rank {rank} reported {value:.4f}",
                    close=1e-4,
                    otherwise=f"but over all ranks the last losses' mean was {sum(losses) / world_size:.4f}",
                )


def _observe(train):
    dataset = _Recorded()
    seen = {"steps": 0, "rates": [], "losses": [], "saved_after": [], "reported": []}
    latest = None

    def before_step(optimizer, args, kwargs):
        parameters = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
        seen.setdefault("start", parameters)
        seen["steps"] += 1
        seen["rates"].append(optimizer.param_groups[0]["lr"])
        seen["losses"].append(latest)  # extra calls of loss_fn, for a report, do not shift this list
        seen["optimizer"] = optimizer

    def loss_fn(output, target):
        nonlocal latest
        loss = F.cross_entropy(output, target)
        latest = loss.item()
        seen.setdefault("batch_size", len(target))
        return loss

    def save(model):
        seen["saved_after"].append(seen["steps"])

    def report(loss):
        seen["reported"].append((float(loss), seen["steps"]))

    hook = register_optimizer_step_pre_hook(before_step)
    train(dataset, _BASE_LR, loss_fn, save, report)
    hook.remove()
    groups = seen.pop("optimizer").param_groups if seen["steps"] else []
    seen["end"] = [p.detach() for group in groups for p in group["params"]]
    seen["asked"] = dataset.asked
    return seen
