# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %%
# Exercise 17.1
def route(scores, k, capacity):
    best, experts = scores.sort(dim=1, descending=True, stable=True)
    experts = experts[:, :k]
    gates = best[:, :k].softmax(dim=1)  # over the k chosen: their sum is 1
    queue = F.one_hot(experts.T.flatten(), scores.shape[1])  # (k·T, E): first choices first
    place = ((queue.cumsum(dim=0) - 1) * queue).sum(dim=1).view(k, -1).T  # (T, k)
    return experts, gates * (place < capacity)


# %%
# Exercise 17.2
def visit_experts(x, ranks, expert):
    world_size = dist.get_world_size()
    order = ranks.argsort(stable=True)
    going = torch.bincount(ranks, minlength=world_size)
    coming = torch.empty_like(going)
    dist.all_to_all_single(coming, going)  # one number for each rank
    going, coming = going.tolist(), coming.tolist()
    rows = x.new_empty(sum(coming), x.shape[1])
    dist.all_to_all_single(rows, x[order], coming, going)
    back = torch.empty_like(x)
    dist.all_to_all_single(back, expert(rows), going, coming)
    results = torch.empty_like(x)
    results[order] = back
    return results


# %%
# Exercise 17.3
def balance_loss(scores):
    num_tokens, num_experts = scores.shape
    p = scores.softmax(dim=1)
    f = F.one_hot(scores.argmax(dim=1), num_experts).to(p).mean(dim=0)
    loss = num_experts * (f * p.mean(dim=0)).sum()
    gradient = num_experts / num_tokens * p * (f - (p * f).sum(dim=1, keepdim=True))
    return loss, gradient


# %%
# Exercise 17.4
def average_gradients(gradients, mesh):
    for name, gradient in gradients.items():
        group = mesh.get_group("copies") if ".experts." in name else None
        dist.all_reduce(gradient, group=group)
        gradient /= mesh.size()  # the sum of an expert holds the tokens of all ranks


# %%
# Exercise 17.5
def count_model(config, num_ranks, tokens):
    h, layers, head = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    num_experts, k = config["num_experts"], config["num_experts_per_tok"]
    attention = 2 * h * heads * head + 2 * h * kv_heads * head + 2 * head
    block = attention + 2 * h + h * num_experts
    dense = layers * block + 2 * config["vocab_size"] * h + h
    expert = 3 * h * config["moe_intermediate_size"]
    parameters, active = (dense + layers * number * expert for number in (num_experts, k))
    held_bytes = 16 * (dense + layers * num_experts // num_ranks * expert)
    rows = k * tokens * (num_ranks - 1) // num_ranks
    return parameters, active, held_bytes, 4 * rows * h * 2
