"""`bunch.toml` as people write it: pasted into, with a byte order mark, with a slip; and the README's own example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.environ import ROOT
from config.errors import SettingsError
from config.settings import load_settings

SHIPPED = (ROOT / "bunch.toml").read_text()
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = {
    f"{page.relative_to(ROOT)}:{number}": found[1]
    for page in PAGES
    for number, found in enumerate(TOML.finditer(page.read_text(encoding="utf-8")), 1)
}
SNIPPET = re.search(r"\*\*2\. Name it\*\*.*?```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def written(tmp_path: Path):
    """`written(text)` is the path of a bunch.toml with it."""

    def write(text: str | bytes) -> str:
        path = tmp_path / "bunch.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def problem_of(config_file: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, config_file)
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize("where", ["end", "top", "alone", "before the first table", "in place of the last comment"])
def test_the_readmes_snippet_works_wherever_it_is_pasted(written, where: str) -> None:
    assert SNIPPET is not None
    snippet = SNIPPET[1]
    first = SHIPPED.index("\n[models.") + 1
    last = SHIPPED.index("# Your own")
    text = {
        "end": SHIPPED + snippet,
        "top": snippet + SHIPPED,
        "alone": snippet,
        "before the first table": SHIPPED[:first] + snippet + SHIPPED[first:],
        "in place of the last comment": SHIPPED[:last] + snippet,
    }[where]
    settings = load_settings({}, written(text))
    assert settings.models["words"].source == "my_model:WordCount"
    assert settings.default_model == ("words" if where == "alone" else "minilm")


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_every_bunch_toml_of_the_docs_is_accepted_as_it_stands(written, example: str) -> None:
    assert load_settings({"EMBED_TOKEN": "a token"}, written(example)).models


@pytest.mark.parametrize("page", ["one", "four", "many-models", "urls"])
def test_each_page_about_gpus_has_an_example(page: str) -> None:
    assert f"docs/gpus/{page}.md:1" in EXAMPLES


def test_a_default_below_a_table_is_the_default(written) -> None:
    text = '[models.a]\nsource = "a:B"\ndefault_model = "b"\n[models.b]\nsource = "a:B"\n'
    assert load_settings({}, written(text)).default_model == "b"


def test_two_defaults_are_told_apart_by_where_they_stand(written) -> None:
    problem = problem_of(written('default_model = "a"\n[models.a]\nsource = "a:B"\ndefault_model = "b"\n'))
    assert "[models.a] default_model" in problem
    assert "'a'" in problem
    assert "above the first [table]" in problem


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ('default_model = "a"\n\ndefault_model = "s3cret"\n', "default_model", 3),
        ('[server]\nservice_token = "x"\n[models.a]\nsource = "a:B"\n[server]\nhttp_port = 1\n', "[server]", 5),
        ('[models.a]\nsource = "a:B"\nsource = "s3cret:B"\n', "source", 3),
    ],
)
def test_what_is_there_twice_is_named_with_its_line(written, text: str, key: str, line: int) -> None:
    problem = problem_of(written(text))
    assert f"line {line}" in problem
    assert key in problem
    assert "defined twice" in problem
    assert "s3cret" not in problem


@pytest.mark.parametrize("text", ['[server]\njwt_secret = "s3cret\n', "[server]\njwt_secret = s3cret\n", "s3cret\n"])
def test_a_broken_line_is_named_without_its_value(written, text: str) -> None:
    problem = problem_of(written(text))
    assert "not valid TOML" in problem
    assert "line" in problem
    assert "s3cret" not in problem


def test_a_byte_order_mark_is_passed_over(written) -> None:
    assert load_settings({}, written(b"\xef\xbb\xbf" + SHIPPED.encode())).default_model == "minilm"


def test_another_encoding_is_named_as_such(written) -> None:
    assert "save it as UTF-8" in problem_of(written(SHIPPED.encode("utf-16")))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[server]\nhtpp_port = 1\n", "http_port"),
        ('[models.a]\nsource = "a:B"\nmax_batchsize = 2\n', "max_batch_size"),
        ("[severs]\nhttp_port = 1\n", "[server]"),
        ('[model.a]\nsource = "a:B"\n', "[models.<name>]"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_nearest(written, text: str, meant: str) -> None:
    problem = problem_of(written(text))
    assert meant in problem
    assert len(problem) < 250
