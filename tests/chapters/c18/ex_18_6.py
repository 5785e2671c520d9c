# %%
import io
import shutil


class Right:
    def __init__(self, path, model, optimizer, scheduler):
        self.path, self.model, self.optimizer, self.scheduler = path, model, optimizer, scheduler

    def content(self, step):
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler")}
        return {**parts, "random": torch.get_rng_state(), "step": step}

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

# %% right (flushed, from a buffer, removed if it fails)
class Checkpoint(Right):
    def save(self, step):
        buffer = io.BytesIO()
        torch.save(self.content(step), buffer)
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(self.path), delete=False) as part:
            try:
                part.write(buffer.getvalue())
                part.flush()
                os.fsync(part.fileno())
                os.replace(part.name, self.path)
            except BaseException:
                os.unlink(part.name)
                raise

# %% wrong (renames whatever was written): when the disk was full, `os.replace(part.name, self.path)` left
# -                 os.replace(part.name, self.path)
# -             except BaseException:
# -                 os.unlink(part.name)
# -                 raise
# +             finally:
# +                 os.replace(part.name, self.path)

# %% wrong (overwrites in place): a kill at `torch.save(self.content(step), self.path)` would leave an empty file
class Checkpoint(Right):
    def save(self, step):
        torch.save(self.content(step), self.path)

# %% wrong (saves elsewhere): save() left no file at self.path
# self.content(step), self.path → self.content(step), self.path + ".pt"
# %% wrong (uses the course's own): course_utils.checkpoint's save was called
# -         torch.save(self.content(step), self.path)
# +         checkpoint.save(self.path, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, step=step)
# + 
# +     def load(self):
# +         return checkpoint.load(self.path, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)["step"]
# %% wrong (saves whole objects): it holds a
class Checkpoint(Right):
    def content(self, step):
        return {"all": (self.model, self.optimizer, self.scheduler), **super().content(step)}

# %% wrong (seeds instead): save() drew random numbers, or changed the run
# -         return {"all": (self.model, self.optimizer, self.scheduler), **super().content(step)}
# +         torch.manual_seed(step)
# +         return super().content(step)
# %% wrong (keeps parameters only): the model's buffers
# -         return {"all": (self.model, self.optimizer, self.scheduler), **super().content(step)}
# +         return {**super().content(step), "model": dict(self.model.named_parameters())}
# + 
# +     def restore(self, content):
# +         self.model.load_state_dict(content["model"], strict=False)
# +         return super().restore({**content, "model": self.model.state_dict()})

# %% wrong (forgets random numbers): torch's random state is another
class Checkpoint(Right):
    def restore(self, content):
        return super().restore({**content, "random": torch.get_rng_state()})

# %% wrong (forgets the optimizer): the optimizer's averages
# "random": torch.get_rng_state() → "optimizer": self.optimizer.state_dict()
# %% wrong (keeps averages only): the optimizer's rates
# "random": torch.get_rng_state() → "optimizer": {**content["optimizer"], "param_groups": self.optimizer.state_dict()["param_groups"]}
# %% wrong (forgets the scheduler): the rates of the next steps are others
# "random": torch.get_rng_state() → "scheduler": self.scheduler.state_dict()
# %% wrong (forgets the model): the model's parameters are not those
# "random": torch.get_rng_state() → "model": self.model.state_dict()
# %% wrong (forgets the momentum): the losses of the next steps are others
# "random": torch.get_rng_state() → "options": [g.update(betas=(0.1, 0.1), momentum=0.1) for g in content["optimizer"]["param_groups"]]
# %% wrong (walks the scheduler there): the rates of the next steps are others
# "random": torch.get_rng_state() → "scheduler": [self.scheduler.step() for _ in range(10)] and self.scheduler.state_dict()
# %% wrong (counts one more): load() returned 11
# {**content, "random": torch.get_rng_state()}) → content) + 1

# %% right (a list of states, moved by shutil)
class Checkpoint(Right):
    def save(self, step):
        states = [each.state_dict() for each in (self.model, self.optimizer, self.scheduler)]
        torch.save([step, torch.get_rng_state(), *states], self.path + ".new")
        shutil.move(self.path + ".new", self.path)

    def load(self):
        step, random_state, *states = torch.load(self.path, weights_only=True)
        for each, state in zip((self.model, self.optimizer, self.scheduler), states):
            each.load_state_dict(state)
        torch.set_rng_state(random_state)
        return step

# %% right (through a buffer, the random state as numbers)
class Checkpoint(Right):
    def save(self, step):
        content = {**self.content(step), "random": torch.get_rng_state().tolist()}
        buffer = io.BytesIO()
        torch.save(content, buffer)
        with open(self.path + "~", "wb") as file:
            file.write(buffer.getbuffer())
        os.rename(self.path + "~", self.path)

    def restore(self, content):
        return super().restore({**content, "random": torch.tensor(content["random"], dtype=torch.uint8)})
