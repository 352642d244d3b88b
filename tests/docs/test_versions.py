"""Versions of the documentation stand beside each other, and pages of each list them all."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org")


def git(*words, cwd):
    done = subprocess.run([*GIT, *words], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path):
    """A clone, whose origin has no branch of documentation."""
    git("init", "--quiet", "--bare", "origin", cwd=tmp_path)
    git("clone", "--quiet", "origin", "clone", cwd=tmp_path)
    return tmp_path / "clone"


@pytest.fixture
def publish(repository, tmp_path, docs):
    """Return a function that publishes a page of some text for a tag or branch, and pushes it."""
    script = docs.parent / "tools" / "publish_docs.py"

    def run(ref, text, check=True):
        built = tmp_path / "built"
        shutil.rmtree(built, ignore_errors=True)
        (built / "_static").mkdir(parents=True)
        (built / "index.html").write_text(text, "utf-8")
        return subprocess.run(
            [sys.executable, script, built, ref, "--push"],
            cwd=repository,
            check=check,
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def published(tmp_path):
    """Return a function that reads a file of the branch as it was pushed."""
    return lambda name: git("show", f"gh-pages:{name}", cwd=tmp_path / "origin")


def test_releases_stay_and_the_newest_is_first(publish, published):
    for ref in ("main", "v0.9.0", "v0.10.0", "v0.9.1"):
        publish(ref, f"text of {ref}")
    listed = json.loads(published("versions.json"))
    assert [entry["version"] for entry in listed] == ["0.10", "0.9", "main"]
    assert [entry["preferred"] for entry in listed] == [True, False, False]
    assert published("0.10/index.html") == "text of v0.10.0"
    assert published("0.9/index.html") == "text of v0.9.1"
    assert "url=0.10/" in published("index.html")


def test_a_version_that_was_published_from_elsewhere_stays(publish, published, repository):
    publish("v0.1.0", "first")
    git("branch", "-D", "gh-pages", cwd=repository)
    publish("main", "second")
    assert published("0.1/index.html") == "first"
    assert published("main/index.html") == "second"


@pytest.mark.parametrize("ref", ["v0.1.0rc1", "v0.1", "feature/x", "../x"])
def test_other_names_are_refused(publish, ref):
    done = publish(ref, "text", check=False)
    assert done.returncode == 1
    assert "is neither a release" in done.stderr


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, *_):
        pass


def test_pages_list_the_versions_beside_them(tmp_path, docs):
    """In a browser: the page of the newer version was not there when the older one was built."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    listed = [
        {"name": name, "version": name, "url": f"{name}/", "preferred": name == "0.2"}
        for name in ("0.2", "0.1")
    ]
    (tmp_path / "versions.json").write_text(json.dumps(listed), "utf-8")
    page = tmp_path / "0.1" / "howto" / "page.html"
    page.parent.mkdir(parents=True)
    sidebar = (docs / "_templates" / "versions.html").read_text("utf-8")
    root = "{{ pathto('', resource=True) or './' }}"
    assert root in sidebar
    script = (docs / "_static" / "versions.js").read_text("utf-8")
    page.write_text(f"{sidebar.replace(root, '../')}<script>{script}</script>", "utf-8")
    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = "--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server"
        options += f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"
        url = f"http://127.0.0.1:{server.server_port}"
        done = subprocess.run(
            [browser, *options, "--dump-dom", f"{url}/0.1/howto/page.html"],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        server.shutdown()
    assert f'<option value="{url}/0.2/">0.2</option>' in done.stdout
    assert f'<option value="{url}/0.1/">0.1</option>' in done.stdout
    assert '<div class="sidebar-tree versions">' in done.stdout
