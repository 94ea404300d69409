"""Configuration of the documentation site, which `make docs` builds with Sphinx into `build/docs`."""

import everlong

project = "Everlong"
author = "The Everlong authors"
copyright = "The Everlong authors, Apache-2.0"  # noqa: A001 - Sphinx's name
version = release = everlong.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "tools.site",
]
exclude_patterns = ["images"]

# Pages are plain Markdown, which GitHub shows too: no extended syntax, anchors as GitHub makes them.
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]

# Docstrings hold plain text with code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "Everlong"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#3d54c4", "color-brand-content": "#3d54c4"},
    "dark_css_variables": {"color-brand-primary": "#8ea2ff", "color-brand-content": "#8ea2ff"},
}
html_copy_source = False
html_show_sourcelink = False
html_favicon = "../everlong/admin/web/static/icon.svg"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
