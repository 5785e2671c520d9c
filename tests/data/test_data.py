"""Images from real files: whole ones, damaged ones, missing ones, with and without a network."""

import functools
import gzip
import hashlib
import http.server
import io
import itertools
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler
from torchvision import datasets

from course_utils.data import Images, batches, load_images, load_text
from course_utils.data import files as datafiles

REAL_MNIST = Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


@pytest.fixture(autouse=True)
def downloads(tmp_path, monkeypatch):
    """An empty place for downloads, and a network that refuses every connection."""
    folder = tmp_path / "downloads"
    monkeypatch.setattr(datafiles, "_DOWNLOADS", folder)
    monkeypatch.delenv("COURSE_DATA", raising=False)
    for name in (*PROXIES, "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    return folder


def idx(values):
    """Bytes in MNIST's file format."""
    dims = struct.pack(f">{values.ndim}I", *values.shape)
    return bytes([0, 0, 8, values.ndim]) + dims + values.tobytes()


def write_idx_pair(folder, half="train", n=12, zipped=True, seed=0):
    """Write `n` random images of 28 × 28 and the labels 0, 1, …, 9, 0, …; return the pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 28, 28), dtype=np.uint8)
    labels = (np.arange(n) % 10).astype(np.uint8)
    for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
        path = folder / f"{half}-{kind}-ubyte"
        if zipped:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(values), mtime=0))
        else:
            path.write_bytes(idx(values))
    return pixels


# The bundled digits


def test_digits_are_split_once_and_for_all():
    train, test = load_images(), load_images(train=False)
    assert (len(train), len(test)) == (1437, 360)
    assert isinstance(train, Images)
    assert (train.name, train.num_classes) == ("digits", 10)
    assert train.images.shape == (1437, 1, 8, 8)
    assert (train.images.dtype, train.labels.dtype) == (torch.float32, torch.int64)
    assert (train.images.min(), train.images.max()) == (0, 1)
    for images, least in ((train, 139), (test, 34)):  # every class in the same proportion
        counts = images.labels.bincount(minlength=10)
        assert counts.min() >= least and counts.max() - counts.min() <= 8
    with np.load(datafiles.DATA / "digits.npz") as stored:
        everything = sorted(image.tobytes() for image in stored["images"])
    both = torch.cat([train.images, test.images]).mul(16).to(torch.uint8).numpy()
    assert sorted(image.tobytes() for image in both) == everything
    again = load_images()
    assert torch.equal(again.images, train.images) and torch.equal(again.labels, train.labels)


@pytest.mark.parametrize("size", [4, 8, 11, 28, 32])
def test_digits_are_resized_and_given_colours(size):
    grey, colour = load_images(size=size), load_images(size=size, channels=3)
    assert grey.images.shape == (1437, 1, size, size)
    assert colour.images.shape == (1437, 3, size, size)
    assert 0 <= grey.images.min() and grey.images.max() <= 1
    assert all(torch.equal(colour.images[:, [c]], grey.images) for c in range(3))
    # The ink stays where it was: its centre, as a share of the width and the height.
    original = load_images().images
    assert (centre(grey.images) - centre(original)).abs().max() < 0.04


def centre(images):
    """Centres of the ink of (N, 1, S, S) images, from 0 to 1, of shape (2, N)."""
    share = images[:, 0] / images[:, 0].sum((1, 2), keepdim=True)
    place = (torch.arange(images.shape[-1]) + 0.5) / images.shape[-1]
    return torch.stack([(share.sum(1) * place).sum(1), (share.sum(2) * place).sum(1)])


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="'imagenet'; choose one of digits, mnist, fashion_mnist"):
        load_images("imagenet")
    for size in (0, -8, 2.5, "big"):
        with pytest.raises(ValueError, match="whole number of pixels"):
            load_images(size=size)
    with pytest.raises(ValueError, match="must be 1 or 3"):
        load_images(channels=2)
    with pytest.raises(ValueError, match="in colour"):
        load_images("cifar10", channels=1)


@pytest.mark.parametrize("damage", ["truncated", "empty", "missing"])
def test_damaged_digits_name_the_cure(tmp_path, monkeypatch, damage):
    whole = (datafiles.DATA / "digits.npz").read_bytes()
    if damage != "missing":
        (tmp_path / "digits.npz").write_bytes(whole[: 20_000 if damage == "truncated" else 0])
    monkeypatch.setattr("course_utils.data.DATA", tmp_path)
    with pytest.raises(RuntimeError, match="digits.npz is missing or damaged.*git checkout"):
        load_images()


def test_the_text_is_split_and_read_back():
    train, test = load_text(), load_text(train=False)
    assert (len(train), len(test)) == (120_118, 13_347) and train.symbols == test.symbols
    assert train.codes.dtype == torch.int64 and train.codes.shape == (120_118,)
    assert train.decode(train.codes) + test.decode(test.codes) == (datafiles.DATA / "romeo_and_juliet.txt").read_text()
    x, y = train.windows(5, 40, seed=3)
    assert x.shape == y.shape == (5, 40) and torch.equal(x[:, 1:], y[:, :-1])
    assert all(train.decode(row) in train.decode(train.codes) for row in x)
    assert torch.equal(train.windows(5, 40, seed=3)[1], y) and not torch.equal(train.windows(5, 40, seed=4)[0], x)
    last = {train.windows(200, len(train) - 1, seed)[1][0, -1].item() for seed in range(3)}
    assert last == {train.codes[-1].item()}  # the longest window ends with the text
    for length in (0, -3, len(train)):
        with pytest.raises(ValueError, match="it must be from 1 to 120117"):
            train.windows(1, length)


@pytest.mark.parametrize("damage", ["truncated", "not text", "missing"])
def test_a_damaged_text_names_the_cure(tmp_path, monkeypatch, damage):
    whole = (datafiles.DATA / "romeo_and_juliet.txt").read_bytes()
    if damage != "missing":
        (tmp_path / "romeo_and_juliet.txt").write_bytes(whole[:5000] if damage == "truncated" else b"\xff" + whole)
    monkeypatch.setattr("course_utils.data.text.DATA", tmp_path)
    with pytest.raises(RuntimeError, match="romeo_and_juliet.txt is.*damaged.*git checkout"):
        load_text()


# MNIST's files


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion_mnist", "FashionMNIST/raw"),
        ("fashion_mnist", "fashion-mnist"),
    ],
)
def test_layouts(tmp_path, monkeypatch, capsys, name, layout, zipped):
    pixels = write_idx_pair(tmp_path / "sets" / layout, zipped=zipped)
    # The other data set's files have the same names and must not be taken for these.
    other = "FashionMNIST/raw" if name == "mnist" else "MNIST/raw"
    write_idx_pair(tmp_path / "sets" / other, seed=1)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "sets"))
    loaded = load_images(name)
    assert loaded.name == name
    assert torch.equal(loaded.images, torch.from_numpy(pixels)[:, None] / 255)
    assert loaded.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert capsys.readouterr().out == ""


def test_course_data_may_be_the_data_sets_own_folder(tmp_path, monkeypatch):
    write_idx_pair(tmp_path / "mnist", n=5)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "mnist"))
    assert len(load_images("mnist", size=32)) == 5


def test_one_half_is_enough_for_that_half(tmp_path, monkeypatch, capsys):
    write_idx_pair(tmp_path / "mnist", half="t10k", n=7)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    assert len(load_images("mnist", train=False)) == 7
    stand_in = load_images("mnist")
    assert stand_in.name == "digits"
    assert "training images of mnist are not in" in capsys.readouterr().out


@pytest.mark.skipif(not REAL_MNIST.is_dir(), reason="the real test images are not beside here")
def test_real_mnist(tmp_path, monkeypatch):
    shutil.copytree(REAL_MNIST, tmp_path / "mnist")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    test = load_images("mnist", train=False)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert test.labels.bincount().tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert test.images.mean().item() == pytest.approx(0.1325, abs=1e-4)


def damage_file(path, how):
    raw = path.read_bytes()
    if how == "truncated":
        path.write_bytes(raw[: len(raw) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "a web page":
        path.write_bytes(b"<html>404 not found</html>" * 50)
    elif how == "one byte changed":
        middle = len(raw) // 2
        path.write_bytes(raw[:middle] + bytes([raw[middle] ^ 255]) + raw[middle + 1 :])


@pytest.mark.parametrize("kind", ["images-idx3", "labels-idx1"])
@pytest.mark.parametrize("how", ["truncated", "empty", "a web page", "one byte changed"])
def test_a_damaged_zipped_file_is_named(tmp_path, monkeypatch, kind, how):
    write_idx_pair(tmp_path / "MNIST" / "raw")
    path = tmp_path / "MNIST" / "raw" / f"train-{kind}-ubyte.gz"
    damage_file(path, how)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    with pytest.raises(RuntimeError) as error:
        load_images("mnist")
    assert str(error.value).startswith(str(path)) and "delete it, run again" in str(error.value)


@pytest.mark.parametrize("how", ["truncated", "empty", "a web page"])
def test_a_damaged_unzipped_file_is_named(tmp_path, downloads, how):
    write_idx_pair(downloads / "MNIST" / "raw", zipped=False)
    path = downloads / "MNIST" / "raw" / "train-images-idx3-ubyte"
    damage_file(path, how)
    with pytest.raises(RuntimeError, match="train-images-idx3-ubyte is damaged"):
        load_images("mnist")


@pytest.mark.parametrize("kind", ["images-idx3", "labels-idx1"])
def test_half_a_pair_is_no_reason_for_other_images(tmp_path, monkeypatch, kind):
    write_idx_pair(tmp_path / "mnist")
    (tmp_path / "mnist" / f"train-{kind}-ubyte.gz").unlink()
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    with pytest.raises(RuntimeError, match=f"train-{kind}-ubyte is missing, and .* is there: copy both, or neither"):
        load_images("mnist")


def test_labels_that_do_not_fit_are_named(tmp_path, monkeypatch):
    write_idx_pair(tmp_path / "mnist", n=12)
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    path.write_bytes(gzip.compress(idx(np.zeros(11, np.uint8))))
    with pytest.raises(RuntimeError, match="labels-idx1-ubyte.gz.*11 labels for 12 images"):
        load_images("mnist")
    path.write_bytes(gzip.compress(idx(np.full(12, 10, np.uint8))))
    with pytest.raises(RuntimeError, match="labels-idx1-ubyte.gz.*not the numbers 0 to 9"):
        load_images("mnist")


# CIFAR-10's files


@pytest.fixture
def cifar_batch(monkeypatch):
    """The bytes of a small batch, whose checksum torchvision is told to expect."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
    raw = pickle.dumps({"data": pixels, "labels": [0, 1, 2, 3, 4, 9]})
    expected = [["test_batch", md5_of(raw)]]
    monkeypatch.setattr(datasets.CIFAR10, "test_list", expected)
    return raw, torch.from_numpy(pixels).view(6, 3, 32, 32) / 255


@pytest.mark.parametrize("home", [".", "cifar10", "CIFAR-10"])
@pytest.mark.parametrize("packed", [True, False])
def test_cifar10(tmp_path, monkeypatch, cifar_batch, home, packed):
    raw, expected = cifar_batch
    folder = tmp_path / home
    if packed:
        folder.mkdir(exist_ok=True)
        with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("cifar-10-batches-py/test_batch")
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    else:
        (folder / "cifar-10-batches-py").mkdir(parents=True)
        (folder / "cifar-10-batches-py" / "test_batch").write_bytes(raw)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    loaded = load_images("cifar10", train=False)
    assert torch.equal(loaded.images, expected)
    assert loaded.labels.tolist() == [0, 1, 2, 3, 4, 9]
    if packed:
        damage_file(folder / "cifar-10-python.tar.gz", "truncated")
        with pytest.raises(RuntimeError, match="cifar-10-python.tar.gz is damaged"):
            load_images("cifar10", train=False)
    else:
        damage_file(folder / "cifar-10-batches-py" / "test_batch", "one byte changed")
        with pytest.raises(RuntimeError, match="test_batch is damaged.*checksum"):
            load_images("cifar10", train=False)
        (folder / "cifar-10-batches-py" / "test_batch").unlink()
        with pytest.raises(RuntimeError, match="cifar-10-batches-py is damaged.*test_batch"):
            load_images("cifar10", train=False)


# Missing data, and the network


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10"])
@pytest.mark.parametrize("kind", ["nothing there", "a file"])
def test_course_data_must_be_a_directory(tmp_path, monkeypatch, name, kind):
    path = tmp_path / "sets"
    if kind == "a file":
        path.write_text("not a directory")
    monkeypatch.setenv("COURSE_DATA", str(path))
    with pytest.raises(NotADirectoryError, match="COURSE_DATA is .*sets.*which is not a directory"):
        load_images(name)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "shape"),
    [("mnist", (1, 28, 28)), ("fashion_mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))],
)
def test_without_a_network_one_line_and_digits_of_the_same_shape(capsys, name, shape):
    start = time.perf_counter()
    loaded = load_images(name)
    assert time.perf_counter() - start < 5
    out = capsys.readouterr()
    assert out.out.count("\n") == 1 and out.err == ""
    assert f"training images of {name} are not in" in out.out
    assert "the bundled digits are used instead" in out.out
    assert loaded.name == "digits" and loaded.images.shape == (1437, *shape)


@pytest.mark.alone
def test_a_network_that_swallows_everything_is_given_up_soon(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.perf_counter()
        assert load_images("mnist").name == "digits"
        assert time.perf_counter() - start < 8
    assert capsys.readouterr().out.count("\n") == 1


@pytest.fixture
def serve(monkeypatch):
    """`serve(folder)` puts it on a real web server on loopback and returns the address."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.delenv(name)
    servers = []

    def start(folder):
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def md5_of(raw):
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


@pytest.fixture
def mirror(tmp_path, monkeypatch, serve):
    """A server that torchvision takes for MNIST's, with its folder."""
    folder = tmp_path / "mirror"
    write_idx_pair(folder, "train", n=20)
    write_idx_pair(folder, "t10k", n=10)
    monkeypatch.setattr(datasets.MNIST, "mirrors", [serve(folder)])
    resources = [(path.name, md5_of(path.read_bytes())) for path in sorted(folder.iterdir(), reverse=True)]
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    return folder


@pytest.fixture
def cifar_mirror(tmp_path, monkeypatch, serve):
    """A server that torchvision takes for CIFAR-10's: an archive with two small batches and the class names."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
    batch = pickle.dumps({"data": pixels, "labels": [0, 1, 2, 3, 4, 9]})
    files = {
        "data_batch_1": batch,
        "test_batch": batch,
        "batches.meta": pickle.dumps({"label_names": list("abcdefghij")}),
    }
    folder = tmp_path / "mirror"
    folder.mkdir()
    archive = folder / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name, raw in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(raw)
            packed.addfile(member, io.BytesIO(raw))
    for name, value in {
        "url": serve(folder) + archive.name,
        "tgz_md5": md5_of(archive.read_bytes()),
        "train_list": [["data_batch_1", md5_of(batch)]],
        "test_list": [["test_batch", md5_of(batch)]],
        "meta": {"filename": "batches.meta", "key": "label_names", "md5": md5_of(files["batches.meta"])},
    }.items():
        monkeypatch.setattr(datasets.CIFAR10, name, value)
    return folder


def load_and_be_killed(name, n):
    """Load images in a process that is killed before its n-th move into place; return whether it was killed."""
    if child := os.fork():
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    try:
        renames = itertools.count(1)

        def note(event, arguments):
            if event == "os.rename" and Path(arguments[1]).name != "lock" and next(renames) == n:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(note)
        load_images(name)
    finally:
        os._exit(0)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_killed_download_leaves_nothing_and_damages_nothing(mirror_of, downloads, capsys, name):
    mirror_of(name)
    for n in range(1, 20):
        shutil.rmtree(downloads, ignore_errors=True)
        killed = load_and_be_killed(name, n)
        load_images(name)
        assert [path.name for path in downloads.iterdir()] == [
            {"mnist": "MNIST", "cifar10": "cifar-10-batches-py"}[name]
        ]
        if not killed:
            break
    assert n > 1
    assert capsys.readouterr().out == ""


@pytest.fixture
def mirror_of(request):
    return lambda name: request.getfixturevalue({"mnist": "mirror", "cifar10": "cifar_mirror"}[name])


def test_what_another_process_is_downloading_stays(downloads):
    with datafiles._scratch() as scratch:
        load_images("mnist")
        assert scratch.is_dir()
        shutil.copytree(scratch, left := downloads / f"{datafiles._UNFINISHED}left")
        load_images("mnist")
        assert scratch.is_dir() and not left.exists()
    assert list(downloads.iterdir()) == []


def test_a_download_is_kept_and_used_again(mirror, downloads, monkeypatch, capsys):
    assert len(load_images("mnist")) == 20
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    assert len(load_images("mnist", train=False)) == 10
    assert capsys.readouterr().out == ""
    assert [path.name for path in downloads.iterdir()] == ["MNIST"]


def test_deleting_a_damaged_file_is_the_cure(mirror, downloads):
    load_images("mnist")
    path = downloads / "MNIST" / "raw" / "train-images-idx3-ubyte"
    damage_file(path, "truncated")
    with pytest.raises(RuntimeError, match="delete it, run again"):
        load_images("mnist")
    path.unlink()
    path.with_name(path.name + ".gz").unlink()
    assert len(load_images("mnist")) == 20


def test_a_broken_download_leaves_nothing_and_is_said(mirror, downloads, capsys):
    damage_file(mirror / "t10k-images-idx3-ubyte.gz", "truncated")
    assert load_images("mnist").name == "digits"
    assert "corrupted" in capsys.readouterr().out
    assert list(downloads.iterdir()) == []


# Batches


def test_batches_are_those_of_the_ranks_together():
    """What W ranks see in a step with DistributedSampler is one batch here."""
    x, y = torch.arange(24.0), torch.arange(24)
    for seed, epoch in ((0, 0), (0, 1), (7, 3)):
        ranks = []
        for rank in range(3):
            sampler = DistributedSampler(x, num_replicas=3, rank=rank, seed=seed)
            sampler.set_epoch(epoch)
            ranks.append(torch.tensor(list(sampler)).split(2))
        for step, (images, labels) in enumerate(batches(x, y, 6, seed=seed, epoch=epoch)):
            together = torch.cat([rank[step] for rank in ranks])
            assert labels.sort().values.tolist() == together.sort().values.tolist()
            assert torch.equal(images, labels.float())


def test_batches_cover_an_epoch_once():
    x, y = torch.arange(10.0), torch.arange(10)
    whole = [labels for _, labels in batches(x, y, 4, drop_last=False)]
    assert [len(labels) for labels in whole] == [4, 4, 2]
    assert torch.cat(whole).sort().values.tolist() == list(range(10))
    dropped = [labels for _, labels in batches(x, y, 4)]
    assert [labels.tolist() for labels in dropped] == [labels.tolist() for labels in whole[:2]]
    other = [labels for _, labels in batches(x, y, 4, epoch=1, drop_last=False)]
    assert torch.cat(other).tolist() != torch.cat(whole).tolist()


def test_batches_refuse_at_once():
    x, y = torch.zeros(10, 1), torch.zeros(10)
    with pytest.raises(ValueError, match="batch_size is 11, but there are only 10 images"):
        batches(x, y, 11)
    with pytest.raises(ValueError, match="batch_size is 0"):
        batches(x, y, 0)
    for size in (2.5, "4", True):
        with pytest.raises(ValueError, match=f"batch_size is {size!r}; it must be a whole number"):
            batches(x, y, size)
    with pytest.raises(ValueError, match="10 images but 9 labels"):
        batches(x, y[:9], 2)
