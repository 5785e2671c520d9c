# %%
import numpy as np

# %% right (asks the simulator)
def find_writer(element, grid, block):
    n = element + 1
    simulated = simulate(add, grid, block, n, torch.ones(n), torch.ones(n), torch.zeros(n))
    ((*writer, _),) = who_wrote(simulated, n)[element]
    return writer

# %% right (walks through all threads)
def find_writer(element, grid, block):
    while True:
        for b in range(grid):
            for t in range(block):
                if element == 0:
                    return b, t
                element -= 1

# %% right (takes tensors)
def find_writer(element, grid, block):
    index = torch.tensor(element) % (grid * block)
    return index // block, index % block

# %% right (asks numpy)
def find_writer(element, grid, block):
    return np.unravel_index(element % (grid * block), (grid, block))

# %% wrong (forgets the turns): there are blocks 0 to 2
# return np.unravel_index(element % (grid * block), (grid, block)) → return divmod(element, block)
# %% wrong (splits by the grid): saw another thread write it
# np.unravel_index(element % (grid * block), (grid, block) → divmod(element % (grid * block), grid
# %% wrong (deals blocks out in turn): follow that thread through the figure
# np.unravel_index(element % (grid * block), (grid, block)) → element % grid, element // grid % block
# %% wrong (returns the global index): not a list or tuple of a block index
# return np.unravel_index(element % (grid * block), (grid, block)) → return element % (grid * block)
# %% wrong (knows three blocks of eight): a block has threads 0 to 3
# element % (grid * block), (grid, block) → element % 24, (3, 8)
# %% wrong (knows small blocks only): with 4 blocks of 64 threads
# element % (grid * block) → element % min(grid * block, 64)
# %% wrong (adds the global index): holds 3 items
# return np → return element % (grid * block), *np
# %% wrong (counts from one): follow that thread through the figure
# return np.unravel_index(element % (grid * block), (grid, block)) → return element // block % grid, element % block + 1

# %% wrong (swaps the two): which of the two comes first
def find_writer(element, grid, block):
    index = element % (grid * block)
    return index % block, index // block

# %% wrong (divides into fractions): not a whole number
# return index % block, index // block → return index / block, index % block
# %% wrong (prints instead of returning): is it returned, or only printed?
# return index % block, index // block → print(index // block, index % block)

# %% wrong (gives each thread a run): saw another thread write it
def find_writer(element, grid, block):
    index = element // -(-50 // (grid * block))
    return index // block % grid, index % block

# %% endless (never finds it): in find_writer
def find_writer(element, grid, block):
    while element >= grid * block:
        element -= grid
        element += grid
    return divmod(element, block)
