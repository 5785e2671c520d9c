# %%
import statistics
import numpy as np

# %% wrong (knows the text's smallest): which is not right
# table[sizes[0]] → table[16 if 16 in table else sizes[0]]
# %% wrong (takes one standard error): that is one standard error
# 2 * standard_error → standard_error
# %% wrong (takes 1.96): that is 1.96 standard errors
# 2 * standard_error → 1.96 * standard_error
# %% wrong (a little more than two standard errors): compute by hand, for each batch
# 2 * standard_error → 2.03 * standard_error
# %% wrong (takes two and equal): is not more than two
# mean - base_mean > 2 → mean - base_mean >= 2
# %% wrong (takes any larger error): calls every larger error a break
# 2 * standard_error → 0
# %% wrong (counts better ones): better than the smallest is no break
# mean - base_mean > 2 → abs(mean - base_mean) > 2
# %% wrong (takes the spread): the spread of single runs
# math.sqrt(spread**2 / runs + base_spread**2 / base_runs) → math.hypot(spread, base_spread)
# %% wrong (takes the larger spread): the larger of the two spreads
# math.sqrt(spread**2 / runs + base_spread**2 / base_runs) → max(spread, base_spread)
# %% wrong (adds standard errors): two standard errors are added
# math.sqrt(spread**2 / runs + base_spread**2 / base_runs) → spread / runs**0.5 + base_spread / base_runs**0.5
# %% wrong (forgets the bases error): the smallest batch's mean has a standard error as well
# spread**2 / runs + base_spread**2 / base_runs → spread**2 / runs
# %% wrong (forgets the others error): the other batch's mean has a standard error as well
# spread**2 / runs + base_spread**2 / base_runs → base_spread**2 / base_runs
# %% wrong (divides by the runs): divided by the number of runs
# math.sqrt(spread**2 / runs + base_spread**2 / base_runs) → math.hypot(spread / runs, base_spread / base_runs)
# %% wrong (forgets the squares): the formula has squares
# math.sqrt(spread**2 / runs + base_spread**2 / base_runs) → math.sqrt(spread / runs + base_spread / base_runs)
# %% wrong (takes the bases runs for both): each mean has its own
# math.sqrt(spread**2 / runs + base_spread**2 / base_runs) → math.hypot(spread, base_spread) / base_runs**0.5
# %% wrong (takes one from the runs): one is taken from the numbers of runs
# spread**2 / runs + base_spread**2 / base_runs → spread**2 / (runs - 1) + base_spread**2 / (base_runs - 1)
# %% wrong (pools the spreads): one spread is made of both
# -         standard_error = math.sqrt(spread**2 / runs + base_spread**2 / base_runs)
# +         both = ((runs - 1) * spread**2 + (base_runs - 1) * base_spread**2) / (runs + base_runs - 2)
# +         standard_error = math.sqrt(both * (1 / runs + 1 / base_runs))
# %% wrong (goes in the dicts order): in no particular order
# sizes = sorted(table) → sizes = [min(table), *(size for size in table if size != min(table))]
# %% wrong (comes from above): the first is asked for
# for size in sizes[1:]: → for size in sizes[:0:-1]:
# %% wrong (takes the one before): held against the one before it
# -     return None
# +         base_mean, base_spread, base_runs = table[size]
# +     return None
# %% wrong (returns zero for none): neither None nor a batch size
# return None → return 0
# %% right (with a tensor)
def find_break(table):
    sizes = torch.tensor(sorted(table))
    mean, spread, runs = torch.tensor([table[size] for size in sorted(table)], dtype=torch.float64).T
    variance = spread.square() / runs
    worse = sizes[mean - mean[0] > 2 * (variance + variance[0]).sqrt()]
    return worse[0] if len(worse) else None
