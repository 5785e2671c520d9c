"""Marking: the exercises of notebooks that were handed in, judged by the course's own checks: python -m
course_utils.grade

    inbox          what lies in the folders that were handed in, and what of it is no notebook
    marking        a submission in a process of its own, on a fresh copy of the course: verdicts, whatever becomes of it
    process          that process, as the marker sees it
    judging          what runs in it: read the notebook, then exercise by exercise the student's cells and the check
    submissions        the notebook, the chapter it belongs to, the cell of each answer
    needs              what else of the notebook an answer needs
    isolation          what stands between its code and the machine
    report         a table, CSV, JSON

A student's code runs as the lecturer's user, and in one process with the check that judges it. It cannot change a
verdict by accident or by what is usually tried (a `check` of one's own, modules patched, in a cell or in the answer,
printing "passed", ending the process, looking for solutions or the marker's objects near by). Whoever studies this code
can: all memory of a process is open to what runs in it, as is all that the lecturer may read, this checkout and its
solutions included. A container hides the files, if the solutions are not in it; nothing hides the check from the answer
but reading what a student wrote.
"""
