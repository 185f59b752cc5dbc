"""Evaluates a model in several formats: makes texts and needles, has them computed, scores and records each result.

A result is in the model's manifest before it is handed on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from kvops import __version__
from kvops.models import store
from kvops.models.chat import load_chat_template
from kvops.models.checkpoint import open_checkpoint
from kvops.models.evaluation import Evaluation
from kvops.models.sources import Progress
from kvops.models.store import StoredModel
from kvops.models.tokenizer import load_tokenizer
from kvops.node.evaluation import Assignment, Combination, Measured
from kvops.quality import figures
from kvops.quality.corpus import Corpus, shipped_corpus, windows
from kvops.quality.needles import ANSWER_TOKENS, questions
from kvops.quality.process import measure


class Result(msgspec.Struct, frozen=True):
    evaluation: Evaluation
    seconds: float
    recorded: bool
    """False for the float32 reference, and for a model that is read in place."""


def evaluate(
    model: StoredModel, combinations: Sequence[Combination], tokens: int, progress: Progress
) -> Iterator[Result]:
    """The float32 reference, then each combination; none given: all that this machine computes.

    Raises a ModelError, ConfigError, NodeStartError or EngineDied.
    """
    if model.manifest is not None:
        progress.step("checking the files", model.manifest.size)
        store.check_unchanged(model.manifest, progress.advance)
    progress.step("preparing texts and needles", None)
    examination = Examination(model, tokens)
    yield from examination.results(combinations, progress)


class Examination:
    """The same texts and needles for every combination."""

    def __init__(self, model: StoredModel, tokens: int) -> None:
        context = open_checkpoint(model.path).spec.max_context_length
        self._model = model
        self._tokenizer = load_tokenizer(model.path)
        self._corpus: Corpus = shipped_corpus()
        self._windows = windows(self._corpus, self._tokenizer, tokens, context)
        self._questions = questions(self._tokenizer, load_chat_template(model.path), context)

    def results(self, combinations: Sequence[Combination], progress: Progress) -> Iterator[Result]:
        reference: Measured | None = None
        for measured in measure(self._assignment(combinations), progress):
            reference = reference or measured
            evaluation = self._evaluation(measured, reference)
            yield Result(evaluation, measured.seconds, self._record(evaluation))

    def _assignment(self, combinations: Sequence[Combination]) -> Assignment:
        manifest = self._model.manifest
        return Assignment(
            model_path=str(self._model.path),
            combinations=tuple(combinations),
            evaluations=() if manifest is None else store.evaluations_of(manifest),
            windows=self._windows,
            prompts=tuple(question.token_ids for question in self._questions),
            answer_tokens=ANSWER_TOKENS,
        )

    def _evaluation(self, measured: Measured, reference: Measured) -> Evaluation:
        cost = figures.cost(measured.losses, reference.losses)
        manifest = self._model.manifest
        return Evaluation(
            weights=measured.weights,
            kv=measured.kv,
            device=measured.device,
            perplexity=cost.perplexity,
            reference_perplexity=cost.reference,
            margin=cost.margin,
            top1_agreement=figures.agreement(measured.likeliest, reference.likeliest),
            tokens=len(measured.losses),
            needles=len(self._questions),
            recalled=self._recalled(measured),
            reference_recalled=self._recalled(reference),
            corpus=self._corpus.name,
            corpus_sha256=self._corpus.sha256,
            files_sha256="" if manifest is None else manifest.digest,
            evaluated_at=time.time(),
            kvops_version=__version__,
        )

    def _recalled(self, measured: Measured) -> int:
        asked = zip(self._questions, measured.answers, strict=True)
        return sum(one.found_in(self._tokenizer.decode(answer)) for one, answer in asked)

    def _record(self, evaluation: Evaluation) -> bool:
        if self._model.manifest is None or evaluation.verdict == "exact":
            return False
        store.record(self._model.manifest, evaluation)
        return True
