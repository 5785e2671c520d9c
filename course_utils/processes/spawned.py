"""What a process that a worker starts by spawn or forkserver finds in its `__main__`: what the worker has in its own.

multiprocessing has such a process run the file of `__main__` first. A worker's has none, so it runs this one, which
loads the worker's names.
"""

import os
import sys
import tempfile

_FILE = "COURSE_MAIN"  # the environment variable that says where they are


def give_names(folder):
    """Have every process that this worker starts get its names, through files in `folder`, which somebody removes."""
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
    """Write what can travel of the names of `__main__` to a file, and return its path."""
    from . import payload

    fd, path = tempfile.mkstemp(prefix="main-", dir=folder)
    os.close(fd)
    names = {name: value for name, value in vars(sys.modules["__main__"]).items() if not name.startswith("__")}
    try:
        payload.write(names, path)
    except Exception:  # some of them cannot travel, such as an open file
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
