"""How results look in a notebook: what `print` says, with a picture where one helps."""

import base64
import html
import io
from collections.abc import Callable
from typing import Any

_DPI = 72  # small pictures: a notebook keeps every one of them


def shown_in_notebook(result: Any, picture: Callable[[], Any] | None = None) -> str:
    """`str(result)` as HTML, above a picture: a function that draws it, called only here.

    What cannot be drawn is said alone.
    """
    said = f"<pre style='line-height: 1.25'>{html.escape(str(result))}</pre>"
    if picture is None:
        return said
    try:
        drawn = io.BytesIO()
        picture().savefig(drawn, format="png", dpi=_DPI)
    except Exception:  # a notebook shows a result whatever becomes of its picture
        return said
    data = base64.b64encode(drawn.getvalue()).decode()
    title = html.escape(str(result).splitlines()[0], quote=True)
    return f"{said}<img alt='{title}' src='data:image/png;base64,{data}'/>"
