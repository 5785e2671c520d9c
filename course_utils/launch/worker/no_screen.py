"""matplotlib's backend in the workers of a notebook: they have no screen, and `plt.show()` says so."""

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

__all__ = ["FigureCanvas", "show"]


def show(*args: Any, **kwargs: Any) -> None:
    """pyplot's `show`: say where a worker's figures can be seen."""
    print("plt.show() shows nothing in a worker: return the figure, or save it with plt.savefig(…)")
