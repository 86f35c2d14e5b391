"""The learned model: the cause of a text that no rule knows, from its words.

A linear model over hashed words, pairs of words and pieces of words, with calibrated probabilities; small
enough to be shipped (``cause_model.npz``), trained by :func:`train` from ``cause_texts.jsonl``, texts written
for it, and at a user's site also from what the ledger has seen (``redrive learn``). It is asked only where the
rules leave a text open or hold it weakly, and it abstains where it is not sure. Where it leans to a cause that
is sent again by itself and gives causes for a person more than :data:`DOUBT`, the likeliest of the latter is
the answer. docs/adr/0009-learned-causes.md tells how much it helps.
"""

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redrive.classification.causes import AUTOMATIC, NEED_PERSON, Cause
from redrive.classification.rules import Finding, without_frames, without_requests

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

#: The share that causes for a person may have where one that is sent again by itself is the answer.
DOUBT: Final = 0.3
#: Below this probability nothing is answered.
ENOUGH: Final = 0.22
#: What the rule of an answer of the model begins with.
GUESS: Final = "learned: "
#: Only so much evidence may overrule a rule that knows no more than that something was raised.
OVERRULES: Final = 0.5
SHIPPED: Final = "cause_model.npz"
#: Below ``$REDRIVE_HOME``: what ``redrive learn`` writes, used instead of ours where it is there.
LEARNED: Final = "var/learned_causes.npz"

_BUCKETS: Final = 1 << 15
_MAX_WORDS: Final = 120
_LOOKED_AT: Final = 1000
_WORD: Final = re.compile(r"[^\W\d_]{2,24}")
_HUMPS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|[_-]", re.ASCII)
_PIECES: Final = (3, 4, 5)
#: What the model tells apart: every cause but "unknown", which it says by abstaining.
CAUSES: Final = tuple(cause for cause in Cause if cause is not Cause.UNCLASSIFIED)


class Example(NamedTuple):
    """A text to learn from. More than one cause: one of them, nobody knows which."""

    text: str  # masked
    causes: frozenset[Cause]
    weight: float = 1.0


class Model:
    """Weights of every bucket for every cause, and how to ask them."""

    def __init__(self, weights: "Floats", rarity: "Floats", bias: "Floats", sharpness: float) -> None:
        self._weights = weights  # buckets x causes
        self._rarity = rarity  # per bucket; 0 where nothing was learned
        self._bias = bias
        self._sharpness = sharpness  # calibration: what scores are multiplied with

    def probabilities(self, text: str) -> dict[Cause, float]:
        """How likely each cause is for a masked text; the sum is 1."""
        import numpy as np  # noqa: PLC0415

        scores = np.array(self._bias)
        for buckets in _features(_words(text)):
            row = self._row(buckets)
            if row is not None:
                scores += row[1] @ self._weights[row[0]]
        return dict(zip(CAUSES, _softmax(scores * self._sharpness).tolist(), strict=True))

    def find(self, text: str) -> Finding | None:
        """The cause of a masked text and the words that speak for it most; None where the model abstains."""
        text = without_requests(text)
        likely = self.probabilities(text)
        cause = max(likely, key=lambda cause: likely[cause])
        if cause in AUTOMATIC and sum(likely[other] for other in NEED_PERSON) > DOUBT:
            cause = max(NEED_PERSON, key=lambda cause: (likely[cause], cause))
        if likely[cause] < ENOUGH:
            return None
        words = self._evidence(text, cause)
        return Finding(cause, GUESS + ", ".join(words), likely[cause]) if words else None

    def to_bytes(self) -> bytes:
        """The model as a file: eight bits per weight."""
        import numpy as np  # noqa: PLC0415

        scale = np.abs(self._weights).max() / 127 or 1.0
        file = io.BytesIO()
        np.savez_compressed(
            file,
            weights=np.rint(self._weights / scale).astype(np.int8),
            rarity=self._rarity.astype(np.float16),
            bias=self._bias,
            numbers=np.array([scale, self._sharpness], dtype=np.float64),
            causes=np.array([cause.value for cause in CAUSES]),
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Model":
        """What :meth:`to_bytes` wrote. Raises ValueError where it was written for other causes or is no model."""
        import numpy as np  # noqa: PLC0415

        try:
            file = np.load(io.BytesIO(data), allow_pickle=False)
            scale, sharpness = file["numbers"].tolist()
            if file["causes"].tolist() != [cause.value for cause in CAUSES] or len(file["weights"]) != _BUCKETS:
                raise ValueError("the model was written by another version: run `redrive learn` again")
            weights = file["weights"].astype(np.float32) * np.float32(scale)
            return cls(weights, file["rarity"].astype(np.float32), file["bias"], sharpness)
        except (OSError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"not a model: {error}") from error

    def _row(self, buckets: list[int]) -> "tuple[NDArray[np.int64], Floats] | None":
        import numpy as np  # noqa: PLC0415

        index = np.array(buckets, dtype=np.int64)
        values = self._rarity[index]
        length = float(np.sqrt(values @ values))
        return (index, values / length) if length else None

    def _evidence(self, text: str, cause: Cause) -> list[str]:
        """Up to three words of ``text`` that speak for ``cause``, the strongest first."""
        column = CAUSES.index(cause)
        points: dict[str, float] = {}
        for word in dict.fromkeys(_words(text)):
            for buckets in (_buckets("w", [word]), list(_pieces(word))):
                row = self._row(buckets)
                if row is not None:
                    points[word] = points.get(word, 0.0) + float(row[1] @ self._weights[row[0], column])
        best = sorted(points, key=lambda word: (-points[word], word))[:3]
        return [word for word in best if points[word] > 0]


def _softmax(scores: "Floats") -> "Floats":
    import numpy as np  # noqa: PLC0415

    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]


def _words(text: str) -> list[str]:
    bare = without_frames(text)
    if len(bare) > 2 * _LOOKED_AT:
        bare = bare[:_LOOKED_AT] + "\n" + bare[-_LOOKED_AT:]
    return _WORD.findall(_HUMPS.sub(" ", bare).lower())[:_MAX_WORDS]


def _features(words: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
    """The buckets of words, of pairs of words, and of pieces of words; each once."""
    pairs = {f"{first} {second}" for first, second in zip(["^", *words], words, strict=False)}
    return _buckets("w", set(words)), _buckets("p", pairs), sorted({*chain.from_iterable(map(_pieces, set(words)))})


@lru_cache(maxsize=1 << 14)
def _pieces(word: str) -> tuple[int, ...]:
    """The buckets of pieces of a word: texts are many, words are few."""
    padded = f" {word} "
    pieces = {padded[at : at + length] for length in _PIECES for at in range(max(1, len(padded) + 1 - length))}
    return tuple(_buckets("c", pieces))


def _buckets(kind: str, features: Iterable[str]) -> list[int]:
    return sorted({zlib.crc32(f"{kind}{feature}".encode()) % _BUCKETS for feature in features})


# --- which model --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def shipped() -> Model | None:
    """Our model; None where the machine that classifies has no numpy, as a bare Spark image has none."""
    try:
        return Model.from_bytes((resources.files("redrive.classification") / SHIPPED).read_bytes())
    except ImportError:
        return None


def of_site(home: Path) -> Model | None:
    """What the site below ``home`` has learned; None where it has not. Raises ValueError as ``from_bytes`` does."""
    path = home / LEARNED
    return Model.from_bytes(path.read_bytes()) if path.is_file() else None


def shipped_texts() -> Iterator[Example]:
    """The texts that were written for the model."""
    from redrive.classification.grouping import mask  # noqa: PLC0415

    lines = (resources.files("redrive.classification") / "cause_texts.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines:
        entry = json.loads(line)
        yield Example(mask(entry["text"]), frozenset({Cause(entry["cause"])}))


def main() -> int:
    """Train the shipped model anew from the shipped texts: after a change of either, or of a feature."""
    path = Path(__file__).with_name(SHIPPED)
    path.write_bytes(train(list(shipped_texts())).to_bytes())
    print(f"{path}: {path.stat().st_size} bytes")  # noqa: T201
    return 0


# --- learning -----------------------------------------------------------------------------------------------

_EPOCHS: Final = 30
_BATCH: Final = 32
_STEP: Final = 0.5
_DECAY: Final = 2e-5
_FOLDS: Final = 4


def train(examples: Sequence[Example], *, seed: int = 7) -> Model:
    """A model of ``examples``, calibrated on folds held back; the same input gives the same model.

    Takes about a second per thousand texts and fold. An example with several causes counts for those of them
    that the model finds likely without it.
    """
    import numpy as np  # noqa: PLC0415

    certain = [example for example in examples if len(example.causes) == 1]
    vague = [example for example in examples if len(example.causes) > 1]
    rows = [_features(_words(example.text)) for example in certain]
    targets = np.array([CAUSES.index(next(iter(example.causes))) for example in certain])
    weights = np.array([example.weight for example in certain], dtype=np.float32)
    fold = np.random.default_rng(seed).integers(_FOLDS, size=len(certain))
    scores = np.zeros((len(certain), len(CAUSES)), dtype=np.float32)
    for held_back in range(_FOLDS):
        inside = np.flatnonzero(fold != held_back)
        part = _fit([rows[n] for n in inside.tolist()], _one_hot(targets[inside]), weights[inside], seed)
        for n in np.flatnonzero(fold == held_back).tolist():
            scores[n] = _scores(part, rows[n])
    sharpness = _calibrated(scores, targets)
    full = _fit(rows, _one_hot(targets), weights, seed)
    if vague:
        first = Model(full[0], full[1], full[2], sharpness)
        soft = np.zeros((len(vague), len(CAUSES)), dtype=np.float32)
        for n, example in enumerate(vague):
            likely = first.probabilities(example.text)
            for cause in example.causes:
                soft[n, CAUSES.index(cause)] = likely[cause] + 1e-6
        soft /= soft.sum(axis=1, keepdims=True)
        full = _fit(
            rows + [_features(_words(example.text)) for example in vague],
            np.concatenate([_one_hot(targets), soft]),
            np.concatenate([weights, np.array([example.weight for example in vague], dtype=np.float32)]),
            seed,
        )
    return Model(full[0], full[1], full[2], sharpness)


def _one_hot(targets: "NDArray[np.int64]") -> "Floats":
    import numpy as np  # noqa: PLC0415

    return np.eye(len(CAUSES), dtype=np.float32)[targets]


def _fit(
    rows: Sequence[tuple[list[int], list[int], list[int]]], targets: "Floats", weights: "Floats", seed: int
) -> "tuple[Floats, Floats, Floats]":
    """(weights, rarity, bias) by AdaGrad on cross-entropy."""
    import numpy as np  # noqa: PLC0415

    seen = np.zeros(_BUCKETS, dtype=np.float32)
    for blocks in rows:
        for block in blocks:
            seen[block] += 1
    rarity = np.where(seen > 0, np.log((1 + len(rows)) / (1 + seen)) + 1, 0).astype(np.float32)
    sparse = []
    for blocks in rows:
        index = np.array([bucket for block in blocks for bucket in block], dtype=np.int64)
        values = np.concatenate(
            [rarity[block] / max(float(np.sqrt(rarity[block] @ rarity[block])), 1e-9) for block in blocks if block]
            or [np.zeros(0, dtype=np.float32)]
        )
        sparse.append((index, values))
    weight = np.zeros((_BUCKETS, len(CAUSES)), dtype=np.float32)
    squares = np.full((_BUCKETS, len(CAUSES)), 1e-4, dtype=np.float32)
    bias = np.zeros(len(CAUSES), dtype=np.float32)
    chance = np.random.default_rng(seed)
    for _ in range(_EPOCHS):
        for batch in np.array_split(chance.permutation(len(rows)), max(1, len(rows) // _BATCH)):
            at = np.concatenate([sparse[n][0] for n in batch])
            values = np.concatenate([sparse[n][1] for n in batch])
            starts = np.cumsum([0, *(len(sparse[n][0]) for n in batch)])
            contributions = values[:, None] * weight[at]
            sums = np.concatenate([np.zeros((1, len(CAUSES)), np.float32), np.cumsum(contributions, axis=0)])
            error = _softmax(sums[starts[1:]] - sums[starts[:-1]] + bias) - targets[batch]
            error *= weights[batch][:, None] / len(batch)
            unique, place = np.unique(at, return_inverse=True)
            gradient = np.zeros((len(unique), len(CAUSES)), dtype=np.float32)
            np.add.at(gradient, place, values[:, None] * np.repeat(error, np.diff(starts), axis=0))
            gradient += _DECAY * weight[unique]
            squares[unique] += gradient * gradient
            weight[unique] -= _STEP * gradient / np.sqrt(squares[unique])
            bias -= 0.05 * error.sum(axis=0)
    return weight, rarity, bias


def _scores(fitted: "tuple[Floats, Floats, Floats]", row: tuple[list[int], list[int], list[int]]) -> "Floats":
    import numpy as np  # noqa: PLC0415

    weight, rarity, bias = fitted
    scores = np.array(bias)
    for block in row:
        values = rarity[block]
        length = float(np.sqrt(values @ values))
        if length:
            scores += (values / length) @ weight[block]
    return scores


def _calibrated(scores: "Floats", targets: "NDArray[np.int64]") -> float:
    """The factor on scores under which what was held back is likeliest."""
    import numpy as np  # noqa: PLC0415

    def surprise(factor: float) -> float:
        likely = _softmax(scores * factor)[np.arange(len(targets)), targets]
        return float(-np.log(np.maximum(likely, 1e-9)).mean())

    return min((0.1 * n for n in range(1, 41)), key=surprise)


def measure(model: Model, examples: Iterable[Example]) -> dict[str, Any]:
    """How often ``model`` answers, is right, and answers boldly where the truth is for a person."""
    total = answered = right = unsafe = 0
    for example in examples:
        total += 1
        found = model.find(example.text)
        if found is not None:
            answered += 1
            right += found.cause in example.causes
            unsafe += found.cause in AUTOMATIC and example.causes <= NEED_PERSON
    return {"texts": total, "answered": answered, "right": right, "unsafe": unsafe}


if __name__ == "__main__":
    main()
