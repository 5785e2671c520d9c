"""The planner on the command line: a table, one method, JSON, a model of one's own, and errors of one sentence."""

import json
import os
import subprocess
import sys

import pytest

from course_utils.planner.__main__ import main

JOB = ["--model", "llama-3-8b", "--gpus", "64xA100-80", "--batch", "1024"]


def test_the_fastest_methods_are_a_table_with_what_the_error_was(capsys):
    main([*JOB, "--dollars", "2"])
    said = capsys.readouterr().out
    title, _, header, *rows = said.splitlines()
    assert title.startswith("8.03 billion parameters, 64xA100-80") and header.split()[0] == "data"
    assert [row.split()[0].isdecimal() for row in rows[:10]] == [True] * 10
    assert title.endswith(" a step, in bf16") and "idle" not in said
    assert "(full: ZeRO-3, FSDP)" in said and "recomputation: what the backward pass computes again" in said
    assert "dollars" in said and "published rows like this plan" in said


def test_memory_of_less_than_a_gigabyte_is_no_0(capsys):
    main(["--model", "mpt-125m", "--gpus", "8xH100", "--batch", "8", "--sequence", "32"])
    header, first = capsys.readouterr().out.splitlines()[2:4]
    assert header.split()[-2:] == ["GB", "limit"] and 0 < float(first.split()[-3]) < 1


def test_one_method_is_planned_line_by_line(capsys):
    main(["--model", "llama-3-8b", "--gpus", "8xH100", "--batch", "16", "--method", "shard=full,micro_batch=2"])
    said = capsys.readouterr().out
    assert "does not fit" in said and "forward products" in said and "shards' messages" in said


def test_gpus_that_a_method_leaves_idle_are_counted(capsys):
    main(["--model", "llama-2-7b", "--gpus", "8xH100", "--batch", "64", "--method", "data=4,shard=full,precision=fp8"])
    title, idle, *_ = capsys.readouterr().out.splitlines()
    assert title.endswith(", in fp8") and idle == "4 of these 8 GPUs are idle: this method takes 4."


def test_a_reader_that_has_read_enough_ends_it_quietly():
    command = [sys.executable, "-m", "course_utils.planner", *JOB, "--lines"]
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does once it has its lines
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_json_has_every_plan(capsys):
    main([*JOB, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 10 and found[0]["step_s"] <= found[1]["step_s"] and found[0]["method"]["data"] >= 1
    assert sum(found[0]["step"].values()) == pytest.approx(found[0]["step_s"])


def test_a_model_of_ones_own_is_planned(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_to_plan.py").write_text(
        "from course_utils.planner import transformer\ndef make():\n    return transformer(1024, 8, 16, 512, 32000)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    main(["--model", "mine_to_plan:make", "--gpus", "8xH100", "--batch", "64", "--between", "100"])
    assert "134 million parameters" in capsys.readouterr().out
    (tmp_path / "small.py").write_text(
        "import torch\nfrom torch import nn\ndef make():\n"
        "    return nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 2)), torch.zeros(2, 20)\n"
    )
    main(["--model", "small:make", "--gpus", "4xA100-40", "--batch", "256", "--json"])
    fastest = json.loads(capsys.readouterr().out)[0]
    assert fastest["step_s"] > 3 * 52e-6  # Python calls each operation, which takes longer than it does on the GPU
    assert fastest["method"].get("tensor", 1) == 1  # a counted network does not say what its halves send


@pytest.mark.parametrize("arguments, words", [
    (["--model", "gpt-9"], "--model gpt-9 is not known: give llama-3-8b"),
    (["--model", "no_such_module:make"], "No module named 'no_such_module'"),
    (["--model", "time:time"], "--model time:time returned a float"),
    (["--model", "gpt-175b", "--gpus", "8xH100"], "no method trains this on 8 H100"),
    (["--model", "gpt-175b", "--gpus", "8xT4"], "how T4s are connected differs from server to server"),
    (["--model", "llama-3-8b", "--method", "shards=full"], "Method has no shards"),
    (["--model", "llama-3-8b", "--method", "micro_batch=3"], "batch is 1024"),
    (["--config", "no.json"], "no.json is no model configuration"),
])  # fmt: skip
def test_a_wrong_argument_ends_with_one_sentence(arguments, words):
    given = {"--gpus": "64xA100-80", "--batch": "1024"} | dict(zip(arguments[::2], arguments[1::2]))
    with pytest.raises(SystemExit) as caught:
        main([each for pair in given.items() for each in pair])
    assert str(caught.value).startswith("planner: ") and words in str(caught.value) and "\n" not in str(caught.value)
