"""The course's text, for networks that predict the next character."""

from dataclasses import dataclass

import torch

from .files import DATA

_NAME = "romeo_and_juliet.txt"


@dataclass
class Text:
    """A text as numbers: `codes` is int64 of shape (N,), each the index of a character in `symbols`."""

    codes: torch.Tensor
    symbols: str

    def __len__(self) -> int:
        return len(self.codes)

    def decode(self, codes: torch.Tensor) -> str:
        """Return the characters of `codes`, of shape (n,)."""
        return "".join(self.symbols[code] for code in codes.tolist())

    def windows(self, num_windows: int, length: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `num_windows` random pieces (x, y), each (num_windows, length), where y is one character ahead of x.

        They are the same for the same `seed`. Raises ValueError if the text is not longer than `length`.
        """
        if not 0 < length < len(self):
            raise ValueError(f"length is {length!r}; it must be from 1 to {len(self) - 1}, as the text is that long")
        first = torch.randint(len(self) - length, (num_windows, 1), generator=torch.Generator().manual_seed(seed))
        places = first + torch.arange(length)  # (num_windows, length)
        return self.codes[places], self.codes[places + 1]


def load_text(train: bool = True) -> Text:
    """Load Shakespeare's "Romeo and Juliet": the first nine tenths, or the last tenth to test with.

    Both have the same symbols. Raises RuntimeError, naming the file, if it is missing or damaged.
    """
    path = DATA / _NAME
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeError(f"{path} is missing or damaged ({error}); run `git checkout -- data/{_NAME}`") from error
    symbols = "".join(sorted(set(text)))
    if len(text) != 133_465 or len(symbols) != 61:
        raise RuntimeError(
            f"{path} is damaged: it has {len(text):,} characters instead of 133,465; run `git checkout -- data/{_NAME}`"
        )
    half = len(text) * 9 // 10
    place = {symbol: code for code, symbol in enumerate(symbols)}
    codes = torch.tensor([place[symbol] for symbol in (text[:half] if train else text[half:])])
    return Text(codes, symbols)
