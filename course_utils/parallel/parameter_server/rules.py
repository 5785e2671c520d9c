"""Who waits for whom: when a worker may begin a step, and whether the gradients of a step become one update."""


class Asynchronous:
    """Nobody waits: each gradient becomes an update as it arrives."""

    adds_up = False  # the gradients that all workers have for a step, before the optimizer sees them

    def may_begin(self, step, clocks):
        """Whether a worker that has made `step` steps may begin the next;
        `clocks` is {worker: steps that it has made}.
        """
        return True

    def __repr__(self):
        return "asynchronous"


class BoundedDelay(Asynchronous):
    """A worker may be `tau` steps ahead of the slowest one, at most: τ of Li et al. 2014."""

    def __init__(self, tau):
        if isinstance(tau, bool) or not isinstance(tau, int) or tau < 0:
            raise ValueError(f"tau is a number of steps, a whole number from 0 up, not {tau!r}")
        self.tau = tau

    def may_begin(self, step, clocks):
        return step - min(clocks.values()) <= self.tau

    def __repr__(self):
        return f"bounded delay {self.tau}"


class Synchronous(BoundedDelay):
    """Nobody is ahead, and the gradients of a step are added up into one update: what one process would compute."""

    adds_up = True

    def __init__(self):
        super().__init__(tau=0)

    def __repr__(self):
        return "synchronous"
