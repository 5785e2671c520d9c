"""What a check says, in words for a student who did not see it run: without the marker's own paths and lines."""

import re

_ENDLESS = re.compile(r"your code failed in a worker:\nno end after (\S+) s, so all workers were stopped\s*")
# A frame of a check, with the lines of code that Python shows of it; and a traceback of which nothing is left.
_FRAME = r'^  File "[^"\n]*/course_utils/(?:checks|chapters)/[^"\n]*", line .*(?:\n    .*)*(?:\n|\Z)'
_OF_A_CHECK = re.compile(_FRAME, re.MULTILINE)
_NO_FRAMES = re.compile(r"^Traceback of rank \d+ \(most recent call last\):(?:\n(?!  File )|\Z)", re.MULTILINE)
# What Python, torch and C++ say where a limit of memory is reached.
_NO_MEMORY = re.compile(r"\bMemoryError\b|[Cc]an(?:'t|not) allocate memory|\bbad_alloc\b")
_FOLDER = re.compile(r"/(?:[^\s\"':]*/)?course-grade-\w+/(?:course/)?")  # of marking.fresh_course


def for_student(reason, memory_bytes=None):
    """Return a check's reason for somebody who reads it later and elsewhere, with the limit of memory if it was hit."""
    if match := _ENDLESS.match(reason):
        where = reason[match.end() :]
        reason = f"your code did not end within {match[1]} s" + (f":\n{where}" if where else "")
    reason = _NO_FRAMES.sub("", _OF_A_CHECK.sub("", reason))
    reason = _FOLDER.sub("", reason).strip()
    if memory_bytes is not None and _NO_MEMORY.search(reason):
        reason += f"\n(Each process of a submission gets {memory_bytes / 2**30:g} GiB of memory, and no more.)"
    return reason
