"""Reports as one HTML page, out of a template of our own package. Whatever a page shows is escaped."""

from __future__ import annotations

from typing import Any

import jinja2


def page(package: str, template: str, **shown: Any) -> str:
    """`template` of the package's `templates` folder. Raises jinja2.UndefinedError for what it is not given."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**shown)
