"""The documentation builds strictly, loads nothing from other hosts, has no broken links, and its code runs."""

from __future__ import annotations

import functools
import html.parser
import http.server
import os
import re
import runpy
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
from fastshapley import Report, cli

PAGES = [*sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "results"), ROOT / "CONTRIBUTING.md"]
GUIDES = DOCS / "guides"
CONTINUED = ("check", "many-rows", "serve")  # guides that need the files of the guide on credit
INDEPENDENT = {
    "start": [DOCS / "start.md", DOCS / "when-not.md", DOCS / "index.md"],
    "guides": [GUIDES / f"{name}.md" for name in ("value-function", "from-kernel-explainer", "from-fastshap")],
    "tools": [GUIDES / "interoperation.md"],
    "images": [GUIDES / "images.md"],
    "api": sorted((DOCS / "api").glob("*.md")),
}
OPENED = (  # pages with formulas, code, pictures and tables
    "index",
    "start",
    "how-it-works",
    "gallery",
    "guides/check",
    "api/explainer",
    "results/images",
)
LOADED = {("link", "href"), ("object", "data"), ("a", "ping")}  # in addition to every src and srcset
NO_RESOURCE = {"canonical", "next", "prev", "alternate", "edit"}  # kinds of <link> that a browser does not load

SAMPLE = '''
"""A module with one docstring of each style."""


def new(a: int, b: int) -> int:
    """Add two numbers.

    Parameters
    ----------
    a : int
        The first number.
    b : int
        The second number.

    Returns
    -------
    int
        The sum.

    Raises
    ------
    ValueError
        If the sum is too large.

    Examples
    --------
    >>> new(1, 1)
    2
    """
    return a + b


def old(a: int) -> int:
    """Adds one.

    a: the first number.

    >>> old(1)
    2
    """
    return a + 1
'''


@dataclass
class Page(html.parser.HTMLParser):
    """A built page: its ids, its links, and the addresses that a browser loads by itself."""

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
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def build(project: Path, site: Path, *python_path: Path) -> subprocess.CompletedProcess[str]:
    """Build a documentation project strictly into the folder ``site``."""
    for package in ("latex2mathml", "mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="needs the docs extra")
    paths = [*map(os.fspath, python_path), os.fspath(ROOT / "src")]
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", os.fspath(site)],
        cwd=project,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


def small_project(folder: Path, page: str) -> Path:
    """A documentation project of one page with the configuration and the hooks of this one."""
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(page, encoding="utf-8")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    text = text[: text.index("\nnav:")].replace("extra_css:\n  - assets/extra.css\n", "")
    for path in ("docs/_hooks.py", "docs/_docstrings.py"):
        text = text.replace(path, os.fspath(ROOT / path))
    (folder / "mkdocs.yml").write_text(text.replace("paths: [src]", "paths: [.]"), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    """The pages of the built site."""
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


def test_links_and_anchors_lead_somewhere(site: Path, built: dict[Path, Page]) -> None:
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


def test_every_public_name_is_documented(built: dict[Path, Page]) -> None:
    ids = set().union(*(page.ids for path, page in built.items() if path.parent.name == "api"))
    assert set(fastshapley.__all__) - {"__version__"} <= {name.rsplit(".", 1)[-1] for name in ids}


def test_public_names_are_documented_under_public_paths(built: dict[Path, Page]) -> None:
    """No API page shows a path through a private module."""
    public = {"baselines", "client", "datasets", "distributed", "errors", "estimators", "export", "interop"}
    public |= {"metrics", "players", "value_functions", *fastshapley.__all__}
    ids = set().union(*(page.ids for path, page in built.items() if path.parent.name == "api"))
    paths = {name for name in ids if name.startswith("fastshapley.")}
    assert len(paths) > 80
    assert {name.split(".")[1] for name in paths} <= public
    assert {
        "fastshapley.estimators.exact",
        "fastshapley.baselines.removal_curves",
        "fastshapley.export.Graph",
    } <= paths
    assert "fastshapley.estimators.exact.exact" not in paths


def test_docstrings_in_both_styles_become_lists_and_blocks(tmp_path: Path) -> None:
    project = small_project(tmp_path, "# API\n\n::: sample.new\n\n::: sample.old\n")
    (project / "sample.py").write_text(SAMPLE, encoding="utf-8")
    done = build(project, project / "site", project)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (project / "site" / "index.html").read_text(encoding="utf-8")
    new, old = (
        text[text.index('id="sample.new"') : text.index('id="sample.old"')],
        text[text.index('id="sample.old"') :],
    )
    for heading in ("Parameters:", "Returns:", "Raises:", "Examples:"):
        assert f'<span class="doc-section-title">{heading}</span>' in new
    assert "----" not in re.sub(r"<[^>]*>", "", new)
    assert new.count('<span class="gp">&gt;&gt;&gt; </span>') == 1
    assert "<li><strong>a</strong>: the first number.</li>" in old
    assert old.count('<span class="gp">&gt;&gt;&gt; </span>') == 1


def test_numpydoc_that_names_an_unknown_parameter_stops_the_build(tmp_path: Path) -> None:
    project = small_project(tmp_path, "# API\n\n::: sample.new\n")
    (project / "sample.py").write_text(SAMPLE.replace("b : int", "c : int"), encoding="utf-8")
    done = build(project, project / "site", project)
    assert done.returncode != 0
    assert "'c' does not appear in the function signature" in done.stdout + done.stderr


def test_the_help_of_every_command_is_on_its_page(site: Path) -> None:
    text = (site / "api" / "command-line.html").read_text(encoding="utf-8")
    assert re.findall(r'<h2 id="([a-z-]+)"', text)[:3] == ["fit", "explain", "report"]
    assert "fastshapley paper tabular [-h]" in text


def test_formulas_become_mathml(tmp_path: Path, site: Path) -> None:
    project = small_project(tmp_path, "# Sum\n\nHere $x_1$, and `$HOME`.\n\n$$\n\\frac{1}{\\mathbf{2}}\n$$\n")
    done = build(project, project / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    text = (project / "site" / "index.html").read_text(encoding="utf-8")
    assert "<msub><mi>x</mi><mn>1</mn></msub>" in text
    assert re.search(r'<math [^>]*display="block"><mrow><mfrac>.*class="bold">2<', text)
    assert "<code>$HOME</code>" in text
    assert "arithmatex" not in text
    text = (site / "how-it-works.html").read_text(encoding="utf-8")
    assert text.count('display="block"') > 8
    assert "\\frac" not in text


def test_a_wrong_formula_stops_the_build(tmp_path: Path) -> None:
    project = small_project(tmp_path, "# Wrong\n\nThis is $\\frac{1}$.\n")
    done = build(project, project / "site")
    assert done.returncode != 0
    assert "index.md: the formula" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "latex", [r"\unknown{2}", "{a", "a}", "x^", "x_1_2", r"\left( a", r"\binom{a}{b}^2", "a & b"]
)
def test_wrong_formulas_raise(latex: str) -> None:
    pytest.importorskip("latex2mathml", reason="needs the docs extra")
    hooks = runpy.run_path(os.fspath(DOCS / "_hooks.py"))
    assert hooks["mathml"]("x^2").startswith("<math")
    with pytest.raises(ValueError, match="the formula"):
        hooks["mathml"](latex)


def test_every_line_of_the_report_is_documented() -> None:
    """Every label that a report prints is in the table in start.md."""
    explained = {
        line.split("`")[1] for line in (DOCS / "start.md").read_text().splitlines() if line.startswith("| `")
    }
    report = Report(
        rows=40,
        truth="an estimate",
        truth_error=0.1,
        l1=1.0,
        l2=1.0,
        l2_interval=0.1,
        relative_squared_error=0.1,
        cosine=0.9,
        sign_agreement=0.9,
        fidelity=0.9,
        fidelity_by_size={"0 %": 0.0},
        game_error=0.1,
        mean_squared_value=1.0,
        sampling_error=0.1,
    )
    assert {label.strip() for label in report.lines()} <= explained


def test_pages_in_a_browser_contact_no_other_host_and_fit_a_small_screen(site: Path, browser: Any) -> None:
    """The search works on a small screen, too."""
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
        for name in OPENED:
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
    """A file server that does not log."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("group", INDEPENDENT)
def test_code_of_independent_pages_runs(group: str, tmp_path: Path) -> None:
    if group == "tools":
        for package in ("shapiq", "captum", "mlflow"):
            pytest.importorskip(package)
    if group == "api":
        pytest.importorskip("captum", reason="needs the images extra")
        pytest.importorskip("onnxscript", reason="needs the onnx extra")
    run(INDEPENDENT[group], tmp_path)


def test_every_page_with_code_is_run() -> None:
    ran = {page for group in INDEPENDENT.values() for page in group} | {GUIDES / f"{name}.md" for name in CONTINUED}
    assert {page for page in PAGES if blocks(page, "python")} <= ran | {GUIDES / "credit.md"}
    assert all(page.exists() for page in ran)
    excused = [block for page in PAGES for block in blocks(page, "python") if not block.runs]
    assert len(excused) <= 4
    assert all(re.search(rf'title="{NOT_RUN}: \w', block.options) for block in excused)


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the files that the guide on credit writes."""
    pytest.importorskip("pyarrow", reason="needs the bulk extra")
    folder = tmp_path_factory.mktemp("credit")
    assert "relative squared error" in run([GUIDES / "credit.md"], folder)
    assert (folder / "applicant.png").exists()
    return folder


@pytest.fixture
def followed(credit: Path, tmp_path: Path) -> Path:
    """A copy of the folder with the files of the guide on credit."""
    return Path(shutil.copytree(credit, tmp_path / "credit"))


@pytest.mark.parametrize("name", [name for name in CONTINUED if name != "serve"])
def test_code_of_continued_guides_runs(name: str, followed: Path) -> None:
    run([GUIDES / f"{name}.md"], followed)


def test_code_of_the_guide_on_serving_runs(followed: Path) -> None:
    """The server is started as the guide says, and answers requests from the client and from curl."""
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
def test_shell_commands_are_valid(page: Path) -> None:
    """Shell commands are valid for our command line, for make, for pip with extras that exist, or run a script."""
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
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), command
        else:
            assert words[0] == "curl", command


def test_a_command_with_a_wrong_option_is_detected(tmp_path: Path) -> None:
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


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {fastshapley.__version__}\n" in (ROOT / "CITATION.cff").read_text()
