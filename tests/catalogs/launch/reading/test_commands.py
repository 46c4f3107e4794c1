"""Start commands as people write them: each line states facts of a public recipe, and the keys that it must mean."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.launch.reading.read import ReadLaunch, read_command

LLAMA8, LLAMA70, OSS, R1 = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct",
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-R1",
)

LINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "serve": (f"vllm serve {LLAMA8}", "h100", {"model": LLAMA8, "engine": "vllm", "hardware": "h100"}),
    "module": (
        f"python3 -m vllm.entrypoints.openai.api_server --model={LLAMA8} --tensor-parallel-size=2 --port 80",
        "h100x2",
        {"tensor_parallel": 2},
    ),
    "short forms": (
        f"vllm serve {LLAMA70} -tp 4 -pp 2 -q fp8 -asc 2 -O3 -cc.cudagraph_mode FULL",
        "h100x8",
        {"tensor_parallel": 4, "pipeline_parallel": 2, "weight_dtype": "fp8", "api_server_count": 2,
         "cudagraph_mode": "full"},
    ),
    "underscores and abbreviations": (
        f"vllm serve {LLAMA8} --max_num_seqs 64 --gpu-memory-util 0.8 --max-model 8192",
        "h100",
        {"max_num_seqs": 64, "gpu_memory_utilization": 0.8, "max_model_len": 8192},
    ),
    "suffixes": (
        f"vllm serve {LLAMA8} --max-model-len 16k --max-num-batched-tokens 8K",
        "h100",
        {"max_model_len": 16000, "max_num_batched_tokens": 8192},
    ),
    "auto": (f"vllm serve {LLAMA8} --max-model-len auto --kv-cache-dtype auto --dtype auto", "h100", {}),
    "negated": (
        f"vllm serve {LLAMA8} --no-enable-prefix-caching --no-async-scheduling --enforce-eager",
        "h100",
        {"prefix_caching": False, "async_scheduling": False, "enforce_eager": True},
    ),
    "experts": (
        f"vllm serve {R1} --data-parallel-size 8 --enable-expert-parallel --all2all-backend deepep_high_throughput",
        "h200x8",
        {"data_parallel": 8, "expert_parallel": True, "all2all_backend": "deepep_high_throughput"},
    ),
    "copies": (
        f"vllm serve {R1} -dp 8 -ep --all2all-backend deepep_high_throughput --enable-eplb "
        """--eplb-config '{"num_redundant_experts": 32, "window_size": 1000}'""",
        "h200x8",
        {"data_parallel": 8, "expert_parallel": True, "all2all_backend": "deepep_high_throughput",
         "redundant_experts": 32},
    ),
    "products-sglang": (
        f"python -m sglang.launch_server --model-path {R1} --tp 8 --fp8-gemm-backend flashinfer_trtllm",
        "b200x8",
        {"gemm_backend": "flashinfer"},
    ),
    "products-variable-sglang": (
        f"SGLANG_ENABLE_FLASHINFER_GEMM=true python -m sglang.launch_server --model-path {R1} --tp 8",
        "b200x8",
        {"gemm_backend": "flashinfer"},
    ),
    "copies-sglang": (
        f"python -m sglang.launch_server --model-path {R1} --tp 8 --dp 8 --enable-dp-attention "
        "--moe-a2a-backend deepep --enable-eplb --ep-num-redundant-experts 16",
        "h200x8",
        {"data_parallel": 8, "tensor_parallel": 1, "expert_parallel": True, "all2all_backend": "deepep_auto",
         "redundant_experts": 16},
    ),
    "gpt-oss": (
        f"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1 vllm serve {OSS} --kv-cache-dtype fp8 --async-scheduling "
        "--max-cudagraph-capture-size 2048 --no-enable-prefix-caching --stream-interval 20",
        "b200x1",
        {"activation_dtype": "mxfp8", "kv_dtype": "fp8", "async_scheduling": True, "max_cudagraph_capture_size": 2048},
    ),
    "experts by a variable": (
        f"VLLM_MXFP4_USE_MARLIN=1 vllm serve {OSS} --max-cudagraph-capture-size 2048",
        "h200x1",
        {"moe_backend": "marlin", "max_cudagraph_capture_size": 2048},
    ),
    "passes": (
        f"""vllm serve {OSS} -tp 2 --compilation_config '{{"pass_config": {{"fuse_allreduce_rms": true}},
        "cudagraph_mode": "FULL_DECODE_ONLY"}}'""",
        "b200x2",
        {"fused_allreduce": True, "cudagraph_mode": "full_decode_only"},
    ),
    "drafts": (
        f"""vllm serve {R1} -tp 8 --speculative-config '{{"method": "deepseek_mtp", "num_speculative_tokens": 2}}'""",
        "h200x8",
        {"speculative": {"method": "mtp", "num_speculative_tokens": 2, "acceptance": 0.7}},
    ),
    "offload": (f"vllm serve {LLAMA8} --kv-offloading-size 64", "h100", {"kv_offload": {"host_gib": 64.0}}),
    "adapters": (
        f"vllm serve {LLAMA8} --enable-lora --max-loras 4 --max-lora-rank 64 --lora-modules a=x b=y c=z",
        "h100",
        {"lora": {"adapters": 3, "max_loras": 4, "max_rank": 64}},
    ),
    "text only": (
        "vllm serve Qwen/Qwen2.5-VL-7B-Instruct --limit-mm-per-prompt.video 0 --mm-encoder-tp-mode data",
        "h100",
        {"multimodal": {"encoder_parallel": "data", "modalities": ("image",)}},
    ),
    "level 0": (f"vllm serve {LLAMA8} -O0", "h100", {"enforce_eager": True}),
    "docker": (
        f"sudo docker run --runtime nvidia --gpus all --ipc=host -p 8000:8000 -e HF_TOKEN=x vllm/vllm-openai:v0.15.1 "
        f"--model {LLAMA8} --max-num-seqs 128",
        "h100",
        {"engine": "vllm-0.15", "max_num_seqs": 128},
    ),
    "old version": (
        f"docker run vllm/vllm-openai:v0.6.3 --model {LLAMA8} --swap-space 16",
        "a100-80gb",
        {"engine": "vllm-v0"},
    ),
    "sglang": (
        f"python3 -m sglang.launch_server --model-path {LLAMA70} --tp 8 --mem-fraction-static 0.85 "
        "--enable-torch-compile --cuda-graph-max-bs 256 --disable-radix-cache --context-length 8192",
        "h100x8",
        {"engine": "sglang", "tensor_parallel": 8, "gpu_memory_utilization": 0.85, "prefix_caching": False,
         "max_cudagraph_capture_size": 256, "max_model_len": 8192},
    ),
    "sglang attention ranks": (
        f"python -m sglang.launch_server --model {R1} --tp 8 --dp 8 --enable-dp-attention --ep-size 8 "
        "--moe-a2a-backend deepep --deepep-mode normal --max-running-requests 1024 --chunked-prefill-size 32768",
        "h200x8",
        {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": True, "max_num_seqs": 128,
         "max_num_batched_tokens": 4096, "all2all_backend": "deepep_high_throughput"},
    ),
    "sglang replicas": (
        f"python -m sglang.launch_server --model-path {LLAMA8} --dp-size 4 --schedule-policy lpm",
        "h100x4",
        {"replicas": 4, "queue": {"order": "prefix"}},
    ),
    "sglang drafts": (
        f"python -m sglang.launch_server --model-path {R1} --tp 8 --speculative-algorithm EAGLE "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
        "h200x8",
        {"speculative": {"method": "mtp", "num_speculative_tokens": 3, "acceptance": 0.7}},
    ),
    "sglang without the interval": (
        f"sglang serve --model-path {R1} --tp 8 --trust-remote-code", "b200x8", {"engine": "sglang-bare"}
    ),
    "trtllm": (
        "cat > extra.yml <<EOF\nenable_attention_dp: true\n"
        "kv_cache_config:\n  dtype: fp8\n  enable_block_reuse: false\n"
        "cuda_graph_config:\n  enable_padding: true\n  max_batch_size: 256\nmoe_config:\n  backend: CUTLASS\nEOF\n"
        f"mpirun -n 1 trtllm-serve {R1} --backend pytorch --tp_size 8 --ep_size 8 --max_batch_size 256 "
        "--max_num_tokens 8192 --extra_llm_api_options extra.yml",
        "b200x8",
        {"engine": "trtllm", "tensor_parallel": 1, "data_parallel": 8, "expert_parallel": True, "kv_dtype": "fp8",
         "prefix_caching": False, "max_num_seqs": 256, "moe_backend": "cutlass", "max_cudagraph_capture_size": 256},
    ),
    "llama.cpp": (
        f"./build/bin/llama-server -m /models/Llama-3.1-8B-Instruct-Q8_0.gguf --alias {LLAMA8} -np 8 -c 32768 -ngl 99 "
        "-fa --no-kv-unified --no-cache-prompt",
        "rtx4090",
        {"engine": "llama.cpp", "weight_dtype": "int8", "max_num_seqs": 8, "max_model_len": 4096},
    ),
    "weights that are quantised while they are loaded, without the cache of published checkpoints": (
        "vllm serve Qwen/Qwen2.5-32B-Instruct -tp 2 --quantization fp8", "l40sx2",
        {"weight_dtype": "fp8", "kv_dtype": "bf16"},
    ),
    "such weights with a cache that is stated": (
        "vllm serve Qwen/Qwen2.5-32B-Instruct -tp 2 --quantization fp8 --kv-cache-dtype fp8", "l40sx2",
        {"weight_dtype": "fp8", "kv_dtype": "fp8"},
    ),
    "llama.cpp with the context of the model": (
        "llama-server -hf ggml-org/gpt-oss-20b-GGUF -c 0 -np 4", "l40s", {"max_num_seqs": 4, "max_model_len": 32768}
    ),
    "llama.cpp without a context": (
        "llama-server -hf ggml-org/gpt-oss-20b-GGUF -np 8", "l40s", {"max_num_seqs": 8, "max_model_len": 16384}
    ),
    "llama.cpp with a repository of a model that is published in four bits": (
        "llama-server -hf ggml-org/gpt-oss-20b-GGUF", "l40s", {"model": "gpt-oss-20b", "weight_dtype": None}
    ),
    "llama.cpp with a repository of a model that is published in NVFP4": (
        "llama-server -hf nvidia/Llama-3.3-70B-Instruct-NVFP4-GGUF", "h100", {"weight_dtype": "int4"}
    ),
    "llama.cpp with a repository and its default file": (
        "llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "l40s", {"weight_dtype": "int4"}
    ),
    "llama.cpp with a repository and a stated file": (
        "llama-server -hf ggml-org/gpt-oss-20b-GGUF:Q8_0", "l40s", {"model": "gpt-oss-20b", "weight_dtype": "int8"}
    ),
    "llama.cpp with a context that the slots share": (
        "llama-server -hf ggml-org/gpt-oss-20b-GGUF -np 4 -kvu", "l40s", {"max_num_seqs": 4, "max_model_len": None}
    ),
    "a local path": (
        f"vllm serve /data/models/llama --served-model-name {LLAMA8} --port 9000", "h100", {"model": LLAMA8}
    ),
    "a cached snapshot": (
        "vllm serve /root/.cache/huggingface/hub/models--openai--gpt-oss-120b/snapshots/abc", "h100x2", {"model": OSS}
    ),
    "a wrapper": (
        f"cd /app && nohup numactl -N 0 vllm serve {LLAMA8} --max-num-seqs 8 > log 2>&1 &", "h100", {"max_num_seqs": 8}
    ),
    "a shell in a container": (
        f"docker run --gpus 2 --entrypoint bash vllm/vllm-openai:latest -c 'vllm serve {LLAMA8} -tp 2'",
        "h100x2",
        {"tensor_parallel": 2},
    ),
}  # fmt: skip

ACCEPTANCE = ["speculative.acceptance=0.7"]


def read(text: str, hardware: str | None = "h100", *settings: str) -> ReadLaunch:
    return read_command(text, hardware, settings)


@pytest.mark.parametrize("name", LINES)
def test_lines_mean_what_their_engine_does(name: str) -> None:
    text, hardware, keys = LINES[name]
    found = read(text, hardware, *(ACCEPTANCE if "speculative" in keys else []))
    values = found.deployment.model_dump()
    stated = {key: values[key] for key in keys if not isinstance(keys[key], dict)}
    assert stated == {key: value for key, value in keys.items() if not isinstance(value, dict)}
    for key, block in keys.items():
        if isinstance(block, dict):
            assert {name: values[key][name] for name in block} == block
    assert not [note for note in found.notes if note.kind == "unknown"]


def test_only_models_published_in_mxfp4_keep_their_storage_in_gguf_files() -> None:
    kept = read("llama-server -hf ggml-org/gpt-oss-20b-GGUF", "l40s").notes
    assert any("published in MXFP4" in note.text for note in kept)
    nvfp4 = read("llama-server -hf nvidia/Llama-3.3-70B-Instruct-NVFP4-GGUF").notes
    assert not any("MXFP4" in note.text for note in nvfp4)


@pytest.mark.parametrize("written", ["me/unknownmodel-GGUF", "me/unknownmodel", "me/unknownmodel-GGUF:Q8_0"])
def test_an_unknown_repository_is_named_as_written(written: str) -> None:
    with pytest.raises(InputError) as error:
        read(f"llama-server -hf {written}")
    assert error.value.value == written


def kinds(found: ReadLaunch, flag: str) -> list[str]:
    return [note.kind for note in found.notes if note.flag.startswith(flag)]


@pytest.mark.parametrize(("dtype", "kind"), [("fp8", "unknown"), ("auto", "no effect"), ("half", "read")])
def test_a_dtype_that_the_engine_does_not_have_is_named(dtype: str, kind: str) -> None:
    found = read(f"vllm serve {LLAMA8} --dtype {dtype}")
    assert kinds(found, "--dtype") == [kind]
    assert found.deployment.weight_dtype == ("fp16" if dtype == "half" else None)


def test_every_flag_has_a_note() -> None:
    text = (
        f"vllm serve {LLAMA8} --max-num-seqs 8 --port 1 --enable-dbo --use-v2-block-manager --max-num-sequences 4 "
        "--api-key a b --disable-log-requests"
    )
    found = read(text)
    expected = {
        "--max-num-seqs": "read", "--port": "no effect", "--enable-dbo": "trap",
        "--use-v2-block-manager": "deprecated", "--max-num-sequences": "unknown", "--api-key a b": "no effect",
        "--disable-log-requests": "deprecated",
    }  # fmt: skip
    assert {flag: kinds(found, flag)[0] for flag in expected} == expected
    assert next(note.text for note in found.notes if note.kind == "unknown").startswith(
        "vllm has no such flag; nearest: --max-num-seqs"
    )
    assert found.kept == ("--port", "1", "--api-key", "a", "b")


def test_a_launch_that_the_engine_refuses_is_a_trap() -> None:
    """vLLM does not start with halves of steps and without DeepEP; SGLang runs whole steps."""
    (note,) = [n for n in read(f"vllm serve {LLAMA8} --enable-dbo").notes if n.flag == "--enable-dbo"]
    assert note.kind == "trap"
    assert "refuses to start" in note.text
    sglang = f"python -m sglang.launch_server --model-path {LLAMA8} --enable-two-batch-overlap"
    assert kinds(read(sglang), "--enable-two-batch-overlap") == ["no effect"]


@pytest.mark.parametrize(
    ("program", "flag", "key"),
    [
        ("vllm serve", "--moe-backend aiter", "moe_backend"),
        ("vllm serve", "--attention-backend ROCM_AITER_FA", "attention_backend"),
        ("vllm serve", "--all2all-backend pplx", "all2all_backend"),
        ("sglang serve", "--moe-runner-backend aiter", "moe_backend"),
        ("sglang serve", "--attention-backend aiter", "attention_backend"),
        ("sglang serve", "--fp8-gemm-backend aiter", "gemm_backend"),
        ("sglang serve", "--moe-a2a-backend mooncake", "all2all_backend"),
    ],
)
def test_kernels_that_deployments_cannot_name_are_left_out(program: str, flag: str, key: str) -> None:
    found = read(f"{program} Qwen/Qwen3-30B-A3B {flag}")
    assert key not in found.keys
    assert "not simulated" in kinds(found, flag)


@pytest.mark.parametrize(
    ("flags", "flag", "kind"),
    [
        ("--all2all-backend deepep_low_latency --enable-eplb", "--enable-eplb", "not simulated"),
        ("""--all2all-backend deepep_low_latency --eplb-config '{"num_redundant_experts": 8}'""", "--eplb-config",
         "not simulated"),
        ("""--enable-eplb --eplb-config '{"num_redundant_experts": 8}'""", "--enable-eplb with 8 copies",
         "not simulated"),
    ],
)  # fmt: skip
def test_copies_of_experts_need_a_balancer_and_an_exchange_that_sends_to_experts(
    flags: str, flag: str, kind: str
) -> None:
    found = read(f"vllm serve {R1} -dp 8 -ep {flags}", "h200x8")
    assert "redundant_experts" not in found.keys
    assert kind in kinds(found, flag)


def test_a_configuration_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(InputError, match="--eplb-config needs a JSON mapping: got '5'"):
        read(f"vllm serve {R1} -dp 8 -ep --enable-eplb --eplb-config 5", "h200x8")


def test_a_file_after_an_equals_sign_is_ignored_as_vllm_does() -> None:
    keys = "max-num-seqs: 7\nno-enable-prefix-caching: true\ncompilation-config: '{\"mode\": 3}'\n"
    files = f"cat > c.yaml <<EOF\n{keys}EOF\n"
    ignored = read(f"{files}vllm serve {LLAMA8} --config=c.yaml")
    assert kinds(ignored, "--config=c.yaml") == ["trap"]
    assert "max_num_seqs" not in ignored.keys
    used = read(f"{files}vllm serve {LLAMA8} --config c.yaml")
    assert (used.keys["max_num_seqs"], used.keys["prefix_caching"]) == (7, False)
    assert read(f"{files}vllm serve {LLAMA8} --config c.yaml --max-num-seqs 9").keys["max_num_seqs"] == 9


def test_limits_of_other_entry_points() -> None:
    found = read(f"python -m vllm.entrypoints.api_server --model {LLAMA8}")
    assert (found.keys["max_num_batched_tokens"], found.keys["max_num_seqs"]) == (2048, 128)
    assert kinds(found, "python -m vllm.entrypoints.api_server") == ["trap"]
    low = read(f"vllm serve {R1} -dp 8 -ep --all2all-backend deepep_low_latency --max-num-seqs 256", "h200x8")
    assert low.keys["max_num_batched_tokens"] == 256


def test_equal_servers_are_replicas_and_further_nodes_do_not_count() -> None:
    several = "\n".join(f"CUDA_VISIBLE_DEVICES={i} vllm serve {LLAMA8} --port {i} &" for i in range(4))
    assert read(several, "h100x4").deployment.replicas == 4
    nodes = "\n".join(
        f"vllm serve {R1} -tp 8 -dp 2 -ep --data-parallel-size-local 1 {more}" for more in ("", "--headless -dpr 1")
    )
    assert read(nodes, "2*h200x8").deployment.replicas == 1
    for rank in ("--node-rank {}", "--node-rank={}", "--node_rank {}"):
        ranks = "\n".join(f"vllm serve {R1} -tp 16 --nnodes 2 {rank.format(i)}" for i in range(2))
        assert read(ranks, "2*h200x8").deployment.replicas == 1, rank
    with pytest.raises(InputError, match="starts several servers that differ"):
        read(f"vllm serve {LLAMA8} &\nvllm serve {LLAMA8} --max-num-seqs 8", "h100x2")


@pytest.mark.parametrize(
    ("text", "hardware", "rule"),
    [
        ("ls -l", "h100", "must start an engine that is known"),
        ("vllm serve", "h100", "must name its model"),
        ("vllm serve BAAI/bge-large-en-v1.5", "h100", "is a network.*plan --model bge-large-en-v1.5$"),
        ("vllm serve meta-lama/Llama-3.1-8B-Instruc", "h100", "unknown model"),
        (f"vllm serve {LLAMA8} --max-num", "h100", "an abbreviation must fit one flag"),
        (f"vllm serve {LLAMA8} --max-num-seqs many", "h100", "--max-num-seqs needs an integer"),
        (f"vllm serve {LLAMA8} --max-num-seqs", "h100", "a flag needs a value"),
        (f"vllm serve {LLAMA8} --speculative-config x", "h100", "needs a JSON mapping"),
        (f"vllm serve {LLAMA8} --config missing.yaml", "h100", "must be here"),
        (f"vllm serve {LLAMA8} -tp $TP", "h100x8", "uses a variable that nothing sets"),
        (f"vllm serve {LLAMA8} -tp 8", "h100x4", "uses 8 accelerators, and h100x4 has 4"),
        (f"vllm serve {LLAMA8}", None, "does not name one kind of accelerator"),
        (f"vllm serve {LLAMA8} 'x", "h100", "must close its quotation mark"),
        ("llama-server -m Llama-3.1-8B-Instruct-Q8_0.gguf -ts 1,inf", "h100x2", "is a list of numbers with commas"),
        ("llama-server -m Llama-3.1-8B-Instruct-Q8_0.gguf -ts 1,", "h100x2", "is a list of numbers with commas"),
    ],
)  # fmt: skip
def test_bad_commands_are_refused_in_one_line(text: str, hardware: str | None, rule: str) -> None:
    with pytest.raises(InputError, match=rule) as caught:
        read(text, hardware)
    assert "\n" not in str(caught.value)


def test_settings_correct_what_was_read() -> None:
    found = read(f"vllm serve {LLAMA8} --max-num-seqs 8", "h100", "max_num_seqs=9", "engine=vllm-0.11")
    assert (found.deployment.max_num_seqs, found.deployment.engine) == (9, "vllm-0.11")
    assert read("vllm serve acme/private-8b", "h100", f"model={LLAMA8}").deployment.model == LLAMA8


def test_servers_of_loops_count_once_and_a_note_says_so() -> None:
    read = read_command(f"for p in 0 1; do vllm serve {LLAMA8} & done", "h100x2")
    assert read.keys["replicas"] == 1
    assert any("loop" in note.text for note in read.important)
    assert not any("loop" in note.text for note in read_command(f"vllm serve {LLAMA8}", "h100").notes)


@pytest.mark.parametrize(("hardware", "more", "words"), [("h100x4", "-tp 2", "2 of 4"), ("h100x2", "-tp 2", "")])
def test_idle_accelerators_are_stated(hardware: str, more: str, words: str) -> None:
    found = [
        note.text for note in read_command(f"vllm serve {LLAMA8} {more}", hardware).important if "used" in note.text
    ]
    assert len(found) == bool(words)
    assert all(text.startswith(words) for text in found)


def test_the_output_of_a_command_is_no_number_and_the_hint_says_what_to_do() -> None:
    with pytest.raises(InputError, match="--env NAME=VALUE"):
        read_command(f"vllm serve {LLAMA8} -tp $(nvidia-smi -L | wc -l)", "h100x2")
    with pytest.raises(InputError) as caught:
        read_command(f"vllm serve {LLAMA8} -tp two", "h100x2")
    assert "--env" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (  # JSON values that are written as text
            "vllm serve deepseek-ai/DeepSeek-R1 -dp 8 --enable-expert-parallel --all2all-backend deepep_low_latency "
            "--enable-eplb --eplb-config '{\"num_redundant_experts\": \"32\"}'",
            {"redundant_experts": 32},
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep --all2all-backend deepep_low_latency --enable-dbo",
            {"two_batch_overlap": True},
        ),
        ("vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep --enable-dbo", {"two_batch_overlap": False}),
        (
            "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --dp 8 --enable-dp-attention "
            "--moe-a2a-backend deepep --enable-two-batch-overlap",
            {"two_batch_overlap": True},
        ),
        (  # the flags of Dynamo's worker have dashes
            "python3 -m dynamo.trtllm --model openai/gpt-oss-120b --tensor-parallel-size 4 --expert-parallel-size 4 "
            "--max-num-tokens 2048 --max-batch-size 64 --free-gpu-memory-fraction 0.8 --enable-attention-dp "
            "--override-engine-args '{\"kv_cache_config\": {\"dtype\": \"fp8\"}}'",
            {"data_parallel": 4, "expert_parallel": True, "max_num_batched_tokens": 2048, "max_num_seqs": 64,
             "gpu_memory_utilization": 0.8, "kv_dtype": "fp8"},
        ),
        (  # TensorRT-LLM before 1.0 runs TensorRT's engines unless the command chooses PyTorch
            "docker run nvcr.io/nvidia/tensorrt-llm/release:0.18.0 trtllm-serve Qwen/Qwen2.5-7B-Instruct",
            {"engine": "trtllm-tensorrt"},
        ),
        (
            "docker run nvcr.io/nvidia/tensorrt-llm/release:0.18.0 trtllm-serve Qwen/Qwen2.5-7B-Instruct "
            "--backend pytorch",
            {"engine": "trtllm-1.2"},
        ),
        ("trtllm-serve Qwen/Qwen2.5-7B-Instruct --backend tensorrt", {"engine": "trtllm-tensorrt"}),
        (
            "docker run nvcr.io/nvidia/tensorrt-llm/release:1.1.0 trtllm-serve Qwen/Qwen2.5-7B-Instruct",
            {"engine": "trtllm-1.2"},
        ),
        (  # a balancer of ranks without ranks
            "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 "
            "--load-balance-method round_robin",
            {"rank_dispatch": None, "tensor_parallel": 8},
        ),
        (  # variables that nothing sets, in flags that decide nothing
            "vllm serve openai/gpt-oss-120b -tp 8 --data-parallel-address ${MASTER} --port=${PORT}",
            {"tensor_parallel": 8},
        ),
        (  # no arguments are given to a script, so that the loop over them is passed over
            "MODEL=openai/gpt-oss-20b\nwhile [[ $# -gt 0 ]]; do case $1 in --model) MODEL=$2; shift 2;; esac; done\n"
            "vllm serve $MODEL", {"model": "openai/gpt-oss-20b"},
        ),
        (  # a line that YAML has joined
            "vllm serve \\ --model openai/gpt-oss-20b \\ --max-num-seqs 8", {"max_num_seqs": 8},
        ),
        ("vllm serve moonshotai/Kimi-K2.5 -tp 8 --mm-encoder-tp-mode data", {"multimodal": None}),
    ],
)  # fmt: skip
def test_lines_of_published_scripts(text: str, keys: dict[str, Any]) -> None:
    found = read_command(text, "h200x8").deployment.model_dump()
    assert {key: found[key] for key in keys} == keys


def test_the_server_beside_a_prefill_server_decodes() -> None:
    """Dynamo's older scripts mark only the prefill worker."""
    line = "python3 -m dynamo.vllm --model openai/gpt-oss-20b"
    read = read_command(f"{line} --max-num-seqs 64 &\n{line} --is-prefill-worker", "h200x2")
    split = read.deployment.disaggregation
    assert split is not None
    assert (split.prefill_replicas, split.decode_replicas, read.deployment.max_num_seqs) == (1, 1, 64)
    assert any("decodes" in note.text for note in read.notes)
