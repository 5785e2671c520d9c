"""What a check says, in words for a student who did not see it run: without the marker's own paths and lines."""

import re

_ENDLESS = re.compile(
    r"your code failed in (?:a worker|the simulator):\nno end after (\S+) s(?:, not counting [^\n]*)?"
    r", so (?:all workers were stopped\s*|(?=the kernel was stopped in ))"
)
# What is said of a rank, or of a kernel's thread, that was in the student's code or had come to its end.
_IN_THE_ANSWER = re.compile(
    r"\bat .+, line \d|had reached the end of your function|a thread is still running|the kernel was stopped in "
)
# A frame of a check, with the lines of code that Python shows of it; and a traceback of which nothing is left.
_FRAME = r'^  File "[^"\n]*/course_utils/(?:checks|chapters)/[^"\n]*", line .*(?:\n    .*)*(?:\n|\Z)'
_OF_A_CHECK = re.compile(_FRAME, re.MULTILINE)
_NO_FRAMES = re.compile(r"^Traceback of rank \d+ \(most recent call last\):(?:\n(?!  File )|\Z)", re.MULTILINE)
# What Python, torch and C++ say where a limit of memory is reached.
_NO_MEMORY = re.compile(r"\bMemoryError\b|[Cc]an(?:'t|not) allocate memory|\bbad_alloc\b")
_FOLDER = re.compile(r"/(?:[^\s\"':]*/)?course-grade-\w+/(?:course/)?")  # of marking.fresh_course


def of_a_limit(reason):
    """Return the state of an answer whose check says that its time was up, None for other reasons.

    It is "endless" if a rank was in the student's code, or had come to its end; else "fault", since nothing is known
    of the answer: the machine may have paused while a worker was starting.
    """
    match = _ENDLESS.match(reason)
    return match and ("endless" if _IN_THE_ANSWER.search(reason, match.end()) else "fault")


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
