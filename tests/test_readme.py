"""What README says of the course can be counted."""

import re
from pathlib import Path

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
MINUTES = {int(n): (int(a), int(b)) for n, a, b in re.findall(r"^\| (\d\d) [^|]*\| (\d+) \| (\d+) \|", README, re.M)}


def test_routes_take_the_minutes_of_their_chapters():
    assert sorted(MINUTES) == list(range(17))
    assert sum(MINUTES[0]) + MINUTES[9][0] == 90 and "**90 minutes**: 00 with its lab, then 09 presented." in README
    two_days = sum(sum(MINUTES[n]) for n in (0, 1, 2, 3, 5, 8, 9, 10))
    assert f"00–03, 05 and 08–10\nwith their labs, {two_days} minutes" in README and two_days < 2 * 6 * 60
    everything = sum(map(sum, MINUTES.values()))
    assert f"all, {everything:,} minutes" in README and abs(everything / 60 / 12 - 2) < 0.05
