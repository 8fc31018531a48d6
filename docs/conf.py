"""The documentation site: `make docs`. Its pages are the Markdown files as they lie in the repository."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any, get_type_hints

from sphinx.application import Sphinx

import nystromformer
import nystromformer.attention
import nystromformer.interop.drop_in
import nystromformer.nn
import nystromformer.objectives
from nystromformer.runs import objective, record, settings

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = os.environ.get("DOCS_REPOSITORY", "")
"""An address such as https://github.com/OWNER/NAME: pages get edit links, and links to code lead there."""

project = "Nyströmformer"
author = "the Nyströmformer developers"
version = release = nystromformer.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "README"
include_patterns = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md", "examples/*.md", "examples/*.ipynb"),
    *("data-preprocessing/README.md", "data-preprocessing/*/README.md", "experiments/lra/README.md"),
    *("experiments/studies/README.md", "data/*/README.md", "glue/README.md", "wikihop/README.md"),
]
exclude_patterns = [".*", "runs", "site"]  # else all of .venv is searched
CONTENTS = {
    "Using it": ["docs/your-own-data", "docs/library", "docs/at-home", "docs/commands"],
    "Examples": ["examples/attention", "examples/documents", "examples/README"],
    "Choosing": [
        *("docs/choosing", "docs/results", "docs/results/encoders", "docs/results/pretrained", "docs/results/long"),
        *("docs/results/abilities", "docs/results/speed", "docs/results/models", "docs/results/transformers"),
        *("docs/results/arena", "docs/results/serving-and-tables", "docs/comparing", "docs/recipe", "docs/objectives"),
    ],
    "Training": ["docs/checkpoints", "docs/fine-tuning", "docs/documents", "docs/transactions", "docs/exchange"],
    "Running": ["docs/serving", "docs/containers", "docs/distributed", "docs/scale", "docs/kernels"],
    "Data": [
        *("data-preprocessing/README", "data-preprocessing/docstrings/README", "experiments/lra/README", "glue/README"),
        *("wikihop/README", "data/imdb/README", "data/documents/README", "data/transactions/README"),
    ],
    "Reference": ["docs/api"],
    "Developing": [
        *("docs/design", "docs/adding", "CONTRIBUTING", "CHANGELOG", "experiments/studies/README"),
    ],
}
"""The pages in the order of the navigation. That all are here is checked by Sphinx: a page in no list is a warning."""

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
napoleon_use_rtype = False
nitpicky = True
# Names of other projects; with a network their inventories lead there.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|Tensor|nn|transformers|numpy|np|NDArray|pydantic|tokenizers|collections|pathlib|typing)\b.*"),
]

nitpick_ignore = [
    ("py:exc", "UserError"),
    # Types of this project that public signatures show and nobody makes.
    *(
        ("py:class", f"nystromformer.{name}")
        for name in (
            *("config.attention.base.AttentionConfig", "config.attention.methods.NystromConfig"),
            *("config.schema.ExperimentConfig", "errors.UserError", "training.device.Device"),
            *("tasks.finetuning.examples.Examples", "tasks.documents.recipe.Recipe", "files.writing.FileStamp"),
            *("model.finetuning.ClassificationModel", "model.build.PretrainingModel", "attention.mask.Order"),
            *("attention.landmarks.Segments", "attention.landmarks.Ranges", "attention.global_tokens.GlobalTokens"),
            "attention.registry.Own",
        )
    ),
]

if os.environ.get("DOCS_INVENTORIES"):  # where there is a network
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "transformers": ("https://huggingface.co/docs/transformers/main/en", None),
    }

html_theme = "pydata_sphinx_theme"
html_title = "Nyströmformer"
html_theme_options: dict[str, Any] = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "navbar_center": [],
    # The page's own Markdown is what the edit link shows.
    "secondary_sidebar_items": ["page-toc", "edit-this-page"],
}
html_sidebars = {"**": ["globaltoc.html"]}
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]
if REPOSITORY:
    owner, name = REPOSITORY.rstrip("/").split("/")[-2:]
    html_context = {"github_user": owner, "github_repo": name, "github_version": "main", "doc_path": ""}
    html_theme_options |= {"use_edit_page_button": True, "github_url": REPOSITORY}


# Types in signatures lead to the name by which a class is imported, not to the file that it is written in.
for _package in (
    *(nystromformer.attention, nystromformer.nn, nystromformer.interop.drop_in, nystromformer.objectives),
):
    for _name in _package.__all__:
        getattr(_package, _name).__module__ = _package.__name__
# Of `Annotated` types the type alone: bounds are in the text.
for _module in (record, settings, objective):
    for _class in vars(_module).values():
        if dataclasses.is_dataclass(_class):
            for _holder in (_class, _class.__init__):
                _holder.__annotations__ = {**get_type_hints(_holder)}

nystromformer.Predictor.__init__.__annotations__ = get_type_hints(nystromformer.Predictor.__init__)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the first page the navigation, which would only be noise where the Markdown is read as it is."""
    if page != root_doc:
        return
    for caption, pages in CONTENTS.items():
        lines = "\n".join(f"/{each}" for each in pages)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:titlesonly:\n:caption: {caption}\n\n{lines}\n```\n"


def lead_to_code(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to folders and to files that are no page: to the repository, or, where it has no address, plain text."""
    folder = (ROOT / page).parent

    def replaced(match: re.Match[str]) -> str:
        text, target = match[1], match[2].partition("#")[0]
        place = (folder / target).resolve()
        if "://" in target or not target or not place.exists():
            return match[0]
        is_page = place.suffix in (".md", ".ipynb") and not place.is_relative_to(ROOT / "results")
        if is_page or place.suffix in (".png", ".svg"):
            return match[0]
        return f"[{text}]({REPOSITORY}/tree/main/{place.relative_to(ROOT)})" if REPOSITORY else text

    source[0] = re.sub(r"(?<!!)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)\s]+)\)", replaced, source[0])


_kept: dict[str, list[str]] = {}


def keep_attribute(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep an attribute's docstring from napoleon, which takes what is before a colon for a type."""
    if what in ("attribute", "property", "data"):
        _kept[name] = list(lines)


def give_attribute(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Give it back."""
    if what in ("attribute", "property", "data"):
        lines[:] = _kept[name]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", keep_attribute, priority=400)
    app.connect("autodoc-process-docstring", give_attribute, priority=600)
    app.connect("source-read", lead_to_code)
    app.connect("source-read", add_contents)
