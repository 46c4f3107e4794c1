"""Reading traces: every format, hash_ids, replay at other rates, bad rows named."""

from __future__ import annotations

import gzip
import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.workloads.block_hashes import EngineBlocks, chained_hashes
from catalogs.workloads.replay import Replay
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import load_workload

SAME = ([0.0, 1.5], [374, 396], [44, 109])
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.6000000,374,44\n2023-11-17 00:00:01.1000000,396,109\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 374, "output_length": 44}\n'
    '{"timestamp": 1500, "input_length": 396, "output_length": 109}\n'
)
BAILIAN = (
    '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 374, "output_length": 44, "type": "text",'
    ' "turn": 1, "hash_ids": [9, 5]}\n'
    '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 1.5, "input_length": 396, "output_length": 109, "type": "text",'
    ' "turn": 2, "hash_ids": [7, 5]}\n'
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "50,ChatGPT,374,44,418,Conversation log\n51,ChatGPT,20,0,20,API log\n51.5,GPT-4,396,109,505,Conversation log\n"
)
PLAIN = "arrival_s,input_tokens,output_tokens\n0,374,44\n1.5,396,109\n"
FORMATS = {"Azure": AZURE, "Mooncake": MOONCAKE, "Bailian": BAILIAN, "BurstGPT": BURST, "plain": PLAIN}


def write(folder: Path, text: str, name: str = "trace.txt") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("zipped", [False, True])
def test_every_format_is_known_by_its_columns(tmp_path: Path, name: str, zipped: bool) -> None:
    path = tmp_path / "some.file"
    content = FORMATS[name].encode()
    path.write_bytes(gzip.compress(content) if zipped else content)
    workload = load_workload(str(path))
    requests = workload.materialise()
    assert workload.source.startswith(name)
    found = (requests.arrival_s.tolist(), requests.input_tokens.tolist(), requests.output_tokens.tolist())
    assert found == SAME
    assert workload.requests_per_s == pytest.approx(1 / 1.5)


def test_failed_requests_of_burstgpt_are_left_out_and_counted(tmp_path: Path) -> None:
    assert "left out 1 failed requests" in load_workload(write(tmp_path, BURST)).notices[0]


def test_parquet_and_azure_with_a_zone(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"arrival_s": SAME[0], "input_tokens": SAME[1], "output_tokens": SAME[2]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert load_workload(str(tmp_path / "t.parquet")).materialise().arrival_s.tolist() == SAME[0]
    zoned = AZURE.replace("0000000,", "000+00:00,")
    assert load_workload(write(tmp_path, zoned)).materialise().arrival_s.tolist() == SAME[0]


def test_lengths_without_times_arrive_at_the_rate_asked_for(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, "num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n"))
    assert workload.requests_per_s is None
    assert "1 request/s" in (workload.rate_notice or "")
    requests = workload.materialise(0, 20_000, 50)
    assert requests.n / requests.arrival_s[-1] == pytest.approx(50, rel=0.04)
    assert requests.input_tokens[:4].tolist() == [5, 7, 5, 7]


# --- texts ------------------------------------------------------------------------------------------------------------

CHATS = [
    {"id": "a", "conversations": [{"from": "human", "value": "x" * 40}, {"from": "gpt", "value": "two words"}]},
    {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
]
ALPACA = [{"instruction": "a b c", "input": "d", "output": "e f"}]


def test_texts_without_a_tokenizer_are_guessed_and_say_so(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, json.dumps(CHATS), "chats.json"))
    requests = workload.materialise(requests_per_s=2)
    assert (requests.input_tokens.tolist(), requests.output_tokens.tolist()) == ([10], [2])
    assert any("characters / 4" in notice for notice in workload.notices)
    assert any("left out 1" in notice for notice in workload.notices)


def test_a_tokenizer_counts_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Words:
        @classmethod
        def from_file(cls, path: str) -> Words:
            assert Path(path) == tmp_path / "tokenizer.json"
            return cls()

        def encode(self, text: str) -> types.SimpleNamespace:
            return types.SimpleNamespace(ids=text.split())

    monkeypatch.setitem(sys.modules, "tokenizers", types.SimpleNamespace(Tokenizer=Words))
    write(tmp_path, json.dumps(ALPACA), "alpaca.json")
    write(tmp_path, "{}", "tokenizer.json")
    workload = load_workload(write(tmp_path, "{trace: alpaca.json, tokenizer: tokenizer.json}", "w.yaml"))
    assert workload.materialise().input_tokens.tolist() == [4]
    assert workload.materialise().output_tokens.tolist() == [2]
    assert not any("guess" in notice for notice in workload.notices)


def test_a_missing_tokenizer_library_is_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    write(tmp_path, json.dumps(ALPACA), "alpaca.json")
    workload = load_workload(write(tmp_path, "{trace: alpaca.json, tokenizer: some/model}", "w.yaml"))
    assert any("transformers is not installed" in notice for notice in workload.notices)


# --- replay -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 100), min_size=3, max_size=40), st.floats(0.05, 50), st.integers(1, 130))
@settings(max_examples=60, deadline=None)
def test_replay_keeps_order_rate_and_prefix(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[float], rate: float, n: int
) -> None:
    times = np.cumsum([*gaps, 1.0])
    rows = "".join(f"{t!r},{k + 1},{k + 2}\n" for k, t in enumerate(times.tolist()))
    path = write(tmp_path_factory.mktemp("t"), "arrival_s,input_tokens,output_tokens\n" + rows)
    workload = load_workload(path)
    own = workload.requests_per_s
    assert own is not None
    played = workload.materialise(n_requests=n)
    np.testing.assert_array_equal(played.arrival_s[: len(times)], times[:n])
    assert np.all(np.diff(played.arrival_s) >= 0)
    scaled = workload.materialise(n_requests=n, requests_per_s=rate)
    np.testing.assert_allclose(scaled.arrival_s, played.arrival_s * (own / rate), rtol=1e-12)
    assert np.array_equal(scaled.input_tokens, np.arange(n) % len(times) + 1)
    laps = workload.materialise(n_requests=50 * len(times) + 1, requests_per_s=rate).arrival_s
    assert (len(laps) - 1) / (laps[-1] - laps[0]) == pytest.approx(rate, rel=1e-9)


def test_pieces_of_a_trace_have_the_rate_of_the_draw_and_differ_by_seed(tmp_path: Path) -> None:
    """One request per second, then ten: the first ones alone are slow, a piece is as fast as asked for."""
    times = [*range(200), *(200 + k / 10 for k in range(800))]
    rows = [
        {"timestamp": 1e3 * t, "input_length": 600, "output_length": k, "hash_ids": [k, 5000 + k]}
        for k, t in enumerate(times, 1)
    ]
    workload = load_workload(write(tmp_path, "\n".join(map(json.dumps, rows))))
    assert isinstance(workload.content, Replay)
    pieces = replace(workload, content=replace(workload.content, pieces=True))
    whole, begins = workload.materialise(), set()
    assert whole.block_hashes is not None
    for seed in range(8):
        drawn = pieces.materialise(seed, 100, 5.0)
        assert 99 / (drawn.arrival_s[-1] - drawn.arrival_s[0]) == pytest.approx(5.0)
        first = int(drawn.output_tokens[0])
        np.testing.assert_array_equal(drawn.output_tokens, first + np.arange(100))
        assert drawn.block_hashes is not None
        assert [*drawn.block_hashes] == [*whole.block_hashes[first - 1 : first + 99]]
        own_s = np.diff(np.array(times)[first - 1 : first + 99])
        np.testing.assert_allclose(np.diff(drawn.arrival_s), own_s * (99 / 5.0 / own_s.sum()), rtol=1e-6)
        begins.add(first)
    assert len(begins) == 8
    for n in (1000, 1500):  # at least the whole trace: as without pieces
        ours, theirs = (w.materialise(3, n, 5.0) for w in (pieces, workload))
        np.testing.assert_array_equal(ours.arrival_s, theirs.arrival_s)
        np.testing.assert_array_equal(ours.input_tokens, theirs.input_tokens)


def test_a_second_pass_shares_no_blocks_with_the_first(tmp_path: Path) -> None:
    rows = [{"timestamp": k, "input_length": 1024, "output_length": 1, "hash_ids": [0, k + 1]} for k in range(3)]
    workload = load_workload(write(tmp_path, "\n".join(map(json.dumps, rows))))
    twice = workload.materialise(n_requests=6).block_hashes
    assert twice is not None
    assert twice[:3] == ((0, 1), (0, 2), (0, 3))
    assert not {b for ids in twice[:3] for b in ids} & {b for ids in twice[3:] for b in ids}
    assert len({ids[0] for ids in twice[3:]}) == 1


def test_a_trace_of_one_time_has_no_rate_to_set(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, "arrival_s,input_tokens,output_tokens\n3,1,1\n3,1,1\n"))
    assert workload.requests_per_s is None
    assert workload.materialise().arrival_s.tolist() == [3, 3]
    with pytest.raises(InputError, match="no arrival rate to set"):
        workload.materialise(requests_per_s=2)


# --- hash_ids ---------------------------------------------------------------------------------------------------------


def hashed(folder: Path, rows: list[tuple[int, int, list[int] | None]], **keys: object) -> RequestSet:
    lines = [
        json.dumps({"timestamp": k, "input_length": i, "output_length": o} | ({} if ids is None else {"hash_ids": ids}))
        for k, (i, o, ids) in enumerate(rows)
    ]
    write(folder, "\n".join(lines), "t.jsonl")
    return load_workload(write(folder, json.dumps({"trace": "t.jsonl", **keys}), "w.yaml")).materialise()


def test_a_partial_last_block_of_the_prompt_is_dropped(tmp_path: Path) -> None:
    assert hashed(tmp_path, [(1100, 900, [1, 2, 3]), (1024, 9, [1, 2])]).block_hashes == ((1, 2), (1, 2))


def test_ids_past_the_prompt_name_the_answer(tmp_path: Path) -> None:
    requests = hashed(tmp_path, [(40, 60, [1, 2, 3, 4, 5, 6]), (40, 8, [1, 2, 7]), (9, 9, None)], hash_block_tokens=16)
    assert requests.block_hashes == ((1, 2, 3, 4, 5, 6), (1, 2, 7), ())


def test_block_size_is_the_formats_or_the_one_that_fits(tmp_path: Path) -> None:
    assert hashed(tmp_path, [(1100, 9, [1, 2, 3])]).hash_block_tokens == 512
    assert hashed(tmp_path, [(1100, 9, list(range(68)))]).hash_block_tokens == 16
    assert hashed(tmp_path, [(1100, 9, [1])], hash_block_tokens=64).hash_block_tokens == 64
    assert load_workload(write(tmp_path, BAILIAN)).materialise().hash_block_tokens == 16
    assert hashed(tmp_path, [(1100, 9, None)]).block_hashes is None
    with pytest.raises(InputError, match="state hash_block_tokens"):
        hashed(tmp_path, [(10_000, 9, [1])])
    with pytest.raises(InputError, match="row 2 has more hash_ids than blocks of 512"):
        hashed(tmp_path, [(1100, 9, [1, 2, 3]), (600, 9, [1, 2, 3])], hash_block_tokens=512)


def test_ids_of_single_blocks_become_ids_of_prefixes(tmp_path: Path) -> None:
    first, second = load_workload(write(tmp_path, BAILIAN)).materialise().block_hashes or ((), ())
    assert len(first) == len(second) == 2
    assert not set(first) & set(second), "block 5 follows 9 in one and 7 in the other: not the same prefix"


def test_wide_hashes_get_small_ids() -> None:
    big = 2**64 - 1
    assert chained_hashes([[big, 5], [big, 6], [5]]) == ((0, 1), (0, 2), (3,))


block_lists = st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=12)


@given(block_lists)
@settings(max_examples=150, deadline=None)
def test_prefix_true_ids_are_equal_exactly_where_prefixes_are(lists: list[list[int]]) -> None:
    made = chained_hashes(lists)
    places = [(k, row, tuple(ids[: k + 1])) for row, ids in enumerate(lists) for k in range(len(ids))]
    for k, row, prefix in places:
        for k2, row2, prefix2 in places:
            assert (made[row][k] == made[row2][k2]) == (prefix == prefix2)
    assert chained_hashes(made) == made


@given(block_lists, st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_engine_blocks_match_exactly_where_tokens_do(lists: list[list[int]], size: int, block_size: int) -> None:
    hashes = chained_hashes(lists)
    engine = EngineBlocks(hashes, size, block_size)
    tokens = [[(block, offset) for block in ids for offset in range(size)] for ids in hashes]
    aligned = size % block_size == 0 or block_size % size == 0
    assert len(engine) == len(hashes)
    for a in range(len(hashes)):
        assert len(engine[a]) == len(tokens[a]) // block_size
        for b in range(a):
            both = min(len(engine[a]), len(engine[b]))
            hit = [engine[a][k] == engine[b][k] for k in range(both)]
            end = [(k + 1) * block_size for k in range(both)]
            true = [tokens[a][:e] == tokens[b][:e] for e in end]
            assert hit == true if aligned else all(t or not h for h, t in zip(hit, true, strict=True))
            assert not set(engine[a]) & set(engine[b]) - {engine[a][k] for k in range(both) if hit[k]}


def test_one_mooncake_block_is_32_engine_blocks() -> None:
    blocks = EngineBlocks(((4, 7),), 512, 16)
    assert len(blocks[0]) == len(set(blocks[0])) == 64


# --- bad input --------------------------------------------------------------------------------------------------------

HEAD = "arrival_s,input_tokens,output_tokens\n"
BAD = {
    "empty file": ("", "is empty"),
    "header only": (HEAD, "holds no requests"),
    "time goes back": (HEAD + "0,1,1\n2,1,1\n1,1,1\n", "row 3 is earlier than row 2: got '1'"),
    "negative time": (HEAD + "-1,1,1\n", "row 1 must not be negative"),
    "zero tokens": (HEAD + "0,1,1\n1,0,1\n", "input_tokens of row 2 must be a whole number >= 1: got 0.0"),
    "negative tokens": (HEAD + "0,1,-4\n", "output_tokens of row 1 must be a whole number >= 1: got -4.0"),
    "half a token": (HEAD + "0,1.5,4\n", "input_tokens of row 1"),
    "not a number": (HEAD + "0,1,4\n1,many,4\n", "input_tokens of row 2 must be a number: got 'many'"),
    "not finite": (HEAD + "nan,1,4\n", "arrival_s of row 1 must be a number"),
    "cut row": (HEAD + "0,1,4\n1,3\n", "row 2 needs 3 columns: got '1,3'"),
    "misspelt column": ("arrival_s,input_token,output_tokens\n0,1,1\n", "nearest valid choice: input_tokens"),
    "strange columns": ("a,b\n1,2\n", "no column"),
    "semicolons": (
        "arrival_s;input_tokens\n1,5;2\n",
        "commas: got 'arrival_s;input_tokens'; nearest",
    ),
    "tabs": ("arrival_s\tinput_tokens\n1\t2\n", "columns are separated by commas"),
    "bad date": (AZURE.replace("2023-11-17 00:00:01.1000000", "yesterday"), "TIMESTAMP of row 2"),
    "cut JSON": (MOONCAKE[:-20], "row 2 is not valid JSON"),
    "not objects": ("[1, 2]", "row 1 must be a JSON object"),
    "missing value": ('{"timestamp":0,"input_length":3,"output_length":1}\n{"timestamp":1,"input_length":3}', "row 2"),
    "odd ids": ('{"timestamp":0,"input_length":3,"output_length":1,"hash_ids":["a"]}', "hash_ids of row 1"),
    "empty JSON list": ("[]", "holds no requests"),
    "cut JSON list": ('[{"instruction": "a", ', "is not valid JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_traces_are_refused_in_one_line_that_names_the_row(tmp_path: Path, name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(InputError) as raised:
        load_workload(write(tmp_path, text))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_damaged_containers(tmp_path: Path) -> None:
    whole = gzip.compress(MOONCAKE.encode() * 50)
    for content, message in (
        (whole[:-30], "cut short"),
        (b"PAR1 nonsense PAR1", "parquet"),
        (b"\xff\xfe\x00", "UTF-8"),
    ):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(InputError, match=message):
            load_workload(str(tmp_path / "bad"))
    with pytest.raises(InputError, match="trace file not found"):
        load_workload(write(tmp_path, "{trace: missing.csv}", "w.yaml"))


# --- real files -------------------------------------------------------------------------------------------------------


def test_validation_cases_read_with_16_token_blocks(validation_data: Path, tmp_path: Path) -> None:
    cases = sorted(validation_data.glob("*/requests.jsonl.gz"))
    assert cases
    for case in cases:
        workload = load_workload(write(tmp_path, json.dumps({"trace": str(case), "hash_block_tokens": 16}), "w.yaml"))
        requests = workload.materialise()
        rows = [json.loads(line) for line in gzip.decompress(case.read_bytes()).splitlines()]
        assert requests.n == len(rows)
        np.testing.assert_allclose(requests.arrival_s, [row["timestamp"] / 1000 for row in rows])
        if "hash_ids" in rows[0]:
            assert requests.block_hashes == tuple(tuple(row["hash_ids"]) for row in rows)
        else:
            assert requests.block_hashes is None
