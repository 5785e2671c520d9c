"""Checks that need a machine with a GPU.

__main__      python -m tools.gpu: all of them in 25 minutes
experiments   python -m tools.gpu.experiments NAME: one question each
ranks         those of them that start ranks
"""

from course_utils import hardware


def on_a_gpu(experiment):
    """Wrap an experiment to report that it was not tried if there is no GPU."""

    def run():
        if hardware.devices(1)[0].type != "cuda":
            return {"not tried": "there is no GPU here"}
        return experiment()

    run.__name__, run.__doc__ = experiment.__name__, experiment.__doc__
    return run
