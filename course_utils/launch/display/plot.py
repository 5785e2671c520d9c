"""The plot below a panel's table: what the ranks log, else how fast they go, and how much memory they hold."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING

import numpy as np

from .over_time import Curves

if TYPE_CHECKING:
    from .history import History

_SIZE_PX, _DPI = (544, 152), 80
_ROOM = 0.5  # beyond the end of the curves, as a share of their length, so that they rarely leave the frame


class Plot:
    """Two plots with a line for each rank.

    Drawing a figure takes 80 ms of a core that the workers need, nearly all of it for frame and text. So these are kept
    as pixels until a curve has left the frame; the curves alone take 5 ms.
    """

    def __init__(self, world_size):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=[pixels / _DPI for pixels in _SIZE_PX], dpi=_DPI, layout="constrained")
        self._canvas = FigureCanvasAgg(figure)
        self._curves = Curves(figure, world_size, animated=True)
        self._frame, self._look = None, None

    def draw(self, history: History) -> str:
        """Draw a History as it is now, and return it as an <img>; "" if nothing of it can be drawn."""
        curves = self._curves
        curves.put(history, of_logged=True)
        look = [(axes.get_title(loc="left"), axes.get_visible()) for axes in curves.axes]
        if not any(is_visible for _, is_visible in look):
            return ""
        limits = [_limits(axes, lines) for axes, lines in zip(curves.axes, curves.lines, strict=True)]
        if look != self._look or not all(_holds(axes, *reach) for axes, reach in zip(curves.axes, limits, strict=True)):
            for axes, reach in zip(curves.axes, limits, strict=True):
                _widen(axes, *reach)
            self._canvas.draw()
            self._frame, self._look = self._canvas.copy_from_bbox(self._canvas.figure.bbox), look
        else:
            self._canvas.restore_region(self._frame)
        for axes, lines in zip(curves.axes, curves.lines, strict=True):
            for line in lines if axes.get_visible() else ():
                axes.draw_artist(line)
        return self._as_element(look[0][0] if look[0][1] else "", has_memory=look[1][1])

    def _as_element(self, left, has_memory):
        from PIL import Image

        png = io.BytesIO()
        Image.fromarray(np.asarray(self._canvas.buffer_rgba())).save(png, "png", compress_level=1)
        shown = f"{left} of each rank{', and how much memory it holds' * has_memory}"
        shown = shown if left else "How much memory each rank holds"
        alt = html.escape(f"{shown}, over time; the table above has the latest numbers.")
        source = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
        # With its size, so that nothing below moves while the browser reads the next image.
        return f'<img alt="{alt}" width="{_SIZE_PX[0]}" height="{_SIZE_PX[1]}" src="{source}">'


def _limits(axes, lines):
    """Return the time of the last point, and the least and the greatest value."""
    seconds = max((line.get_xdata()[-1] for line in lines if len(line.get_xdata())), default=0.0)
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in lines])
    values = values[np.isfinite(values)]
    return seconds, *((values.min(), values.max()) if len(values) else (0.0, 0.0))


def _holds(axes, seconds, low, high):
    bottom, top = axes.get_ylim()
    return seconds <= axes.get_xlim()[1] and bottom <= low and high <= top


def _widen(axes, seconds, low, high):
    room = _ROOM * (high - low) or abs(high) or 1.0
    # From 0, unless values are negative, or far from 0 and close to one another.
    bottom = 0.0 if 0 <= low <= 4 * room else low - room
    axes.set_xlim(0, max(5.0, (1 + _ROOM) * seconds))
    axes.set_ylim(bottom, high + room)
