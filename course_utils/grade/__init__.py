"""Marks the exercises of submitted notebooks with the course's own checks: python -m course_utils.grade.

    inbox          finds the notebooks in the submitted folders, and reports other files
    marking        marks a submission in a process of its own, on a fresh copy of the course
    process          starts that process, receives its messages and ends it
    judging          runs in it: reads the notebook, then runs the student's cells and the check of each exercise
    submissions        reads the notebook, finds its chapter and the cell of each answer
    needs              finds the other statements that an answer needs
    isolation          separates its code from the machine
      wording            says it without the marker's own paths
    report         a table, CSV, JSON
    feedback       a text for each student, and everybody's totals
    written        the files that are made, and what is printed at the end
    collected      the same of what containers have marked

A student's code runs as the lecturer's user, and in one process with the check that judges it. It cannot change a
verdict by accident or by the usual attempts: defining its own `check`, patching modules in a cell or in the answer,
printing "passed", ending the process, searching for solutions or the marker's objects nearby. Where Linux allows it,
the code has no network, sees neither solutions nor what others have handed in, and can write nothing that stays; else
that takes a container. A student who has studied this code can change a verdict all the same: code can reach all memory
of its process, so nothing protects the check from the answer. For that, read what the student wrote.
"""

from ..extras import require

require("marks", "IPython", "nbformat")
