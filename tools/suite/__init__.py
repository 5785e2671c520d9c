"""Run everything that CI runs, in steps, with progress and a summary: `make test`.

`events` is a pytest plugin that reports each test; `followed` runs pytest with it; `bar` shows progress; `summary`
reports the results; `__main__` orders the steps.
"""
