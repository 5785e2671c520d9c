# %% wrong (the norms of heads are missing): norms of queries and keys of each layer
# kv_heads * head + 2 * head → kv_heads * head
# %% wrong (the router is missing): router of each layer
# attention + 2 * h + h * num_experts → attention + 2 * h
# %% wrong (the norms are missing): two norms of d numbers of each layer
# attention + 2 * h + h * num_experts → attention + h * num_experts
# %% wrong (attention is missing): attention of each layer
# attention = 2 * h * heads * head + 2 * h * kv_heads * head + 2 * head → attention = 2 * head
# %% wrong (the last norm is missing): count the norm after the last layer
# 2 * config["vocab_size"] * h + h → 2 * config["vocab_size"] * h
# %% wrong (one matrix for both ends): has a matrix of its own
# 2 * config["vocab_size"] * h + h → config["vocab_size"] * h + h
# %% wrong (experts of two matrices): an expert has three matrices
# expert = 3 * h → expert = 2 * h
# %% wrong (the active ones twice): those are the active ones
# return parameters, active, held → return active, active, held
# %% wrong (heads as wide as h): does each line of the task's list appear
# head = config["hidden_size"], config["num_hidden_layers"], config["head_dim"] → head = config["hidden_size"], config["num_hidden_layers"], config["hidden_size"] // config["num_attention_heads"]
# %% wrong (all are active): a token visits a few experts
# return parameters, active, held → return parameters, parameters, held
# %% wrong (only experts are active): what else does every token pass
# return parameters, active, held → return parameters, layers * k * expert, held
# %% wrong (one expert is active): one expert a layer is in it
# return parameters, active, held → return parameters, dense + layers * expert, held
# %% wrong (an embedding's row is active): a token looks up one row
# return parameters, active, held → return parameters, active - config["vocab_size"] * h, held
# %% wrong (divides everything): and only experts are spread
# 16 * (dense + layers * num_experts // num_ranks * expert) → 16 * parameters // num_ranks
# %% wrong (every rank has every expert): a rank has a part of them
# 16 * (dense + layers * num_experts // num_ranks * expert) → 16 * parameters
# %% wrong (only experts are held): only the rank's experts are in it
# 16 * (dense + layers * num_experts // num_ranks * expert) → 16 * (layers * num_experts // num_ranks * expert)
# %% wrong (numbers, not bytes): not of bytes
# held_bytes = 16 * (dense → held_bytes = (dense
# %% wrong (only weights): training holds more
# held_bytes = 16 * (dense → held_bytes = 2 * (dense
# %% wrong (active ones are held): which are on the rank
# 16 * (dense + layers * num_experts // num_ranks * expert) → 16 * active
# %% wrong (sends to itself): rows that stay on their rank are in it
# rows = k * tokens * (num_ranks - 1) // num_ranks → rows = k * tokens
# %% wrong (one all-to-all): how many has a step
# 4 * rows * h * 2 → rows * h * 2
# %% wrong (forward alone): a step has both
# 4 * rows * h * 2 → 2 * rows * h * 2
# %% wrong (one expert for each token): a token goes to more than one expert
# rows = k * tokens → rows = tokens
# %% wrong (float32 on the way): how many bytes has a number in bfloat16
# 4 * rows * h * 2 → 4 * rows * h * 4
# %% wrong (all layers): those are the bytes of all layers
# 4 * rows * h * 2 → 4 * rows * h * 2 * layers
# %% wrong (all ranks): those are the bytes of all ranks
# 4 * rows * h * 2 → 4 * rows * h * 2 * num_ranks
# %% wrong (what stays): those are the rows that stay
# tokens * (num_ranks - 1) // num_ranks → tokens // num_ranks
# %% wrong (a fraction): not a whole number
# (num_ranks - 1) // num_ranks → (num_ranks - 1) / num_ranks
# %% wrong (three numbers): parameters, active, held_bytes, moved_bytes
# return parameters, active, held_bytes, 4 → return parameters, active, 4
# %% right (with modules)
def count_model(config, num_ranks, tokens):
    h, d, V = config["hidden_size"], config["head_dim"], config["vocab_size"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    E, k, L = config["num_experts"], config["num_experts_per_tok"], config["num_hidden_layers"]
    count = lambda shapes: sum(torch.Size(shape).numel() for shape in shapes)
    expert = count([(h, config["moe_intermediate_size"])] * 3)
    layer = count([(q, h), (kv, h), (kv, h), (h, q), (d,), (d,), (h,), (h,), (E, h)])
    ends = count([(V, h), (V, h), (h,)])
    sent = 4 * 2 * h * tokens * k
    return (
        L * (layer + E * expert) + ends,
        L * (layer + k * expert) + ends,
        16 * (L * (layer + E // num_ranks * expert) + ends),
        sent - sent // num_ranks,
    )
# %% right (a list, from the total down)
def count_model(config, num_ranks, tokens):
    from types import SimpleNamespace

    c = SimpleNamespace(**config)
    expert = 3 * c.hidden_size * c.moe_intermediate_size
    experts = c.num_hidden_layers * c.num_experts * expert
    per_head = 2 * c.hidden_size * c.head_dim
    attention = per_head * (c.num_attention_heads + c.num_key_value_heads) + 2 * c.head_dim
    total = experts + 2 * c.vocab_size * c.hidden_size + c.hidden_size
    total += c.num_hidden_layers * (attention + (2 + c.num_experts) * c.hidden_size)
    active = total - experts * (c.num_experts - c.num_experts_per_tok) // c.num_experts
    held = 16 * total - 16 * experts * (num_ranks - 1) // num_ranks
    each = tokens * c.num_experts_per_tok // num_ranks * c.hidden_size * 2
    return [total, active, held, sum(each for _ in range(4) for other in range(num_ranks - 1))]
# %% right (NumPy's whole numbers)
def count_model(config, num_ranks, tokens):
    import numpy as np

    h, L, d, a, g, m, E, k, V = (
        np.int64(config[key]) for key in (
            "hidden_size", "num_hidden_layers", "head_dim", "num_attention_heads", "num_key_value_heads",
            "moe_intermediate_size", "num_experts", "num_experts_per_tok", "vocab_size")
    )
    dense = L * (2 * h * d * (a + g) + 2 * d + 2 * h + h * E) + h * (2 * V + 1)
    return (
        dense + L * E * 3 * h * m, dense + L * k * 3 * h * m, 16 * (dense + L * (E // num_ranks) * 3 * h * m),
        tokens * k * (num_ranks - 1) // num_ranks * h * 8,
    )
# %% right (meta modules)
def count_model(config, num_ranks, tokens):
    h, L, d = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
    a, g = config["num_attention_heads"], config["num_key_value_heads"]
    E, k = config["num_experts"], config["num_experts_per_tok"]
    with torch.device("meta"):
        attention = nn.ModuleList(
            [nn.Linear(h, a * d, bias=False), nn.Linear(h, g * d, bias=False), nn.Linear(h, g * d, bias=False),
             nn.Linear(a * d, h, bias=False), nn.RMSNorm(d), nn.RMSNorm(d), nn.RMSNorm(h), nn.RMSNorm(h),
             nn.Linear(h, E, bias=False)])
        expert = nn.ModuleList([nn.Linear(h, config["moe_intermediate_size"], bias=False) for _ in range(3)])
        ends = nn.ModuleList([nn.Embedding(config["vocab_size"], h), nn.RMSNorm(h),
                              nn.Linear(h, config["vocab_size"], bias=False)])
    block, one, rest = (sum(p.numel() for p in part.parameters()) for part in (attention, expert, ends))
    whole = lambda number: L * (block + number * one) + rest
    there = k * tokens // num_ranks * (num_ranks - 1) * h * torch.bfloat16.itemsize
    return whole(E), whole(k), 16 * whole(E // num_ranks), 2 * (there + there)
