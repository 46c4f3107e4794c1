"""A calibration bundle at run time: the cost of any operator on one accelerator, and the error of that cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.bundles.borrowed_times import SAME_CHIP_ERROR, borrowed_cost, same_chip, stand_ins
from calibration.bundles.files import ARRAYS_NAME, JSON_NAME, BundleFacts, Release, read_bundle
from calibration.bundles.releases import by_distance, joined, nearest_release, releases_in
from calibration.families.base import FamilyModel
from calibration.families.collective import CollectiveModel
from calibration.families.decode_attention import DecodeAttentionModel
from calibration.families.gemm import GemmModel
from calibration.families.grouped_gemm import GroupedGemmModel, balanced_experts
from calibration.families.noncausal_attention import NonCausalAttentionModel
from calibration.families.prefill_attention import PrefillAttentionModel
from calibration.families.registry import FAMILIES
from calibration.families.uncalibrated import DEFAULTS, UncalibratedModel
from calibration.operators.cost import INTERPOLATED, ROOFLINE_ERROR, Cost
from calibration.operators.operators import Collective, Gemm, GroupedGemm, Operator
from calibration.operators.roofline import compute_s, memory_s
from calibration.power.model import PowerModel, load_power
from catalogs.arrays import FloatArray
from catalogs.engines.profile import EngineProfile
from catalogs.engines.versions import version_in_minors
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.io import yaml_files
from catalogs.ui.words import percent

#: Number of minor releases by which shipped tables may be older than the engine without a notice. A judgement: most
#: shipped tables are of vLLM 0.24, and its present profile is of 0.33; every answer names the release.
USUAL_LAG: Final = 9

#: Median relative error on unseen shapes above which a user's own measurements get a notice. A judgement: the limit of
#: the word "rough" in a calibration report (calibration/report/operator_page.py).
LARGE_ERROR: Final = 0.25

#: Dtype of the experts that another engine's tables time (`cut_experts_tables` of an engine profile).
CUT_EXPERTS: Final = "fp8_block"

PADDED_NOTICE: Final = (
    "experts: the engine's kernel for block-scaled FP8 was not timed; "
    "the rows of padded blocks are added from the roofline"
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The cost models of one accelerator.

    Attributes:
        transferred: Whether the models were fitted on another accelerator; every origin is then at least 1.
        measured_on: The accelerator of the tables if it is another board of the same chip; None otherwise.
        shipped: Whether the bundle comes from the package, not from the user.
        lent: The release that lends the tables of a family, by family, where the bundle's own release was not timed, or
            where the engine runs the kernels of that release.
    """

    name: str
    accelerator: Accelerator
    models: Mapping[str, FamilyModel]
    power: PowerModel
    provenance: dict[str, Any]
    notices: list[str]
    errors: Mapping[str, float] = field(default_factory=dict)
    transferred: bool = False
    shipped: bool = False
    lent: Mapping[str, str] = field(default_factory=dict)
    measured_on: Accelerator | None = None

    def cost(self, op: Operator) -> Cost:
        """Return the seconds, watts and origin of an operator, in its broadcast shape."""
        if isinstance(op, GroupedGemm) and op.balanced:
            seconds, origin = balanced_experts(op, self._seconds, self.accelerator)
        else:
            seconds, origin = self._seconds(op)
        if self.transferred:
            origin = np.maximum(origin, INTERPOLATED)
        busy = np.maximum(seconds, 1e-12)
        arithmetic = compute_s(op, self.accelerator) / busy
        memory = memory_s(op, self.accelerator) / busy
        return Cost(seconds, self.power.operator_w(op, arithmetic, memory, self.accelerator), origin)

    def _seconds(self, op: Operator) -> tuple[FloatArray, FloatArray]:
        """Return the seconds and the origin of an operator by the model of its family."""
        model = self.models.get(op.family)
        if model is None or self.measured_on is None:
            return (model or UncalibratedModel(op.family)).cost(op, self.accelerator)
        return borrowed_cost(model, op, self.measured_on, self.accelerator)

    def relative_error(self, family: str) -> float:
        """Return the held-out median |relative error| of a family, or the stated default where it is uncalibrated.

        Times that another board of the same chip lends have SAME_CHIP_ERROR as well, added in quadrature.

        Raises:
            InputError: The family is unknown.
        """
        if family not in DEFAULTS:
            raise InputError("unknown operator family", family, ", ".join(DEFAULTS))
        error = self.errors.get(family, DEFAULTS[family].expected_error)
        return error if self.measured_on is None else float(np.hypot(error, SAME_CHIP_ERROR))

    @property
    def borrowed_error(self) -> float | None:
        """Return the relative error, beyond `relative_error`, of times from the tables of another accelerator.

        It is 0 for another board of the same chip, whose error `relative_error` includes, and None if no other
        accelerator lends its tables.
        """
        if not self.transferred:
            return None
        return ROOFLINE_ERROR if self.measured_on is None else 0.0

    def same_tables(self, other: Bundle) -> bool:
        """Return whether both were read from the same files, so that every operator costs the same."""
        own, others = self.models, other.models
        return own.keys() == others.keys() and all(others[family] is model for family, model in own.items())

    def joins_decodes(self, head_dim: int, kv_dtype: str) -> bool:
        """Return whether a decode in a step with prompts takes as long as a prompt chunk of one token.

        That is so where one kernel, which does not split contexts, computes the attention of both.
        """
        model = self.models.get("prefill_attention")
        return isinstance(model, PrefillAttentionModel) and model.joins_decodes(head_dim, kv_dtype)

    @property
    def borrowed_from(self) -> str | None:
        """Return the name of the accelerator that lends its operator times; None if they are the accelerator's own."""
        return str(self.provenance["hardware"]) if self.transferred else None

    def source_block(self) -> dict[str, str | None]:
        """Return the name of the tables and the accelerator that lends them, under the keys of documents."""
        return {"bundle": self.name, "borrowed_from": self.borrowed_from}

    @property
    def unmasked_kernel(self) -> str | None:
        """Return the measured kernel of attention without a mask that engines prefer; None where none was measured."""
        model = self.models.get("noncausal_attention")
        return model.preferred_kernel if isinstance(model, NonCausalAttentionModel) else None

    @property
    def times_attention(self) -> bool:
        """Return whether attention was measured, of either stage or inside MLA blocks."""
        return bool(self.models.keys() & {"decode_attention", "prefill_attention", "mla"})

    @property
    def attention_writes_cache(self) -> bool:
        """Return whether the time of attention includes the kernel that writes new keys and values to the cache."""
        model = self.models.get("decode_attention")
        return isinstance(model, DecodeAttentionModel) and model.writes_cache

    @property
    def experts_are_chosen(self) -> bool:
        """Return whether the time of experts includes the kernel that chooses the experts of each token."""
        model = self.models.get("moe")
        return isinstance(model, GroupedGemmModel) and model.chooses_experts

    @property
    def uncalibrated(self) -> list[str]:
        """Return one line for every operator family without measured rows."""
        return [UncalibratedModel(f).notice for f in DEFAULTS if f not in self.models]

    def version_notice(self, engine: str, version: str) -> str | None:
        """Return a notice where the tables are of an older release of this engine, else None.

        Any older release counts for the user's own tables. Shipped tables may be USUAL_LAG minor releases behind, as is
        usual for published tables; every answer names their release anyway.
        """
        own, other = self.provenance.get("engine"), str(self.provenance.get("engine_version", ""))
        behind = version_in_minors(version) - version_in_minors(other)
        if own != engine.partition("-")[0] or not other or not behind > (USUAL_LAG if self.shipped else 0):
            return None
        return f"operator tables are from {own} {other}; the engine simulated is {version}"

    def notices_for(self, operators: list[Operator]) -> list[str]:
        """Return notices on families and dtypes of these operators that were not measured, or not well, on this one.

        Shipped tables state their errors in the accuracy pages; a user can only improve measurements of their own.
        """
        used = {op.family for op in operators}
        found = self._inexact(used)
        missing = sorted(used - self.models.keys()) if self.models else []
        if len(missing) == 1:
            found.append(UncalibratedModel(missing[0]).notice)
        elif missing:
            found.append(f"not measured on {self.accelerator.name}, roofline estimates instead: {', '.join(missing)}")
        for op in operators:
            model = self.models.get(op.family)
            line: str | None = None
            if isinstance(model, GemmModel) and isinstance(op, Gemm):
                line = model.notice(op, self.accelerator)
            elif isinstance(model, CollectiveModel) and isinstance(op, Collective):
                line = model.notice(op)
            elif isinstance(op, GroupedGemm) and op.block_rows:
                line = PADDED_NOTICE
            if line and line not in found:
                found.append(line)
        engine, version = (str(self.provenance.get(key)) for key in ("engine", "engine_version"))
        borrowed = sorted(self.lent.keys() & used - ({"moe"} if PADDED_NOTICE in found else set()))
        timed = self.provenance.get("rows", {})
        for lender in dict.fromkeys(self.lent[f] for f in borrowed):
            families = ", ".join(f for f in borrowed if self.lent[f] == lender)
            if all(f in timed for f in borrowed if self.lent[f] == lender):
                found.append(f"{families}: the operator times of {lender}, whose kernels the engine runs")
            else:
                found.append(f"{families}: not timed in {engine} {version}; the operator times of {lender} stand in")
        return found

    def _inexact(self, families: set[str]) -> list[str]:
        if self.shipped or self.transferred:
            return []
        large = {f: e for f in sorted(families & self.models.keys()) if (e := self.errors.get(f, 0.0)) > LARGE_ERROR}
        if not large:
            return []
        errors = ", ".join(f"{family} {percent(error)}" for family, error in large.items())
        better = f"`calibrate run --hw {self.accelerator.name} --budget 30m` measures more shapes"
        return [f"this profile is inexact: median error on shapes that it did not measure: {errors}; {better}"]


def user_folder() -> Path:
    """Return the folder of the user's own calibrations, with one folder per hardware name."""
    return yaml_files.user_folder("calibrations")


def shipped_folder() -> Path:
    """Return the folder of the calibrations that come with the package."""
    return yaml_files.DATA / "calibrations"


def bundle_folder(text: str) -> Path:
    """Return the folder or file of a bundle: `text` as a path, or else as a hardware name.

    The user's bundle of a hardware name comes before the shipped one.

    Raises:
        InputError: There is neither a path nor a bundle of that name.
    """
    if os.path.exists(text):
        return Path(text)
    for folder in (user_folder() / text.lower(), shipped_folder() / text.lower()):
        if (folder / JSON_NAME).is_file():  # the user's folder may hold host times alone
            return folder
    names = {f.parent.name for f in shipped_folder().glob("*/bundle.json")}
    raise InputError("no calibration bundle of this path or name", text, nearest_name(text, names))


def load_bundle(accelerator: Accelerator, path: Path | None = None, engine: EngineProfile | None = None) -> Bundle:
    """Load the bundle at `path`, or the best one for the accelerator and the engine.

    Without `path`, the accelerator's own calibration comes before one that stands in for it, and the user's before the
    shipped one. Of shipped tables, those of the engine's nearest version price its operators, of another board of the
    same chip if the engine was timed there alone (`_sibling`). Where there is none, the bundle is the roofline alone.

    Raises:
        InputError: A bundle is damaged, or belongs to hardware that may not stand in for the accelerator.
    """
    candidates = stand_ins(accelerator)
    if path is not None:
        facts, models = _read(path)
        if facts.hardware not in candidates:
            raise InputError(f"bundle is for other hardware than {accelerator.name}", facts.hardware, accelerator.name)
        return _assemble(accelerator, facts, models, candidates[facts.hardware])
    stored = _stored(accelerator)
    if stored is not None:
        folder, rule = _sibling(accelerator, stored[0], engine) or stored
        facts, models = _read(folder)
        if facts.hardware != folder.name:
            raise InputError(f"bundle in {folder} is for other hardware", facts.hardware, folder.name)
        found = _assemble(accelerator, facts, models, rule)
        own = folder.parent == user_folder()
        if own:
            return _with_shipped(found, folder.name, rule, engine)
        return _of_engine(replace(found, shipped=True), folder, rule, engine)
    notices = ["uncalibrated: roofline"]
    provenance = {"source": "roofline with default efficiencies"}
    return Bundle(f"{accelerator.name} (roofline)", accelerator, {}, load_power(), provenance, notices)


def calibration_source(accelerator: Accelerator) -> str | None:
    """Return the name of the hardware on which the operators of an accelerator were measured, or None for no hardware.

    It is another name than the accelerator's own if the calibration of a neighbour stands in for it.
    """
    stored = _stored(accelerator)
    return None if stored is None else stored[0].name


def _stored(accelerator: Accelerator) -> tuple[Path, str | None] | None:
    """Return the folder of the best bundle of an accelerator, and the notice of its transfer; None without a bundle."""
    for name, rule in stand_ins(accelerator).items():
        for folder in (user_folder(), shipped_folder()):
            if (folder / name / JSON_NAME).is_file():
                return folder / name, rule
    return None


def _sibling(accelerator: Accelerator, folder: Path, engine: EngineProfile | None) -> tuple[Path, str] | None:
    """Return the bundle of a board of the same chip on which the engine was timed, and the notice of its transfer.

    It is None if the shipped bundle in `folder` has tables of the engine, or no such board is known (`releases_like` of
    its hardware file). Kernels differ more between engines than between boards. On B200, GB200, H100 and H200, where
    SGLang and TensorRT-LLM were timed, tables of a sibling have a median error of 2 to 5 % over common operators, and
    those of vLLM on the same board 6 to 11 % (`tests/calibration/bundles/test_siblings.py`).
    """
    if engine is None or folder.parent != shipped_folder():
        return None
    sibling = accelerator.releases_like
    wanted = Release(engine.operator_tables, engine.version)
    if (
        sibling is None
        or nearest_release(_timed(folder), wanted)
        or not nearest_release(_timed(folder.parent / sibling), wanted)
    ):
        return None
    rule = f"no public operator tables of {engine.operator_tables} on {folder.name}"
    return (
        folder.parent / sibling,
        f"{rule}: operators measured on {sibling} applied to the roofline of {accelerator.name}",
    )


def _timed(folder: Path) -> list[Release]:
    """Return the engine releases with tables in the folder of an accelerator, first that of its bundle."""
    facts, _ = _read(folder)
    return [Release(facts.engine, facts.engine_version), *releases_in(folder)]


def _of_engine(found: Bundle, folder: Path, rule: str | None, engine: EngineProfile | None) -> Bundle:
    """Return a shipped bundle with the operators of the release nearest to the engine's version.

    What was not timed in that release has the times of the engine's other releases, the nearest first, and otherwise
    those of the bundle.
    """
    if engine is None:
        return found
    own = Release(str(found.provenance["engine"]), str(found.provenance["engine_version"]))
    releases = releases_in(folder)
    known = {own: folder, **{r: f for r, f in releases.items() if r.engine != own.engine}}
    nearest = nearest_release(known, Release(engine.operator_tables, engine.version))
    if nearest is None:
        note = f"no public operator tables of {engine.operator_tables} on {folder.name}: those of {own} stand in"
        return replace(found, notices=[*found.notices, note])
    if nearest == own:
        experts = Release(own.engine, engine.experts_release or own.version)
        if experts in releases:
            return _with_experts(found, experts, releases[experts], engine)
        tables = engine.cut_experts_tables.get(found.accelerator.architecture) if found.accelerator.has_hbm else None
        lender = None if tables is None else nearest_release(releases, Release(tables, engine.version))
        return found if lender is None else _with_cut_experts(found, lender, releases[lender])
    release = _assemble(found.accelerator, *_read(known[nearest]), rule)
    models, errors, lent = release.models, release.errors, dict[str, str]()
    others = [r for r in by_distance(known, nearest) if r != nearest and r.engine == nearest.engine]
    lending = [(r, _assemble(found.accelerator, *_read(known[r]), None)) for r in others]
    for version, other in (*lending, (own, found)):
        lent |= {f: str(version) for f in other.models if f not in models}
        errors = {**{f: e for f, e in other.errors.items() if f not in models}, **errors}
        models = joined(models, other.models)
    return replace(release, models=models, errors=errors, shipped=True, lent=lent)


def _with_experts(found: Bundle, release: Release, folder: Path, engine: EngineProfile) -> Bundle:
    """Return a bundle with the experts of another release of the same engine.

    If the engine computes block-scaled experts in padded blocks, neither release has its kernel. The newer one streams
    weights at the rate of the memory, where the older one is slowed down by tiles of 64 rows (Triton on Blackwell), so
    it prices the weights, and `padding_s` the rest.
    """
    older = _assemble(found.accelerator, *_read(folder), None)
    models = joined(older.models, found.models)
    experts, newer = models["moe"], found.models["moe"]
    if engine.expert_block_rows and isinstance(experts, GroupedGemmModel) and isinstance(newer, GroupedGemmModel):
        models["moe"] = replace(experts, streaming=newer)
    lent = dict.fromkeys(older.models, str(release))
    return replace(found, models=models, errors={**found.errors, **older.errors}, lent=lent)


def _with_cut_experts(found: Bundle, lender: Release, folder: Path) -> Bundle:
    """Return a bundle whose block-scaled experts on one rank, which has a part of each, are those of another engine."""
    other = _assemble(found.accelerator, *_read(folder), None)
    mine, theirs = found.models["moe"], other.models.get("moe")
    if not (isinstance(mine, GroupedGemmModel) and isinstance(theirs, GroupedGemmModel)):
        return found
    models = {**found.models, "moe": mine.with_cut_experts(theirs, CUT_EXPERTS)}
    return replace(found, models=models, lent={**found.lent, "moe": str(lender)})


def _with_shipped(own: Bundle, name: str, rule: str | None, engine: EngineProfile | None = None) -> Bundle:
    """Return a user's bundle with the families that it lacks (collectives, MLA) from the shipped bundle.

    Both bundles are of the same hardware.
    """
    folder = shipped_folder() / name
    if not (folder / JSON_NAME).is_file():
        return own
    shipped = _of_engine(_assemble(own.accelerator, *_read(folder), rule), folder, rule, engine)
    models, family = dict(own.models), NonCausalAttentionModel
    mine, theirs = (m.models.get("noncausal_attention") for m in (own, shipped))
    if isinstance(mine, family) and isinstance(theirs, family):  # torch's attention here, those of engines there
        models["noncausal_attention"] = mine.joined(theirs)
    lent = sorted(shipped.models.keys() - own.models.keys())
    note = f"{', '.join(lent)}: not measured here, from the shipped calibration ({shipped.name})"
    notices = [*own.notices, *([note] if lent else [])]
    errors = {**{f: e for f, e in shipped.errors.items() if f in lent}, **own.errors}
    return replace(own, models={**shipped.models, **models}, errors=errors, notices=notices)


def _read(path: Path) -> tuple[BundleFacts, Mapping[str, FamilyModel]]:
    """Return the facts and models of a bundle, which are read again only after either file has changed."""
    folder = path if path.is_dir() else path.parent
    files = [f.stat() for f in (folder / JSON_NAME, folder / ARRAYS_NAME) if f.is_file()]
    return _read_once(path, tuple((f.st_mtime, f.st_size) for f in files))


@lru_cache(maxsize=32)
def _read_once(
    path: Path,
    changed: object,  # noqa: ARG001 (the cache's key)
) -> tuple[BundleFacts, Mapping[str, FamilyModel]]:
    facts, arrays = read_bundle(path)
    models: dict[str, FamilyModel] = {}
    for family, record in facts.families.items():
        if family not in FAMILIES:
            raise InputError("bundle holds an unknown operator family", family, ", ".join(FAMILIES))
        own = {n.split("/", 1)[1]: a for n, a in arrays.items() if n.startswith(f"{family}/")}
        try:
            models[family] = FAMILIES[family].from_parts(record.facts, own)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise InputError(f"bundle for {facts.hardware} lacks a part of {family}", str(error)) from None
    return facts, models


def _assemble(
    accelerator: Accelerator, facts: BundleFacts, models: Mapping[str, FamilyModel], rule: str | None
) -> Bundle:
    errors: dict[str, float] = {}
    notices = [*([rule] if rule else []), *facts.notices]
    for family, record in facts.families.items():
        inside = [e.median_abs_rel_error for e in record.held_out if e.region in ("inside", "all")]
        if inside:
            errors[family] = inside[0]
    provenance = facts.model_dump(exclude={"families"}) | {
        "rows": {f: r.rows for f, r in facts.families.items()},
        "held_out": {f: [e.model_dump() for e in r.held_out] for f, r in facts.families.items()},
    }
    name = f"{facts.hardware} {facts.engine} {facts.engine_version}".strip()
    found = Bundle(name, accelerator, models, load_power(), provenance, notices, errors, rule is not None)
    own = accelerator if rule is None else parse_hardware(facts.hardware).accelerator
    return replace(found, measured_on=own) if own.name != accelerator.name and same_chip(own, accelerator) else found
