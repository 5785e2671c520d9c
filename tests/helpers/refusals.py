"""The sentences with which the training program refuses arguments."""

from course_utils import train
from course_utils.train.places import Refused


def refusals(*cases):
    """In workers: the sentence with which each list of arguments is refused."""
    found = []
    for case in cases:
        try:
            found.append(f"it was taken: {train.main(case)}")
        except Refused as refusal:
            found.append(str(refusal))
    return found
