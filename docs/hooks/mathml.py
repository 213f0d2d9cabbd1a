"""Turns the LaTeX of the docstrings into MathML at build time: no script, nothing fetched."""

import html
import re

from latex2mathml.converter import convert

_MATH = re.compile(
    r'(\(?)<(span|div) class="arithmatex">\s*(?:\\\((.*?)\\\)|\\\[(.*?)\\\])\s*</\2>([.,;:)]*)',
    re.DOTALL,
)
_NAMES = "log|ln|exp|sin|cos|sinh|cosh|tanh"
_THIN = '<mspace width="0.167em" />'
_TIGHT = 'stretchy="false" lspace="0" rspace="0"'
# What TeX does by itself: bars do not stretch, a slash has no room, the name of a function has some,
# and a minus behind a bracket, a comma or a relation is a sign.
_SPACING = [
    (r"<mo[^>]*>(&#x02016;|&#x0007C;)</mo>", rf"<mo {_TIGHT}>\1</mo>"),
    (r"<mo>&#x0002F;</mo>", f"<mo {_TIGHT}>&#x0002F;</mo>"),
    (r"<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>"),
    (
        r"((?:&#x00028;|&#x0002C;|&#x0003[CDE];|&#x02248;|&#x0226[45];)</mo>)<mo>&#x02212;</mo>",
        rf"\1<mo {_TIGHT}>&#x02212;</mo>",
    ),
    (r"<mo>(max|min)</mo>", r'<mo lspace="0" rspace="0.167em">\1</mo>'),
    (rf"(?<!<msub>)(<mi>(?:{_NAMES})</mi>)(?=<m(?!o)|<mo {_TIGHT})", rf"\1{_THIN}"),
    (rf"(<msub><mi>(?:{_NAMES})</mi>.*?</msub>)(?=<m(?!o))", rf"\1{_THIN}"),
    (rf"(</m(?:i|n|row|frac|sub|sup|over|sqrt)>)(<mi>(?:{_NAMES})</mi>)", rf"\1{_THIN}\2"),
]


def on_page_content(content: str, **_: object) -> str:
    def replace(match: re.Match) -> str:
        before, kind, inline, display, after = match.groups()
        mode = "inline" if kind == "span" else "block"
        mathml = convert(html.unescape(inline or display), display=mode)
        for pattern, replacement in _SPACING:
            mathml = re.sub(pattern, replacement, mathml)
        # No line begins with the full stop behind a formula.
        return f'<{kind} class="formula">{before}{mathml}{after}</{kind}>'

    return _MATH.sub(replace, content)
