"""Recorded results: the notebooks' outputs, and measurements with their provenance.

__main__        python -m tools.record: `make record`
asynchrony      python -m tools.record.asynchrony: what chapter 14 reads
keeping         the files in data/recorded, and what changed in them
large_batches   python -m tools.record.large_batches: what chapter 11 reads
made_up         records of a machine that does not exist, for tests
"""
