"""Recorded measurements: what `make record` stores on this machine, and what was recorded on others.

A record is data/recorded/<machine>/<chapter>_<name>.json: the values, and their provenance (machine, versions, date,
commit and command), which is needed to judge them.
"""

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from . import hardware

# A package installed without its repository has no such folder, and no records. Tests set COURSE_RECORDS to use others.
FOLDER = Path(os.environ.get("COURSE_RECORDS") or Path(__file__).resolve().parents[1] / "data" / "recorded")


@dataclass(frozen=True)
class Record:
    """What one notebook measured on one machine; `values` is what it passed to `keep`."""

    machine: str
    values: dict
    provenance: dict


def keep(name, values):
    """Store `values` as this machine's record `name` while `make record` runs the notebook; otherwise only check them.

    `values` is a dict of numbers, text, True, False, None, and lists and dicts of these; tuples are read back as lists.
    A notebook that keeps to the CPU of a machine with GPUs stores nothing, since its values would be read as a GPU's.

    Raises ValueError for a name that is not a lower-case word, for a name already used in the same recording, and for
    nan or inf; TypeError for other values, which JSON cannot represent.
    """
    _require_word(name)
    if not isinstance(values, dict):
        raise TypeError(f"the values of {name!r} are a {type(values).__name__}: give a dict, so that each has a name")
    _require_json(values, name)
    folder = os.environ.get("COURSE_RECORD")
    if not folder:
        return
    here = hardware.machine()
    if os.environ.get("COURSE_RECORD_OF", here) != here:
        print(f"not recorded: {name!r} was measured on {here}")
        return
    path = Path(folder) / f"{name}.json"
    if path.exists():
        raise ValueError(f"this notebook has kept {name!r} already: keep all of it at once, or choose another name")
    path.write_text(json.dumps(values), encoding="utf-8")  # if this fails, the notebook fails, and it is not read


def elsewhere(name, folder=FOLDER, with_cpus=False):
    """Return the records of `name` from other machines with a GPU, sorted by machine; [] if there are none.

    With `with_cpus`, records of machines without a GPU are included.

    Raises ValueError, naming the file, if a record is damaged.
    """
    records = _of_name(name, folder)
    here = hardware.machine()
    others = [record for record in records if (with_cpus or record.provenance.get("gpus")) and record.machine != here]
    return sorted(others, key=lambda record: record.machine)


def latest(name, folder=FOLDER):
    """Return the record of `name` with the newest date, of all machines including this one.

    Raises LookupError if there is none, and ValueError, naming the file, if one is damaged.
    """
    records = _of_name(name, folder)
    if not records:
        raise LookupError(f"{name!r} was never recorded")
    return max(records, key=lambda record: record.provenance.get("date", ""))


def _of_name(name, folder):
    _require_word(name)
    of_name = re.compile(rf"(\d\d_)?{name}\.json")
    return [read(path) for path in sorted(Path(folder).glob("*/*.json")) if of_name.fullmatch(path.name)]


def read(path):
    """Return the record in the file at `path`. Raises ValueError, naming the file, if it is damaged."""
    # The last two parts only: the whole path would show this machine's folders in a notebook that others read.
    short = "/".join(Path(path).parts[-2:])
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        values, provenance = content["values"], content["provenance"]
        if not (isinstance(values, dict) and isinstance(provenance["machine"], str)):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        why = f"it is no JSON: {error}" if isinstance(error, ValueError) else "it lacks its values or its machine"
        raise ValueError(
            f"the record {short} is damaged ({why}): restore it with git, or delete it and record it again"
        ) from error
    return Record(provenance["machine"], values, provenance)


def _require_word(name):
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"name is {name!r}: a record's name is one word of a-z, 0-9 and _, such as 'copy_bandwidth'")


def _require_json(value, where):
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}, and JSON's keys are text: write {str(key)!r}")
            _require_json(inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            _require_json(inner, f"{where}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON does not hold: leave it out, or keep None and say why")
    elif not (value is None or isinstance(value, (bool, int, float, str))):
        kind = type(value)
        raise TypeError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which JSON does not hold: "
            "give a number, text, or a list of them (.item() and .tolist() make them)"
        )
