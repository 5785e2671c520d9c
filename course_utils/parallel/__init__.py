"""What the chapters on many devices share, an idea in each module.

`device_group`: several devices in one process, and every byte that goes from one to another.
`messages`: tensors from rank to rank, on any device, and a count of all that a rank sends.
`ring`: all-reduce round a ring, made of messages.
`tensor`: split layers, which stand between two autograd functions.
`pipeline`: stages, micro-batches, and the schedules that run them.
`parameter_server`: servers that hold the parameters, workers that push gradients, and rules for who waits.
"""
