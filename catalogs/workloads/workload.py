"""Workloads by name or file, drawn into arrays before a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from catalogs.errors import InputError, nearest_name
from catalogs.io.input_files import exists, is_file
from catalogs.io.yaml_files import DATA, YamlBlock, check_keys, parse_yaml, read_yaml
from catalogs.models.audio_rules import POSITIONS_PER_S
from catalogs.models.catalog import load_model
from catalogs.models.media_items import Audio, Modality
from catalogs.models.spec import ModelSpec
from catalogs.ui.shared_options import DEFAULT_WORKLOAD
from catalogs.workloads.arrivals import ClosedLoopArrivals
from catalogs.workloads.files import TRACE_KEYS, parse_workload_file
from catalogs.workloads.length_statistics import LengthStatistics
from catalogs.workloads.lengths import ConstantLength
from catalogs.workloads.limits import MOST_COUNT, MOST_REQUESTS, check_rate
from catalogs.workloads.media import PLURALS, RequestMedia
from catalogs.workloads.media_blocks import MediaBlocks
from catalogs.workloads.replay import Replay
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.traces import read_trace

#: Used where neither the workload nor the caller gives a rate; a notice states this.
DEFAULT_REQUESTS_PER_S: Final = 1.0

#: Architectures of multilingual translation models: M2M-100 and NLLB, mBART.
TRANSLATORS: Final = frozenset({"M2M100ForConditionalGeneration", "MBartForConditionalGeneration"})

#: Requests drawn to describe the lengths of a synthetic workload.
STATS_REQUESTS: Final = 20_000


#: Image sizes that a notice names.
_NAMED_SIZES: Final = 3

#: Requests drawn to name the sizes of items.
NOTICED_REQUESTS: Final = 64


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload; `content` draws its requests, and `notices` are lines for the user."""

    name: str
    source: str
    content: SyntheticWorkload | Replay
    notices: tuple[str, ...] = ()

    @property
    def n_requests(self) -> int:
        """Return the number of requests of a run where the caller gives none."""
        return self.content.n_requests

    @property
    def requests_per_s(self) -> float | None:
        """Return the workload's own mean rate; None where it has none (closed loop, all at once, lengths only)."""
        return self.content.requests_per_s

    @property
    def rate_notice(self) -> str | None:
        """Return the notice for a run at the workload's own rate where it has none; None where no notice is needed."""
        if not self.content.has_rate or self.requests_per_s is not None:
            return None
        return f"{self.name} has no arrival rate of its own: {DEFAULT_REQUESTS_PER_S:g} request/s unless one is given"

    @property
    def scales(self) -> bool:
        """Return whether another rate changes nothing but the times of arrival, each of which is divided by it."""
        return isinstance(self.content, SyntheticWorkload) and self.content.scales

    @property
    def closed_loop(self) -> bool:
        """Return whether a fixed number of clients sends the requests."""
        return self.content.concurrency is not None

    @property
    def _media(self) -> MediaBlocks | RequestMedia | None:
        content = self.content
        return content.media if isinstance(content, SyntheticWorkload) else content.trace.media

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Return the kinds of items other than text that requests have."""
        return () if self._media is None else self._media.modalities

    @property
    def sends_media(self) -> bool:
        """Return whether requests have images, videos or audio."""
        return self._media is not None

    @property
    def media_words(self) -> str | None:
        """Return the images, videos and audio of requests in words; None without any."""
        return None if self._media is None else self._media.words

    def for_model(self, model: ModelSpec) -> Workload:
        """Return the workload as a model reads it: images, videos and audio are tokens of the prompts.

        Raises:
            InputError: The workload sends items that the model does not read, or of sizes that it does not accept.
        """
        if not self.sends_media:
            return self
        if model.encoder_tokens and self.modalities == ("audio",):
            return self._encoded_whole(model)
        read = replace(self, content=replace(self.content, reader=model))
        media = read.materialise(n_requests=NOTICED_REQUESTS).media
        assert media is not None
        found = dict(zip(media.sizes, media.layouts, strict=True))
        sizes = [f"{item.words} {layout.tokens:,}" for item, layout in list(found.items())[:_NAMED_SIZES]]
        more = ", ..." if len(found) > _NAMED_SIZES else ""
        kinds = " and ".join(PLURALS[modality] for modality in self.modalities)
        notice = f"prompts include the tokens of their {kinds}, as {model.name} reads them: {', '.join(sizes)}{more}"
        return replace(read, notices=(*self.notices, notice))

    def _encoded_whole(self, model: ModelSpec) -> Workload:
        """Return the workload for a model that encodes every audio padded to one length, besides the prompt (Whisper).

        Raises:
            InputError: A piece of audio is longer.
        """
        most_s = model.encoder_tokens / POSITIONS_PER_S
        media = self.materialise(n_requests=self.content.n_requests).media
        assert media is not None
        longest_s = max(item.seconds for item in media.sizes if isinstance(item, Audio))
        if longest_s > most_s:
            rule = f"{model.name} encodes {most_s:g} s of audio at a time; servers send longer files in pieces"
            raise InputError(rule, f"{longest_s:g} s", f"audio.seconds of at most {most_s:g}")
        if (media.counts != 1).any():
            raise InputError(
                f"every request to {model.name} has one piece of audio", media.words, "audio.per_request: 1"
            )
        notice = f"{model.name} pads the audio of every request to {most_s:g} s"
        content = replace(self.content, **_without_media(self.content))
        return replace(self, content=content, notices=(*self.notices, notice))

    def materialise(
        self, seed: int | None = None, n_requests: int | None = None, requests_per_s: float | None = None
    ) -> RequestSet:
        """Return the requests of one run; None means the workload's own seed, number or rate.

        The same seed gives the same requests. Another rate stretches the same arrival times and leaves lengths
        unchanged (with `turns`, think times also stay unchanged). A larger number of requests extends a smaller one
        (without `turns`).

        Raises:
            InputError: The rate is not positive or the workload cannot have one, n_requests < 1, or seed < 0.
        """
        seed = _whole("the seed", self.content.seed if seed is None else seed, 0)
        n = _whole("the number of requests", self.content.n_requests if n_requests is None else n_requests, 1)
        if n > MOST_REQUESTS:
            raise InputError(f"a simulation holds at most {MOST_REQUESTS:,} requests", n, str(MOST_REQUESTS))
        drawn = self.content.draw(seed, n, self._rate(requests_per_s))
        return replace(drawn, name=self.name, source=self.source)

    def lengths(self) -> LengthStatistics:
        """Return the statistics of the lengths, of all requests of a trace or of 20,000 drawn ones."""
        n = self.n_requests if isinstance(self.content, Replay) else STATS_REQUESTS
        return LengthStatistics.of(*self.content.draw_lengths(self.content.seed, n))

    def stats(self) -> dict[str, float]:
        """Return mean, median, p95 and p99 of input and output tokens, as flat keys of `catalog show`."""
        sides = {"input": self.lengths().input_tokens, "output": self.lengths().output_tokens}
        names = ("mean", "p50", "p95", "p99")
        return {f"{side}_{name}_tokens": getattr(found, name) for side, found in sides.items() for name in names}

    def _rate(self, requested: float | None) -> float:
        if requested is None:
            return self.requests_per_s or DEFAULT_REQUESTS_PER_S
        rate = check_rate(requested)
        if not self.content.has_rate:
            rule = f"workload {self.name} has no arrival rate to set"
            hint = "leave the rate out: clients form a closed loop, or all requests arrive at once"
            raise InputError(rule, requested, hint=hint)
        return rate


def with_constant_lengths(workload: Workload, input_tokens: int | None, output_tokens: int | None) -> Workload:
    """Return the workload with the same arrivals, in which every request has these lengths; None keeps its own.

    Raises:
        InputError: A length is below one token or above 1e9, or the lengths of the workload belong to its contents.
    """
    given = {"input": input_tokens, "output": output_tokens}
    changed = {side: _whole(f"{side}_tokens", n, 1) for side, n in given.items() if n is not None}
    if not changed:
        return workload
    for side, n in changed.items():
        if n > MOST_COUNT:
            raise InputError(f"{side}_tokens must be at most {MOST_COUNT:,}", n, str(MOST_COUNT))
    content = workload.content
    contents = content.turns if isinstance(content, SyntheticWorkload) else content.trace.block_hashes
    if contents is not None:
        rule = f"the lengths of workload {workload.name} belong to its conversations or shared prompts, so they stay"
        raise InputError(rule, ", ".join(changed), "another --workload, or a workload file with these lengths")
    fields: dict[str, Any]
    if isinstance(content, SyntheticWorkload):
        fields = {f"{side}_tokens": ConstantLength(tokens=n) for side, n in changed.items()}
        content = replace(content, **fields)
    else:
        fields = {f"{side}_tokens": np.full_like(content.trace.input_tokens, n) for side, n in changed.items()}
        content = replace(content, trace=replace(content.trace, **fields))
    exact = " and ".join(f"{n:,} {side} tokens" for side, n in changed.items())
    notice = f"every request has exactly {exact}; real lengths vary, which makes latencies at high percentiles longer"
    return replace(workload, content=content, notices=(*workload.notices, notice))


def in_closed_loop(workload: Workload, clients: int) -> Workload:
    """Return the workload with the same requests, sent by `clients` clients, each one after the answer to its last.

    Raises:
        InputError: There is no client or more than `MOST_COUNT`, or the workload is a trace, which has its own arrival
            times.
    """
    content = workload.content
    if not isinstance(content, SyntheticWorkload):
        rule = f"{workload.name} is a trace with arrival times of its own; clients in a closed loop need distributions"
        raise InputError(rule, hint="give a catalog workload, or a workload file with input_tokens")
    if _whole("the number of clients", clients, 1) > MOST_COUNT:
        raise InputError(f"the number of clients is at most {MOST_COUNT:,}", clients, str(MOST_COUNT))
    loop = ClosedLoopArrivals(concurrency=int(clients))
    return replace(workload, content=replace(content, arrivals=loop))


def list_workloads() -> list[str]:
    """Return the names of the workloads in the catalog, sorted."""
    return sorted(path.stem for path in (DATA / "workloads").glob("*.yaml"))


def load_workload(text: str) -> Workload:
    """Return a workload by catalog name, workload file (.yaml, .yml), trace file (any other name) or keys in braces.

    The keys are those of a workload file: {arrivals: {poisson: {}}, input_tokens: 500, output_tokens: 200}.

    Raises:
        InputError: The name is unknown (the message names the nearest), or the file or a key breaks a rule.
    """
    if not text.strip():
        raise InputError("a workload is a catalog name, a file or keys in braces", text, DEFAULT_WORKLOAD)
    if is_inline_workload(text):
        return _from_text(text)
    names = {name.lower(): name for name in list_workloads()}
    if text.lower() in names:
        return _from_catalog(names[text.lower()])
    path = Path(text)
    if not exists(path):
        looks_like_path = path.suffix or len(path.parts) > 1
        nearest = nearest_name(text, names.values()) or (None if looks_like_path else ", ".join(names.values()))
        raise InputError("workload is neither a catalog name nor a file", text, nearest)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_mapping(read_yaml(path), path.stem, path.parent, path.name)
    trace = read_trace(path)
    content = Replay(trace, len(trace.input_tokens))
    return Workload(path.name, f"{trace.format} trace {path.name}", content, trace.notices)


def default_workload(model: str) -> str:
    """Return the workload to use for a model, as users write it, where none is named; unknown names are not refused.

    Encoders and decoders of these models have few positions, so most prompts of a chat would be refused. T5 and BART
    summarise news, multilingual models translate sentences, and models with an encoder of audio transcribe it.
    """
    try:
        found = load_model(model)
    except InputError:
        return DEFAULT_WORKLOAD
    if not found.is_encoder_decoder:
        return DEFAULT_WORKLOAD
    if not found.encodes_prompt:
        return "transcription"
    return "translation" if found.architecture in TRANSLATORS else "news-summaries"


def served_modalities(text: str, model: ModelSpec) -> tuple[Modality, ...]:
    """Return the kinds of items of a workload that a model reads as tokens of its prompts.

    Raises:
        InputError: The name is unknown, or the file or a key breaks a rule.
    """
    found = workload_modalities(text)
    return () if model.encoder_tokens and found == ("audio",) else found


def _without_media(content: SyntheticWorkload | Replay) -> dict[str, Any]:
    return {"media": None} if isinstance(content, SyntheticWorkload) else {"trace": replace(content.trace, media=None)}


def workload_modalities(text: str) -> tuple[Modality, ...]:
    """Return the kinds of items other than text that requests of a workload have.

    The result is cached while the file of the workload does not change.

    Raises:
        InputError: The name is unknown, or the file or a key breaks a rule.
    """
    path = Path(text)
    found = path.stat() if not is_inline_workload(text) and is_file(path) else None
    return _modalities(text, None if found is None else (found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=64)
def _modalities(text: str, changed: tuple[int, int] | None) -> tuple[Modality, ...]:  # noqa: ARG001 - part of the key
    return load_workload(text).modalities


def is_inline_workload(text: str) -> bool:
    """Return whether the text of a workload holds its keys in braces, and is no name."""
    return text.lstrip().startswith("{")


def _from_text(text: str) -> Workload:
    """Return the workload of keys in braces, YAML or JSON; a trace is a file, and has another spelling."""
    data = parse_yaml(text, "the workload")
    for key in sorted(TRACE_KEYS & data.keys()):
        raise InputError("a workload in braces names no file; give the trace itself as the workload", key)
    name = "conversations" if "turns" in data else "lengths of the question"
    found = _from_mapping(data, name, Path(), "the workload")
    return replace(found, source=found.source if "source" in data else "the keys of the question")


class SecondName(YamlBlock):
    """A file of the catalog that gives a second name to a workload; `notice` is what the name meant before."""

    same_as: str
    notice: str


def _from_catalog(name: str) -> Workload:
    data, where = read_yaml(DATA / "workloads" / f"{name}.yaml"), f"workload {name}"
    if "same_as" not in data:
        return _from_mapping(data, name, DATA, where)
    second = check_keys(SecondName, data, where)
    notice = f"{name} is the workload {second.same_as}; {second.notice}"
    return replace(_from_catalog(second.same_as), name=name, notices=(notice,))


def _from_mapping(data: dict[str, object], name: str, folder: Path, where: str) -> Workload:
    written, content, notices = parse_workload_file(data, folder, where)
    source = written.source or (f"trace {written.trace}" if written.trace else f"workload file {where}")
    return Workload(written.name or name, source, content, notices)


def _whole(name: str, value: int, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise InputError(f"{name} must be a whole number >= {low}", value, str(low))
    return int(value)
