"""Checks that need a machine with a GPU.

__main__      python -m tools.gpu: all of them in 25 minutes
experiments   python -m tools.gpu.experiments NAME: one question each
"""
