"""The matplotlib backend of workers, which have no screen: `plt.show()` says so."""

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

__all__ = ["FigureCanvas", "show"]


def show(*args: Any, **kwargs: Any) -> None:
    """Print how to see a worker's figures; called by `plt.show()`."""
    print("plt.show() shows nothing in a worker: return the figure, or save it with plt.savefig(…)")
