"""Tools for processes that the launcher builds on; they know nothing of ranks.

`linux`: ending with the parent, process groups, huge pages. `payload`: sending objects to another process (`carry`,
`bound` and `shared` are its special cases, `spawned` is for processes that a worker spawns). `interrupts`: delaying
Ctrl-C. `network`: loopback and host names. `log`: output in bounded memory. `core_time`: time spent waiting for cores.
`starter`: a program as several processes. `ending`: how a process ends. `terminal`: output without UTF-8.
"""
