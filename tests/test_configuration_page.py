"""The configuration page stands in docs/ as the schema and conf/ would write it today, and names every key."""

import importlib.util
from pathlib import Path
from types import ModuleType

from minirl.suggest import schema_keys

DOCS = Path(__file__).resolve().parents[1] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("configuration_page", DOCS / "configuration.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_schema_would_write() -> None:
    written = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert written == generator().page(), "run: make docs"


def test_the_page_names_every_key() -> None:
    page = generator().page()
    missing = [key for key in schema_keys() if f"`{key}`" not in page]
    assert missing == []
    assert len(schema_keys()) > 80
