"""Exercise 6.3: answers that its check must refuse, each with words from the reason that it must give."""

from course_utils.parallel import pipeline
from course_utils.parallel.pipeline import one_forward_one_backward


def naive(K, M):
    schedule = []
    for m in range(M):
        schedule += [(s, m, "forward") for s in range(K)]
        schedule += [(s, m, "backward") for s in reversed(range(K))]
    return schedule


def gpipe(K, M):
    schedule = [(s, m, "forward") for m in range(M) for s in range(K)]
    return schedule + [(s, m, "backward") for m in reversed(range(M)) for s in reversed(range(K))]


def in_stages(K, M, first):
    """Each stage begins with `first(stage)` forwards, and then alternates."""
    schedule = []
    for s in range(K):
        forward, backward = [(s, m, "forward") for m in range(M)], [(s, m, "backward") for m in range(M)]
        ahead = max(0, min(first(s), M))
        schedule += forward[:ahead]
        for pair in zip(forward[ahead:], backward):
            schedule += pair
        schedule += backward[M - ahead :]
    return schedule


def one_too_many(K, M):
    return in_stages(K, M, lambda s: K - s)


def one_too_few(K, M):
    return in_stages(K, M, lambda s: K - 2 - s)


def alike_on_every_stage(K, M):
    return in_stages(K, M, lambda s: K - 1)


def counts_from_the_other_end(K, M):
    return in_stages(K, M, lambda s: s)


def alternates_at_once(K, M):
    return in_stages(K, M, lambda s: 0)


def forgets_small_batches(K, M):
    schedule = []
    for s in range(K):
        first = K - 1 - s
        schedule += [(s, m, "forward") for m in range(first)]
        for m in range(M):
            if first + m < M:
                schedule.append((s, first + m, "forward"))
            schedule.append((s, m, "backward"))
    return schedule


def leaves_the_last_backwards_out(K, M):
    schedule = []
    for s in range(K):
        first = min(K - 1 - s, M)
        schedule += [(s, m, "forward") for m in range(first)]
        for m in range(M - first):
            schedule += [(s, first + m, "forward"), (s, m, "backward")]
    return schedule


def goes_back_first(K, M):
    schedule = []
    for s in range(K):
        first = min(K - 1 - s, M)
        schedule += [(s, m, "forward") for m in range(first)]
        for m in range(M):
            schedule.append((s, m, "backward"))
            if first + m < M:
                schedule.append((s, first + m, "forward"))
    return schedule


def counts_from_one(K, M):
    return [(s, m + 1, phase) for s, m, phase in in_stages(K, M, lambda s: K - 1 - s)]


def abbreviates(K, M):
    return [(s, m, phase[0].upper()) for s, m, phase in in_stages(K, M, lambda s: K - 1 - s)]


def puts_micro_batches_first(K, M):
    return [(m, s, phase) for s, m, phase in in_stages(K, M, lambda s: K - 1 - s)]


def lists_by_stage(K, M):
    schedule = in_stages(K, M, lambda s: K - 1 - s)
    return [[task for task in schedule if task[0] == s] for s in range(K)]


def knows_one_case(K, M):
    return in_stages(4, 8, lambda s: 3 - s)


def repeats(K, M):
    schedule = in_stages(K, M, lambda s: K - 1 - s)
    return schedule + schedule[-1:]


def prints(K, M):
    for task in in_stages(K, M, lambda s: K - 1 - s):
        print(task)


def asks_the_package(K, M):
    return one_forward_one_backward(K, M)


def asks_the_package_and_hides_it(K, M):
    return [(task.stage, task.micro_batch, task.phase) for task in pipeline.one_forward_one_backward(K, M)]


def takes_gpipe_for_few(K, M):
    return in_stages(K, M, lambda s: K - 1 - s) if M >= K else gpipe(K, M)


def begins_by_the_smaller_number(K, M):
    return in_stages(K, M, lambda s: min(K, M) - 1 - s)


def ends_in_reverse(K, M):
    schedule = []
    for s in range(K):
        first = min(K - 1 - s, M)
        schedule += [(s, m, "forward") for m in range(first)]
        schedule += [(s, m, phase) for m in range(first, M) for phase in ("forward", "backward")]
        schedule += [(s, m, "backward") for m in reversed(range(first))]
    return schedule


def generates(K, M):
    yield from in_stages(K, M, lambda s: K - 1 - s)


def divides(K, M):
    return [(s / 1, m, phase) for s, m, phase in in_stages(K, M, lambda s: K - 1 - s)]


def yields_nothing(K, M):
    return []


WRONG = [
    (naive, "memory is right, but the stages are idle"),
    (gpipe, "stage 0 holds 8 micro-batches at once, and 1F1B at most 4"),
    (one_too_many, "stage 0 holds 5 micro-batches at once"),
    (one_too_few, "memory is right, but the stages are idle"),
    (alike_on_every_stage, "stage 1 holds 4 micro-batches at once, and 1F1B at most 3"),
    (counts_from_the_other_end, "the schedule never ends, because stage 0 waits"),
    (alternates_at_once, "memory is right, but the stages are idle"),
    (forgets_small_batches, "4 stages, 2 micro-batches"),
    (leaves_the_last_backwards_out, "is missing from the schedule"),
    (goes_back_first, "the schedule never ends"),
    (counts_from_one, "micro-batches 0 to 7"),
    (abbreviates, "the phases 'forward' and 'backward'"),
    (puts_micro_batches_first, "there are stages 0 to 3"),
    (lists_by_stage, "is no task (stage, micro_batch, phase)"),
    (knows_one_case, "1 stage, 1 micro-batch:"),
    (repeats, "is in the schedule 2 times"),
    (prints, "the answer is None"),
    (asks_the_package, "course_utils.parallel.pipeline was called"),
    (asks_the_package_and_hides_it, "course_utils.parallel.pipeline was called"),
    (takes_gpipe_for_few, "4 stages, 2 micro-batches: stage 3 holds 2"),
    (begins_by_the_smaller_number, "4 stages, 2 micro-batches: memory is right, but the stages are idle"),
    (ends_in_reverse, "memory is right, but the stages are idle"),
    (generates, "the answer is <generator"),
    (divides, "is no task (stage, micro_batch, phase)"),
    (yields_nothing, "the schedule is empty"),
]


def merges_while_it_simulates(K, M):
    """Task by task, in an order that one process can run: a stage goes back whenever it can, within its limit."""
    schedule, done = [], set()
    ahead, back = [0] * K, [0] * K
    while len(schedule) < 2 * K * M:
        for s in range(K):
            m = back[s]
            arrived = (s, m, "forward") in done and (s == K - 1 or (s + 1, m, "backward") in done)
            if m < M and arrived:
                schedule.append((s, m, "backward"))
                back[s] += 1
            elif ahead[s] < M and ahead[s] - back[s] < K - s and (s == 0 or (s - 1, ahead[s], "forward") in done):
                schedule.append((s, ahead[s], "forward"))
                ahead[s] += 1
            else:
                continue
            done.add(schedule[-1])
    return schedule


def sorts_by_a_clock(K, M):
    """Forward m at m on stage 0's count, backward m after K - 1 - stage further forwards; lists, stages last to first."""
    schedule = []
    for s in reversed(range(K)):
        keyed = [(2 * m, [s, m, "forward"]) for m in range(M)]
        keyed += [(2 * (m + K - 1 - s) + 1, [s, m, "backward"]) for m in range(M)]
        schedule += [task for _, task in sorted(keyed, key=lambda pair: pair[0])]
    return schedule


def holds_as_many_as_it_may(K, M):
    """In the tuples that the package has, and the last micro-batch first, which is as good an order."""
    schedule = []
    for s in range(K):
        waiting, held = list(range(M)), []
        while waiting or held:
            if waiting and len(held) < K - s:
                held.append(waiting.pop())
                schedule.append(pipeline.Task(s, held[-1], "forward"))
            else:
                schedule.append(pipeline.Task(s, held.pop(0), "backward"))
    return tuple(schedule)


RIGHT = [merges_while_it_simulates, sorts_by_a_clock, holds_as_many_as_it_may]
