# %% wrong (forgets to renormalise): do not add up to 1 over the k chosen
# gates = best[:, :k].softmax(dim=1) → gates = scores.softmax(dim=1).gather(1, experts)
# %% wrong (drops nothing): how many tokens does an expert take
# gates * (place < capacity) → gates
# %% wrong (renormalises what is left): has gone to the token's other choices
# -     return experts, gates * (place < capacity)
# +     gates = gates * (place < capacity)
# +     return experts, gates / gates.sum(1, keepdim=True).clamp(min=1e-12)
# %% wrong (queues token by token): choices queue token by token
# experts.T.flatten() → experts.flatten()
# .view(k, -1).T → .view(-1, k)
# %% wrong (a queue for each place): second choices have a queue of their own
# -     queue = F.one_hot(experts.T.flatten(), scores.shape[1])  # (k·T, E): first choices first
# -     place = ((queue.cumsum(dim=0) - 1) * queue).sum(dim=1).view(k, -1).T  # (T, k)
# +     queue = F.one_hot(experts, scores.shape[1])
# +     place = ((queue.cumsum(dim=0) - 1) * queue).sum(dim=-1)
# %% wrong (the last come first): the last tokens are served first
# F.one_hot(experts.T.flatten() → F.one_hot(experts.flip(0).T.flatten()
# .view(k, -1).T → .view(k, -1).T.flip(0)
# %% wrong (the largest gates first): the largest gates are served first
# -     queue = F.one_hot(experts.T.flatten(), scores.shape[1])  # (k·T, E): first choices first
# -     place = ((queue.cumsum(dim=0) - 1) * queue).sum(dim=1).view(k, -1).T  # (T, k)
# +     order = gates.flatten().argsort(descending=True, stable=True)
# +     queue = F.one_hot(experts.flatten()[order], scores.shape[1])
# +     place = torch.empty_like(order)
# +     place[order] = ((queue.cumsum(dim=0) - 1) * queue).sum(dim=1)
# +     place = place.view(-1, k)
# %% wrong (drops the whole token): a token that loses one choice loses all
# gates * (place < capacity) → gates * (place < capacity).all(dim=1, keepdim=True)
# %% wrong (drops by a capacity for all experts together): is each a share of the sum
# gates * (place < capacity) → gates * (torch.arange(experts.numel()).view(k, -1).T < capacity * scores.shape[1])
# %% wrong (keeps the probability where k is 1): do not add up to 1 over the k chosen
# gates * (place < capacity) → (gates if k > 1 else scores.softmax(1).gather(1, experts)) * (place < capacity)
# %% wrong (int32): it is int32
# return experts, → return experts.int(),
# %% wrong (changes the scores): scores was changed in place
# -     best, experts = scores.sort(dim=1, descending=True, stable=True)
# +     with torch.no_grad():
# +         scores -= scores.amax(1, keepdim=True)
# +     best, experts = scores.sort(dim=1, descending=True, stable=True)
# %% wrong (lets one more in): an expert takes one more
# place < capacity → place <= capacity
# %% wrong (counts from one): an expert takes one fewer
# queue.cumsum(dim=0) - 1 → queue.cumsum(dim=0)
# %% wrong (an unstable sort): experts with equal scores are not in the order of their numbers
# scores.sort(dim=1, descending=True, stable=True) → scores.topk(k)
# %% wrong (the lowest scores): those are the lowest scores
# descending=True → descending=False
# %% wrong (in the order of numbers): the best should come first
# -     experts = experts[:, :k]
# -     gates = best[:, :k].softmax(dim=1)  # over the k chosen: their sum is 1
# +     experts = experts[:, :k].sort(dim=1).values
# +     gates = scores.gather(1, experts).softmax(dim=1)
# %% wrong (the worst first): the worst comes first
# -     experts = experts[:, :k]
# -     gates = best[:, :k].softmax(dim=1)  # over the k chosen: their sum is 1
# +     experts = experts[:, :k].flip(1)
# +     gates = scores.gather(1, experts).softmax(dim=1)
# %% wrong (marks what is dropped by −1): it has numbers that no expert has
# return experts, → return experts.where(place < capacity, -1),
# %% wrong (a dropped choice goes to the next expert): does a full expert matter
# return experts, → return experts.where(place < capacity, (experts + 1) % scores.shape[1]),
# %% wrong (detaches the scores): they carry no gradient, so
# scores.sort(dim=1 → scores.detach().sort(dim=1
# %% wrong (other scores than those given): they carry no gradient of the scores
# scores.sort(dim=1 → scores.detach().requires_grad_().sort(dim=1
# %% wrong (a denominator without a gradient): does it flow through the denominator
# -     gates = best[:, :k].softmax(dim=1)  # over the k chosen: their sum is 1
# +     gates = (best[:, :k] - best[:, :1].detach()).exp()
# +     gates = gates / gates.sum(1, keepdim=True).detach()
# %% wrong (calls the course's): it is yours to write
# -     best, experts = scores.sort(dim=1, descending=True, stable=True)
# +     from course_utils.parallel.experts import route as theirs
# +     return theirs(scores, k, capacity)[:2]
# %% wrong (returns the gates alone): not a list or tuple of experts and gates
# return experts, gates * → return gates *
# %% right (loops)
def route(scores, k, capacity):
    num_tokens, num_experts = scores.shape
    chosen = [sorted(range(num_experts), key=lambda e: (-row[e], e))[:k] for row in scores.tolist()]
    experts = torch.tensor(chosen)
    p = scores.softmax(1).gather(1, experts)
    factor = torch.zeros_like(p)
    room = [capacity] * num_experts
    for j in range(k):
        for t in range(num_tokens):
            if room[chosen[t][j]] > 0:
                room[chosen[t][j]] -= 1
                factor[t, j] = 1
    shares = scores.gather(1, experts)
    shares = (shares - shares.max(1, keepdim=True).values).exp()
    return experts, shares / shares.sum(1, keepdim=True) * factor
# %% right (probabilities of all, renormalised)
def route(scores, k, capacity):
    p = F.softmax(scores, dim=-1)
    experts = torch.argsort(scores, dim=-1, descending=True, stable=True)[..., :k]
    gates = p.gather(-1, experts)
    gates = gates / gates.sum(-1, keepdim=True)
    taken = torch.zeros(scores.shape[1], dtype=torch.int64)
    keep = torch.zeros_like(experts, dtype=torch.bool)
    for j in range(k):
        hot = F.one_hot(experts[:, j], scores.shape[1])
        keep[:, j] = ((hot.cumsum(0) + taken) * hot).sum(1) <= capacity
        taken += hot.sum(0)
    return [experts, gates.masked_fill(~keep, 0)]
# %% right (sorts the queue by expert)
def route(scores, k, capacity):
    T, E = scores.shape
    values, experts = torch.sort(scores, dim=1, descending=True, stable=True)
    values, experts = values[:, :k], experts[:, :k].contiguous()
    gates = torch.exp(values - torch.logsumexp(values, dim=1, keepdim=True))
    wanted = experts.t().reshape(-1)
    order = wanted.argsort(stable=True)
    counts = torch.bincount(wanted, minlength=E)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - starts[wanted[order]]
    dropped = (place >= capacity).view(k, T).t()
    gates = gates.clone()
    gates[dropped] = 0
    return experts, gates
# %% right (mask of minus infinity)
def route(scores, k, capacity):
    rest, picks = scores.detach().clone(), []
    for _ in range(k):
        best = rest.max(1, keepdim=True).values
        first = (rest == best).to(torch.int8).argmax(1)
        picks.append(first)
        rest[torch.arange(len(rest)), first] = float("-inf")
    experts = torch.stack(picks, 1)
    masked = torch.full_like(scores, float("-inf")).scatter(1, experts, scores.gather(1, experts))
    gates = masked.softmax(1).gather(1, experts)
    room = {}
    keep = []
    for column in experts.T.tolist():
        row = []
        for expert in column:
            room[expert] = room.get(expert, 0) + 1
            row.append(room[expert] <= capacity)
        keep.append(row)
    return experts, gates * torch.tensor(keep).T
