"""A recording as one self-contained HTML page: `utracefs report --html`.

| module | |
|---|---|
| _columns | the records as columns, compiled |
| writing | the columns, packed into the page |
| page/ | sources of the page: page.html, page.css, and the scripts in the order of `writing.SCRIPTS` |

The scripts are plain, without a build. They iterate over typed arrays in slices of 8 ms and draw bins, not
records. Records beyond the page's limit are only counted: by event, task and bin, in a dict whose bins double
in width when it is full.
"""

from utracefs.html.writing import MAX_RECORDS, write_html

__all__ = ["MAX_RECORDS", "write_html"]
