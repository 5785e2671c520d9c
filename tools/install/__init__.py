"""What `make` installs, using the standard library alone, since nothing else is installed yet.

find_python.sh   the Python to install with
bootstrap        python -m tools.install.bootstrap: .venv
driver           what NVIDIA's driver reports, to choose torch's build
elsewhere        python -m tools.install.elsewhere: build/elsewhere, chapter 15's other frameworks
"""
