"""Between Arrow and NumPy: what comes back is what went in, and pandas stays where it is."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from redrive.classification.arrow_numpy import integers, numbers, strings
from redrive.message import DeadLetter, Header
from redrive.staging.batch_files import Staging


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint32(), pa.int64()])
def test_numbers_are_those_of_the_array(kind: pa.DataType) -> None:
    whole = pa.array([5, None, 7, 8], kind)
    assert numbers(whole)[[0, 2, 3]].tolist() == [5, 7, 8]
    assert numbers(whole.slice(2)).tolist() == [7, 8]
    assert numbers(pa.array([], kind)).tolist() == []


def test_offsets_tell_the_lengths_of_texts() -> None:
    texts = pa.array(["ab", "", None, "\u00e9"])
    assert np.diff(numbers(texts, offsets=True)).tolist() == [2, 0, 0, 2]
    assert np.diff(numbers(texts.slice(3), offsets=True)).tolist() == [2]


def test_integers_and_strings_come_back() -> None:
    assert integers(np.array([1, 2, 3])).to_pylist() == [1, 2, 3]
    assert integers(np.array([1, 2, 3]), np.array([True, False, True])).to_pylist() == [1, None, 3]
    assert integers(np.zeros(0, np.int64)).to_pylist() == []
    values = ["a", None, "", "\u00e9\u65e5", "\0"]
    assert strings(values).to_pylist() == values
    assert strings(values).type == pa.string()
    assert strings([]).to_pylist() == []
    assert strings(["\ud800"]).to_pylist() == ["?"]


def test_a_worker_does_not_wait_for_pandas(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path))
    writer = staging.writer("b.parquet", batch_id=1, route="r", source="q", kind="dead_letter", broker="memory")
    writer.add([DeadLetter(str(n), b"{}", (Header("error", "String", f"HTTP 50{n}"),)) for n in range(4)], 1)
    writer.add([DeadLetter("silent", b'{"error": "in the body"}')], 1)
    writer.close()
    worker = f"""
import sys
from redrive.classification.executor import CaseSettings, Batch, write
asked = CaseSettings.by({{"message_key": "attribute:id", "order_key": "body:$.error"}})
found = write([Batch(1, {staging.uri("b.parquet")!r})], asked, {str(tmp_path / "out")!r})
print(found.num_rows, "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", worker], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "False"]
