"""Simulated neighbours of a pipeline stage: they send as early as their own tasks allow, and never block."""

import weakref

import torch

from ...checks.expect import expect, expect_tensor, explain, not_a
from ...parallel.pipeline.schedules import Task, needs


class Neighbours:
    """`receive` and `send` for one stage of a schedule; `carried` is {task: the tensor that it sends}."""

    def __init__(self, schedule, stage, num_stages, carried):
        self._schedule, self._stage, self._num_stages, self._carried = schedule, stage, num_stages, carried
        self._sent, self._received = {}, []  # {task: (gradient, copy)}, [(task, weak ref to storage)]

    def receive(self, phase):
        source = self._neighbour(f'receive("{phase}")', phase, {"forward": -1, "backward": 1})
        coming = [task for task in self._schedule if task.stage == source and task.phase == phase]
        number = sum(task.phase == phase for task, _ in self._received)
        is_there = number < len(coming) and coming[number] in self._possible()
        expect(
            is_there,
            f'receive("{phase}") would wait for ever here: has it come before, or does the neighbour wait itself for '
            "what was not sent yet?",
        )
        tensor = self._carried[coming[number]].clone()
        self._received.append((coming[number], weakref.ref(tensor.untyped_storage())))
        return coming[number].micro_batch, tensor

    def send(self, phase, m, tensor):
        call = f'send("{phase}", {m}, …)'
        self._neighbour(call, phase, {"forward": 1, "backward": -1})
        task = Task(self._stage, int(m), phase)
        expect(task in self._carried, f"{call} was called, and there is no micro-batch {m}")
        expect(task not in self._sent, f"{call} was called twice")
        expect(isinstance(tensor, torch.Tensor), f"{call} was given {not_a(tensor, 'a tensor')}")
        truth = self._carried[task]
        what = {"forward": "the stage's output", "backward": "the gradient of the stage's input"}[phase]
        others = {
            f"it is that of micro-batch {other.micro_batch}": sent
            for other, sent in self._carried.items()
            if other[::2] == task[::2] and other != task
        }
        explain(
            expect_tensor(tensor, truth, f"what {call} was given"),
            truth,
            others,
            said=f"what {call} was given is not right",
            otherwise=f"is it {what}, for that micro-batch?",
        )
        self._sent[task] = (tensor, tensor.clone()) if phase == "backward" else ()  # keeps no output alive

    def _neighbour(self, call, phase, steps):
        expect(phase in steps, f'{call}: the phase of a message is "forward" or "backward"')
        neighbour = self._stage + steps[phase]
        expect(neighbour in range(self._num_stages), f"{call} was called, and there is no neighbour on that side")
        return neighbour

    def _possible(self):
        """Return all tasks that the other stages can complete, given what this stage has sent."""
        done, before = {None, *self._sent}, None
        while before != len(done):
            before = len(done)
            for stage in set(range(self._num_stages)) - {self._stage}:
                for task in (task for task in self._schedule if task.stage == stage):
                    if needs(task, self._num_stages) not in done:
                        break
                    done.add(task)
        return done

    def num_kept(self, micro_batches):
        """Return how many received tensors of these micro-batches are still in memory."""
        return sum(task.micro_batch in micro_batches and memory() is not None for task, memory in self._received)

    def expect_all_sent(self, tasks):
        """Raise Wrong if a result of `tasks` was not sent, or if a gradient changed after it was sent."""
        for task in tasks:
            expect(
                task in self._sent or task not in self._carried,
                f"the {task.phase} of micro-batch {task.micro_batch} was not sent on",
            )
        for task, tensors in self._sent.items():
            expect(
                not tensors or torch.equal(*tensors),
                f"the gradient of micro-batch {task.micro_batch} was overwritten after it was "
                "sent: send returns at once",
            )
