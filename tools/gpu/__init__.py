"""What only a machine with a GPU can show.

__main__      python -m tools.gpu: a pass over all of it in 25 minutes
experiments   python -m tools.gpu.experiments NAME: a question to the GPU each
"""
