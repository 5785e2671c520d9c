"""Everything that CI runs, in steps, with what is left to do and what came of it: `make test`.

`events` is loaded into pytest and tells what it does; `followed` runs pytest with it; `bar` shows how far it is;
`summary` says what came of it. `__main__` puts the steps in order.
"""
