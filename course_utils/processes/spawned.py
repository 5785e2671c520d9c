"""Gives processes that a worker starts by spawn or forkserver the names in the worker's `__main__`.

multiprocessing has such a process first run the file of `__main__`. A worker's `__main__` has no file, so the process
runs this one, which loads the worker's names.
"""

import os
import sys
import tempfile

_FILE = "COURSE_MAIN"  # environment variable with the path of the file with the names


def give_names(folder):
    """Give every process that this worker starts its names, through files in `folder`, which the caller removes."""
    import multiprocessing.spawn

    usual = multiprocessing.spawn.get_preparation_data

    def get_preparation_data(name):
        data = usual(name)
        data.pop("init_main_from_name", None)
        data["init_main_from_path"] = __file__
        os.environ[_FILE] = _write(folder)
        return data

    multiprocessing.spawn.get_preparation_data = get_preparation_data


def _write(folder):
    """Write the names of `__main__` whose values can be sent to a file, and return its path."""
    from . import payload

    fd, path = tempfile.mkstemp(prefix="main-", dir=folder)
    os.close(fd)
    names = {name: value for name, value in vars(sys.modules["__main__"]).items() if not name.startswith("__")}
    try:
        payload.write(names, path)
    except Exception:  # some values cannot be sent, such as an open file
        payload.write({name: value for name, value in names.items() if _can_travel(value)}, path)
    return path


def _can_travel(value):
    from . import payload

    try:
        os.close(payload.dump(value))
    except Exception:
        return False
    return True


if __name__ == "__mp_main__":
    from course_utils.processes import payload

    with open(os.environ[_FILE], "rb") as written:
        globals().update(payload.load(written.fileno(), globals()))
