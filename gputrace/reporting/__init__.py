"""A summary as one page of HTML, for a browser that need not be online.

`charts` says what is drawn, `overview` which picture of a trace, `page` fills the template in: page.html, with page.css
and page.js. It reads no file.
"""
