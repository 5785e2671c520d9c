# %% wrong (pulls only): the gradients are missing
#                 entered[owner[key]] += key_bytes[key]  # pushed →                 pass
# %% wrong (pushes only): the parameters are missing
#                 entered[worker] += key_bytes[key]  # pulled →                 pass
# %% wrong (also at home): messages within a machine are counted, too
# if owner[key] != worker: → if True:
# %% wrong (texts): what enters machine 0 is
# return entered → return [f"{n:,}" for n in entered]
# %% wrong (pushes also at home): are counted in one direction
def bytes_in(key_bytes, owner, used):
    entered = []
    for i, keys in enumerate(used):
        pulled = sum(key_bytes[key] for key in keys if owner[key] != i)
        entered.append(pulled + sum(key_bytes[key] for theirs in used for key in theirs if owner[key] == i))
    return entered
# %% wrong (pulls also at home): are counted in one direction
def bytes_in(key_bytes, owner, used):
    entered = [sum(key_bytes[key] for key in keys) for keys in used]
    for worker, keys in enumerate(used):
        for key in keys:
            entered[owner[key]] += key_bytes[key] * (owner[key] != worker)
    return entered
# %% wrong (dense): every worker is taken to use all keys
def bytes_in(key_bytes, owner, used):
    entered = [0] * len(used)
    for worker in range(len(used)):
        for key in key_bytes:
            if owner[key] != worker:
                entered[worker] += key_bytes[key]
                entered[owner[key]] += key_bytes[key]
    return entered
# %% wrong (dense, also at home): also those of its own machine
def bytes_in(key_bytes, owner, used):
    total = sum(key_bytes.values())
    held = [sum(size for key, size in key_bytes.items() if owner[key] == i) for i in range(len(used))]
    return [total + len(used) * own for own in held]
# %% wrong (both ways): sends and receives
def bytes_in(key_bytes, owner, used):
    entered = [0] * len(used)
    for worker, keys in enumerate(used):
        for key in keys:
            if owner[key] != worker:
                entered[worker] += 2 * key_bytes[key]
                entered[owner[key]] += 2 * key_bytes[key]
    return entered
# %% wrong (each key pushed once): came back
def bytes_in(key_bytes, owner, used):
    entered = [sum(key_bytes[key] for key in keys if owner[key] != i) for i, keys in enumerate(used)]
    for key in set().union(*used):
        entered[owner[key]] += key_bytes[key]
    return entered
# %% wrong (only machines with a server): items, not
def bytes_in(key_bytes, owner, used):
    entered = dict.fromkeys(sorted(set(owner.values())), 0)
    for worker, keys in enumerate(used):
        for key in keys:
            if owner[key] != worker:
                entered[owner[key]] += key_bytes[key]
                if worker in entered:
                    entered[worker] += key_bytes[key]
    return list(entered.values())
# %% wrong (a dict): a dict came back
def bytes_in(key_bytes, owner, used):
    return dict.fromkeys(range(len(used)), 0)
# %% right (eats what it is given)
def bytes_in(key_bytes, owner, used):
    entered = [0] * len(used)
    for worker, keys in enumerate(used):
        while keys:
            key = keys.pop()
            if owner[key] != worker:
                entered[worker] += key_bytes[key]
                entered[owner[key]] += key_bytes[key]
    owner.clear()
    return entered
# %% right (as a tensor of floats)
def bytes_in(key_bytes, owner, used):
    entered = torch.zeros(len(used))
    for worker, keys in enumerate(used):
        for key in keys - {key for key, machine in owner.items() if machine == worker}:
            entered[[worker, owner[key]]] += key_bytes[key]
    return entered
# %% right (by fractions)
def bytes_in(key_bytes, owner, used):
    from fractions import Fraction

    n = range(len(used))
    far = [[sum(Fraction(key_bytes[k]) for k in used[w] if owner[k] == s != w) for s in n] for w in n]
    return [sum(far[i]) + sum(row[i] for row in far) for i in n]
