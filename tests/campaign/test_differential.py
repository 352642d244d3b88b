"""Random models from ONNX's schemas on all backends: a part of the campaign, and what it found.

``python -m differential`` in this folder runs more of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("narrowpass_reference")
pytest.importorskip("narrowpass_xnn_cpu")

from differential.__main__ import Campaign
from differential.builder import random_case
from differential.cases import Case
from differential.doubts import EVALUATOR
from differential.oracles import PHASE, judge, run_evaluator
from differential.recipes import RECIPES, WITHOUT
from differential.shrink import shrunk
from differential.slices import OPERATORS, findings_of, run_slice
from differential.subjects import available

pytestmark = pytest.mark.once

FOLDER = Path(__file__).parent
CORPUS = sorted((FOLDER / "corpus").glob("*.case"))
SEEDS = int(os.environ.get("NARROWPASS_CAMPAIGN_CASES", "20000"))
"""How many cases the long form tries."""


def test_every_operator_is_drawn_or_left_out_for_a_reason():
    schemas = onnx.defs.get_all_schemas()
    names = {
        (s.domain, s.name)
        for s in schemas
        if s.domain != "ai.onnx.preview.training" and not s.deprecated
    }
    assert names <= RECIPES.keys() | WITHOUT.keys()
    assert not RECIPES.keys() & WITHOUT.keys()
    assert all(WITHOUT.values())
    assert len(RECIPES) >= 190


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_was_found_stays_repaired(path):
    case = Case.load(path)
    assert judge(case.model, case.feeds, case.slack).candidates
    always, turns = available()
    for subject in (*always, *turns):
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


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_random_models(first, tmp_path):
    """Each in a process of its own, as onnxruntime divides by sizes of 0 now and then."""
    campaign = Campaign(tmp_path, float("inf"))
    campaign.slice(first, 250, "")
    assert campaign.counts["cases with oracles that agree"] > 100
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


def a_case(fits):
    return next(c for c in (random_case(s, OPERATORS) for s in range(3000)) if c and fits(c))


def test_a_case_is_read_as_it_was_written(tmp_path):
    case = a_case(lambda c: len(c.feeds) > 1 and c.sizes)
    again = Case.load(case.save(tmp_path, "x", {"kind": "wrong"}))
    assert again.model == case.model
    assert again.sizes == case.sizes
    assert list(again.feeds) == list(case.feeds)
    for name, array in case.feeds.items():
        assert again.feeds[name].dtype == array.dtype
        assert again.feeds[name].tobytes() == array.tobytes()


def test_seeds_fix_cases():
    one, other = (random_case(17, OPERATORS) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.model == other.model


def test_shrinking_leaves_the_node_that_fails():
    case = a_case(lambda c: len(c.model.graph.node) > 3)
    last = case.model.graph.node[-1].op_type

    def fails(smaller):
        kinds = [node.op_type for node in smaller.model.graph.node]
        return last in kinds and run_evaluator(smaller.model, smaller.feeds) is not None

    if not fails(case):
        pytest.skip("the evaluator does not run it")
    small = shrunk(case, fails)
    assert len(small.model.graph.node) < len(case.model.graph.node)
    assert sum(a.size for a in small.feeds.values()) <= sum(a.size for a in case.feeds.values())


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
    assert texts
    assert all("Sin" in text for text in texts)


def test_doubts_have_reasons():
    assert all(reason and limit for limit, reason in EVALUATOR.values())
