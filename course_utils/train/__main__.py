"""python -m course_utils.train: the program, from a shell."""

from .program import program

program()
