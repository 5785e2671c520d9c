# %% wrong (False for nobody): and None says that there is no straggler
# len(whole)), None) → len(whole)), False)
# %% wrong (compares clocks): clocks do not agree
# waits.setdefault(number, {})[rank] = left_s - entered_s → waits.setdefault(number, {})[rank] = -entered_s
# %% wrong (most often, however seldom): who is late in half of them, or less, is no straggler
# return next((rank for rank in set(late) if 2 * late.count(rank) > len(whole)), None) → return max(sorted(set(late)), key=late.count, default=None)
# %% wrong (half is enough): who is late in half of them, or less, is no straggler
# 2 * late.count(rank) > len(whole) → 2 * late.count(rank) >= len(whole) > 0
# %% wrong (without least_s): a rank is late only if all others waited at least least_s longer
# >= least_s → >= 0
# %% wrong (incomplete ones count, too): whom did the others wait for
# len(each) == num_ranks → len(each) >= 1 and len(each) != 99
# -         last, next_to_last = sorted(each, key=each.get)[:2]
# +         last, next_to_last = (sorted(each, key=each.get) * 2)[:2]
# +         if len(each) == 1:
# +             late.append(last)
# +             continue
# %% wrong (never finds anybody): who was late in more than half
# return next((rank → return None and next((rank
# %% wrong (a list): not a number
# return next((rank for rank in set(late) if 2 * late.count(rank) > len(whole)), None) → return [rank for rank in set(late) if 2 * late.count(rank) > len(whole)]
# %% wrong (99 for nobody): whom did the others wait for
# len(whole)), None) → len(whole)), 99)
# %% wrong (sorts the rows in place): rows holds other items
# -     num_ranks = len({row[0] for row in rows})
# +     rows.sort(key=str)
# +     num_ranks = len({row[0] for row in rows})
# %% wrong (who waits longest): who waits longest was there first
# -         last, next_to_last = sorted(each, key=each.get)[:2]
# -         if each[next_to_last] - each[last] >= least_s:
# +         last, next_to_last = sorted(each, key=each.get)[::-1][:2]
# +         if each[last] - each[next_to_last] >= least_s or True:
# %% wrong (sums of waits): ruled by one bad step
def find_straggler(rows, least_s):
    ranks = {row[0] for row in rows}
    found = {}
    for rank, number, entered, left in rows:
        if left is not None:
            found.setdefault(number, {})[rank] = left - entered
    whole = [each for each in found.values() if each.keys() == ranks]
    sums = {rank: sum(each[rank] for each in whole) / max(len(whole), 1) for rank in ranks}
    first, second = sorted(sums, key=sums.get)[:2]
    return first
# %% wrong (one bad step is enough): ruled by one bad step
def find_straggler(rows, least_s):
    ranks = {row[0] for row in rows}
    found = {}
    for rank, number, entered, left in rows:
        if left is not None:
            found.setdefault(number, {})[rank] = left - entered
    for each in found.values():
        order = sorted(each, key=each.get)
        if each.keys() == ranks and each[order[1]] - each[order[0]] >= least_s:
            return order[0]
# %% right (pandas)
def find_straggler(rows, least_s):
    import pandas as pd
    table = pd.DataFrame(rows, columns=["rank", "number", "entered", "left"])
    waits = table.assign(wait=table["left"] - table["entered"]).pivot(index="number", columns="rank", values="wait")
    waits = waits.dropna()
    counts = {}
    for _, row in waits.iterrows():
        row = row.sort_values()
        if row.iloc[1] - row.iloc[0] >= least_s:
            counts[row.index[0]] = counts.get(row.index[0], 0) + 1
    for rank, count in counts.items():
        if count > len(waits) / 2:
            return int(rank)
    return None
# %% right (a Counter)
def find_straggler(rows, least_s):
    from collections import Counter, defaultdict
    ranks, by = {r for r, *_ in rows}, defaultdict(list)
    for r, n, a, b in rows:
        if b is not None:
            by[n].append((b - a, r))
    by = {n: sorted(each) for n, each in by.items() if {r for _, r in each} == ranks}
    late = Counter(each[0][1] for each in by.values() if each[1][0] - each[0][0] >= least_s)
    rank, count = late.most_common(1)[0] if late else (None, 0)
    return rank if count * 2 > len(by) else None
# %% right (rank by rank)
def find_straggler(rows, least_s):
    ranks = sorted({row[0] for row in rows})
    waits = {(rank, number): left - entered for rank, number, entered, left in rows if left is not None}
    numbers = [n for n in {n for _, n in waits} if all((rank, n) in waits for rank in ranks)]
    for rank in ranks:
        others = [r for r in ranks if r != rank]
        late = [n for n in numbers if min(waits[r, n] for r in others) - waits[rank, n] >= least_s]
        if len(late) > len(numbers) / 2:
            return rank
