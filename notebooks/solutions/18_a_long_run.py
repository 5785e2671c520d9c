# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 18.1
def account(log):
    useful_s, since_s, trained_s, saves_s = 0.0, None, 0.0, []
    for seconds, event in log:
        if event in ("save", "end"):
            trained_s = seconds - since_s
        if event == "saved":
            saves_s.append(seconds - since_s)
        if event in ("saved", "end"):
            useful_s += trained_s  # only now is this stretch safe
        since_s = seconds
    total_s, kills = log[-1][0], sum(event == "killed" for _, event in log)
    save_s = sum(saves_s) / len(saves_s)
    return useful_s / total_s, math.sqrt(2 * save_s * total_s / kills) if kills else math.inf


# %%
# Exercise 18.2
def reshard(read, numel, old_world_size, rank, world_size):
    old, new = -(-numel // old_world_size), -(-numel // world_size)  # numbers in a shard
    start, stop = rank * new, min((rank + 1) * new, numel)
    pieces = []
    for r in range(old_world_size):
        first, last = max(start, r * old), min(stop, (r + 1) * old)
        if first < last:
            pieces.append(read(r, first - r * old, last - r * old))
    shard = torch.zeros(new)
    if pieces:
        shard[: stop - start] = torch.cat(pieces)
    return shard


# %%
# Exercise 18.3
def average_usable(gradients, num_samples):
    flat = torch.cat([each.flatten() for each in gradients])
    if num_samples == 0 or not flat.isfinite().all():
        flat, num_samples = torch.zeros_like(flat), 0  # zeros, since 0 times nan is nan
    total = torch.cat([num_samples * flat, flat.new_tensor([num_samples])])
    dist.all_reduce(total)  # every rank takes part, also without anything to add
    count = int(total[-1])
    mean = total[:-1] / max(count, 1)
    for each, part in zip(gradients, mean.split([each.numel() for each in gradients])):
        each.copy_(part.view_as(each))
    return count


# %%
# Exercise 18.4
def find_straggler(rows, least_s):
    waits = {}  # number of the collective -> {rank: seconds that it waited, by its own clock}
    for rank, number, entered_s, left_s in rows:
        if left_s is not None:
            waits.setdefault(number, {})[rank] = left_s - entered_s
    num_ranks = len({row[0] for row in rows})
    whole = [each for each in waits.values() if len(each) == num_ranks]
    late = []
    for each in whole:
        last, next_to_last = sorted(each, key=each.get)[:2]
        if each[next_to_last] - each[last] >= least_s:
            late.append(last)
    return next((rank for rank in set(late) if 2 * late.count(rank) > len(whole)), None)


# %%
# Exercise 18.5
def where_it_began(rows):
    stages = ("forward", "loss", "backward", "averaged")

    def place(row):
        _, step, stage, layer, _ = row
        layer = -layer if stage == "backward" else layer or 0  # the last layer's gradient comes first
        return step, stages.index(stage), layer

    bad = [row for row in rows if not math.isfinite(row[4])]
    if not bad:
        return None
    first = min(bad, key=place)
    return *first[1:4], sorted(row[0] for row in bad if place(row) == place(first))


# %%
# Exercise 18.6
class Checkpoint:
    def __init__(self, path, model, optimizer, scheduler):
        self.path, self.model, self.optimizer, self.scheduler = path, model, optimizer, scheduler

    def save(self, step):
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler")}
        torch.save({**parts, "random": torch.get_rng_state(), "step": step}, f"{self.path}.part")
        os.replace(f"{self.path}.part", self.path)  # at every moment there is the old file or the new one

    def load(self):
        content = torch.load(self.path, weights_only=True)
        for name in ("model", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(content[name])
        torch.set_rng_state(content["random"])  # last, so that nothing draws after it
        return content["step"]
