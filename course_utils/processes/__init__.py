"""What the launcher needs of the system, and what knows nothing of ranks.

`linux`: who ends with whom, groups of processes, huge pages. `payload`: objects on their way from one process to
another.
`interrupts`: when Ctrl-C may strike. `network`: inside one machine. `log`: what is printed, in bounded memory.
`ending`: the end.
"""
