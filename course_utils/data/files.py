"""Find the files of MNIST, Fashion-MNIST and CIFAR-10; torchvision reads and downloads them.

A damaged file raises an error that names it. A missing one is downloaded; if that fails, one line says so.
"""

import contextlib
import fcntl
import gzip
import http.client
import os
import queue
import shutil
import tarfile
import tempfile
import threading
import urllib.request
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from ..extras import require

DATA_SETS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": "CIFAR10"}
_INSTALLED = Path(__file__).resolve().parents[1] / "bundled"  # in a wheel: setup.py puts it there
DATA = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2] / "data"
_DOWNLOADS, _SAID = DATA / "downloads", "data/downloads"
_LECTURERS = []
if DATA == _INSTALLED or not os.access(DATA, os.W_OK):  # another user's checkout: its data sets are readable
    with contextlib.suppress(RuntimeError):  # a user without a home, as in some containers
        _OWN = Path("~/.cache/course_utils/downloads").expanduser()
        _LECTURERS, _SAID, _DOWNLOADS = [_DOWNLOADS], "~/.cache/course_utils/downloads", _OWN
_UNFINISHED = ".unfinished-"
_NETWORK_TIMEOUT_S = 5


def folders() -> list[Path]:
    """The folders that may hold data sets: COURSE_DATA if set, data/downloads, and the user's own if that is read-only.

    Raises NotADirectoryError if COURSE_DATA is not a directory.
    """
    given = os.environ.get("COURSE_DATA")
    if not given:
        return [*_LECTURERS, _DOWNLOADS]
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise NotADirectoryError(
            f"COURSE_DATA is {given!r}, which is not a directory; set it to the directory that "
            "holds the data sets, or unset it"
        )
    return [folder, *_LECTURERS, _DOWNLOADS]


def load_half(name: str, train: bool) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Pixels (N, C, H, W) as uint8 and labels (N,), or None after printing one line with the reason.

    Raises RuntimeError, naming the file, if a file is damaged.
    """
    require("data sets other than the digits", "torchvision")
    _remove_leftovers()
    read = _read_cifar10 if name == "cifar10" else _read_idx_pair
    places = folders()
    for folder in places:
        if (found := read(name, train, folder)) is not None:
            return found
    try:
        _download(name)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        if name != "cifar10":
            _refuse_half_a_pair(name, train, places)
        reason = " ".join(str(error).split())[:200]
        half = "training" if train else "test"
        # No absolute paths: this line may end up in a notebook that others read.
        where = f"COURSE_DATA or {_SAID}" if os.environ.get("COURSE_DATA") else _SAID
        print(
            f"The {half} images of {name} are not in {where} and could not be downloaded "
            f"({reason}): the bundled digits are used instead."
        )
        return None
    return read(name, train, _DOWNLOADS)


def _homes(name: str, folder: Path) -> list[Path]:
    """The folder itself or its subfolders, if named like the data set, for example fashion-mnist."""
    key = name.replace("_", "")
    inside = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [path for path in (folder.resolve(), *inside) if path.name.lower().replace("-", "").replace("_", "") == key]


def is_there(name: str, folder: Path) -> bool:
    """Whether the folder holds the training half of the data set, intact or damaged."""
    if name == "cifar10":
        return any(True for _ in _cifar10s(name, folder))
    return any(all(map(_existing, pair)) for pair in _idx_pairs(name, True, folder))


def _damaged(path: Path, why: object) -> RuntimeError:
    return RuntimeError(f"{path} is damaged or only half downloaded ({why}): delete it, run again")


def _read_idx_pair(name: str, train: bool, folder: Path) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Read the format of MNIST and Fashion-MNIST from `<name>/raw/` or `<name>/`, gzipped or not."""
    for pair in _idx_pairs(name, train, folder):
        image_file, label_file = map(_existing, pair)
        if image_file is None or label_file is None:
            continue
        from torchvision.datasets.mnist import read_image_file, read_label_file

        pixels, labels = _read_idx(image_file, read_image_file), _read_idx(label_file, read_label_file)
        if len(pixels) != len(labels):
            raise _damaged(label_file, f"{len(labels)} labels for {len(pixels)} images")
        if len(labels) == 0 or labels.max() > 9:
            raise _damaged(label_file, "its labels are not the numbers 0 to 9")
        return pixels[:, None], labels
    return None


def _idx_pairs(name: str, train: bool, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Possible unzipped paths, in the folder, of the image and label files; they need not exist."""
    half = "train" if train else "t10k"
    for home in _homes(name, folder):
        for place in (home / "raw", home):
            yield place / f"{half}-images-idx3-ubyte", place / f"{half}-labels-idx1-ubyte"


def _refuse_half_a_pair(name: str, train: bool, places: list[Path]) -> None:
    """Raise RuntimeError if there are images without labels or labels without images.

    Such files were put there on purpose, so a substitute would hide the mistake.
    """
    for pair in (pair for folder in places for pair in _idx_pairs(name, train, folder)):
        there = [_existing(path) for path in pair]
        if any(there) and not all(there):
            missing = pair[there.index(None)]
            raise RuntimeError(
                f"{missing} is missing, and {next(filter(None, there)).name} is there: copy both, or neither"
            )


def _existing(path: Path) -> Path | None:
    zipped = path.with_name(path.name + ".gz")
    return next((file for file in (path, zipped) if file.is_file()), None)


def _read_idx(path: Path, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """Read an IDX file, gzipped or not, with torchvision's function `read`."""
    from torchvision.datasets.utils import extract_archive

    with tempfile.TemporaryDirectory() as scratch:
        try:
            return read(str(extract_archive(path, scratch) if path.suffix == ".gz" else path))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise _damaged(path, error) from error
        except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise _damaged(path, "it does not begin as an IDX file does, or is of another length") from error


def _read_cifar10(name: str, train: bool, folder: Path) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Read CIFAR-10's "python version", unpacked or as the authors' archive."""
    for home, archive in _cifar10s(name, folder):
        if archive is None:
            return _read_batches(home, train)
        from torchvision.datasets.utils import extract_archive

        with tempfile.TemporaryDirectory() as scratch:
            try:
                extract_archive(archive, scratch)
            except (EOFError, zlib.error, tarfile.TarError) as error:
                raise _damaged(archive, error) from error
            return _read_batches(Path(scratch), train, archive)
    return None


def _cifar10s(name: str, folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """The folders that hold CIFAR-10, each with its archive, or None if it is unpacked."""
    for home in (folder, *_homes(name, folder)):
        archive = home / "cifar-10-python.tar.gz"
        if (home / "cifar-10-batches-py").is_dir():
            yield home, None
        elif archive.is_file():
            yield home, archive


def _read_batches(home: Path, train: bool, archive: Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Let torchvision read `home`/cifar-10-batches-py, which was unpacked from `archive` if one is given."""
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    class Half(CIFAR10):  # without the other half and the class names
        train_list, test_list = (CIFAR10.train_list, []) if train else ([], CIFAR10.test_list)

        def _load_meta(self):
            pass

    try:
        # A pickle can run code: torchvision opens only files with the authors' checksums.
        with warnings.catch_warnings(action="ignore"):  # NumPy 2.4.0 to 2.4.4 warns of old pickles
            half = Half(home, train)
    except RuntimeError as error:  # it does not name the damaged file
        unpacked = home / Half.base_folder
        for file, md5 in Half.train_list + Half.test_list:
            if not (unpacked / file).is_file():
                raise _damaged(archive or unpacked, f"there is no {file} in it") from error
            if not check_integrity(unpacked / file, md5):
                raise _damaged(archive or unpacked / file, f"the checksum of {file} is wrong") from error
        raise
    pixels = torch.from_numpy(half.data).permute(0, 3, 1, 2).contiguous()  # (N, H, W, C) -> (N, C, H, W)
    return pixels, torch.tensor(half.targets)


def _download(name: str) -> None:
    """Let torchvision download `name`; only complete files appear in the download folder."""
    from torchvision import datasets

    data_set = getattr(datasets, DATA_SETS[name])
    # torchvision sets no timeout; socket.setdefaulttimeout would affect other threads' sockets.
    urllib.request.install_opener(urllib.request.build_opener(_Impatient))
    try:
        if name == "cifar10":
            _require_network([data_set.url])
        else:
            _require_network([mirror + data_set.resources[0][0] for mirror in data_set.mirrors])
        with _scratch() as scratch:
            data_set(scratch, download=True)
            for folder in [path for path in scratch.iterdir() if path.is_dir()]:
                _move(folder, _DOWNLOADS / folder.name)
    finally:
        urllib.request.install_opener(None)  # the next use restores Python's default


def _move(folder: Path, target: Path) -> None:
    """Move a whole folder into place, so that a killed process leaves all of it or nothing."""
    try:
        folder.rename(target)
    except OSError:  # the target exists, incomplete or from another process
        for file in [path for path in folder.rglob("*") if path.is_file()]:
            place = target / file.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder among the downloads, locked as long as this process lives."""
    _DOWNLOADS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=_DOWNLOADS) as name:
        scratch = Path(name)
        with open(scratch / "unlocked", "wb") as lock:
            with contextlib.suppress(OSError):  # no locks here, so nobody removes leftovers either
                fcntl.flock(lock, fcntl.LOCK_EX)
            # Renamed only once locked: other processes take a folder with an unlocked "lock" for a leftover.
            (scratch / "unlocked").rename(scratch / "lock")
            yield scratch


def _remove_leftovers() -> None:
    """Remove what killed downloads left, but nothing of a living process."""
    for left in _DOWNLOADS.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError), open(left / "lock", "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
            shutil.rmtree(left)


class _Impatient(urllib.request.BaseHandler):
    """Gives every request a timeout."""

    def http_request(self, request):
        request.timeout = 2 * _NETWORK_TIMEOUT_S
        return request

    https_request = http_request


def _require_network(urls: list[str]) -> None:
    """Raise ConnectionError unless one of `urls` answers within seconds.

    Uses threads, because on a network that drops packets a name lookup takes far longer than any socket timeout.
    """
    answers = queue.Queue()

    def ask(url):
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD")).close()
            answers.put(None)
        except (OSError, http.client.HTTPException) as error:
            answers.put(error)

    for url in urls:
        threading.Thread(target=ask, args=(url,), daemon=True).start()
    error = None
    for _ in urls:
        try:
            error = answers.get(timeout=_NETWORK_TIMEOUT_S)
        except queue.Empty:
            raise ConnectionError(f"no answer within {_NETWORK_TIMEOUT_S} s") from error
        if error is None:
            return
    raise ConnectionError(getattr(error, "reason", error)) from error
