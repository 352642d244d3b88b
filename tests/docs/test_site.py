"""The site builds without a warning, without the network, and has what the code offers."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import narrowpass
import narrowpass_testing

pytest.importorskip("sphinx", reason="the documentation's tools are not installed")
pytest.importorskip("myst_parser")
pytest.importorskip("furo")


BUILD = """
import socket, sys

def no_network(*_):
    raise SystemExit("the documentation build uses the network")

socket.socket.connect = no_network
from sphinx.cmd.build import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory, docs):
    """Build the site, where tox wants it, and return its folder."""
    wanted = os.environ.get("NARROWPASS_DOCS_HTML")
    out = Path(wanted) if wanted else tmp_path_factory.mktemp("site")
    shutil.rmtree(out, ignore_errors=True)
    # A process of its own: pytest turns warnings into errors, also those of Sphinx's extensions.
    command = [sys.executable, "-c", BUILD, "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, str(docs), str(out)], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def inventory(site):
    """The names of objects that other sites may link to."""
    data = (site / "objects.inv").read_bytes()
    return {
        line.split()[0] for line in zlib.decompress(data.split(b"\n", 4)[4]).decode().splitlines()
    }


def test_public_names_are_objects_of_the_site(inventory):
    missing = [name for name in narrowpass.__all__ if f"narrowpass.{name}" not in inventory]
    assert not missing


def test_hooks_are_objects_of_the_site(inventory):
    assert "narrowpass.framework.plugins.hookspecs.narrowpass_passes" in inventory


def test_testing_is_in_the_site(inventory):
    missing = [n for n in narrowpass_testing.__all__ if f"narrowpass_testing.{n}" not in inventory]
    assert not missing


def test_no_page_asks_for_anything_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert 'src="http' not in text, page
        assert '<link rel="stylesheet" href="http' not in text, page


@pytest.fixture(scope="module")
def search(site):
    """Return a function that returns the pages that have all words of a text, as the search does.

    The words are stemmed, and the frequent ones left out, by Sphinx; the index is the site's.
    """
    from sphinx.search.en import SearchEnglish

    text = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    language = SearchEnglish({})

    def pages(word):
        """The pages that have a word, in titles or below them: a number where there is one."""
        stem = language.stem(word)
        found = [index[part].get(stem, []) for part in ("terms", "titleterms")]
        return {n for each in found for n in ([each] if isinstance(each, int) else each)}

    def find(query):
        words = [word.lower() for word in language.split(query)]
        hits = [pages(word) for word in words if language.word_filter(word)]
        return {index["docnames"][number] for number in set.intersection(*hits)}

    return find


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("GEMM", "reference/kernels"),
        ("GEMV", "reference/kernels"),
        ("microkernel", "reference/glossary"),
        ("requantization", "explanation/xnn-cpu"),
        ("KV cache", "howto/generate"),
        ("epilogue", "explanation/xnn-cpu"),
        ("im2col", "explanation/fast-path/int8"),
        ("calibration", "howto/calibration"),
        ("per-channel", "explanation/symmetric-int8"),
        ("weight-only", "explanation/int4"),
        ("dynamic quantization", "explanation/symmetric-int8"),
        ("post-training quantization", "explanation/quantization-accuracy"),
        ("PTQ", "reference/glossary"),
        ("QAT", "reference/glossary"),
        ("AMX", "explanation/fast-path/amx"),
        ("VNNI", "explanation/xnn-cpu"),
        ("first token", "explanation/fast-path/decoders"),
        ("time to first token", "reference/glossary"),
        ("speculative decoding", "howto/generate"),
        ("operator fusion", "explanation/architecture"),
        ("thread pool", "explanation/xnn-cpu"),
        ("execution provider", "howto/onnxruntime"),
    ],
)
def test_search_finds_the_words_of_the_field(search, query, page):
    assert page in search(query)


def test_search_finds_no_word_that_is_not_there(search):
    assert not search("xylophone")
