# %% wrong (does the weights at once): which does the weight task of micro-batch
# range(num_micro_batches + stage) → range(num_micro_batches)
# if m >= stage: → if True:
# schedule.append((stage, m - stage, "weight")) → schedule.append((stage, m, "weight"))
# %% wrong (does the weights at the end): stage 0 holds 5 micro-batches at once, and at most 4 are allowed
# -             if m >= stage:
# -                 schedule.append((stage, m - stage, "weight"))
# +         schedule += [(stage, m, "weight") for m in range(num_micro_batches)]
# %% wrong (does not split): and here a backward is two tasks
# schedule.append((stage, m, "input")) → schedule.append((stage, m, "backward"))
# if m >= stage: → if False:
# %% wrong (delays by the later stages): stage 0 holds 5 micro-batches at once
# range(num_micro_batches + stage) → range(num_micro_batches + first)
# if m >= stage: → if m >= first:
# schedule.append((stage, m - stage, "weight")) → schedule.append((stage, m - first, "weight"))
# %% wrong (forgets the weights that are left): the weight gradient of micro-batch 7 on stage 1 is missing
# range(num_micro_batches + stage) → range(num_micro_batches)
# %% wrong (begins with a forward too many): stage 0 holds 5 micro-batches at once
# first = num_stages - 1 - stage → first = min(num_stages - stage, num_micro_batches)
# %% wrong (begins with a forward too few): stage 0 has only 3 forwards before its first input task
# first = num_stages - 1 - stage → first = max(0, num_stages - 2 - stage)
# %% wrong (delays by one too few): each stage is idle for 4 units, and 3 are enough
# -         first = num_stages - 1 - stage  # forwards before the first input task
# +         first, lag = num_stages - 1 - stage, max(0, stage - 1)
# range(num_micro_batches + stage) → range(num_micro_batches + lag)
# if m >= stage: → if m >= lag:
# schedule.append((stage, m - stage, "weight")) → schedule.append((stage, m - lag, "weight"))
# %% wrong (delays by one too many): holds 5 micro-batches at once
# range(num_micro_batches + stage) → range(num_micro_batches + stage + 1)
# if m >= stage: → if m > stage:
# schedule.append((stage, m - stage, "weight")) → schedule.append((stage, m - stage - 1, "weight"))
# %% wrong (goes from the weights to the input): waits with the weight gradient of micro-batch
# -             if m < num_micro_batches:
# -                 schedule.append((stage, m, "input"))
# -             if m >= stage:
# -                 schedule.append((stage, m - stage, "weight"))
# +             if m >= stage:
# +                 schedule.append((stage, m - stage, "weight"))
# +             if m < num_micro_batches:
# +                 schedule.append((stage, m, "input"))
# %% wrong (forgets both parts): there are only forwards
# schedule.append((stage, m, "input")) → pass
# if m >= stage: → if False:
# %% wrong (lists by stage): is no task (stage, micro_batch, phase)
# return schedule → return [[task for task in schedule if task[0] == stage] for stage in range(num_stages)]
# %% wrong (writes the printed letters): the phases 'forward', 'input' and 'weight'
# return schedule → return [(stage, m, phase[0].upper() if phase == "input" else phase) for stage, m, phase in schedule]
# %% wrong (divides micro-batches): the micro_batch is 0.0, not a whole number
# return schedule → return [(stage, m / 1, phase) for stage, m, phase in schedule]
# %% wrong (asks the package): pipeline's zb_h1 was called
# return schedule → return pipeline.zb_h1(num_stages, num_micro_batches)
# %% wrong (works for the printed sizes only): 1 stage, 1 micro-batch
# range(num_micro_batches + stage) → range(8 + stage)
# if m < num_micro_batches: → if m < 8:
# %% right (sorts by a clock)
def emit_zb_h1(K, M):
    """Each task at the time at which ZB-H1 would do it, stages last to first, lists instead of tuples."""
    schedule = []
    for s in reversed(range(K)):
        keyed = [(m - (K - 1 - s), 0, [s, m, "forward"]) for m in range(M)]
        keyed += [(m, 1, [s, m, "input"]) for m in range(M)] + [(m + s, 2, [s, m, "weight"]) for m in range(M)]
        schedule += [task for *_, task in sorted(keyed)]
    return schedule

# %% right (counts what a stage holds)
def emit_zb_h1(num_stages, num_micro_batches):
    schedule = []
    for stage in range(num_stages):
        done = {"forward": 0, "input": 0, "weight": 0}

        def do(phase):
            schedule.append((stage, done[phase], phase))
            done[phase] += 1

        while done["weight"] < num_micro_batches:
            if done["input"] == num_micro_batches:
                do("weight")
            elif done["forward"] < num_micro_batches and done["forward"] - done["input"] < num_stages - stage:
                do("forward")
            else:
                do("input")
                if done["forward"] - done["weight"] == num_stages or done["input"] > stage:
                    do("weight")
    return schedule

# %% right (with the indices of torch)
import torch

def emit_zb_h1(num_stages, num_micro_batches):
    tasks = []
    for stage in torch.arange(num_stages):
        for tick in range(-num_stages, num_micro_batches + num_stages):
            for phase, m in (("forward", tick + num_stages - 1 - stage), ("input", tick), ("weight", tick - stage)):
                if 0 <= m < num_micro_batches:
                    tasks.append((int(stage), int(m), phase))
    return tuple(tasks)
