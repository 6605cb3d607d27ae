"""A recording as one self-contained HTML page: `utracefs report --html`.

| module | |
|---|---|
| _columns | the records as columns, compiled |
| writing | the columns, packed into the page |
| page/ | sources of the page: page.html, page.css, and the scripts in the order of `writing.SCRIPTS` |
"""

from utracefs.html.writing import MAX_RECORDS, write_html

__all__ = ["MAX_RECORDS", "write_html"]
