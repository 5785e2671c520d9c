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
# %% wrong (one too many): stage 0 holds 5 micro-batches at once
# num_stages - 1 - stage → num_stages - stage
# %% wrong (one too few): memory is right, but the stages are idle
# num_stages - 1 - stage → max(0, num_stages - 2 - stage)
# %% wrong (lists by stage): is no task (stage, micro_batch, phase)
# return schedule → return [[task for task in schedule if task[0] == stage] for stage in range(num_stages)]
# %% wrong (divides micro-batches): the micro_batch is 0.0, not a whole number
# return schedule → return [(stage, m / 1, phase) for stage, m, phase in schedule]
# %% wrong (asks the package): pipeline's one_forward_one_backward was called
# return schedule → return pipeline.one_forward_one_backward(num_stages, num_micro_batches)
# %% right (sorts by a clock)
def emit_1f1b(K, M):
    """Forward m at m on stage 0's count, backward m after K - 1 - stage further forwards; lists, stages last to first."""
    schedule = []
    for s in reversed(range(K)):
        keyed = [(2 * m, [s, m, "forward"]) for m in range(M)]
        keyed += [(2 * (m + K - 1 - s) + 1, [s, m, "backward"]) for m in range(M)]
        schedule += [task for _, task in sorted(keyed, key=lambda pair: pair[0])]
    return schedule
