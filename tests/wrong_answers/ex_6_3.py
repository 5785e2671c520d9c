# %% wrong (leaves the last backwards out): is missing from the schedule
# schedule.append((stage, m, "backward")) → schedule.extend([(stage, m, "backward")] * (first + m < num_micro_batches))
# %% wrong (forgets small batches): 4 stages, 2 micro-batches
# min(num_stages - 1 - stage, num_micro_batches) → num_stages - 1 - stage
# %% wrong (goes back first): the schedule never ends, because stage 0 waits
# -             if first + m < num_micro_batches:
# -                 schedule.append((stage, first + m, "forward"))
# -             schedule.append((stage, m, "backward"))
# +             schedule.append((stage, m, "backward"))
# +             if first + m < num_micro_batches:
# +                 schedule.append((stage, first + m, "forward"))
# %% wrong (ends in reverse): memory is right, but the stages are idle
# schedule.append((stage, first + m, "forward")) → schedule += [(stage, first + m, "forward"), (stage, first + m, "backward")]
# -             schedule.append((stage, m, "backward"))
# +         schedule += [(stage, m, "backward") for m in reversed(range(first))]
# %% wrong (one too many): stage 0 holds 5 micro-batches at once
# num_stages - 1 - stage → num_stages - stage
# %% wrong (one too few): memory is right, but the stages are idle
# num_stages - 1 - stage → max(0, num_stages - 2 - stage)
# %% wrong (alike on every stage): stage 1 holds 4 micro-batches at once, and 1F1B at most 3
# num_stages - 1 - stage → num_stages - 1
# %% wrong (counts from the other end): the schedule never ends, because stage 0 waits
# num_stages - 1 - stage → stage
# %% wrong (begins by the smaller number): 4 stages, 2 micro-batches: memory is right, but the stages are idle
# min(num_stages - 1 - stage, num_micro_batches) → max(0, min(num_stages, num_micro_batches) - 1 - stage)
# %% wrong (counts from one): micro-batches 0 to 7
# return schedule → return [(stage, m + 1, phase) for stage, m, phase in schedule]
# %% wrong (abbreviates): the phases 'forward' and 'backward'
# return schedule → return [(stage, m, phase[0].upper()) for stage, m, phase in schedule]
# %% wrong (lists by stage): is no task (stage, micro_batch, phase)
# return schedule → return [[task for task in schedule if task[0] == stage] for stage in range(num_stages)]
# %% wrong (repeats): is in the schedule 2 times
# return schedule → return schedule + schedule[-1:]
# %% wrong (returns nothing of it): the schedule is empty
# return schedule → return []
# %% wrong (keeps what was there): 1 stage, 1 micro-batch
# schedule = [] → schedule = emit_1f1b.__dict__.setdefault("schedule", [])
# %% wrong (generates): the answer is <generator
# return schedule → yield from schedule
# %% wrong (prints): is it returned, or only printed?
# return schedule → print(schedule)
# %% wrong (divides): the stage is 0.0, not a whole number
# return schedule → return [(stage / 1, m, phase) for stage, m, phase in schedule]
# %% wrong (divides micro-batches): the micro_batch is 0.0, not a whole number
# return schedule → return [(stage, m / 1, phase) for stage, m, phase in schedule]
# %% wrong (gives no phase): is no task (stage, micro_batch, phase)
# return schedule → return [(stage, m, phase == "forward") for stage, m, phase in schedule]
# %% wrong (asks the package): pipeline's one_forward_one_backward was called
# return schedule → return pipeline.one_forward_one_backward(num_stages, num_micro_batches)
# %% wrong (asks the package's parts): pipeline's
# schedule = [] → schedule = []; from course_utils.parallel.pipeline import schedules
# return schedule → return [tuple(task) for task in schedules._in_one_order(schedules.by_stage(schedule))]
# %% wrong (draws it): pipeline's place was called
# return schedule → return (pipeline.place(schedule), schedule)[1]
# %% wrong (takes gpipe for few): 4 stages, 2 micro-batches: stage 3 holds 2
# -     return schedule
# +     if num_micro_batches < num_stages:
# +         schedule.sort(key=lambda task: task[2], reverse=True)
# +     return schedule

# %% right (merges while it simulates)
def emit_1f1b(K, M):
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

# %% right (sorts by a clock)
def emit_1f1b(K, M):
    """Forward m at m on stage 0's count, backward m after K - 1 - stage further forwards; lists, stages last to first."""
    schedule = []
    for s in reversed(range(K)):
        keyed = [(2 * m, [s, m, "forward"]) for m in range(M)]
        keyed += [(2 * (m + K - 1 - s) + 1, [s, m, "backward"]) for m in range(M)]
        schedule += [task for _, task in sorted(keyed, key=lambda pair: pair[0])]
    return schedule

# %% right (holds as many as it may)
def emit_1f1b(K, M):
    """In the tuples that the package has, and the last micro-batch first, which is as good an order."""
    schedule = []
    for s in range(K):
        waiting, held = list(torch.arange(M).numpy()), []
        while waiting or held:
            if waiting and len(held) < K - s:
                held.append(waiting.pop())
                schedule.append(pipeline.Task(s, held[-1], "forward"))
            else:
                schedule.append(pipeline.Task(s, held.pop(0), "backward"))
    return tuple(schedule)
