"""What a check sees while an answer runs: the functions that it calls,
where its tensors are, what it keeps and sends.
"""
