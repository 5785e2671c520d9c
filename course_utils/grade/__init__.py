"""Marking: the exercises of notebooks that were handed in, judged by the course's own checks: python -m
course_utils.grade

    submissions    what was handed in: a notebook, the chapter it belongs to, the cell of each answer
    marking        a submission in a process of its own, on a fresh copy of the course: verdicts, whatever becomes of it
    judging          in that process: the student's cells, then the check
    report         a table, CSV, JSON

A student's code runs as the lecturer's user. It cannot change a verdict by accident or by what is usually tried (a
`check` of one's own, other modules patched, printing "passed", ending the process); against one who studies this code,
mark in a container.
"""
