"""Parallel building blocks that several chapters share.

`device_group`: several devices in one process, with a count of all bytes sent between them.
`messages`: point-to-point messages for tensors on any device, with a count of all that a rank sends.
`ring`: ring all-reduce made of messages.
`tensor`: the two autograd functions around a layer split over ranks.
`experts`: a layer of experts that live on several ranks: router, dispatch, combine, averaged gradients.
`pipeline`: stages, micro-batches, and the schedules that run them.
`parameter_server`: servers that hold the parameters, workers that push gradients, and rules for who waits.
"""
