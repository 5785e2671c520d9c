"""What a check says, in words for a student who did not see it run: without the marker's own paths and lines."""

import re

_ENDLESS = re.compile(r"your code failed in a worker:\nno end after (\S+) s, so all workers were stopped\s*")
# A frame of a check, with the lines of code that Python shows of it; and a traceback of which nothing is left.
_FRAME = r'^  File "[^"\n]*/course_utils/(?:checks|chapters)/[^"\n]*", line .*(?:\n    .*)*(?:\n|\Z)'
_OF_A_CHECK = re.compile(_FRAME, re.MULTILINE)
_NO_FRAMES = re.compile(r"^Traceback of rank \d+ \(most recent call last\):(?:\n(?!  File )|\Z)", re.MULTILINE)
_FOLDER = re.compile(r"/(?:[^\s\"':]*/)?course-grade-\w+/(?:course/)?")  # of marking.fresh_course


def for_student(reason):
    """Return a check's reason for somebody who reads it later and elsewhere."""
    if match := _ENDLESS.match(reason):
        where = reason[match.end() :]
        reason = f"your code did not end within {match[1]} s" + (f":\n{where}" if where else "")
    reason = _NO_FRAMES.sub("", _OF_A_CHECK.sub("", reason))
    return _FOLDER.sub("", reason).strip()
