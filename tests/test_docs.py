"""The documentation: it builds strictly, asks no other host for anything, its links hold, and its code runs."""

from __future__ import annotations

import functools
import html.parser
import http.server
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pandas as pd
import pytest
from pages import DOCS, NOT_RUN, ROOT, blocks, commands, run

import fastshapley
from fastshapley import cli

PAGES = [*sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "results"), ROOT / "CONTRIBUTING.md"]
GUIDES = DOCS / "guides"
GO_ON = ("check", "many-rows", "serve")  # guides that need the files of the guide on credit
ALONE = {
    "start": [DOCS / "start.md", DOCS / "when-not.md", DOCS / "how-it-works.md", DOCS / "index.md"],
    "guides": [GUIDES / f"{name}.md" for name in ("value-function", "from-kernel-explainer", "from-fastshap")],
    "tools": [GUIDES / "interoperation.md"],
    "images": [GUIDES / "images.md"],
    "api": sorted((DOCS / "api").glob("*.md")),
}
LOOKED_AT = ("index", "start", "how-it-works", "gallery", "guides/check", "api/explainer", "results/images")
LOADED = {("link", "href"), ("object", "data"), ("a", "ping")}  # beside every src and srcset
NO_RESOURCE = {"canonical", "next", "prev", "alternate", "edit"}  # kinds of <link> that nothing is loaded for


@dataclass
class Page(html.parser.HTMLParser):
    """What a built page has: ids, links that a reader may follow, and what a browser loads by itself."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        for name, value in given.items():
            if tag == "a" and name == "href":
                self.links.append(value)
            elif name == "src" or ((tag, name) in LOADED and given.get("rel") not in NO_RESOURCE):
                self.loaded.append(value)
            elif name == "srcset":
                self.loaded += [part.split()[0] for part in value.split(",")]
            elif name == "style":
                self.loaded += re.findall(r"url\(['\"]?([^'\")]+)", value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}, of the docs extra")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", os.fspath(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in ("http", "https", "ftp", "ws", "wss")


def test_nothing_is_loaded_from_another_host(site: Path, built: dict[Path, Page]) -> None:
    assert len(built) > 30
    loaded = {(path, address) for path, page in built.items() for address in page.loaded}
    assert len(loaded) > 100
    assert not [found for found in loaded if is_elsewhere(found[1])]
    for sheet in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)", sheet.read_text(encoding="utf-8"))
        assert not [address for address in addresses if is_elsewhere(address)], sheet


def test_links_and_anchors_hold(site: Path, built: dict[Path, Page]) -> None:
    broken = []
    for path, page in built.items():
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            if is_elsewhere(address) or parts.scheme in ("data", "mailto"):
                continue
            start = site if parts.path.startswith("/") else path.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            missing = parts.fragment and target in built and unquote(parts.fragment) not in built[target].ids
            if not target.is_file() or (missing and parts.fragment != "__top"):
                broken.append((path.relative_to(site), address))
    assert not broken


def test_every_public_name_has_its_place(built: dict[Path, Page]) -> None:
    ids = set().union(*(page.ids for path, page in built.items() if path.parent.name == "api"))
    assert set(fastshapley.__all__) - {"__version__"} <= {name.rsplit(".", 1)[-1] for name in ids}


def test_docstrings_become_lists_and_blocks(site: Path) -> None:
    text = (site / "api" / "explainer.html").read_text(encoding="utf-8")
    assert re.search(r"<li><strong>evaluation_budget</strong>: rows that", text)
    assert '<span class="gp">&gt;&gt;&gt; </span>' in text
    text = (site / "api" / "command-line.html").read_text(encoding="utf-8")
    assert re.findall(r'<h2 id="([a-z-]+)"', text)[:3] == ["fit", "explain", "report"]
    assert "fastshapley paper tabular [-h]" in text


def test_a_browser_asks_no_other_host(site: Path, browser: Any) -> None:
    """Pages with mathematics, code, pictures and the search; on a telephone nothing is wider than the screen."""
    handler = functools.partial(_Quiet, directory=os.fspath(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked: list[str] = []
    trouble: list[str] = []
    context = browser.new_context(viewport={"width": 400, "height": 800})
    try:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        for name in LOOKED_AT:
            page.goto(f"http://127.0.0.1:{server.server_port}/{name}.html", wait_until="networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
        page.click("label[for=__search]")
        page.locator("input.md-search__input").press_sequentially("drift")
        page.wait_for_selector(".md-search-result__item")
    finally:
        context.close()
        server.shutdown()
        server.server_close()
    hosts = {urlsplit(url).netloc for url in asked if not url.startswith(("data:", "blob:"))}
    assert hosts == {f"127.0.0.1:{server.server_port}"}
    assert not trouble


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("group", ALONE)
def test_code_of_pages(group: str, tmp_path: Path) -> None:
    if group == "tools":
        for package in ("shapiq", "captum", "mlflow"):
            pytest.importorskip(package)
    if group == "api":
        pytest.importorskip("captum", reason="needs the images extra")
        pytest.importorskip("onnxscript", reason="needs the onnx extra")
    run(ALONE[group], tmp_path)


def test_no_page_is_left_out() -> None:
    ran = {page for group in ALONE.values() for page in group} | {GUIDES / f"{name}.md" for name in GO_ON}
    assert {page for page in PAGES if blocks(page, "python")} <= ran | {GUIDES / "credit.md"}
    assert all(page.exists() for page in ran)
    excused = [block for page in PAGES for block in blocks(page, "python") if not block.runs]
    assert len(excused) <= 4
    assert all(re.search(rf'title="{NOT_RUN}: \w', block.options) for block in excused)


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the guide on credit was followed."""
    pytest.importorskip("pyarrow", reason="needs the bulk extra")
    folder = tmp_path_factory.mktemp("credit")
    assert "relative squared error" in run([GUIDES / "credit.md"], folder)
    assert (folder / "applicant.png").exists()
    return folder


@pytest.fixture
def followed(credit: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(credit, tmp_path / "credit"))


@pytest.mark.parametrize("name", [name for name in GO_ON if name != "serve"])
def test_code_of_pages_that_go_on(name: str, followed: Path) -> None:
    run([GUIDES / f"{name}.md"], followed)


def test_code_of_the_guide_on_serving(followed: Path) -> None:
    """Its server is started as it says, and asked by its client and by curl."""
    pytest.importorskip("onnxscript", reason="needs the onnx extra")
    pytest.importorskip("uvicorn", reason="needs the serve extra")
    from servers import serving

    said = commands(GUIDES / "serve.md")
    pd.read_parquet(followed / "applicants.parquet").head(20).to_csv(followed / "examples.csv", index=False)
    started = next(command for command in said if command.startswith("fastshapley serve"))
    words = [_found(word, followed) for word in shlex.split(started)[2:]]
    port = words.index("--port")
    with serving(*words[:port], *words[port + 2 :]) as server:
        printed = run([GUIDES / "serve.md"], followed, replacing=("http://127.0.0.1:8080", server.url))
        assert "(100, 9, 2) (100, 9, 2)" in printed
        asked = [command for command in said if command.startswith("curl ")]
        assert asked
        for command in asked if shutil.which("curl") else []:
            words = shlex.split(command.replace("http://127.0.0.1:8080", server.url))
            done = subprocess.run([*words, "--fail", "--silent"], capture_output=True, text=True, check=True)
            assert re.match(r'\{"(explanations|predictions)"', done.stdout)


def _found(word: str, folder: Path) -> str:
    return os.fspath(folder / word) if (folder / word).exists() else word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_exist(page: Path) -> None:
    """What is typed in a shell is understood by our command line, by make, or by pip with extras that there are."""
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for command in commands(page):
        words = shlex.split(command)
        if "fastshapley" in words:
            cli.parser().parse_args(words[words.index("fastshapley") + 1 :])
        elif words[0] == "make":
            assert set(words[1:]) <= set(targets), command
        elif words[0] == "pip":
            named = {extra for some in re.findall(r"\[(.*)\]", command) for extra in some.split(",")}
            assert named <= set(extras), command
        else:
            assert words[0] == "curl", command


def test_commands_that_do_not_exist_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nfastshapley serve a.fastshap --prot 80  # wrong\n```\n")
    words = shlex.split(commands(page)[0])
    assert words == ["fastshapley", "serve", "a.fastshap", "--prot", "80"]
    with pytest.raises(SystemExit):
        cli.main(words[1:])


def test_pictures_are_small() -> None:
    pictures = [*(DOCS / "pictures").glob("*.png"), DOCS / "results" / "demo" / "accuracy.png"]
    assert len(pictures) > 5
    assert max(path.stat().st_size for path in pictures) < 300_000


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {fastshapley.__version__}\n" in (ROOT / "CITATION.cff").read_text()
