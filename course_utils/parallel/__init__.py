"""Parallel building blocks that several chapters share.

`device_group`: several devices in one process, with a count of all bytes sent between them.
`messages`: point-to-point messages for tensors on any device, with a count of all that a rank sends.
`ring`: ring all-reduce made of messages.
`tensor`: the autograd functions around a layer split over ranks, with the sequence split beside it or not.
`context`: ring attention over a sequence split over ranks; `ulysses`: the same by all-to-alls.
`experts`: a layer of experts that live on several ranks: router, dispatch, combine, averaged gradients.
`membership`: training that goes on when a replica dies: groups of those who are alive, votes on each step.
`pipeline`: stages, micro-batches, and the schedules that run them.
`parameter_server`: servers that hold the parameters, workers that push gradients, and rules for who waits.
"""
