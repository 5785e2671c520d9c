"""Checks of chapter 09: data parallelism by hand and with DistributedDataParallel."""

import operator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .wrong import EQUAL, expect, judge_in_worker, max_difference, run_answer


def _small_net():
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def _samples(num_samples, seed=90):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (num_samples,), generator=generator)


def _gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def _indices(answer):
    """`answer` as a list of ints; None, if it is something else."""
    try:
        return [operator.index(i) for i in answer]
    except TypeError:
        return None


# ---- 9.1 ----------------------------------------------------------------------------------------------------------

_UNEQUAL = (5, 3, 8)


def check_9_1(average_gradients):
    """`average_gradients(model, num_samples)` leaves the gradient of the mean over all ranks' samples in `p.grad`."""
    own, got = zip(*run_answer(_average_unequal, average_gradients, _UNEQUAL, world_size=3))
    model = _small_net()
    x, y = _samples(sum(_UNEQUAL))
    F.cross_entropy(model(x), y).backward()
    truth = _gradients(model)

    def combined(weights):
        return [sum(w * g for w, g in zip(weights, grads)) for grads in zip(*own)]

    for rank in range(3):
        expect(all(g is not None for g in got[rank]), f"on rank {rank} a p.grad is None afterwards")
        expect(all(g.isfinite().all() for g in got[rank]), f"on rank {rank} a gradient is no finite number: what divides it?")
        if max_difference(got[rank], truth) < EQUAL:
            continue
        far = f"max difference {max_difference(got[rank], truth):.2g}"
        expect(max_difference(got[rank], own[rank]) > EQUAL, f"rank {rank} still holds its own gradient ({far})")
        right = sum(max_difference(g, t) < EQUAL for g, t in zip(got[rank], truth))
        expect(not right, f"rank {rank}: {right} of {len(truth)} gradients are right: is each of them treated alike? ({far})")
        for weights, reason in (
            ((1, 1, 1), "the gradients were added up, and not divided by anything"),
            ((1 / 3,) * 3, f"every rank counts alike, though the batches hold {_UNEQUAL} samples"),
            (_UNEQUAL, "samples are weighted, but the result is still a sum and no mean"),
            ([n / 3 for n in _UNEQUAL], "samples are weighted, but the sum is divided by the number of ranks"),
            ((1 / sum(_UNEQUAL),) * 3, "each rank's gradient is a mean already, and counts as one sample where the sum is divided"),
        ):
            expect(max_difference(got[rank], combined(weights)) > EQUAL, f"rank {rank}: {reason} ({far})")
        for other in range(3):
            expect(
                max_difference(got[rank], got[other]) < EQUAL,
                f"ranks {min(rank, other)} and {max(rank, other)} hold different gradients: their copies would drift apart",
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


def _next_number(parameters):
    last = parameters[0].view(-1)[-1]
    last.copy_(torch.nextafter(last, last + 1))


def _swap_two(parameters):
    flat = parameters[1].view(-1)
    flat[0], flat[1] = flat[1].clone(), flat[0].clone()


# (what is odd, the odd rank, how its parameters are changed, what to ask a student who does not find it)
_STARTS = (
    ("rank 2 has one bias changed by 0.000001", 2, _nudge_last, "are all parameters compared, and exactly?"),
    ("all ranks are alike", None, None, "there is nobody to name"),
    ("rank 0 is the odd one", 0, _nudge_last, "with whom is each rank compared?"),
    ("rank 3 has two biases exchanged, so that their sum is right", 3, _swap_two, "is every number compared?"),
    ("rank 1 has one weight changed in its last digit", 1, _next_number, "is anything rounded on the way?"),
)


def check_9_2(find_odd_rank):
    """`find_odd_rank(model)` returns, on every rank, the rank whose parameters differ, or None."""
    seen = run_answer(_find_in_cases, find_odd_rank, world_size=4)
    for (what, odd, _, question), cases in zip(_STARTS, zip(*seen)):
        answers = [answer for answer, _ in cases]
        for rank, (answer, is_unchanged) in enumerate(cases):
            expect(
                answer is None or type(answer) is int,
                f"where {what}, rank {rank} returned {answer!r}, which is neither a whole number nor None",
            )
            expect(is_unchanged, f"where {what}, rank {rank}'s parameters are not what they were: looking must not change them")
        expect(
            len(set(answers)) == 1,
            f"where {what}, ranks 0 to 3 returned {answers}: they must agree, or some would go on and others stop",
        )
        expect(answers[0] == odd, f"where {what}, the answer was {answers[0]}: {question}")
    return f"the odd rank was named in {len(_STARTS)} cases, a change of 0.000001 and rank 0 itself among them."


def _find_in_cases(find_odd_rank):
    cases = []
    for _, odd, change, _ in _STARTS:
        model = _small_net()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_((p * 1024).round() / 1024)  # sums are exact in any order, so an exchange leaves no trace in them
            if dist.get_rank() == odd:
                change(list(model.parameters()))
        before = [p.detach().clone() for p in model.parameters()]
        answer = find_odd_rank(model)
        cases.append((answer, all(torch.equal(a, b) for a, b in zip(before, model.parameters()))))
    return cases


# ---- 9.3 ----------------------------------------------------------------------------------------------------------


def check_9_3(make_buckets):
    """`make_buckets(num_bytes, cap_bytes)` returns lists of parameter indices, in the order of the backward pass."""
    judge_in_worker(_judge_buckets, make_buckets)
    return f"{len(_bucket_cases())} models, one with a parameter larger than a bucket, were packed in backward order."


def _bucket_cases():
    generator = torch.Generator().manual_seed(93)
    cases = [([4, 4, 4, 4], 8), ([3, 3, 3], 8), ([100, 4, 4], 8), ([8], 8), ([], 8)]
    return cases + [(torch.randint(1, 40, (12,), generator=generator).tolist(), 50) for _ in range(5)]


def _judge_buckets(make_buckets):
    for num_bytes, cap in _bucket_cases():
        case = f"make_buckets({num_bytes}, {cap})"
        answer = make_buckets(list(num_bytes), cap)
        buckets = [_indices(bucket) for bucket in answer] if isinstance(answer, list) else None
        is_list_of_lists = buckets is not None and None not in buckets
        expect(is_list_of_lists, f"{case} returned {answer!r}, not a list of lists of indices")
        expect(all(buckets), f"{case} returned {buckets}: an empty bucket is a message without content")
        order = [index for bucket in buckets for index in bucket]
        strange = sorted(set(order) - set(range(len(num_bytes))))
        expect(not strange, f"{case} returned {buckets}: no parameter has the index {strange[:1]}, they count from 0")
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


# ---- 9.4 ----------------------------------------------------------------------------------------------------------


def check_9_4(shard):
    """`shard(num_samples, rank, world_size, epoch)` returns the indices of this rank's samples in this epoch."""
    judge_in_worker(_judge_shards, shard)
    return "all samples are visited, equally many on every rank, in a new order each epoch that all ranks agree on."


def _judge_shards(shard):
    dist.destroy_process_group()  # `shard` is told its rank; one that asks for it would hear 0 of 1 and not know why
    for num_samples, world_size in ((10, 4), (12, 4), (7, 2), (1437, 8), (5, 1), (2, 3)):
        case = f"with {num_samples} samples on {world_size} ranks"
        epochs = []
        for epoch in (0, 1):
            torch.manual_seed(epoch + num_samples)
            answers = [shard(num_samples, rank, world_size, epoch) for rank in range(world_size)]
            again = _indices(shard(num_samples, 0, world_size, epoch))
            shards = [_indices(answer) for answer in answers]
            for rank, answer in enumerate(answers):
                expect(shards[rank] is not None, f"{case}, rank {rank} was given {answer!r}, not a list of indices")
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
                why = "are they all cut from the same order?"
                if len(set(seen)) == len(seen):  # nobody overlaps, so the missing ones were cut off
                    why = "what about the last few?"
                elif all(sorted(indices) == sorted(shards[0]) for indices in shards):
                    why = "all ranks have the same"
                expect(False, f"{case}, {missing} samples are on no rank in epoch {epoch}: {why}")
            least = -(-num_samples // world_size)
            expect(lengths[0] == least, f"{case}, each rank has {lengths[0]} samples, where {least} are enough")
        if num_samples > 5:
            expect(epochs[0] != epochs[1], f"{case}, epoch 1 repeats the order of epoch 0")
            expect(
                any(sorted(a) != sorted(b) for a, b in zip(*epochs)) or world_size == 1,
                f"{case}, every rank keeps its own samples for ever, in another order: which comes first, shuffling or dividing?",
            )


# ---- 9.5 ----------------------------------------------------------------------------------------------------------

_MICRO_BATCHES = 4, 3  # in each step; they cut up as many samples
_SAMPLES, _LR = 24, 0.3


def check_9_5(accumulate_step):
    """`accumulate_step(ddp_model, optimizer, micro_batches)` makes one step of the mean loss, with one synchronisation."""
    seen = run_answer(_accumulate, accumulate_step, world_size=2)
    model = _small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR)
    for step, num_micro_batches in enumerate(_MICRO_BATCHES):
        x, y = _samples(_SAMPLES, seed=step)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        truth = [p.detach().clone() for p in model.parameters()]
        too_far = [b + num_micro_batches * (t - b) for b, t in zip(before, truth)]
        (first, messages, steps), (second, *_) = (each[step] for each in seen)
        expect(steps == 1, f"for {num_micro_batches} micro-batches the optimizer made {steps} steps, and should make one")
        apart = max_difference(first, second)
        expect(
            apart < EQUAL,
            f"after step {step} the two ranks' parameters differ by {apart:.2g}: are all their gradients averaged?",
        )
        expect(
            messages <= 1,
            f"step {step} averaged gradients {messages} times for {num_micro_batches} micro-batches: what must happen inside "
            "no_sync, the forward pass included?",
        )
        expect(
            max_difference(first, too_far) > EQUAL,
            f"step {step} is {num_micro_batches} times as long as one step on the whole batch: the sum of means is no mean",
        )
        far = max_difference(first, truth)
        expect(
            far < EQUAL,
            f"after step {step} the parameters differ by {far:.2g} from one step on the whole batch: "
            + (
                "does every micro-batch count, and each alike?"
                if step == 0
                else f"what is different in a step that is not the first, and has {num_micro_batches} micro-batches?"
            ),
        )
        expect(messages == 1, f"step {step} is right, but DDP sent nothing: let it do the averaging in its backward pass")
    return "4 and then 3 micro-batches on 2 ranks equal one batch, and each step sent gradients once."


def _accumulate(accumulate_step):
    model = nn.parallel.DistributedDataParallel(_small_net())
    messages = []

    def count(state, bucket):
        messages.append(bucket.index())
        return _average(bucket)

    model.register_comm_hook(None, count)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR)
    steps = []
    optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    rank, states = dist.get_rank(), []
    for step, num_micro_batches in enumerate(_MICRO_BATCHES):
        x, y = (part.chunk(dist.get_world_size())[rank] for part in _samples(_SAMPLES, seed=step))
        messages.clear()
        steps.clear()
        accumulate_step(model, optimizer, list(zip(x.chunk(num_micro_batches), y.chunk(num_micro_batches))))
        states.append(([p.detach().clone() for p in model.parameters()], len(messages), len(steps)))
    return states


def _average(bucket):
    future = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


# ---- 9.6 ----------------------------------------------------------------------------------------------------------

_BASE_LR, _EPOCHS, _BATCH_SIZE = 0.01, 2, 8


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
    seen = run_answer(_observe, train, world_size=world_size)
    steps = [each["steps"] for each in seen]
    expect(any(steps), "no optimizer made a step")
    expect(len(set(steps)) == 1, f"ranks 0 to 3 made {steps} steps, and should make equally many")
    expect(all(None not in each["losses"] for each in seen), "a step was made without a loss from loss_fn")
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
    halves = [each["asked"][: len(each["asked"]) // _EPOCHS] for each in seen]
    num_asked, num_used = sum(map(len, halves)), len({index for half in halves for index in half})
    expect(num_used == 48, f"only {num_used} of 48 samples were used in the first epoch")
    expect(num_asked == 48, f"in the first epoch the ranks visited {num_asked} samples together, and there are 48")
    rates = sorted({rate for each in seen for rate in each["rates"]})
    times = world_size * seen[0]["batch_size"] / _BATCH_SIZE
    expect(
        all(abs(rate - times * _BASE_LR) < 1e-12 for rate in rates),
        f"the rate was {', '.join(f'{rate:g}' for rate in rates)}; base_lr = {_BASE_LR} was found for {_BATCH_SIZE} "
        f"samples a step, and a step now averages over {times:g} times as many",
    )
    saved = [(rank, after) for rank, each in enumerate(seen) for after in each["saved_after"]]
    savers = sorted({rank for rank, _ in saved})
    expect(saved, "nobody saved the model")
    expect(len(savers) == 1, f"the model was saved by ranks {savers}: they write over one another")
    expect(len(saved) == 1, f"the model was saved {len(saved)} times, by rank {savers[0]}: once in all is asked")
    expect(saved[0][1] == steps[0], f"the model was saved after {saved[0][1]} of {steps[0]} steps")
    reports = [(rank, each["reported"]) for rank, each in enumerate(seen) if each["reported"]]
    expect(reports, "nobody reported a loss")
    for rank, values in reports:
        expect(len(values) == _EPOCHS, f"rank {rank} reported {len(values)} times in {_EPOCHS} epochs")
        for epoch, (value, after) in enumerate(values):
            losses = [each["losses"][after - 1] for each in seen]
            mean = sum(losses) / world_size
            is_own = abs(value - losses[rank]) < 1e-4
            expect(
                abs(value - mean) < 1e-4,
                f"in epoch {epoch} rank {rank} reported {value:.4f}, "
                + ("which is its own last loss" if is_own else f"but over all ranks the last losses' mean was {mean:.4f}"),
            )
    return "equal starts, a new order each epoch, a rate for the whole batch, one file, and the loss of all ranks."


def _observe(train):
    dataset = _Recorded()
    seen = {"steps": 0, "rates": [], "losses": [], "saved_after": [], "reported": []}
    latest = None

    def before_step(optimizer, args, kwargs):
        parameters = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
        seen.setdefault("start", parameters)
        seen["steps"] += 1
        seen["rates"].append(optimizer.param_groups[0]["lr"])
        seen["losses"].append(latest)  # whoever evaluates loss_fn once more, for a report, does not shift the others
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
