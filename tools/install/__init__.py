"""What `make` installs, with the standard library alone: nothing else is there when this package is imported.

find_python.sh   the Python to install with
bootstrap        python -m tools.install.bootstrap: .venv
driver           what NVIDIA's driver says, for the choice of torch's build
elsewhere        python -m tools.install.elsewhere: build/elsewhere, chapter 15's other frameworks
"""
