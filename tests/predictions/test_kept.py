"""The file of predictions: two notebooks at once, a folder that is read-only, and a file that is damaged."""

import json
import multiprocessing
import os

import pytest

from course_utils.predictions.kept import NAME, Kept

NUM_EACH = 40


def entry(value, **more):
    return {"question": "How many?", "unit": "s", "predicted": value} | more


def on_disk(folder):
    return json.loads((folder / NAME).read_text())


def test_what_is_kept_is_read_by_the_next_kernel(tmp_path):
    said = []
    kept = Kept(tmp_path)
    kept.answer("09", "my_speedup", entry(1.5), said.append)
    kept.answer("00", "my_seconds", entry(None), said.append)
    kept.measured("09", "my_speedup", 1.25, said.append)
    kept.measured("09", "my_other", 1.25, said.append)  # never answered
    expected = {"00": {"my_seconds": entry(None)}, "09": {"my_speedup": entry(1.5, measured=1.25)}}
    assert Kept(tmp_path).read(said.append) == on_disk(tmp_path) == expected
    assert list(on_disk(tmp_path)) == ["00", "09"] and not said
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


def test_another_answer_forgets_what_was_measured_and_the_same_one_does_not(tmp_path):
    kept = Kept(tmp_path)
    kept.answer("09", "my_speedup", entry(1.5), pytest.fail)
    kept.measured("09", "my_speedup", 1.25, pytest.fail)
    kept.answer("09", "my_speedup", entry(1.5), pytest.fail)
    assert on_disk(tmp_path)["09"]["my_speedup"]["measured"] == 1.25
    kept.answer("09", "my_speedup", entry(1.6), pytest.fail)
    assert on_disk(tmp_path)["09"]["my_speedup"] == entry(1.6)


def answer_many(folder, chapter):
    for i in range(NUM_EACH):
        Kept(folder).answer(chapter, f"my_{i}", entry(i), print)
        Kept(folder).measured(chapter, f"my_{i}", i + 1, print)


def test_two_notebooks_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=answer_many, args=(tmp_path, chapter)) for chapter in ("08", "09")]
    for each in processes:
        each.start()
    for each in processes:
        each.join(100)
        assert each.exitcode == 0
    expected = {f"my_{i}": entry(i, measured=i + 1) for i in range(NUM_EACH)}
    assert on_disk(tmp_path) == {"08": expected, "09": expected}


def answer_as_nobody(folder, pipe):
    os.chdir(folder)
    os.chmod(".", 0o555)
    if os.geteuid() == 0:  # root may write anywhere
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
    said, kept = [], Kept(".")
    kept.answer("09", "my_speedup", entry(1.5), said.append)
    kept.measured("09", "my_speedup", 1.25, said.append)
    kept.answer("08", "my_ms", entry(30), said.append)
    pipe.send((said, kept.read(said.append)))


def test_a_folder_that_is_read_only(tmp_path):
    Kept(tmp_path).answer("00", "my_seconds", entry(2), pytest.fail)
    (tmp_path / NAME).chmod(0o644)
    before = on_disk(tmp_path)
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=answer_as_nobody, args=(tmp_path, sending))
    process.start()
    said, read = receiving.recv()
    process.join(100)
    assert said == [f"{NAME} cannot be written here (Permission denied): predictions are kept until the kernel ends."]
    assert read == before | {"09": {"my_speedup": entry(1.5, measured=1.25)}, "08": {"my_ms": entry(30)}}
    assert on_disk(tmp_path) == before


def test_what_could_not_be_written_is_written_later(tmp_path):
    said, folder = [], tmp_path / "later"
    kept = Kept(folder)
    kept.answer("09", "my_speedup", entry(1.5), said.append)
    folder.mkdir()
    kept.answer("08", "my_ms", entry(30), said.append)
    assert on_disk(folder) == {"08": {"my_ms": entry(30)}, "09": {"my_speedup": entry(1.5)}}
    assert len(said) == 1


@pytest.mark.parametrize(
    "damage", [b'{"09": {"my_sp', b"", b"\xff\xfe", b"[]", b'{"09": 3}', b'{"09": {"my_speedup": {"unit": "s"}}}']
)
def test_a_damaged_file_is_kept_aside(tmp_path, damage):
    said = []
    (tmp_path / NAME).write_bytes(damage)
    (tmp_path / "predictions_damaged.json").write_text("an older one")
    kept = Kept(tmp_path)
    assert kept.read(said.append) == {}
    kept.answer("09", "my_speedup", entry(1.5), said.append)
    assert said == [f"{NAME} was damaged: it is kept as predictions_damaged_2.json, and a new one begins."]
    assert (tmp_path / "predictions_damaged_2.json").read_bytes() == damage
    assert (tmp_path / "predictions_damaged.json").read_text() == "an older one"
    assert on_disk(tmp_path) == {"09": {"my_speedup": entry(1.5)}}


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    said, kept = [], Kept(tmp_path)
    kept.answer("09", "my_speedup", entry(1.5), said.append)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    kept.answer("08", "my_ms", entry(30), said.append)
    assert list(tmp_path.iterdir()) == [tmp_path / NAME]
    assert on_disk(tmp_path) == {"09": {"my_speedup": entry(1.5)}}
    assert len(said) == 1 and "No space left on device" in said[0]
    assert kept.read(said.append)["08"]["my_ms"]["predicted"] == 30
