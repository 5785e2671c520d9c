"""Numbers of 16 bits: how a format's bits are shared out, and where numbers lie that float16 is to hold."""

from ...plots.style import COLOURS, DASHES, HATCHES, STYLE, keys, new_figure, pale, show

_SIGN, _EXPONENT, _MANTISSA = range(3)  # places in the palette


def bit_layouts(formats, alt):
    """Draw {name: (bits of the exponent, bits of the mantissa, words)}, a row each, a box for each of up to 32 bits.

    Of a format between 17 and 31 bits the rest up to 32 is drawn dashed: it is stored and not read.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.8, 0.75 + 0.6 * len(formats)), layout="constrained")
        for y, (name, (exponent, mantissa, words)) in enumerate(formats.items()):
            parts = [_SIGN] + [_EXPONENT] * exponent + [_MANTISSA] * mantissa
            unread = 32 - len(parts) if 16 < len(parts) < 32 else 0
            for bit, part in enumerate(parts + [None] * unread):
                look = {"facecolor": "white", "edgecolor": "0.6", "linestyle": ":"}
                if part is not None:
                    look = {"facecolor": pale(COLOURS[part]), "hatch": HATCHES[part], "edgecolor": "white"}
                axes.add_patch(Rectangle((bit, y), 0.94, 0.5, linewidth=0.8, **look))
            for left, bits in ((1, exponent), (1 + exponent, mantissa)):
                axes.text(left + bits / 2, y + 0.25, str(bits), ha="center", va="center", fontsize=9, fontweight="bold")
            axes.text(-0.5, y + 0.25, name, ha="right", va="center", fontsize=9)
            axes.text(32.6, y + 0.25, words, ha="left", va="center", fontsize=7.5)
        handles = keys(["sign", "exponent: the range", "mantissa: the precision"], pale)
        handles.append(Patch(facecolor="white", edgecolor="0.6", linestyle=":", label="stored, not read"))
        figure.legend(handles=handles, loc="outside lower left", ncols=4)
        axes.set_xlim(-4.5, 44)
        axes.set_ylim(len(formats) - 0.3, -0.15)
        axes.axis("off")
        show(figure, alt)


def within_float16(curves, alt, title=""):
    """Draw {name: (powers of two, shares in %)} over the ranges in which float16 has digits, loses them, or has none.

    Below 2**-25 float16 rounds to zero, below 2**-14 its numbers are subnormal, from 2**16 on it has only infinity.
    """
    ranges = {"zero": (-60, -25), "fewer\ndigits": (-25, -14), "all digits": (-14, 16), "inf": (16, 24)}
    with new_figure("size of a gradient", "% of non-zero gradients", title, height=3.0) as (figure, axes):
        for i, (name, (low, high)) in enumerate(ranges.items()):
            axes.axvspan(
                low,
                high,
                facecolor=("0.82", "0.92", "white", "0.82")[i],
                hatch=HATCHES[(1, 0, 0, 1)[i]],
                edgecolor="white",
            )
            axes.text(
                (low + high) / 2, 0.97, name, ha="center", va="top", fontsize=8, transform=axes.get_xaxis_transform()
            )
        for i, (name, (powers, shares)) in enumerate(curves.items()):
            axes.plot(powers, shares, label=name, color=COLOURS[i], linestyle=DASHES[i], linewidth=1.8)
        axes.set_xlim(-48, 24)
        axes.set_ylim(0, 1.25 * max(max(shares) for _, shares in curves.values()))
        axes.set_xticks(range(-48, 25, 8), [f"$2^{{{power}}}$" for power in range(-48, 25, 8)])
        axes.grid(axis="x", visible=False)
        figure.legend(loc="outside upper right", ncols=2)
        show(figure, alt)
