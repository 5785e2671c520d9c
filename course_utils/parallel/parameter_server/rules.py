"""Rules: when a worker may begin a step, and whether a step's gradients become one update."""


class Asynchronous:
    """No worker waits: each gradient becomes an update as it arrives."""

    adds_up = False  # add up all workers' gradients of a step into one update

    def may_begin(self, step, clocks):
        """Whether a worker that has made `step` steps may begin the next; `clocks` is {worker: steps made}."""
        return True

    def weight(self, staleness):
        """The factor of a gradient that has missed `staleness` updates."""
        return 1.0

    def __repr__(self):
        return "asynchronous"


class Scaled(Asynchronous):
    """As asynchronous, but a gradient that has missed s updates counts 1/(1 + s)."""

    def weight(self, staleness):
        return 1 / (1 + staleness)

    def __repr__(self):
        return "asynchronous, scaled"


class BoundedDelay(Asynchronous):
    """A worker may be at most `tau` steps ahead of the slowest one: τ of Li et al. 2014."""

    def __init__(self, tau):
        if isinstance(tau, bool) or not isinstance(tau, int) or tau < 0:
            raise ValueError(f"tau is a number of steps, a whole number from 0 up, not {tau!r}")
        self.tau = tau

    def may_begin(self, step, clocks):
        return step - min(clocks.values()) <= self.tau

    def __repr__(self):
        return f"bounded delay {self.tau}"


class Synchronous(BoundedDelay):
    """All workers are at the same step, and its gradients are summed into one update, as in one process."""

    adds_up = True

    def __init__(self):
        super().__init__(tau=0)

    def __repr__(self):
        return "synchronous"
