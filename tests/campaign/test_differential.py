"""Random models from ONNX's schemas on all backends: a part of the campaign, and what it found.

``python -m differential`` in this folder runs more of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("narrowpass_reference")
pytest.importorskip("narrowpass_xnn_cpu")

from differential.__main__ import Campaign, levels
from differential.slices import OPERATORS, findings_of, run_slice
from differential.subjects import available
from subjects_kit import check_runs

from narrowpass_testing.random_models import PHASE, Case, judge

FOLDER = Path(__file__).parent
CORPUS = sorted((FOLDER / "corpus").glob("*.case"))
SEEDS = int(os.environ.get("NARROWPASS_CAMPAIGN_CASES", "20000"))
"""How many cases the long form tries."""


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_was_found_stays_repaired(path):
    case = Case.load(path)
    assert judge(case.model, case.feeds, case.slack).candidates
    always, turns = available()
    for subject in (None, *always, *turns):
        assert findings_of(case, subject) == []


def complain(folder: Path) -> list[str]:
    """Return the new findings in a folder of results."""
    texts = []
    for path in folder.glob("*.json"):
        for entry in json.loads(path.read_text())["found"]:
            if not entry["known"]:
                texts.append(f"seed {entry['seed']}: {entry['kind']} {entry['subject']}: ")
                texts[-1] += f"{entry['operators']} {entry['message'][:200]}"
    return texts


@pytest.mark.parametrize(("level", "first", "count"), [(0, 0, 200), (-1, 2000, 50)])
def test_random_models(level, first, count, tmp_path):
    """At the processor's own level and at the lowest one; `test_many_random_models` has all.

    Each slice is in a process of its own.
    """
    campaign, own = Campaign(tmp_path, float("inf")), level == 0
    campaign.slice(first, count, levels()[:2][level])
    if own:
        check_runs(campaign.counts)
    assert campaign.counts["cases with oracles that agree"] > count // 3
    assert [entry for entry in campaign.found if not entry["known"]] == []


@pytest.mark.long
def test_many_random_models(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "differential", "--cases", str(SEEDS), "--seed", "100000"),
            *("--jobs", str(os.cpu_count() or 1), "--out", str(tmp_path)),
        ],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_result_is_found(tmp_path, monkeypatch):
    """With a kernel that is wrong on purpose, the campaign fails."""
    from narrowpass_reference.program import ReferenceProgram

    right = ReferenceProgram.run

    def wrong(self, *args, **kwargs):
        outputs = right(self, *args, **kwargs)
        return {name: value[..., ::-1] * 3 + 1 for name, value in outputs.items()}

    monkeypatch.setattr(ReferenceProgram, "run", wrong)
    monkeypatch.setattr(PHASE, "descriptor", None)
    first = OPERATORS.index(("", "Sin"))
    for seed in range(first, first + 5 * len(OPERATORS), len(OPERATORS)):
        run_slice(seed, 1, tmp_path, tmp_path / "state")
    texts = [text for text in complain(tmp_path) if "reference" in text]
    # All outputs are wrong, so that shrinking may leave any node of a case.
    assert any("['Sin']" in text for text in texts)
