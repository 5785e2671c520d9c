# %%
import numpy as np

# %% wrong (forgets the turns): there are blocks 0 to 2
# element % (grid * block) → element
# %% wrong (splits by the grid): follow that thread through the figure
# index // block, index % block → index // grid, index % grid
# %% wrong (swaps the two): which of the two comes first
# index // block, index % block → index % block, index // block
# %% wrong (returns the global index): not a list or tuple of a block index
# return index // block, index % block → return index
# %% wrong (knows blocks of eight): a block has 1 thread, counted from 0
# return index // block, index % block → return index // 8, index % 8
# %% right (asks the simulator)
def find_writer(element, grid, block):
    n = element + 1
    simulated = simulate(add, grid, block, n, torch.ones(n), torch.ones(n), torch.zeros(n))
    ((*writer, _),) = who_wrote(simulated, n)[element]
    return writer

# %% right (asks numpy)
def find_writer(element, grid, block):
    return np.unravel_index(element % (grid * block), (grid, block))
