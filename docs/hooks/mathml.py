"""Turns the LaTeX of the docstrings into MathML at build time: no script, nothing fetched."""

import html
import re

from latex2mathml.converter import convert

_MATH = re.compile(
    r'<(span|div) class="arithmatex">\s*(?:\\\((.*?)\\\)|\\\[(.*?)\\\])\s*</\1>', re.DOTALL
)


def on_page_content(content: str, **_: object) -> str:
    def replace(match: re.Match) -> str:
        inline, display = match.group(2), match.group(3)
        latex = html.unescape(inline if inline is not None else display)
        return convert(latex, display="inline" if inline is not None else "block")

    return _MATH.sub(replace, content)
