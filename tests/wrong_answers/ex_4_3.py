"""Exercise 4.3: answers that its check must refuse, each with words from the reason that it must give."""

import os

import torch


class Right:
    def __init__(self, path, model, optimizer, scheduler):
        self.path, self.model, self.optimizer, self.scheduler = path, model, optimizer, scheduler

    def content(self, step):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random": torch.get_rng_state(),
            "step": step,
        }

    def save(self, step):
        part = os.path.join(os.path.dirname(self.path), "part")
        with open(part, "wb") as file:
            torch.save(self.content(step), file)
        os.rename(part, self.path)

    def load(self):
        return self.restore(torch.load(self.path))

    def restore(self, content):
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.scheduler.load_state_dict(content["scheduler"])
        torch.set_rng_state(content["random"])
        return content["step"]


class ForgetsRandomNumbers(Right):
    def restore(self, content):
        return super().restore({**content, "random": torch.get_rng_state()})


class SeedsInstead(Right):
    def content(self, step):
        torch.manual_seed(step)
        return super().content(step)


class ForgetsTheOptimizer(Right):
    def restore(self, content):
        return super().restore({**content, "optimizer": self.optimizer.state_dict()})


class KeepsOnlyTheRate(Right):
    def restore(self, content):
        own = self.optimizer.state_dict()
        return super().restore({**content, "optimizer": {**own, "param_groups": content["optimizer"]["param_groups"]}})


class ForgetsTheScheduler(Right):
    def restore(self, content):
        return super().restore({**content, "scheduler": self.scheduler.state_dict()})


class ForgetsTheModel(Right):
    def restore(self, content):
        return super().restore({**content, "model": self.model.state_dict()})


class KeepsParametersOnly(Right):
    def content(self, step):
        return {**super().content(step), "model": dict(self.model.named_parameters())}

    def restore(self, content):
        self.model.load_state_dict(content["model"], strict=False)
        return super().restore({**content, "model": self.model.state_dict()})


class ForgetsTheStep(Right):
    def restore(self, content):
        super().restore(content)


class CountsOneMore(Right):
    def restore(self, content):
        return super().restore(content) + 1


class OverwritesInPlace(Right):
    def save(self, step):
        torch.save(self.content(step), self.path)


class RemovesTheOldFirst(Right):
    def save(self, step):
        if os.path.exists(self.path):
            os.remove(self.path)
        super().save(step)


class SavesElsewhere(Right):
    def save(self, step):
        torch.save(self.content(step), self.path + f".{step}")


class SavesWholeObjects(Right):
    def content(self, step):
        return {"all": (self.model, self.optimizer, self.scheduler), **super().content(step)}


class DrawsAfterwards(Right):
    def restore(self, content):
        step = super().restore(content)
        torch.rand(1)
        return step


WRONG = [
    (ForgetsRandomNumbers, "the next random number is another"),
    (SeedsInstead, "saving drew random numbers"),
    (ForgetsTheOptimizer, "the optimizer's state (Adam's averages)"),
    (KeepsOnlyTheRate, "the optimizer's state (Adam's averages)"),
    (ForgetsTheScheduler, "does not know how many steps it has made"),
    (ForgetsTheModel, "the model's parameters are not those"),
    (KeepsParametersOnly, "the model's buffers"),
    (ForgetsTheStep, "load() returned None"),
    (CountsOneMore, "load() returned 6"),
    (OverwritesInPlace, "the file of the first was gone or damaged"),
    (RemovesTheOldFirst, "the file of the first was gone or damaged"),
    (SavesElsewhere, "save() left no file at self.path"),
    (SavesWholeObjects, "cannot be read with weights_only=True"),
    (DrawsAfterwards, "the next random number is another"),
]


class Flat(Right):
    """Everything in one list, and a name of its own for each save."""

    def save(self, step):
        torch.save([list(self.content(step).items())], f"{self.path}-{step}")
        os.replace(f"{self.path}-{step}", self.path)

    def load(self):
        ((*pairs,),) = torch.load(self.path, weights_only=True, map_location="cpu")
        return self.restore(dict(pairs))


RIGHT = [Right, Flat]
