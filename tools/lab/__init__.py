"""JupyterLab for students: on this machine, as a Slurm job, and as a kernel for an existing Jupyter.

__main__          python -m tools.lab: `make lab`
start             its command, its variables, and the copy that it opens
working_copy      a student's own copy of the notebooks
on_slurm          the same as a job on a node of a cluster
register_kernel   python -m tools.lab.register_kernel: `make kernel`
server            a JupyterLab for tests in a browser
"""
