"""A summary for others to read: as one page of HTML, and on the page of a job of GitHub Actions.

`charts` says what is drawn, `overview` which picture of a trace, `page` fills the template in: page.html, with page.css
and page.js. `github` knows the job's page and annotations. It reads no file.
"""
