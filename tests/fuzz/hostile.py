"""Files that crashed a reader, stopped it, or filled the memory, by what they hold."""

from __future__ import annotations

import gzip

_AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"

_BOMB = b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 10)
)

_MERGES = b"k0: &k0 {x: 1}\n" + b"".join(
    b"k%d: &k%d {<<: [%s]}\n" % (i, i, b",".join([b"*k%d" % (i - 1)] * 9)) for i in range(1, 10)
)

HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "spaces": b" \n\t\n",
    "byte order mark": b"\xef\xbb\xbf",
    "not text": b"\xff\xfe\x00\x01" * 20,
    "null character": b"model: a\0b\n",
    "key that is a list": b"? [a, b]\n: 1\n",
    "key that is a mapping": b"{{a: 1}: 2}\n",
    "key that is empty": b"? \n: 1\n",
    "impossible date": b"model: 2020-13-45\nname: 2020-02-30\n",
    "impossible time zone": b"model: 2001-01-01T00:00:00+99:99\n",
    "integer of 5,000 digits": b"seed: " + b"9" * 5000 + b"\n",
    "hexadecimal integer of 5,000 digits": b"seed: 0x" + b"f" * 5000 + b"\n",
    "JSON integer of 5,000 digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "JSON integer of 400 digits": b'{"timestamp": 0, "input_length": ' + b"9" * 400 + b', "output_length": 3}',
    "20,000 brackets": b"[" * 20_000,
    "20,000 braces": b'{"a":' * 20_000,
    "closed brackets": b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
    "5,000 dashes": b"- " * 5000,
    "alias bomb": _BOMB,
    "merge bomb": b"a: &a {x: 1}\n"
    + b"".join(
        b"k%d: &k%d {<<: [%s]}\n" % (i, i, b",".join([b"*%s" % (b"k%d" % (i - 1) if i else b"a")] * 9))
        for i in range(9)
    ),
    "alias of itself": b"a: &a [*a]\n",
    "many keys": b"{" + b",".join(b"k%d: 1" % i for i in range(60_000)) + b"}",
    "tag of another type": b"model: !!bool x\nname: !!timestamp y\nseed: !!int ''\n",
    "tag of Python": b"model: !!python/object/apply:os.getcwd []\n",
    "unpaired surrogate": b'{"model": "\\ud800", "hardware": "\\udfff"}',
    "NaN": b'{"schema_version": NaN, "request": {}, "feasible": NaN, "search": Infinity, "reproduce": 1e999}',
    "string": b'"text"',
    "list": b"[1, null, {}]",
    "gzip bomb": gzip.compress(b" " * 30_000_000),
    "gzip cut short": gzip.compress(b"arrival_s,input_tokens,output_tokens\n1,2,3\n")[:-9],
    "parquet cut short": b"PAR1" + b"\x15\x04" * 30 + b"PAR1",
    "first time empty": _AZURE + b",5,5\n2023-11-17 00:00:01.1000000,396,109\n",
    "first time not a time": _AZURE + b"NaT,5,5\n2023-11-17 00:00:01.1000000,396,109\n",
    "time of today": _AZURE + b"now,5,5\ntoday,396,109\n",
    "year one": _AZURE + b"0001-01-01 00:00:00,5,5\n9999-01-01 00:00:00,396,109\n",
    "numbers that are lists": b'{"arrival_s": [0], "input_tokens": [1], "output_tokens": [1]}\n' * 2,
    "labels that are objects": b'{"arrival_s": 0, "input_tokens": 1, "output_tokens": 1, "session": {}, "model": []}\n',
    "id of over 64 bits": b'{"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [%d]}' % (10**20),
    "prompt of 10^300 tokens": b"input_tokens,output_tokens\n1e300,5\n",
    "arrival after 10^300 s": b"arrival_s,input_tokens,output_tokens\n0,1,1\n1e300,5,5\n",
    "shared prompts of 10^9 tokens": b"{arrivals: all_at_once, input_tokens: 1000000000, output_tokens: 1,"
    b" shared_prefix: {tokens: 1000000000}}",
    "sessions of 10^9 turns": b"{arrivals: {poisson: {}}, input_tokens: 1, output_tokens: 1, turns: 1000000000}",
    "layers of a kind without pattern": b'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,'
    b' "hybrid_layer_pattern": [], "moe_layer_freq": [], "num_local_experts": 2, "num_attention_heads": 2,'
    b' "vocab_size": 9, "intermediate_size": 8, "num_experts_per_tok": 1}',
}
