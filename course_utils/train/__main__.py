"""The training program, from a shell: python -m course_utils.train."""

from .program import program

program()
